"""Models that can and cannot be captured, as a user would write them, with what the pre-flight must say of each."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        return self.second(F.relu(self.first(x)))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.drop(F.relu(self.norm(self.conv(x)))).mean((2, 3)))


class Attention(nn.Module):
    """Written-out attention with a mask made on the input's device and positions from a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        scores = (q @ k.transpose(-1, -2) * self.scale).masked_fill(~mask, float("-inf"))
        return {"out": scores.softmax(-1) @ v, "scores": scores}


class LazyCache(nn.Module):
    """Builds its table in the first call only, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        if self.table is None or self.table.shape[0] < x.shape[-1]:
            self.table = torch.arange(x.shape[-1]).to(x.device)
        return x * self.table[: x.shape[-1]]


class BufferState(nn.Module):
    """Keeps its state in a buffer, written in place: a graph does that too."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Any:
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean


class NumberIntoMask(nn.Module):
    """A Python number written through a mask is a masked_fill."""

    def forward(self, x: Tensor) -> Any:
        y = x * 2
        y[x < 0] = 0.0
        return y


class OneHot(nn.Module):
    """Reads its classes back on a CPU and not on CUDA."""

    def forward(self, x: Tensor) -> Any:
        return F.one_hot(x.argmax(-1), 8).float()


class Item(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * x.max().item()


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            return x * 2
        return x - 1


class Nonzero(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x.flatten()[torch.nonzero(x.flatten() > 0).squeeze(-1)].sum()


class MaskIndex(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x[x > 0].sum()


class TensorIntoMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fill = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        y = x * 2
        y[x < 0] = self.fill
        return y


class CpuRead(nn.Module):
    def forward(self, x: Tensor) -> Any:
        top = x.max().cpu()
        return x / top.to(x.device)


class ToCpu(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x + x.detach().to("cpu").mean()


class Numpy(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * float(np.asarray(x.detach()).mean())


class Tolist(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * len(x.flatten().tolist())


class PythonData(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * torch.tensor([2.0], device=x.device)


class CpuFactory(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x + torch.arange(x.shape[-1]).to(x)


class ListIndex(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x[:, [0, 2]]


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return x + 1


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Any:
        y = x * 2
        self.seen.append(y)
        return y


class ReplacedBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


class PythonRandom(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * random.random()


class WritesInput(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x.mul_(2) + 1


class Hooked(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_hook(lambda module, args, out: out * 2)


class Outcome:
    """Not a pytree: its tensors cannot be found."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class OpaqueOutput(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return Outcome(x * 2)


class RepeatInterleave(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.repeat_interleave(x[:, 0], (x[:, 1] > 0).long() + 1).sum()


class OneHotOfUnknownSize(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return F.one_hot(x.argmax(-1)).sum()


class AllClose(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x if torch.allclose(x, x) else -x


class Decomposes(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.linalg.svdvals(x)


class Multinomial(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.multinomial(x.softmax(-1), 1)


class Body(nn.Module):
    """A sound body of layers behind a head that reads back: the body alone can be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)])
        self.head = Item()

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def _rows() -> Tensor:
    return torch.randn(4, 8)


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    make: Callable[[], Tensor] = _rows
    says: str = ""
    """A part of the first reason; empty where it can be captured."""
    line: str = ""
    """What stands on the line that is named."""

    @property
    def name(self) -> str:
        return getattr(self.build, "__name__", "case")


CAPTURABLE = (
    Case(Mlp),
    Case(ConvNet, lambda: torch.randn(2, 3, 8, 8)),
    Case(Attention, lambda: torch.randn(2, 5, 8)),
    Case(LazyCache),
    Case(BufferState),
    Case(NumberIntoMask),
    Case(OneHot),
    Case(Multinomial),
)
NOT_CAPTURABLE = (
    Case(Item, says="reads a value back to the CPU (.item())", line=".item()"),
    Case(Branch, says="uses a tensor as a condition", line="if x.sum()"),
    Case(Nonzero, says="finds non-zero positions", line="torch.nonzero"),
    Case(MaskIndex, says="boolean mask", line="x[x > 0]"),
    Case(TensorIntoMask, says="boolean mask", line="y[x < 0]"),
    Case(CpuRead, says=".cpu()", line=".cpu()"),
    Case(ToCpu, says="copies to the CPU", line='.to("cpu")'),
    Case(Numpy, says="reads a value back to the CPU", line="np.asarray"),
    Case(Tolist, says=".tolist()", line=".tolist()"),
    Case(PythonData, says="builds a tensor from Python data", line="torch.tensor"),
    Case(CpuFactory, says="torch.arange without device", line="torch.arange"),
    Case(ListIndex, says="Python list", line="[0, 2]"),
    Case(Counter, says="changes its attribute 'calls'"),
    Case(Remembers, says="changes its attribute 'seen'"),
    Case(ReplacedBuffer, says="changes its attribute 'mean'"),
    Case(PythonRandom, says="draws random numbers on the CPU"),
    Case(WritesInput, says="writes into its input in place", line="x.mul_(2)"),
    Case(Hooked, says="forward hook"),
    Case(OpaqueOutput, says="returns a Outcome"),
    Case(RepeatInterleave, says="repeat_interleave", line="torch.repeat_interleave"),
    Case(OneHotOfUnknownSize, says=".item()", line="F.one_hot"),
    Case(AllClose, says="torch.allclose", line="torch.allclose"),
    Case(Decomposes, says="solver may wait", line="svdvals"),
    Case(Body, says="graph layers only: --site layers", line=".item()"),
)
