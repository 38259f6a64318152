"""An optimised model is copied, saved, loaded, converted and trained as the original is, or its recipe says not."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusionadvisor import recipe, strategies
from fusionadvisor.evaluate import operations
from fusionadvisor.evaluate.operations import OPERATIONS
from fusionadvisor.recipe import Step
from fusionadvisor.workload.copies import duplicate
from tests.strategies.subjects import randomise, subject


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()

    def forward(self, x: Tensor) -> Any:
        return self.act(self.bn(self.conv(x)))


class Heads(nn.Module):
    """Projections side by side, written-out attention and SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.out, self.shift = nn.Linear(8, 8), nn.Buffer(torch.full((8,), 0.5))

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1)
        y = self.out(weights @ v) + self.shift
        return y * torch.sigmoid(y)


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        return self.one(x) + self.other(x)


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        return torch.stack([layer(x[:, i]).sin() for i, layer in enumerate(self.layers)], dim=1)


class BySize(nn.Module):
    """A path that sizes decide."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.shift = nn.Linear(8, 8), nn.Buffer(torch.ones(8))

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x) if x.dim() == 3 else x
        return y * torch.sigmoid(y) + self.shift


FOLDED = "a batch norm was folded into a weight here; train the original model and fold again"
SUMMED = "layers were summed into one here; train the original model and sum again"
CASES: dict[str, tuple[str, type[nn.Module], tuple[int, ...], dict[str, str]]] = {
    "fuse_modules": ("fuse_modules", Conv, (4, 9, 9), {"train": FOLDED}),
    "inplace": ("inplace", Conv, (4, 9, 9), {}),
    "channels_last": ("channels_last", Conv, (4, 9, 9), {}),
    "torchscript": ("torchscript", Conv, (4, 9, 9), {"torch.save": "", "half": "", "bfloat16": "", "train": ""}),
    "fx": ("fx", Heads, (6, 8), {}),
    "fx, a path by size": ("fx", BySize, (6, 8), {}),
    "sdpa": ("sdpa", Heads, (6, 8), {}),
    "horizontal, side by side": ("horizontal", Heads, (6, 8), {}),
    "horizontal, summed": ("horizontal", Sums, (6, 8), {"train": SUMMED}),
    "horizontal, batched": ("horizontal", Products, (4, 8), {}),
}
"""A strategy, a model with a site for it, the shape of its input, and what the result cannot do."""


@pytest.mark.parametrize("name", CASES)
def test_what_is_done_with_a_model(name: str) -> None:
    strategy, kind, shape, expected = CASES[name]
    torch.manual_seed(0)
    model = randomise(kind()).eval()
    given = subject(model, shape)
    plan = strategies.get(strategy).plan(given)
    assert plan.sites
    call = given.calls[0]
    candidate = recipe.perform(duplicate(model), (Step(strategy, {}, plan.sites),), (call,), device="cpu")
    found = operations.limits(model, candidate, call, "cpu", inference=True)
    assert set(found) == set(expected)
    assert all(words in found[operation] for operation, words in expected.items())
    for operation in set(OPERATIONS) - set(found):
        made = OPERATIONS[operation](candidate)
        assert type(made) is type(candidate)
        assert list(made.state_dict()) == list(candidate.state_dict())


class Gated(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return F.silu(x)


def test_what_the_original_cannot_is_no_limit_and_what_it_can_is_told() -> None:
    original, candidate, x = Gated(), Gated(), torch.ones(2)
    original.hook = candidate.hook = lambda: None  # type: ignore[assignment]
    call = subject(original, (2,)).calls[0]
    assert operations.limits(original, candidate, call, "cpu", inference=True) == {}
    del original.hook
    found = operations.limits(original, candidate, call, "cpu", inference=True)
    assert list(found) == ["torch.save"]
    assert operations.told(found).startswith("Not as with the original: torch.save: Can't")
    assert operations.told({}) == ""
    assert x.sum() == 2
