"""Minimal models, each with a fused twin, on which rules are shown live."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ConvNorm(nn.Module):
    def __init__(self, *, shared: bool = False, keep: bool = False) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.shared, self.keep = shared, keep

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        z: Tensor = self.norm(y)
        if self.shared:
            z = self.conv(z)
        return z + y if self.keep else z


class Folded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self, *, joined: bool = False) -> None:
        super().__init__()
        self.fc, self.act, self.joined = nn.Linear(16, 32), nn.ReLU(), joined

    def forward(self, x: Tensor) -> Tensor:
        if self.joined:
            return torch._addmm_activation(self.fc.bias, x, self.fc.weight.t())
        return self.act(self.fc(x))  # type: ignore[no-any-return]


class HandNorm(nn.Module):
    """RMSNorm or LayerNorm by hand; ``mode`` says which, ``library`` uses the op."""

    def __init__(self, mode: str, *, residual: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(16)), nn.Parameter(torch.zeros(16))
        self.mode, self.residual = mode, residual

    def forward(self, x: Tensor, y: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if self.residual:
            x = x + y
        h = self.norm(x)
        return (h, x) if self.residual else h

    def norm(self, x: Tensor) -> Tensor:
        if self.mode == "rms":
            h = x.float()
            h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * h.to(x.dtype)
        if self.mode == "layer":
            mean = x.mean(-1, keepdim=True)
            var = (x - mean).pow(2).mean(-1, keepdim=True)
            return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias
        if self.mode == "variance":
            return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
        if self.mode == "deviation":
            mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
            return self.weight * (x - mean) / (std + 1e-6) + self.bias
        return F.layer_norm(x, (16,), self.weight, self.bias)


class GroupNormSilu(nn.Module):
    def __init__(self, *, silu: bool) -> None:
        super().__init__()
        self.norm, self.silu = nn.GroupNorm(2, 8), silu

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return F.silu(y) if self.silu else y


class Gelu(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.fc, self.mode = nn.Linear(16, 16), mode

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        if self.mode == "erf":
            return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))
        if self.mode == "tanh":
            return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))
        if self.mode == "silu":
            return x * torch.sigmoid(x)
        if self.mode == "quick":
            return x * torch.sigmoid(1.702 * x)
        return F.gelu(x)


class SwiGlu(nn.Module):
    def __init__(self, *, gated: bool = True) -> None:
        super().__init__()
        self.gate, self.up, self.gated = nn.Linear(16, 32), nn.Linear(16, 32), gated

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return F.silu(self.gate(x))
        return F.silu(self.gate(x)) * self.up(x)  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, *, fused: bool = False, weights: bool = False) -> None:
        super().__init__()
        self.qkv, self.fused, self.weights = nn.Linear(16, 48), fused, weights

    def forward(self, x: Tensor, mask: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        q, k, v = (t.view(2, 8, 2, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(8) + mask, dim=-1)
        return (weights @ v, weights) if self.weights else weights @ v


class Rotary(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.q, self.k, self.mode = nn.Linear(16, 16), nn.Linear(16, 16), mode

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k = self.q(x), self.k(x)
        if self.mode == "none":
            return torch.cat((q, k), dim=-1)
        return self.rotate(q, cos, sin) @ self.rotate(k, cos, sin).transpose(-2, -1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x1, x2 = x.chunk(2, dim=-1)
        if self.mode == "half":
            return x * torch.cat((cos, cos), -1) + torch.cat((-x2, x1), dim=-1) * torch.cat((sin, sin), -1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class DropoutAdd(nn.Module):
    def __init__(self, *, drop: bool) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(16, 16), drop

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return x + F.dropout(y, 0.1, training=self.training and self.drop)


class Loss(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.mode == "gather":
            return -torch.log_softmax(logits, -1).gather(1, target[:, None]).mean()
        if self.mode == "log":
            return F.nll_loss(torch.log(torch.softmax(logits, -1)), target)
        return F.cross_entropy(logits, target)


class Casts(nn.Module):
    def __init__(self, *, back: bool) -> None:
        super().__init__()
        self.fc, self.back = nn.Linear(16, 16).to(torch.bfloat16), back

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        y = torch.tanh(y.float()).to(torch.bfloat16) if self.back else torch.tanh(y)
        return self.fc(y)  # type: ignore[no-any-return]


class Qkv(nn.Module):
    def __init__(self, *, merged: bool) -> None:
        super().__init__()
        self.merged = merged
        self.qkv = nn.Linear(16, 48)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1) if self.merged else (self.q(x), self.k(x), self.v(x))
        return F.scaled_dot_product_attention(q, k, v)


class Branches(nn.Module):
    def __init__(self, *, merged: bool, sizes: tuple[int, ...] = (3, 3, 3)) -> None:
        super().__init__()
        count = 1 if merged else len(sizes)
        self.convs = nn.ModuleList(nn.Conv2d(3, 4, s, padding=s // 2) for s in sizes[:count])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.convs[0](x)
        for conv in list(self.convs)[1:]:
            y = y + conv(x)
        return y


class Experts(nn.Module):
    def __init__(self, *, batched: bool) -> None:
        super().__init__()
        self.weights, self.batched = nn.Parameter(torch.randn(6, 16, 16)), batched

    def forward(self, x: Tensor) -> Tensor:
        if self.batched:
            return torch.bmm(x, self.weights)
        return torch.stack([x[i] @ self.weights[i] for i in range(6)])


class Branching(nn.Module):
    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.reads = reads

    def forward(self, x: Tensor) -> Tensor:
        if self.reads:
            return x * 2 if bool(x.sum() > 0) else x
        return torch.where(x.sum() > 0, x * 2, x)


class Act(nn.Module):
    def __init__(self, *, inplace: bool = False, twice: bool = False) -> None:
        super().__init__()
        self.conv, self.act, self.twice = nn.Conv2d(8, 8, 1), nn.ReLU(inplace=inplace), twice

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        z: Tensor = self.act(y)
        return z + y if self.twice else z


class Permuted(nn.Module):
    """Two convolutions with a permutation to channels-last and back between them, or without."""

    def __init__(self, *, converts: bool) -> None:
        super().__init__()
        self.a, self.b, self.converts = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), converts

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        if self.converts:
            y = torch.sin(y.contiguous(memory_format=torch.channels_last)).contiguous()
        return self.b(y)  # type: ignore[no-any-return]


class Heads(nn.Module):
    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.fc, self.copies = nn.Linear(16, 16), copies

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x).view(2, 8, 2, 8).transpose(1, 2)
        y = y.contiguous() if self.copies else y
        return torch.tanh(y)


class Growing(nn.Module):
    """Joins six parts, one by one or once."""

    def __init__(self, *, once: bool) -> None:
        super().__init__()
        self.once = once

    def forward(self, x: Tensor) -> Tensor:
        parts = [torch.sin(part) for part in x.chunk(6, dim=-1)]
        if self.once:
            return torch.cat(parts, dim=-1)
        out = parts[0]
        for part in parts[1:]:
            out = torch.cat([out, part], dim=-1)
        return out
