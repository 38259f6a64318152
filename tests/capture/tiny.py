"""Small models whose kernels can be counted by hand. Imported by the process that predicts them."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(self.second(F.relu(self.first(x))), dim=-1)


def mlp() -> nn.Module:
    return Mlp()


def rows() -> torch.Tensor:
    return torch.ones(16, 64)


def wrong() -> torch.Tensor:
    return torch.ones(16, 63)


def rows_and_labels() -> tuple[torch.Tensor, torch.Tensor]:
    return rows(), torch.zeros(16, dtype=torch.int64)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.nll_loss(model(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def conv() -> nn.Module:
    layers = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    return layers.to(torch.bfloat16)


def images() -> torch.Tensor:
    return torch.ones(4, 8, 16, 16, dtype=torch.bfloat16)


def images_channels_last() -> torch.Tensor:
    return images().to(memory_format=torch.channels_last)


class Attention(nn.Module):
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        out: torch.Tensor = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out


def heads(dtype: torch.dtype, masked: bool) -> tuple[torch.Tensor, ...]:
    qkv = tuple(torch.ones(2, 4, 128, 64, dtype=dtype) for _ in range(3))
    return (*qkv, torch.ones(128, 128, dtype=torch.bool)) if masked else qkv


class Autocast(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return F.softmax(self.second(F.relu(self.first(x))), dim=-1)


class Reads(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.first(x)
        if y.amax().item() > 0:
            y = F.relu(y)
        return y


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.table(ids)
        return rows[mask.bool()]


def mask() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(4), torch.tensor([1, 1, 1, 0])


class Numpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return torch.from_numpy(y.detach().cpu().numpy())


def line_of(text: str) -> int:
    """The line of this file that holds a text first."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


class RmsNorm(nn.Module):
    """Ops that are one kernel on CUDA and several on a backend without that kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mish(F.rms_norm(self.first(x), (64,), self.weight, 1e-6))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, batch_first=True, dtype=torch.bfloat16)


def sequences() -> torch.Tensor:
    return torch.ones(2, 16, 64, dtype=torch.bfloat16)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(64, 32, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)[0]
        return out


def long_sequences() -> torch.Tensor:
    return torch.ones(2, 50, 64)


def clipped_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = model(batch).float().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), fused=True)


class LargeNumpy(Numpy):
    """Over 4 GB of weights that are never touched."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2**25, 40)
