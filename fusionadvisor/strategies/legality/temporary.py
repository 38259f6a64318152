"""Whether what a module is given is always a fresh tensor that nobody looks at again."""

from torch import nn

from fusionadvisor.strategies.legality.events import Event, Kind
from fusionadvisor.strategies.legality.observe import Code, Verdict, passes
from fusionadvisor.strategies.legality.values import Result, Value

FRESH = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d,
)  # fmt: skip
"""Modules that return a new tensor on every path, and do not keep it for their backward."""
_FRESH_OPERATIONS = frozenset(
    {"add", "sub", "mult", "mul", "matmult", "matmul", "bmm", "cat", "conv1d", "conv2d", "conv3d", "linear",
     "batch_norm", "layer_norm", "group_norm", "max_pool2d", "avg_pool2d"}
)  # fmt: skip
"""Operators and functions that return a new tensor and keep none of their inputs."""
_IN_PLACE = frozenset({"iadd", "isub", "imult"})
"""Augmented assignments: the tensor stays the one it was."""


def overwritable(code: Code, module: nn.Module, path: str) -> Verdict:
    """Whether ``module`` may write into its input, on every path that leads to it."""
    if code.unknown:
        return Verdict(code.unknown)
    for event in code.log.escapes[id(module)]:
        return Verdict(code.given_away(event, path), event)
    for call in code.log.calls[id(module)]:
        if len(call.inputs) != 1:
            return Verdict(f"{call.place} gives {path} more than its input", call)
        made = _origins(code, call.inputs[0])
        if made is None:
            return Verdict(f"{call.place} may give {path} a tensor that is used again", call)
        for origin in made:
            for use in code.log.uses[origin]:
                if use.entry is call.entry and not _spares(use, call, module):
                    return Verdict(f"{use.place} may use the input of {path} again", use)
    return Verdict()


def _origins(code: Code, value: Value) -> set[Event] | None:
    """The events whose fresh result a value surely is, with what only hands it on; None where it may be another's."""
    found: set[Event] = set()
    todo = list(value)
    while todo:
        atom = todo.pop()
        if not isinstance(atom, Result):
            return None
        event = atom.event
        if event in found:
            continue
        found.add(event)
        if event.kind is Kind.CALL:
            if len(event.modules) == 1 and passes(event.modules[0]) and event.inputs:
                todo += event.inputs[0]
            elif not all(type(module) in FRESH for module in event.modules):
                return None
        elif event.name in _IN_PLACE and event.inputs:
            todo += event.inputs[0]
        elif event.kind is not Kind.OPERATION or event.name.rpartition(".")[2] not in _FRESH_OPERATIONS:
            return None
    return found


def _spares(use: Event, call: Event, module: nn.Module) -> bool:
    """Whether a use of the input of ``call`` neither comes after it nor holds on to it."""
    if use is call or use.kind is Kind.METADATA or call in use.within:
        return True
    if use.deferred or use.order > call.order:
        return False
    if use.kind is Kind.WRITE:
        return use.name in _IN_PLACE
    if use.kind is Kind.CALL:
        return all(type(other) in FRESH or passes(other) for other in use.modules)
    return use.kind is Kind.OPERATION and (use.name in _IN_PLACE or use.name.rpartition(".")[2] in _FRESH_OPERATIONS)
