"""A copy of any model that can run, also of those that ``copy.deepcopy`` refuses."""

import copy
import io
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.errors import StrategyError
from fusionadvisor.workload.copies import duplicate

X = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.weight_norm(nn.Conv1d(4, 8, 3, padding=1))

    def forward(self, x: Tensor) -> Any:
        return self.conv(x)


class Holding(nn.Module):
    """Holds what the test gives it, as an attribute, in a list and in an object of its own."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.value = value
        self.listed = [value, {"deep": (value, 1)}]
        self.cache = Cache(value)

    def forward(self, x: Tensor) -> Any:
        return self.fc(x)


class Cache:
    def __init__(self, value: object) -> None:
        self.value, self.entries = value, {"a": torch.ones(2)}


class Stubborn(nn.Module):
    def __deepcopy__(self, memo: dict[int, Any]) -> "Stubborn":
        raise TypeError("not this one")


HELD: dict[str, Callable[[], object]] = {
    "lock": threading.Lock,
    "condition": threading.Condition,
    "event": threading.Event,
    "thread local": threading.local,
    "generator": lambda: (i for i in range(3)),
    "module": lambda: sys,
    "file": io.StringIO,
    "random generator": torch.Generator,
    "computed tensor": lambda: torch.ones(3, requires_grad=True) * 2,
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_old_style_weight_norm_is_copied_and_goes_on_computing_its_weight() -> None:
    model: Any = Normed()
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)
    copied: Any = duplicate(model, training=True)
    assert torch.equal(copied(X), model(X))
    with torch.no_grad():
        copied.conv.weight_g.mul_(2)
    assert not torch.equal(copied(X), model(X))
    copied(X).sum().backward()
    assert copied.conv.weight_v.grad is not None
    assert model.conv.weight_v.grad is None


@pytest.mark.parametrize("name", HELD)
def test_what_cannot_be_copied_is_shared_and_all_else_is_not(name: str) -> None:
    model = Holding(HELD[name]())
    copied = duplicate(model)
    assert torch.equal(copied.fc(X), model.fc(X))
    for mine, theirs in (
        (model.fc.weight, copied.fc.weight),
        (model.listed, copied.listed),
        (model.cache, copied.cache),
    ):
        assert mine is not theirs
    assert copied.listed[0] is copied.value is copied.cache.value
    assert copied.cache.entries["a"] is not model.cache.entries["a"]


def test_views_of_a_parameter_stay_views_of_its_copy() -> None:
    model = nn.Linear(4, 4)
    model.first = model.weight[0]
    copied: Any = duplicate(model)
    with torch.no_grad():
        copied.weight.fill_(7)
    assert copied.first.tolist() == [7.0] * 4
    assert not bool((model.first == 7).any())


def test_what_may_not_be_shared_is_refused_in_a_sentence() -> None:
    with pytest.raises(StrategyError, match=r"^The model cannot be copied: Stubborn: not this one\."):
        duplicate(nn.Sequential(nn.Linear(2, 2), Stubborn()))
    model = nn.Linear(4, 4)
    model.doubled = model.weight * 2
    duplicate(model)
    with pytest.raises(StrategyError, match=r"^doubled was computed from parameters"):
        duplicate(model, training=True)
