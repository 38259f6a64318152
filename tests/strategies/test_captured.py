# mypy: disable-error-code="dict-item,redundant-expr,assignment"
"""A captured forward is right on every path, whatever is changed around it: what it took for constant is compared."""

import copy
import functools
import io
import pickle
import random
import sys
import types
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.strategies import leaves
from fusionadvisor.strategies.base import Call
from fusionadvisor.strategies.fx import FxPasses
from tests.strategies.subjects import reasons, subject, subject_of

fx = FxPasses()
GAIN = 2.0
SETTINGS: dict[str, Any] = {"gain": 2.0, "deep": {"shift": 1.0}}


class Plain:
    gain = 2.0

    def __init__(self) -> None:
        self.inner = SimpleNamespace(shift=1.0)
        self.on = True

    @property
    def shift(self) -> float:
        return self.inner.shift  # type: ignore[no-any-return]

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        return x * self.gain + self.shift if self.on else x - module.bias  # type: ignore[operator]


PLAIN = Plain()
HELPERS = types.ModuleType("helpers_of_a_model")
HELPERS.gain = 2.0  # type: ignore[attr-defined]
sys.modules["helpers_of_a_model"] = HELPERS


def helper(x: Tensor) -> Tensor:
    return x * GAIN


def scaled(gain: list[float]) -> Callable[[Any], Any]:
    """A decorator without ``wraps`` that reads its argument in each call."""

    def decorate(function: Any) -> Any:
        def inner(self: Any, y: Tensor) -> Any:
            return function(self, y) * gain[0]

        return inner

    return decorate


CELL = [2.0]


class Gated(nn.Module):
    """SiLU by hand, and then what a subclass makes of it."""

    flag = True

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bias, self.drop = nn.Linear(8, 8), nn.Parameter(torch.randn(8)), nn.Dropout(0.0)
        self.gain, self.plain, self.numbers, self.act = 2.0, Plain(), [1.0, 2.0], torch.tanh
        self.table = torch.randn(8)
        self.skip: nn.Module | None = None

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        return self.rest(y * torch.sigmoid(y))

    def rest(self, y: Tensor) -> Any:
        return y


class Attribute(Gated):
    def rest(self, y: Tensor) -> Any:
        return y * self.gain


class ClassAttribute(Gated):
    def rest(self, y: Tensor) -> Any:
        return y * 2 if type(self).flag else y


class Training(Gated):
    def rest(self, y: Tensor) -> Any:
        return y * 2 if self.training or self.drop.training else y


class Processor(Gated):
    def rest(self, y: Tensor) -> Any:
        return self.plain(self, y)


class Listed(Gated):
    def rest(self, y: Tensor) -> Any:
        return sum(self.numbers) * y


class Function(Gated):
    def rest(self, y: Tensor) -> Any:
        return self.act(y)


class Missing(Gated):
    def rest(self, y: Tensor) -> Any:
        return y * 2 if getattr(self, "extra", None) is None else y - 1


class Optional(Gated):
    def rest(self, y: Tensor) -> Any:
        return y if self.skip is None else y + self.skip(y)


class GlobalNumber(Gated):
    def rest(self, y: Tensor) -> Any:
        return helper(y)


class GlobalDict(Gated):
    def rest(self, y: Tensor) -> Any:
        return y * SETTINGS["gain"] + SETTINGS["deep"]["shift"]


class GlobalObject(Gated):
    def rest(self, y: Tensor) -> Any:
        return y * PLAIN.gain + PLAIN.inner.shift


class Imported(Gated):
    def rest(self, y: Tensor) -> Any:
        import helpers_of_a_model  # type: ignore[import-not-found]

        return y * helpers_of_a_model.gain


class Closure(Gated):
    @scaled(CELL)
    def rest(self, y: Tensor) -> Any:
        return y


class Table(Gated):
    """A tensor that is no buffer."""

    def rest(self, y: Tensor) -> Any:
        return y * self.table


class Partial(Gated):
    def rest(self, y: Tensor) -> Any:
        return functools.partial(torch.mul, y)(self.gain)


class GradMode(Gated):
    def rest(self, y: Tensor) -> Any:
        return y * 2 if torch.is_grad_enabled() else y


