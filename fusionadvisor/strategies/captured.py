"""One module's forward as a graph, with everything that must be as it was for the graph to be right.

Only the path that the module takes is captured. Where that follows from sizes, dtypes or devices, a call compares
them; where it follows from values, the module is refused.
"""

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from fusionadvisor.strategies import leaves
from fusionadvisor.strategies.base import Subject
from fusionadvisor.strategies.forms import Form
from fusionadvisor.strategies.guards import Guard
from fusionadvisor.strategies.nodes import asking
from fusionadvisor.strategies.recorder import Recorder, effect
from fusionadvisor.strategies.tracer import Fresh, Tracer, UnansweredError, stand_ins
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.inputs import Call, tensors_in


def owners(subject: Subject, names: frozenset[str], library: str) -> list[str]:
    """Modules in whose forward ops of these names ran; of those that ``library`` brings, the module around them."""
    found: dict[str, None] = {}
    for graph in subject.graphs:
        for op in graph.ops:
            if op.name in names and op.phase == "forward":
                path = op.module
                while path and type(subject.model.get_submodule(path)).__module__.startswith(library):
                    path = path.rpartition(".")[0]
                found.setdefault(path)
    return list(found)


@dataclass
class Captured:
    """A captured forward: its graph takes the tensors of a call in order.

    Args:
        graph: What the module computes.
        form: How it was called.
        guard: What the code read on its way.
        asked: Computes from the tensors what decided on the way, before anything else runs; None for nothing.
        answers: What these were, and then what the graph itself compares; enough to capture it again.
        early: Which of the answers ``asked`` gives.
        whole: Its submodules were gone through.
    """

    graph: fx.Graph
    form: Form
    guard: Guard
    asked: fx.Graph | None = None
    answers: list[Any] = field(default_factory=list)
    early: list[int] = field(default_factory=list)
    whole: bool = False

    def unlike(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Say why a call does not go the captured way; empty where it does."""
        form, tensors = Form.of(args, kwargs)
        if form != self.form:
            return "it is called in another way"
        if reason := self.guard.broken():
            return reason
        if self.asked is not None:
            try:
                now = self._ask(module, *tensors)
            except leaves.FAILURES:
                return "a size is another"
            if list(now) != [self.answers[i] for i in self.early]:
                return "a size is another"
        return ""

    def tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """What the graph takes of a call."""
        return Form.of(args, kwargs)[1]

    def __post_init__(self) -> None:
        if self.asked is not None:
            self._ask = leaves.function(self.asked)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_ask"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()


def capture(
    module: nn.Module,
    form: Form,
    *,
    answers: Sequence[Any] = (),
    given: Sequence[Tensor] | None = None,
    whole: bool = False,
) -> Captured:
    """Capture a module's forward.

    Args:
        module: It may get attributes for constants that forward holds; pass a copy.
        form: How it is called.
        answers: What an earlier capture found that sizes decide.
        given: The tensors of a call, to find that where there are no answers.
        whole: Go through the module's own submodules too, but for torch's. Otherwise calls of them stay calls.

    Raises:
        RuntimeError, TypeError, …: See :data:`fusionadvisor.strategies.leaves.FAILURES`.
    """
    known = list(answers)
    while True:
        try:
            return _captured(module, form, known, given, whole)
        except UnansweredError as error:
            known.append(error.value(module, given or ()))


def _captured(module: nn.Module, form: Form, known: list[Any], given: Sequence[Tensor] | None, whole: bool) -> Captured:
    recorder = Recorder(module)
    tracer = Tracer(recorder, form, known, given, whole)
    importlib.import_module("torch._dynamo")  # see leaves: imported later, it would keep the stand-ins for good
    with (
        warnings.catch_warnings(),
        torch.set_grad_enabled(module.training),
        torch.random.fork_rng(),
        stand_ins(tracer),
        recorder.watching(),
        Fresh(tracer),
    ):
        warnings.simplefilter("ignore")
        recorder.enter(module)
        try:
            graph = tracer.trace(module)
        except leaves.FAILURES:
            if tracer.failed is None:
                raise
    if tracer.failed is not None:  # also where the module's own code has caught it
        raise tracer.failed
    if reason := effect(recorder):
        recorder.fail(reason)
    with torch.set_grad_enabled(module.training):
        guard = recorder.guard()
    asked = asking(graph, [node for node, early in tracer.conditions if early])
    first = [i for i, (_, early) in enumerate(tracer.conditions) if early]
    return Captured(graph, form, guard, asked, tracer.answers, first, whole)


# how a model calls its modules ----------------------------------------------------------------------------------------


def calls_of(model: nn.Module, calls: Sequence[Call], paths: Sequence[str], run: Any = None) -> dict[str, list[Call]]:
    """What each of these modules is called with in some calls of a copy of the model.

    Args:
        model: It stays as it is.
        calls: Of the model.
        paths: Of the modules.
        run: Runs a model on a call in its own way; None to call it without gradients.
    """
    work = duplicate(model)
    found: dict[str, list[Call]] = {path: [] for path in paths}

    def keeps(path: str) -> Callable[..., None]:
        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found[path].append(_copied(Call(args, dict(kwargs))))

        return keep

    for path in paths:
        work.get_submodule(path).register_forward_pre_hook(keeps(path), with_kwargs=True)
    with torch.random.fork_rng(), torch.set_grad_enabled(run is not None):
        for call in calls:
            if run is not None:
                run(work, call)
            else:
                own = _copied(call)
                work(*own.args, **own.kwargs)
    return found


def _copied(call: Call) -> Call:
    """The same call with tensors of its own; one that is given twice is so again."""
    copies: dict[int, Tensor] = {}
    return call.map(lambda _, tensor: copies.setdefault(id(tensor), tensor.detach().clone()))


def fitting(module: nn.Module, own: Captured, calls: Sequence[Call]) -> list[Call]:
    """The calls that go the captured way."""
    run, found = leaves.function(own.graph), []
    with torch.set_grad_enabled(module.training), torch.random.fork_rng():
        for call in calls:
            copied = _copied(call)
            if own.unlike(module, copied.args, copied.kwargs):
                continue
            try:
                run(module, *own.tensors(copied.args, copied.kwargs))
            except leaves.AnotherPathError:
                continue
            found.append(call)
    return found


def same(module: nn.Module, own: Captured, calls: Sequence[Call], tolerance: float) -> bool:
    """Whether the graph returns in these calls what the module's own code does, within a tolerance."""
    run = leaves.function(own.graph)

    def graph(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return run(module, *own.tensors(args, kwargs))

    forward = type(module).forward
    return all(_alike(_outputs(forward, module, c), _outputs(graph, module, c), tolerance) for c in calls)


def _outputs(forward: Callable[..., Any], module: nn.Module, call: Call) -> list[Tensor]:
    own = _copied(call)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        return [tensor for _, tensor in tensors_in(forward(module, *own.args, **own.kwargs))]


def _alike(one: list[Tensor], other: list[Tensor], tolerance: float) -> bool:
    return len(one) == len(other) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) and torch.allclose(a, b, tolerance, tolerance, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )
