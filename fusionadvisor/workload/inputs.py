"""Inputs of a model: what one call passes, the tensors in it by name, and fresh ones of the same kind."""

import dataclasses
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from fusionadvisor.errors import InputError, did_you_mean
from fusionadvisor.report.model import TensorSpec
from fusionadvisor.workload.usercode import user_code


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
    if isinstance(model, torch.jit.ScriptModule):
        return tuple(argument.name for argument in model.forward.schema.arguments[1:])  # type: ignore[attr-defined]
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
    """Describe a tensor; integers with memory carry the range of their values, as ids may not leave it."""
    low = high = None
    ranged = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
    if ranged and tensor.numel() and not isinstance(tensor, FakeTensor):
        low, high = float(tensor.min()), float(tensor.max())
    return TensorSpec(
        name=name, shape=tuple(tensor.shape), dtype=dtype_name(tensor.dtype), layout=layout_of(tensor),
        device=tensor.device.type, low=low, high=high,
    )  # fmt: skip


_SHORT_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u8": "uint8", "float": "float32", "double": "float64", "half": "float16",
    "int": "int32", "long": "int64", "fp32": "float32", "fp16": "float16",
}  # fmt: skip

_SPEC = re.compile(
    r"^\s*(?:(?P<name>[A-Za-z_][\w.]*)\s*=)?\s*(?P<dtype>[A-Za-z]\w*)?\s*\[(?P<shape>[\d,\s]*)\]"
    r"\s*(?:<\s*(?P<high>\d+))?\s*(?P<layout>channels_last(?:_3d)?)?\s*(?:@\s*(?P<device>\w+(?::\d+)?))?\s*$"
)


def parse_specs(texts: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Read ``--input`` specifications: ``x=float32[8,3,224,224]``, ``[8,3]``, ``ids=int64[8,128]<32000@cpu``.

    The device of one that names none is empty: it goes where the model runs.

    Raises:
        InputError: One does not read so, or its dtype is unknown.
    """
    return tuple(_parse_spec(text) for text in texts)


def _parse_spec(text: str) -> TensorSpec:
    match = _SPEC.match(text)
    if not match:
        raise InputError(
            f"--input '{text}' cannot be read.", 'Write it as "x=float32[8,3,224,224]" or "ids=int64[8,128]<32000".'
        )
    given = match["dtype"] or "float32"
    dtype = _SHORT_DTYPES.get(given, given)
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise InputError(f"--input '{text}': '{given}' is no dtype.", did_you_mean(given, DTYPES))
    shape = tuple(int(size) for size in match["shape"].split(",") if size.strip())
    return TensorSpec(
        name=match["name"] or "", shape=shape, dtype=dtype, layout=match["layout"] or "contiguous",
        high=float(int(match["high"]) - 1) if match["high"] else None,
        low=0.0 if match["high"] else None, device=match["device"] or "",
    )  # fmt: skip


AMP_DTYPES = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16"}

DTYPES = (
    "float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
)  # fmt: skip


DRAWS = 64
"""How often inputs are drawn to fill a larger batch; from there on its rows repeat."""


class Source(ABC):
    """Where inputs come from. ``devices`` says of those that stay on a device of their own, by name, on which."""

    devices: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def draw(self, seed: int, names: Sequence[str]) -> Call:
        """The inputs for a seed; the same for the same seed."""

    def sized(self, seed: int, names: Sequence[str], batch: int) -> Call:
        """The inputs for a seed at another batch size: dim 0 of every tensor that shares the first one's.

        Raises:
            InputError: None of them has a batch dimension.
        """
        drawn = self.draw(seed, names)
        own = batch_size(drawn)
        if not own:
            scalars = ", ".join(name for name, _ in drawn.tensors(names))
            found = f"{scalars} has no batch dimension" if scalars else "the model is called without tensors"
            raise InputError(f"The batch size cannot be changed: {found}.", "Leave --batch out.")
        more = (self.draw(seed + 1000 * k, names) for k in range(1, min(-(-batch // own), DRAWS)))
        return stack_to([drawn, *more], batch, names)


class Made(Source):
    """Inputs that a function makes for any batch size."""

    def __init__(self, make: Callable[[int], Call], seed: int) -> None:
        self._make, self._seed = make, seed

    def draw(self, seed: int, names: Sequence[str]) -> Call:
        """The inputs for a seed, of batch size 1."""
        return self.sized(seed, names, 1)

    def sized(self, seed: int, names: Sequence[str], batch: int) -> Call:
        """The inputs for a seed and batch size."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed + seed)
            return self._make(batch)


class Given(Source):
    """Inputs from the user's code: a function that makes them, or a value.

    A function that draws is called again under another seed, so that its inputs keep the meaning it gives them; what
    comes out the same every time is drawn anew by what it looks like (see :func:`redraw`).
    """

    def __init__(self, value: Any, label: str, seed: int) -> None:
        self._value, self._label, self._seed = value, label, seed

    def draw(self, seed: int, names: Sequence[str]) -> Call:
        """The inputs for a seed: 0 gives the user's own."""
        own = self._make(0)
        if seed == 0:
            return own
        fresh = dict(self._make(seed).tensors(names))
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + seed)

        def change(name: str, tensor: torch.Tensor) -> torch.Tensor:
            drawn = fresh.get(name)
            if drawn is not None and drawn is not tensor and not _same(drawn, tensor):
                return drawn
            return redraw(name, tensor, generator)

        return own.map(change, names)

    def _make(self, seed: int) -> Call:
        if not callable(self._value) or isinstance(self._value, torch.Tensor):
            return Call.of(self._value)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed + seed)
            with user_code(f"{self._label}() failed"):
                value = self._value()
        if value is None:
            raise InputError(f"{self._label}() returned None.", "Return the tensors the model is called with.")
        return Call.of(value)