class InferenceMode(Gated):
    def rest(self, y: Tensor) -> Any:
        return y + 1 if torch.is_inference_mode_enabled() else y


def set_(path: str, value: Any) -> Callable[[Any], None]:
    """Set an attribute of a model, by its path."""

    def change(model: Any) -> None:
        *outer, name = path.split(".")
        setattr(functools.reduce(getattr, outer, model), name, value)

    return change


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Attribute, set_("gain", 3.0)), (Attribute, set_("gain", 2)), (Training, lambda m: m.train()),
        (Training, lambda m: m.drop.train()), (Processor, set_("plain.on", False)),
        (Processor, set_("plain.gain", 5.0)),
        (Processor, set_("plain.inner.shift", 5.0)), (Processor, set_("plain.inner", SimpleNamespace(shift=9.0))),
        (Processor, lambda m: setattr(m, "plain", type("Other", (Plain,), {"gain": 7.0})())),
        (Listed, lambda m: m.numbers.append(4.0)), (Function, set_("act", torch.relu)), (Missing, set_("extra", 1)),
        (Optional, lambda m: setattr(m, "skip", m.fc)), (Table, set_("table", torch.ones(8))),
        (Partial, set_("gain", 9.0)), (Gated, lambda m: m.register_forward_hook(lambda *_: None)),
    ],
)  # fmt: skip
def test_a_change_of_the_model_is_seen(kind: type[Gated], change: Callable[[Any], None]) -> None:
    model, candidate = rewritten(kind)
    for each in (model, candidate, again := copy.deepcopy(candidate)):
        change(each)
    agrees(model, candidate)
    agrees(model, again)


