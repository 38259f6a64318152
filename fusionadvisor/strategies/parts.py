"""Layers that read one input as one layer: the first computes for all, the others take their part of what it made.

Nothing is assumed about which of them runs: a part is handed out only for the very tensor it was computed from, in the
state it was computed from. Whoever finds none computes alone, with its own rows of the merged weight.
"""

import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LAYERS = (nn.Linear, *CONVOLUTIONS)
_GEOMETRY = ("in_features", "in_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")


def geometry(layer: Any) -> dict[str, Any]:
    """What has to be equal for two layers to become one, by name."""
    own = {name: getattr(layer, name) for name in _GEOMETRY if hasattr(layer, name)}
    return own | {"dtype": layer.weight.dtype, "device": layer.weight.device}


def width(layer: Any) -> int:
    """Number of output features or channels."""
    return int(layer.weight.shape[0])


def built(layers: list[Any]) -> list[Any]:
    """What layers are, as JSON values: class, shape of the weight, whether there is a bias."""
    return [[type(layer).__name__, list(layer.weight.shape), layer.bias is not None] for layer in layers]


@dataclass(slots=True)
class _Waiting:
    """Parts of one result that nobody has taken yet, and what they were computed from."""

    source: "weakref.ref[Tensor]"
    state: tuple[Any, ...]
    parts: dict[int, Tensor]


