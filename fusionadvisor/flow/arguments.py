"""What an op was called with, sorted by the op's schema."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload

from fusionadvisor.errors import InputError
from fusionadvisor.workload.inputs import tensors_in

_UNDECLARED_WRITES = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::miopen_batch_norm": ("running_mean", "running_var"),
}
"""Ops that write arguments their schema calls read-only, in training (aten native functions, torch 2.13)."""


@dataclass
class Bound:
    """An op's arguments, by parameter name."""

    operands: dict[str, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    literals: dict[str, object] = field(default_factory=dict)
    written: list[torch.Tensor] = field(default_factory=list)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Its tensors in order, lists flattened."""
        return [t for group in self.operands.values() for t in group]


def plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The ordinary tensors a tensor is made of: itself, unless it is a wrapper.

    Raises:
        InputError: See :func:`refuse_nested`.
    """
    inner = getattr(tensor, "__tensor_flatten__", lambda: ((),))()[0]
    if inner:
        for name in inner:
            yield from plain(getattr(tensor, name))
        return
    refuse_nested(tensor)
    if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        yield tensor


def bind(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
    """Sort an op's arguments into tensors, literals (defaults included) and what it writes."""
    bound = Bound()
    undeclared = _UNDECLARED_WRITES.get(func._schema.name, ())
    for position, argument in enumerate(func._schema.arguments):
        name = argument.name
        given = args[position] if position < len(args) else kwargs.get(name, argument.default_value)
        group = tuple(t for _, t in tensors_in(given))
        for tensor in group:
            refuse_nested(tensor)
        if not group:
            bound.literals[name] = _literal(given)
            continue
        bound.operands[name] = group
        declared = argument.alias_info is not None and argument.alias_info.is_write
        if declared or (name in undeclared and bool(kwargs.get("training", args[5]))):
            bound.written += group
    return bound


def _literal(value: Any) -> object:
    if isinstance(value, bool | int | float | str | type(None)):
        return value
    if isinstance(value, list | tuple):
        return tuple(_literal(item) for item in value)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return str(value)
    return str(value).removeprefix("torch.")


def refuse_nested(tensor: torch.Tensor) -> None:
    """Raise for what has no shape to record.

    Raises:
        InputError: A nested tensor of the strided kind.
    """
    if tensor.is_nested and tensor.layout is torch.strided:
        raise InputError(
            "The model uses a strided nested tensor, whose data flow cannot be recorded.",
            "Use padded tensors, or nested tensors with layout=torch.jagged.",
        )
