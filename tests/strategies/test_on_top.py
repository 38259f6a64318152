"""A strategy on top of another that gave the same module a forward of its own: both hold, or it says why not."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from fusionadvisor.evaluate.kernels import names
from fusionadvisor.strategies.fx import FxPasses
from fusionadvisor.strategies.horizontal import Horizontal
from fusionadvisor.strategies.sdpa import Sdpa
from tests.strategies.subjects import applied, subject, subject_of


class Block(nn.Module):
    """Attention and GELU written out in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor, twice: bool = False) -> Tensor:
        rows, words, _ = x.shape
        q, k, v = (f(x).view(rows, words, 4, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(4), dim=-1) @ v
        h = self.o(a.transpose(1, 2).reshape(x.shape))
        h = 0.5 * h * (1 + torch.erf(h / math.sqrt(2.0)))
        out: Tensor = h + h if twice else h
        return out


class Summed(nn.Module):
    """Convolutions whose outputs are summed, and a GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.a(x) + self.b(x)
        return 0.5 * h * (1 + torch.erf(h / math.sqrt(2.0)))


def ops(model: Any, *args: Any) -> list[str]:
    with torch.no_grad():
        return sorted(names(lambda: model(*args), "cpu"))


def test_fx_rewrites_the_graph_that_sdpa_wrote() -> None:
    given = subject(nn.Sequential(Block(), Block()).eval(), (6, 16))
    attended, _ = applied(Sdpa(), given)
    candidate, plan = applied(FxPasses(), subject_of(attended, given.calls))
    assert [site.name for site in plan.sites] == ["0: gelu", "1: gelu"]
    run = ops(candidate, *given.calls[0].args)
    assert run.count("aten::gelu") == 2
    assert sum("scaled_dot_product" in op for op in run) == 2
    assert not {"aten::erf", "aten::_softmax"} & {*run}


def test_a_call_of_another_kind_still_runs_the_modules_own_code() -> None:
    given = subject(Block().eval(), (6, 16))
    attended, _ = applied(Sdpa(), given)
    candidate, _ = applied(FxPasses(), subject_of(attended, given.calls))
    (x,) = given.calls[0].args
    with torch.no_grad():
        torch.testing.assert_close(candidate(x, twice=True), given.model(x, twice=True))
    assert "aten::erf" in ops(candidate, x, True)


def test_fx_rewrites_the_graph_that_summed_convolutions() -> None:
    """Captured from the class, the forward would be the one before: two convolutions again."""
    given = subject(Summed().eval(), (4, 8, 8))
    summed, _ = applied(Horizontal(), given)
    candidate, _ = applied(FxPasses(), subject_of(summed, given.calls))
    run = ops(candidate, *given.calls[0].args)
    assert run.count("aten::gelu") == 1
    assert sum("conv" in op for op in run) == 1


def test_a_python_number_among_the_operands_is_no_kernel_of_its_own() -> None:
    x = torch.randn(4, 4)
    assert names(lambda: x * 0.5 / 3.0 + 1, "cpu") == ["aten::mul", "aten::div", "aten::add"]