class Handout:
    """What waits to be taken, for each thread. It is gone with the last part taken, or with the input itself."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Handout, ()  # a copy starts with nothing waiting

    def put(self, x: Tensor, state: tuple[Any, ...], parts: dict[int, Tensor]) -> None:
        """Keep parts computed from ``x`` until they are taken."""
        thread, waiting = threading.get_ident(), self._waiting

        def gone(source: "weakref.ref[Tensor]") -> None:
            if (left := waiting.get(thread)) is not None and left.source is source:
                waiting.pop(thread, None)

        waiting[thread] = _Waiting(weakref.ref(x, gone), state, parts)

    def take(self, index: int, x: Tensor, state: tuple[Any, ...]) -> Tensor | None:
        """The part of that index if it was computed from ``x`` as it is now."""
        thread = threading.get_ident()
        found = self._waiting.get(thread)
        if found is None or found.source() is not x or found.state != state:
            return None
        part = found.parts.pop(index, None)
        if not found.parts:
            self._waiting.pop(thread, None)
        return part


class Part(nn.Module):
    """Stands where one of the merged layers was. The first of them owns the merged layer."""

    def __init__(self, layer: Any, handout: Handout, index: int, sizes: tuple[int, ...], owner: "Part | None") -> None:
        super().__init__()
        self.index, self.sizes, self.handout = index, sizes, handout
        self.start = sum(sizes[:index])
        self.has_bias = layer.bias is not None
        self.linear = isinstance(layer, nn.Linear)
        for name in _GEOMETRY:
            if hasattr(layer, name):
                setattr(self, name, getattr(layer, name))
        setattr(self, "out_features" if self.linear else "out_channels", sizes[index])
        # not registered as a child: the owner's state dict holds the merged layer once
        self.__dict__["owner"] = self if owner is None else owner
        self.train(layer.training)

    @property
    def layer(self) -> Any:
        """The merged layer."""
        owner: Any = self.__dict__["owner"]
        return owner._modules["merged"]

    @property
    def weight(self) -> Tensor:
        """This layer's own rows of the merged weight."""
        rows: Tensor = self.layer.weight
        return rows.narrow(0, self.start, self.sizes[self.index])

    @property
    def bias(self) -> Tensor | None:
        """This layer's own entries of the merged bias, None where it had none."""
        return self.layer.bias.narrow(0, self.start, self.sizes[self.index]) if self.has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Hand out or compute what the layer in this place computes."""
        if issubclass(type(x), fx.Proxy):
            raise fx.proxy.TraceError("layers that were merged compare their inputs, which a symbolic trace cannot")
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or type(x) is not Tensor or x.is_inference():
            return self._alone(x)
        if self.__dict__["owner"] is not self:
            part = self.handout.take(self.index, x, self._state(x))
            return self._alone(x) if part is None else part
        layer = self.layer
        first, *others = layer(x).split(self.sizes, -1 if self.linear else 1 - layer.weight.dim())
        self.handout.put(x, self._state(x), dict(enumerate(others, start=1)))
        return first  # type: ignore[no-any-return]

    def _alone(self, x: Tensor) -> Tensor:
        if self.linear:
            return F.linear(x, self.weight, self.bias)
        return self.layer._conv_forward(x, self.weight, self.bias)  # type: ignore[no-any-return]

    def _state(self, x: Tensor) -> tuple[Any, ...]:
        """What may not change between the computation and the handing out."""
        kind = x.device.type
        autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        own = self.layer._parameters
        weight, bias = own["weight"], own["bias"]
        return x._version, id(weight), weight._version, bias is not None and bias._version, autocast


@torch.no_grad()
def joined(layers: list[Any]) -> nn.Module:
    """One layer whose output is those of ``layers`` side by side."""
    weight = torch.cat([layer.weight for layer in layers])
    bias = None
    if any(layer.bias is not None for layer in layers):
        bias = torch.cat([weight.new_zeros(width(m)) if m.bias is None else m.bias for m in layers])
    return _like(layers[0], weight, bias, any(layer.weight.requires_grad for layer in layers))


@torch.no_grad()
def summed(layers: list[Any]) -> nn.Module:
    """One layer whose output is the sum of those of ``layers``; added in float64 and cast once."""
    weight = torch.stack([layer.weight.double() for layer in layers]).sum(0)
    biases = [layer.bias.double() for layer in layers if layer.bias is not None]
    bias = torch.stack(biases).sum(0) if biases else None
    return _like(layers[0], weight, bias, any(layer.weight.requires_grad for layer in layers))


def _like(layer: Any, weight: Tensor, bias: Tensor | None, requires_grad: bool) -> nn.Module:
    old = layer.weight
    more = {"bias": bias is not None, "device": "meta", "dtype": old.dtype}
    made: Any
    if isinstance(layer, nn.Linear):
        made = nn.Linear(weight.shape[1], weight.shape[0], **more)
    else:
        names = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
        shape = {name: getattr(layer, name) for name in names}
        made = type(layer)(layer.in_channels, weight.shape[0], **shape, **more)
    made.weight = nn.Parameter(weight.to(old.dtype).to(memory_format=_format(old)), requires_grad=requires_grad)
    if bias is not None:
        made.bias = nn.Parameter(bias.to(old.dtype), requires_grad=requires_grad)
    return made.train(layer.training)  # type: ignore[no-any-return]


def _format(weight: Tensor) -> torch.memory_format:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.dim())
    if last is not None and weight.is_contiguous(memory_format=last) and not weight.is_contiguous():
        return last
    return torch.contiguous_format


def key_map(model: nn.Module, paths: Iterable[str]) -> dict[str, list[Any]]:
    """For each key of the original state dict: the key it went to, its first row there and its number of rows."""
    paths = list(paths)
    found: dict[str, list[Any]] = {}
    start = 0
    for path in paths:
        layer: Any = model.get_submodule(path)
        for name, tensor in (("weight", layer.weight), ("bias", layer.bias)):
            if tensor is not None:
                found[f"{path}.{name}"] = [f"{paths[0]}.merged.{name}", start, width(layer)]
        start += width(layer)
    return found


def merged_state(state: Mapping[str, Tensor], keys: Mapping[str, list[Any]]) -> dict[str, Tensor]:
    """A state dict of the original model as the merged model reads it."""
    found = {key: tensor for key, tensor in state.items() if key not in keys}
    rows: dict[str, int] = {}
    for new, start, count in keys.values():  # a bias may be missing at the end: the weight knows how many rows
        whole = new.rpartition(".")[0]
        rows[whole] = max(rows.get(whole, 0), start + count)
    for old, (new, start, count) in keys.items():
        if new not in found:
            found[new] = state[old].new_zeros(rows[new.rpartition(".")[0]], *state[old].shape[1:])
        found[new][start : start + count] = state[old]
    return found


def original_state(state: Mapping[str, Tensor], keys: Mapping[str, list[Any]]) -> dict[str, Tensor]:
    """A state dict of the merged model as the original model reads it."""
    merged = {new for new, _, _ in keys.values()}
    found = {key: tensor for key, tensor in state.items() if key not in merged}
    return found | {old: state[new][start : start + count].clone() for old, (new, start, count) in keys.items()}
