"""What people do with a model besides calling it, and whether an optimised one still does it as the original does."""

import copy
import io
import pickle
from collections.abc import Callable

import torch
from torch import nn

from fusionadvisor.errors import StrategyError
from fusionadvisor.evaluate.verify import verify
from fusionadvisor.strategies.base import Call
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.usercode import one_line

FAILURES = (
    RuntimeError, TypeError, ValueError, AttributeError, KeyError, AssertionError, ImportError, OSError,
    pickle.PicklingError, StrategyError,
)  # fmt: skip
"""What copying, pickling and converting raise; NotImplementedError is a RuntimeError."""


def _saved(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded: nn.Module = torch.load(buffer, weights_only=False)
    return loaded


def _state_loaded(model: nn.Module) -> nn.Module:
    other = duplicate(model)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(1)
    other.load_state_dict(model.state_dict())
    return other


OPERATIONS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "copy.deepcopy": copy.deepcopy,
    "torch.save": _saved,
    "state_dict": _state_loaded,
    "half": lambda model: duplicate(model).half(),
    "bfloat16": lambda model: duplicate(model).bfloat16(),
    "train": lambda model: duplicate(model).train(),
}
"""What each makes of a model, as a model of its own. Pickle is what ``torch.save`` writes."""


_COPIES = ("copy.deepcopy", "torch.save")
"""Those that make another model; the others change the model itself, and are tried on a copy."""


def limits(original: nn.Module, candidate: nn.Module, call: Call, device: str, *, inference: bool) -> dict[str, str]:
    """The operations that the original allows and the candidate does not, and what happens, in words."""
    found = {}
    for name, operation in OPERATIONS.items():
        if not inference and name in ("half", "bfloat16", "train"):
            continue  # a training step knows what its model is given, and trains it already
        try:
            mine = operation(original)
            given = _cast(call, name)
            if inference:
                _run(mine, given)
        except FAILURES:
            continue  # nor does the original
        try:
            made = operation(candidate)
            if name in _COPIES and _compiled(candidate) and not _compiled(made):
                found[name] = "the result is not compiled"
            elif inference and (reason := _difference(mine, made, given, device)):
                found[name] = reason
        except torch.OutOfMemoryError:
            found[name] = "not tried: too little memory"
        except FAILURES as error:
            found[name] = one_line(error)
    return found


def told(limits: dict[str, str]) -> str:
    """The limits in a sentence; empty where there are none but of training, which a fold always has."""
    known = "; ".join(f"{name}: {why}" for name, why in limits.items() if name != "train")
    return f"Not as with the original: {known}." if known else ""


def _cast(call: Call, name: str) -> Call:
    dtype = {"half": torch.float16, "bfloat16": torch.bfloat16}.get(name)
    return call.map(lambda _, t: t.to(dtype) if dtype is not None and t.is_floating_point() else t.clone())


def _compiled(model: nn.Module) -> bool:
    return any(module._compiled_call_impl is not None for module in model.modules())


def _difference(mine: nn.Module, made: nn.Module, call: Call, device: str) -> str:
    verification = verify(mine, made, (call,), _run, device=device)
    if verification.verdict != "diverges" or verify(mine, mine, (call,), _run, device=device).verdict == "diverges":
        return ""
    return f"the outputs differ then: {verification.reason.rstrip('.')}"


def _run(model: nn.Module, call: Call) -> object:
    with torch.no_grad():
        return model(*call.args, **call.kwargs)
