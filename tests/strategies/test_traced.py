"""What fx captured stands for the calls and the state it was captured for, and for nothing else."""

import collections
import copy
import itertools
import random
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor import strategies
from fusionadvisor.strategies import leaves
from fusionadvisor.strategies.fx import FxPasses
from tests.strategies.subjects import applied, reasons, subject

BIAS = 0.5


class Config:
    def __init__(self) -> None:
        self.power = 1.0


class Reads(nn.Module):
    """SiLU written out, then whatever Python state there is to read."""

    limit = 100.0

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.scale, self.config, self.shifts = nn.Linear(4, 4), 2.0, Config(), [0.0, 1.0]

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        y = y * torch.sigmoid(y)
        if torch.is_inference_mode_enabled():
            y = y + 1
        if not torch.is_grad_enabled():
            y = y + 2
        return (y * self.scale).clamp(max=self.limit) ** self.config.power + BIAS + self.shifts[1]


X = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))


def set_scale(model: Any) -> None:
    model.scale = 3.0


def set_power(model: Any) -> None:
    model.config.power = 2.0


def set_shift(model: Any) -> None:
    model.shifts[1] = 5.0


def set_limit(model: Any) -> None:
    model.limit = 0.1


def widen(model: Any) -> None:
    model.double().float()


@pytest.mark.parametrize("change", [set_scale, set_power, set_shift, set_limit, widen])
def test_an_attribute_that_was_set_later_is_read(change: Any) -> None:
    model: Any = Reads().eval()
    fast, plan = applied(FxPasses(), subject(model, (4,)))
    assert [site.name for site in plan.sites] == ["the model: silu"]
    for one in (model, fast):
        change(one)
    with torch.no_grad():
        assert torch.allclose(fast(X), model(X))


def test_globals_and_settings_of_torch_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Reads().eval()
    fast, _ = applied(FxPasses(), subject(model, (4,)))
    assert torch.allclose(fast(X), model(X))
    with torch.inference_mode():
        assert torch.allclose(fast(X), model(X))
    monkeypatch.setattr(sys.modules[__name__], "BIAS", 9.0)
    with torch.no_grad():
        assert torch.allclose(fast(X), model(X))


def test_the_graph_runs_where_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, _ = applied(FxPasses(), subject(Reads().eval(), (4,)))
    copied = copy.deepcopy(fast)

    def forward(*_: Any) -> None:
        raise AssertionError("its own code ran")

    monkeypatch.setattr(Reads, "forward", forward)
    with torch.no_grad():
        assert torch.equal(copied(X), fast(X))
    set_scale(copied)
    with pytest.raises(AssertionError, match="its own code ran"), torch.no_grad():
        copied(X)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.fc(x)
        y = y * torch.sigmoid(y)
        return y if mask is None else y * mask


def test_an_argument_that_is_not_given_takes_the_other_path() -> None:
    model = Masked().eval()
    fast, plan = applied(FxPasses(), subject(model, (4,), (4,)))
    assert plan.sites
    for args, kwargs in (((X,), {}), ((X, None), {}), ((), {"x": X}), ((X,), {"mask": X}), ((), {"x": X, "mask": X})):
        assert torch.allclose(fast(*args, **kwargs), model(*args, **kwargs))


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * torch.sigmoid(x)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        return self.inner(x) + self.shift + torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_buffers_and_submodules_are_those_of_now() -> None:
    model: Any = Outer().eval()
    made, _ = applied(FxPasses(), subject(model, (4,)))
    fast: Any = made
    assert leaves.rewritten(fast.inner) is not None
    for one in (model, fast):
        one.shift = torch.full((4,), 7.0)
    assert torch.equal(fast(X), model(X))
    assert fast.double()(X.double()).dtype == model.double()(X.double()).dtype == torch.float64
    for one in (model, fast):
        one.inner = nn.ReLU()
    assert torch.equal(fast(X), model(X))


def test_its_own_code_runs_for_sizes_that_take_another_path() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.shift = nn.Buffer(torch.ones(1))

        def forward(self, x: Tensor) -> Any:
            y = self.fc(x) if x.dim() == 3 else x
            return {"y": y * torch.sigmoid(y), "shifted": y + self.shift}

    model: Any = Fixed().eval()
    made, plan = applied(FxPasses(), subject(model, (3, 4)))
    fast: Any = made
    assert plan.sites
    for one in (model, fast):
        one.shift = torch.full((1,), 7.0)
    counts = leaves.counts(fast)[""]
    before = counts.captured
    for shape in ((2, 3, 4), (1, 3, 4), (2, 5, 4), (0, 3, 4), (2, 4)):
        x = torch.randn(shape)
        with torch.no_grad():
            own, new = model(x), fast(x)
        assert set(own) == set(new)
        assert all(torch.allclose(own[k], new[k], atol=1e-6) for k in own)
    assert (counts.captured - before, counts.own.total()) == (4, 1)


# what changes is refused ----------------------------------------------------------------------------------------------

SEEN: list[int] = []
TOTAL = {"calls": 0.0}


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.log, self.count, self.cache = nn.Linear(4, 4), [0.0], itertools.count(1), {"n": 0.0}
        self.last: Any = collections.deque([1.0, 2.0])

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        return y * torch.sigmoid(y) * self.factor()

    def factor(self) -> float:
        raise NotImplementedError


class Counts(Stateful):
    def factor(self) -> float:
        return float(next(self.count))


class Appends(Stateful):
    def factor(self) -> float:
        self.log.append(1.0)
        return float(len(self.log))


class Sets(Stateful):
    def factor(self) -> float:
        self.cache["n"] += 1
        return self.cache["n"]


class Rotates(Stateful):
    def factor(self) -> float:
        self.last.append(self.last.popleft())
        return float(self.last[0])


class Global(Stateful):
    def factor(self) -> float:
        SEEN.append(1)
        return float(len(SEEN))


class GlobalDict(Stateful):
    def factor(self) -> float:
        TOTAL["calls"] += 1
        return TOTAL["calls"]


class Draws(Stateful):
    def factor(self) -> float:
        return random.random()


class Rarely(Stateful):
    """Nothing that a few calls would show."""

    def factor(self) -> float:
        self.log.append(0.0)
        return 1.0 if len(self.log) < 1000 else 2.0


@pytest.mark.parametrize("kind", [Counts, Appends, Sets, Rotates, Global, GlobalDict, Draws, Rarely])
@pytest.mark.parametrize("name", ["fx", "torchscript", "cudagraph"])
def test_state_that_forward_changes_is_refused(name: str, kind: type[Stateful]) -> None:
    plan = strategies.get(name).plan(subject(kind().eval(), (4,)))
    assert not plan.sites
    assert reasons(plan)
