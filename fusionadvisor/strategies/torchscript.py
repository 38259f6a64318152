"""Script the model, else trace it, then freeze."""

import re
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from torch.jit import TracerWarning  # type: ignore[attr-defined]
from torch.jit.frontend import FrontendError

from fusionadvisor.errors import StrategyError
from fusionadvisor.flow.graph import FlowGraph, Op
from fusionadvisor.report.model import Refusal, Source
from fusionadvisor.strategies.base import Call, Plan, Site, Strategy, Subject
from fusionadvisor.strategies.modules import blocker, hooked
from fusionadvisor.strategies.pythonstate import Constants, changing
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.usercode import one_line

_FAILURES = (
    FrontendError, RuntimeError, OSError, TypeError, AttributeError, ValueError, KeyError, IndexError, AssertionError
)  # fmt: skip
"""What torch.jit raises on code it does not understand or cannot read."""


class TorchScript(Strategy):
    """Script or trace, then freeze.

    ## What it does
    Compiles the model's Python with ``torch.jit.script``; where that fails, records it with ``torch.jit.trace``. The
    result is frozen: weights become constants and batch norms are folded into the convolutions before them in its
    graph. Python is no longer run between ops, and on CUDA runs of pointwise ops are joined after some warm-up calls.
    TorchScript is deprecated upstream: no fixes will come, so prefer ``compile`` where it works.

    ## When it helps
    Small models with many short ops, and programs that must run without Python.

    ## When it refuses
    Training; models with hooks; code that changes Python state in forward, or goes by a clock or random numbers of
    Python's; where scripting fails, also: anything the tracer warns about, values read back to Python, settings of
    torch that the code asks for, inputs that take another path, arguments that are no tensors. A trace holds only the
    path it saw, and both hold attributes as they were.

    ## Example
    ```
    fusion-advisor apply model.py --strategy torchscript
    ```
    """

    id = "torchscript"
    order = 70
    terminal = True
    changes_ops = False

    def plan(self, subject: Subject) -> Plan:
        """Try both front-ends on a copy."""
        if subject.mode == "training" or subject.model.training:
            return Plan(blocker="A frozen TorchScript module cannot train, and the model is in training mode.")
        if reason := blocker(subject.model) or hooked(subject.model):
            return Plan(blocker=reason)
        if reason := changing(subject.model):
            return Plan(blocker=reason)
        notes = ("TorchScript is deprecated upstream.",)
        scripted = _try_script(subject.model)
        if not scripted:
            return Plan((_site("script"),), notes=notes)
        refusal = _asking(subject) or _untraceable(subject) or _try_trace(subject)
        if refusal:
            return Plan(refused=(Refusal("script", scripted), refusal), blocker=refusal.reason, notes=notes)
        return Plan((_site("trace"),), notes=(*notes, f"Traced, as scripting failed: {scripted}"))

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Return the frozen module.

        Raises:
            StrategyError: If the model must be traced and there are no inputs to trace it with.
        """
        model = model.eval()
        with _quiet(), torch.no_grad():
            if plan.sites[0].data["how"] == "script":
                made = torch.jit.script(model)
            elif subject.calls:
                made = _trace(model, subject.calls[0])
            else:
                raise StrategyError("torchscript traces this model.", "Pass example_inputs.")
            return torch.jit.freeze(made)  # type: ignore[no-any-return]

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """Check what needs no recording."""
        if model.training:
            return "The model is in training mode."
        return blocker(model) or hooked(model)


def _site(how: str) -> Site:
    return Site("the model", (), "scripted" if how == "script" else "traced", {"how": how})


def _try_script(model: nn.Module) -> str:
    """Say why a copy cannot be scripted and frozen; empty where it can."""
    try:
        with _quiet(), torch.no_grad():
            torch.jit.freeze(torch.jit.script(duplicate(model)))
    except _FAILURES as error:
        return _first_line(error)
    return ""


def _try_trace(subject: Subject) -> Refusal | None:
    try:
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            torch.jit.freeze(_trace(duplicate(subject.model), subject.calls[0]))
            call = subject.calls[0].map(lambda _, tensor: tensor.clone())
            returned = duplicate(subject.model)(*call.args, **call.kwargs)
    except _FAILURES as error:
        if found := re.match(r"Tracer cannot infer type of (\w+)\(", str(error)):
            reason = f"The model returns a {found[1]}, which a trace cannot: have it return a tuple or a dictionary."
            return Refusal("trace", reason)
        return Refusal("trace", f"Tracing failed: {_first_line(error)}")
    if isinstance(returned, Mapping) and type(returned) not in (dict, OrderedDict):
        reason = f"The model returns a {type(returned).__name__}, of which a trace makes a plain dictionary."
        return Refusal("trace", reason)
    for warning in caught:
        if issubclass(warning.category, TracerWarning):
            what = str(warning.message).splitlines()[0].partition(" might ")[0]
            place = f"{warning.filename.rpartition('/')[2]}:{warning.lineno}"
            reason = f"A trace would hold what the first input gave at {place}: {what}."
            return Refusal("trace", reason, Source(warning.filename, warning.lineno))
    return None


def _asking(subject: Subject) -> Refusal | None:
    """A setting of torch that the code goes by, of which a trace would hold the value."""
    for setting in Constants.of(subject.model).settings:
        return Refusal("trace", f"The model asks for the {setting} of torch: a trace would hold what it is now.")
    return None


def _untraceable(subject: Subject) -> Refusal | None:
    """What the recordings show a trace would get wrong."""
    for call in subject.calls:
        for value in (*call.args, *call.kwargs.values()):
            if value is not None and not isinstance(value, torch.Tensor | tuple | list | dict):
                return Refusal("trace", f"An argument is a {type(value).__name__}: a trace would hold its value.")
    for graph in subject.graphs:
        for op in graph.ops:
            if op.sync:
                where = Source(op.source.file, op.source.line) if op.source else None
                reason = f"{_place(op)} reads a value back to Python ({op.name}): a trace would hold what it was."
                return Refusal("trace", reason, where)
        if (other := _parting(subject.graphs[0], graph)) is not None:
            place = f"{_place(other)} ({other.name})"
            return Refusal("trace", f"Different inputs run different ops, first at {place}: a trace holds one path.")
    return None


def _parting(one: FlowGraph, other: FlowGraph) -> Op | None:
    """The first op that is not the same in both recordings."""
    for a, b in zip_longest(one.ops, other.ops):
        if a is None or b is None or (a.name, a.module) != (b.name, b.module):
            return a or b
    return None


def _place(op: Op) -> str:
    return f"{op.source.file.rpartition('/')[2]}:{op.source.line}" if op.source else op.module or "the model"


def _trace(model: nn.Module, call: Call) -> Any:
    # strict=False lets dictionaries be returned; a trace fixes their keys, which verification compares
    if call.kwargs:
        return torch.jit.trace(  # type: ignore[no-untyped-call]
            model, example_inputs=call.args or None, example_kwarg_inputs=dict(call.kwargs), check_trace=False,
            strict=False,
        )  # fmt: skip
    return torch.jit.trace(model, call.args, check_trace=False, strict=False)  # type: ignore[no-untyped-call]


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _first_line(error: Exception) -> str:
    text = one_line(error)
    return text if text.endswith(":") else f"{text}."