class Declared(Source):
    """Inputs from specifications: drawn, passed by position where the forward's order allows, else by name."""

    def __init__(self, specs: Sequence[TensorSpec], seed: int, devices: Mapping[str, str] | None = None) -> None:
        self._specs, self._seed = specs, seed
        self.devices = devices or {}

    def draw(self, seed: int, names: Sequence[str]) -> Call:
        """The inputs for a seed."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + seed)
        args: list[torch.Tensor] = []
        kwargs: dict[str, torch.Tensor] = {}
        for position, spec in enumerate(self._specs):
            tensor = draw(spec, generator)
            in_place = not kwargs and spec.name in ("", _argument_name(position, names))
            if in_place:
                args.append(tensor)
            else:
                kwargs[spec.name or _argument_name(position, names)] = tensor
        return Call(tuple(args), kwargs)


def draw(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    """A tensor as specified: standard normal floats, integers in the range, fair booleans."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.randn(
            spec.shape, generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float32
        )
        tensor = wide.to(dtype)
    elif dtype is torch.bool:
        tensor = torch.randint(0, 2, spec.shape, generator=generator).bool()
    else:
        low, high = int(spec.low or 0), int(spec.high if spec.high is not None else 1)
        tensor = torch.randint(low, high + 1, spec.shape, generator=generator).to(dtype)
    if spec.layout.startswith("channels_last"):
        tensor = tensor.contiguous(memory_format=getattr(torch, spec.layout))
    return tensor


def redraw(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Other values of the kind a tensor holds, in its shape, dtype and layout.

    What looks like structure stays as it is: masks, positions, lengths, anything with fewer than three distinct
    values, infinite ones or an order.
    """
    if tensor.layout is not torch.strided or not tensor.numel() or "mask" in name or tensor.dtype is torch.bool:
        return tensor
    values = tensor.detach().cpu()
    if values.is_complex():
        fresh = torch.randn(values.shape, generator=generator, dtype=torch.complex64)
    elif values.is_floating_point():
        wide = values.double()
        low, high = wide.min(), wide.max()
        if not wide.isfinite().all() or (low < high and bool(((wide == low) | (wide == high)).all())):
            return tensor
        if low == high:  # zeros or ones stand for any input of that shape
            fresh = torch.randn(values.shape, generator=generator)
        elif low >= 0:
            fresh = torch.rand(values.shape, generator=generator, dtype=torch.float64) * high
        else:
            fresh = torch.randn(values.shape, generator=generator, dtype=torch.float64) * wide.std() + wide.mean()
    else:
        ordered = values.dim() > 0 and values.shape[-1] > 2 and bool((values.diff(dim=-1) > 0).all())
        if ordered or values.numel() == 1:
            return tensor
        fresh = torch.randint(int(values.min()), int(values.max()) + 1, values.shape, generator=generator)
    result = torch.empty_like(tensor, requires_grad=False)
    result.copy_(fresh)
    return result.requires_grad_(tensor.requires_grad)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def stack_to(calls: Sequence[Call], size: int, names: Sequence[str]) -> Call:
    """One call of batch ``size`` from the rows of several calls, repeated where they are too few.

    What has no batch dimension is the first call's.
    """
    common = batch_size(calls[0])
    others = [dict(call.tensors(names)) for call in calls]

    def change(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != common:
            return tensor
        rows = torch.cat([other[name].detach() for other in others])
        rows = torch.cat([rows] * -(-size // len(rows)))[:size] if len(rows) < size else rows[:size]
        return rows.requires_grad_(tensor.requires_grad)

    return calls[0].map(change, names)


def batch_size(call: Call) -> int | None:
    """Size of the leading dimension of the first tensor that has one."""
    return next((tensor.shape[0] for _, tensor in call.tensors() if tensor.dim()), None)
