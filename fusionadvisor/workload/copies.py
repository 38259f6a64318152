"""Deep copies of models, also of those that ``copy.deepcopy`` refuses."""

import copy
import pickle
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fusionadvisor.errors import StrategyError
from fusionadvisor.workload.usercode import one_line

M = TypeVar("M", bound=nn.Module)

REFUSALS = (TypeError, RuntimeError, ValueError, AttributeError, NotImplementedError, pickle.PicklingError)
"""What ``copy.deepcopy`` raises for what it cannot copy: locks, generators, open files, tensors that were computed."""


def duplicate(model: M, *, training: bool = False) -> M:
    """A deep copy of a model, which shares with it only what cannot be copied, as a lock or an open file.

    A tensor that was computed from others and kept as an attribute, as old-style ``weight_norm`` does, is copied as it
    is now: by value, without its history.

    Args:
        model: It stays as it is.
        training: The copy is to be trained: a computed tensor without its history would no longer train what it was
            computed from.

    Raises:
        StrategyError: If a module in it cannot be copied, or should not be for ``training``.
    """
    try:
        return copy.deepcopy(model)
    except REFUSALS:
        refused = _refused(model)
    if training and (name := _cut(model, refused)):
        what = f"{name} was computed from parameters, and training a copy would not train them."
        raise StrategyError(what, "Compute it in forward.")
    memo: dict[int, Any] = {id(value): value for value in refused}
    for value in refused:
        if isinstance(value, torch.Tensor):
            memo[id(value)] = _as_it_is(value, memo)
    return copy.deepcopy(model, memo)


def _refused(model: nn.Module) -> list[object]:
    """What ``copy.deepcopy`` refuses in a model, found on copies that share parameters and buffers with it."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_leaf}
    refused: list[object] = []
    while True:
        try:
            copy.deepcopy(model, {**tensors, **{id(value): value for value in refused}})
        except REFUSALS as error:
            value = _innermost(error)
            if value is None or isinstance(value, nn.Module) or any(value is known for known in refused):
                name = type(model if value is None else value).__name__
                raise StrategyError(f"The model cannot be copied: {name}: {one_line(error)}.") from error
            refused.append(value)
        else:
            return refused


def _as_it_is(value: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """A copy without history; of a view, the same view of the copy of what it shows."""
    base = value._base
    if base is None or not base.is_leaf:
        return value.detach().clone()
    twin: torch.Tensor = copy.deepcopy(base, memo).detach()
    if twin.stride() != base.stride():
        return value.detach().clone()
    offset = int(value.storage_offset() - base.storage_offset() + twin.storage_offset())
    return twin.as_strided(value.shape, value.stride(), offset)


def _innermost(error: BaseException) -> object:
    """What ``copy.deepcopy`` was last asked to copy before it raised."""
    value, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code is copy.deepcopy.__code__:
            value = step.tb_frame.f_locals["x"]
        step = step.tb_next
    return value


def _cut(model: nn.Module, refused: list[object]) -> str:
    """The first attribute that is a computed tensor and that no pre-hook of torch's computes again in each forward."""
    computed = {id(value) for value in refused if isinstance(value, torch.Tensor) and value.requires_grad}
    for path, module in model.named_modules():
        hooks = module._forward_pre_hooks.values()
        again = {hook.name for hook in hooks if isinstance(hook, WeightNorm | SpectralNorm)}
        for name, value in vars(module).items():
            if id(value) in computed and name not in again:
                return f"{path}.{name}" if path else name
            computed -= {id(value)} if name in again else set()
    return "A tensor of the model" if computed else ""