@pytest.fixture
def state() -> Any:
    kept = copy.deepcopy((SETTINGS, vars(PLAIN), CELL))
    yield
    SETTINGS.update(kept[0])
    vars(PLAIN).update(kept[1])
    CELL[:] = kept[2]


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (GlobalNumber, lambda patch: patch.setattr(sys.modules[__name__], "GAIN", 3.0)),
        (GlobalNumber, lambda patch: patch.setattr(sys.modules[__name__], "helper", torch.relu)),
        (GlobalDict, lambda _: SETTINGS.update(gain=5.0)),
        (GlobalDict, lambda _: SETTINGS["deep"].update(shift=5.0)),
        (GlobalObject, lambda _: setattr(PLAIN.inner, "shift", 4.0)),
        (GlobalObject, lambda patch: patch.setattr(Plain, "gain", 4.0)),
        (Imported, lambda patch: patch.setattr(HELPERS, "gain", 4.0)),
        (ClassAttribute, lambda patch: patch.setattr(ClassAttribute, "flag", False)),
        (Closure, lambda _: CELL.__setitem__(0, 7.0)),
    ],
)
def test_a_change_outside_of_the_model_is_seen(
    kind: type[Gated], change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, candidate = rewritten(kind)
    again = copy.deepcopy(candidate)
    change(monkeypatch)
    agrees(model, candidate)
    agrees(model, again)


@pytest.mark.parametrize("kind", [GradMode, InferenceMode, Gated])
def test_the_mode_that_is_asked_for_is_compared(kind: type[Gated]) -> None:
    model, candidate = rewritten(kind)
    x = torch.randn(3, 8)
    for mode in (torch.enable_grad, torch.inference_mode, torch.no_grad):
        with mode():
            torch.testing.assert_close(candidate(x), model(x))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert candidate(x).dtype == model(x).dtype
        assert torch.equal(candidate(x), model(x))


def rewritten(kind: type[Gated]) -> tuple[Any, Any]:
    """A model and its rewritten copy, which runs its graph until something is changed."""
    torch.manual_seed(0)
    model = kind().eval()
    given = subject(model, (8,))
    plan = fx.plan(given)
    assert [site.name for site in plan.sites] == ["the model: silu"], reasons(plan)
    candidate = fx.rewrite(copy.deepcopy(model), plan, given)
    agrees(model, candidate)
    assert leaves.counts(candidate)[""].captured == 1
    return model, candidate


def agrees(model: nn.Module, candidate: nn.Module) -> None:
    x = torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(candidate(x), model(x))


# paths ----------------------------------------------------------------------------------------------------------------


class Paths(nn.Module):
    def __init__(self, way: Callable[..., Any]) -> None:
        super().__init__()
        self.fc, self.way, self.seen = nn.Linear(8, 8), way, [0]
        self.register_buffer("limit", torch.tensor(3))
        self.queue: Any = deque()

    def forward(self, x: Tensor, mask: Tensor | None = None, *, more: Any = None) -> Any:
        y = self.fc(x)
        return self.way(self, x, y * torch.sigmoid(y), mask, more)


def by_size(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    return y * 2 if x.shape[0] > 2 and x.dim() == 2 else y


def by_size_of_a_layer(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    return y * 2 if len(y) > 2 else y


def by_dtype(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    return y * 2 if x.dtype in (torch.float64, torch.float16) else y


def by_mask(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    return y if mask is None else y * mask if isinstance(mask, Tensor) else y - 1


def by_structure(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    if isinstance(more, dict):
        return y + sum(more.values())
    return y if more is None else y + more[0] * len(more)


def by_loop(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    for row in x.unbind(0):
        y = y + row
    return y


def by_error(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    try:
        return y * 2 if x.shape[0] > 2 else y
    except Exception:  # noqa: BLE001 it would hide what the capture raises
        return y * 0


def by_assertion(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    assert x.size(-1) == 8
    return y[:2] if min(x.size(0), 2) == 2 else y * 3


def by_requires_grad(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    return y * 2 if x.requires_grad else y


def by_attribute_of_a_tensor(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    return y if not hasattr(x, "sample") else y * 3


def by_a_new_constant(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    total = torch.zeros(8)
    total += y.sum(0)
    return y + total


def by_a_list(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    parts = []
    for i in range(3):
        parts.append(y * i)  # noqa: PERF401 a call for its effect on a list alone
    return torch.stack(parts).sum(0)


WAYS = (by_size, by_size_of_a_layer, by_dtype, by_mask, by_structure, by_loop, by_error, by_assertion, by_requires_grad,
        by_attribute_of_a_tensor, by_a_new_constant, by_a_list)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_path_is_right(way: Any) -> None:
    torch.manual_seed(0)
    model = Paths(way).eval()
    x = torch.randn(3, 8)
    given = subject_of(model, tuple(Call((torch.randn(b, 8),)) for b in (3, 3, 4)))
    plan = fx.plan(given)
    assert [site.name for site in plan.sites] == ["the model: silu"], reasons(plan)
    candidate = fx.rewrite(copy.deepcopy(model), plan, given)
    mask = torch.rand(3, 8)
    calls = [
        Call((x,)), Call((x[:1],)), Call((x[:2],)), Call((torch.randn(5, 8),)), Call((x, mask)), Call((x, 1)),
        Call((x,), {"mask": mask}), Call((x,), {"mask": None}), Call((x, mask), {"more": [x]}),
        Call((x,), {"more": (x, x, x)}), Call((x,), {"more": {"a": x}}), Call((x,), {"more": {"a": x, "b": x}}),
        Call((x, x), {"more": (x, 2.0)}), Call((torch.randn(8),)), Call((torch.randn(2, 3, 8),)), Call((x[:0],)),
        Call((x.clone().requires_grad_(),)),
    ]  # fmt: skip
    for call in calls * 2:
        same(model, candidate, call)
    same(copy.deepcopy(model).double(), copy.deepcopy(candidate).double(), Call((x.double(),)))
    assert leaves.counts(candidate)[""].captured


def same(model: nn.Module, candidate: nn.Module, call: Call) -> None:
    """Both return the same, or raise the same."""
    try:
        want = model(*call.args, **call.kwargs)
    except (RuntimeError, TypeError, IndexError, AssertionError) as error:
        with pytest.raises(type(error)):
            candidate(*call.args, **call.kwargs)
    else:
        torch.testing.assert_close(candidate(*call.args, **call.kwargs), want)


def by_values(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    return y * 2 if x.sum() > 0 else y


def by_values_of_a_buffer(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    return y * 2 if self.limit > 2 else y


def by_caught_values(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    try:
        return y * 2 if x.sum() > 0 else y
    except Exception:  # noqa: BLE001 it would hide what the capture raises
        return y * 0


def with_state(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    self.last = y
    return y


def with_a_list(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    self.seen.append(1)
    return y


def with_a_queue(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    return y * len(self.queue)


def with_random_numbers(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    return y * random.random()


def with_a_word(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    print("hello")  # noqa: T201
    return y


def without_an_end(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    if isinstance(y, Tensor):
        return y
    raise StopIteration


def with_another_mode(self: Any, x: Tensor, y: Tensor, mask: Any, more: Any) -> Any:
    with torch.enable_grad():
        return y * 2


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (by_values, "(by_values) goes another way by the values of a tensor"),
        (by_values_of_a_buffer, "goes another way by the values of a tensor"),
        (by_caught_values, "goes another way by the values of a tensor"), (with_state, "changes Python state (last)"),
        (with_a_list, "changes Python state (seen)"), (with_a_queue, "reads queue, a deque, which cannot be compared"),
        (with_random_numbers, "uses random"), (with_a_word, "calls something for its effect alone"),
        (with_another_mode, "another grad mode"),
    ],
)  # fmt: skip
def test_what_a_graph_would_not_do_again_is_refused(way: Any, reason: str) -> None:
    plan = fx.plan(subject(Paths(way).eval(), (8,)))
    assert not plan.sites
    assert reason in reasons(plan)


class Ends(nn.Module):
    def forward(self, x: Any) -> Any:
        if isinstance(x, Tensor) and type(x) is not Tensor:
            raise StopIteration
        return x * torch.sigmoid(x)


def test_user_code_that_raises_stop_iteration_cannot_be_captured() -> None:
    plan = fx.plan(subject(Ends().eval(), (8,)))
    assert not plan.sites
    assert "cannot be captured" in reasons(plan)


def test_random_numbers_of_torch_are_drawn_anew() -> None:
    class Noisy(Gated):
        def rest(self, y: Tensor) -> Any:
            return y + torch.rand(8)

    model, candidate = rewritten_noisy(Noisy)
    x = torch.randn(2, 8)
    torch.manual_seed(1)
    want = [model(x) for _ in range(2)]
    torch.manual_seed(1)
    for each in want:
        torch.testing.assert_close(candidate(x), each)


def rewritten_noisy(kind: type[Gated]) -> tuple[nn.Module, nn.Module]:
    model = kind().eval()
    given = subject(model, (8,))
    return model, fx.rewrite(copy.deepcopy(model), fx.plan(given), given)


# copies ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Attribute, Processor, GlobalNumber, Table])
def test_it_is_pickled_and_saved_as_the_model_is(kind: type[Gated]) -> None:
    model, candidate = rewritten(kind)
    buffer = io.BytesIO()
    torch.save(candidate, buffer)
    buffer.seek(0)
    for again in (pickle.loads(pickle.dumps(candidate)), torch.load(buffer, weights_only=False)):
        agrees(model, again)
        assert leaves.counts(again)[""].own.total() == 0
        again.gain = 5.0
        other = copy.deepcopy(model)
        other.gain = 5.0
        agrees(other, again)


def test_what_cannot_be_compared_after_pickling_runs_the_modules_own_code() -> None:
    model, candidate = rewritten(Closure)
    again = pickle.loads(pickle.dumps(candidate))
    agrees(model, again)
    assert list(leaves.counts(again)[""].own) == [
        "it was loaded where what it read outside the model cannot be compared"
    ]


def test_calls_of_submodules_stay_calls() -> None:
    model, candidate = rewritten(Gated)
    seen: list[int] = []
    candidate.fc.register_forward_hook(lambda *_: seen.append(1))
    agrees(model, candidate)
    assert seen == [1]
    model.fc = candidate.fc = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    agrees(model, candidate)
    assert leaves.counts(candidate)[""].own.total() == 0


def test_it_exports_traces_and_compiles() -> None:
    model, candidate = rewritten(Attribute)
    x = torch.randn(3, 8)
    with torch.no_grad():
        want = model(x)
        torch.testing.assert_close(torch.export.export(candidate, (x,)).module()(x), want)
        torch.testing.assert_close(torch.jit.trace(candidate, x)(x), want)  # type: ignore[no-untyped-call]
        torch.testing.assert_close(torch.fx.symbolic_trace(candidate)(x), want)
        compiled: Any = torch.compile(candidate, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), want)
        model.gain = candidate.gain = 5.0
        torch.testing.assert_close(compiled(x), model(x))
