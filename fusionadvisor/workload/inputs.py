"""Inputs of a model: what one call passes, the tensors in it by name, and fresh ones of the same kind."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fusionadvisor.report.model import TensorSpec


@dataclass(frozen=True)
class Call:
    """The arguments of one call of the model."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(value: Any) -> "Call":
        """Read what a user's ``example_inputs`` returned: a dict of keywords, a tuple or list, or one argument."""
        if isinstance(value, Call):
            return value
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return Call(kwargs=dict(value))
        if isinstance(value, tuple | list):
            return Call(args=tuple(value))
        return Call(args=(value,))

    def map(self, change: Callable[[str, torch.Tensor], torch.Tensor], names: Sequence[str] = ()) -> "Call":
        """A copy with every tensor replaced by ``change(name, tensor)``; structure and everything else are kept."""
        args = tuple(_map(value, _argument_name(i, names), change) for i, value in enumerate(self.args))
        return Call(args, {key: _map(value, key, change) for key, value in self.kwargs.items()})

    def tensors(self, names: Sequence[str] = ()) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor in it with its name: the parameter's name, then the path inside (``state.0``)."""
        for i, value in enumerate(self.args):
            yield from tensors_in(value, _argument_name(i, names))
        for key, value in self.kwargs.items():
            yield from tensors_in(value, key)


def _argument_name(index: int, names: Sequence[str]) -> str:
    return names[index] if index < len(names) else f"input{index}"


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in a nest of lists, tuples, mappings and dataclasses, with its dotted path."""
    if isinstance(value, torch.Tensor):
        yield path, value
    else:
        for key, item in _items(value):
            yield from tensors_in(item, f"{path}.{key}" if path else str(key))


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from zip(getattr(value, "_fields", range(len(value))), value, strict=True)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))


def _map(value: Any, path: str, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(path, value)
    items = {key: _map(item, f"{path}.{key}", change) for key, item in _items(value)}
    if isinstance(value, Mapping):
        return items if type(value) is dict else type(value)(items)  # type: ignore[call-arg]
    if isinstance(value, list | tuple):
        return type(value)(*items.values()) if hasattr(value, "_fields") else type(value)(items.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **items)
    return value


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters that can be passed by position, without ``self``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def forward_names(model: nn.Module) -> tuple[str, ...]:
    """Names of the parameters of a model's forward."""
    return parameter_names(model.forward)


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype without its prefix, ``float32``."""
    return str(dtype).removeprefix("torch.")


def layout_of(tensor: torch.Tensor) -> str:
    """``contiguous``, ``channels_last``, ``channels_last_3d``, ``strided``, or a layout such as ``sparse_coo``."""
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    if tensor.is_contiguous():
        return "contiguous"
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return "channels_last_3d"
    return "strided"


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Describe a tensor; integers carry the range of their values, as ids may not leave it."""
    low = high = None
    if tensor.numel() and not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool):
        low, high = float(tensor.min()), float(tensor.max())
    return TensorSpec(
        name=name, shape=tuple(tensor.shape), dtype=dtype_name(tensor.dtype), layout=layout_of(tensor),
        device=tensor.device.type, low=low, high=high,
    )  # fmt: skip
