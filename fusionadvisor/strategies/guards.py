"""What a captured forward took for constant: recorded while it is captured, compared whenever it is called.

A capture follows the one path that the model takes at that moment. Every attribute of a module or of a plain object
that the code read on it, every global and every variable of a closure, and every state of torch it asked for is noted
with its value. A call for which one of them is another runs the module's own code.
"""

import enum
import functools
import itertools
import os
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    type(Ellipsis), range, re.Pattern,
)  # fmt: skip
TENSORS = (Tensor, nn.Parameter, nn.Buffer)
FIXED = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
          types.ModuleType, types.GenericAlias, type, torch._ops.OpOverload, torch._ops.OpOverloadPacket)  # fmt: skip
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8
"""Flags of a class: it was made while Python ran; its attributes cannot be set."""
MISSING = "no such attribute"
_MOST = 2000
"""Values in one container that are compared at each call; a larger one is refused."""
HOME = str(Path(__file__).parents[1])
TORCH = str(Path(torch.__file__).parent)
TRUSTED = (HOME, TORCH, sysconfig.get_paths()["stdlib"] + "/")
"""Where code lies that reads nothing of the user's but what it is given."""
jit: Any = torch.jit
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _autocast() -> tuple[object, ...]:
    on = torch.is_autocast_enabled
    return tuple((torch.get_autocast_dtype(kind) if on(kind) else None) for kind in ("cpu", "cuda"))


STATES: dict[str, Callable[[], object]] = {
    "autocast": _autocast,
    "gradients": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "scripting": jit.is_scripting,
    "tracing": jit.is_tracing,
    "compiling": torch.compiler.is_compiling,
    "exporting": torch.onnx.is_in_onnx_export,
    "default dtype": torch.get_default_dtype,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "matmul precision": torch.get_float32_matmul_precision,
    "number of threads": torch.get_num_threads,
    "CUDA": torch.cuda.is_available,
}
"""Global state that code may ask for. Autocast is always compared: a fused op may round otherwise under it."""


class UnfollowedError(ValueError):
    """The code does something that a captured graph would not do again."""


class _Is:
    """Equal to one object alone; a copy of the model has a copy of it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Is) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def token(value: Any) -> Any:
    """What stands for a value in a comparison. A module stands for any other: calls of it stay calls.

    Raises:
        UnfollowedError: If it may change and cannot be compared.
    """
    return _token(value, itertools.count())


def _token(value: Any, count: Iterator[int]) -> Any:
    kind = type(value)
    if kind in PLAIN or isinstance(value, enum.Enum):
        return (kind, "nan") if value != value else (kind, value)
    if isinstance(value, (Tensor, *FIXED)):
        return _Is(value)
    if isinstance(value, nn.Module):
        return "a module"
    if next(count) > _MOST:
        raise UnfollowedError("which is too large to be compared at each call")
    if isinstance(value, tuple | list | torch.Size):
        return kind, [_token(item, count) for item in value]
    if isinstance(value, Mapping) and hasattr(value, "items"):
        pairs = [(_token(k, count), _token(v, count)) for k, v in value.items()]
        return (kind, pairs) if kind.__module__ in ("builtins", "collections") else (kind, pairs, _Is(value))
    if isinstance(value, set | frozenset):
        return kind, value if kind is frozenset else frozenset(value)
    if isinstance(value, types.MethodType):
        return kind, _Is(value.__func__), _token(value.__self__, count)
    if isinstance(value, functools.partial):
        return kind, _token(value.func, count), _token(value.args, count), _token(value.keywords, count)
    if isinstance(value, functools._lru_cache_wrapper | staticmethod | classmethod):
        return _Is(value)
    if kind is types.SimpleNamespace:
        return kind, _token(vars(value), count)
    if followed(kind):
        return _Is(value)
    raise UnfollowedError(f"a {kind.__name__}, which cannot be compared")


def followed(kind: type) -> bool:
    """Whether reads of the attributes of its instances can be noted: the class is written in Python."""
    patchable = kind.__flags__ & _HEAP and not kind.__flags__ & _IMMUTABLE
    return bool(patchable) and type(kind).__setattr__ is type.__setattr__


@dataclass
class Read:
    """One value that was read: by ``name`` from ``holder``, a place in words, and what it was."""

    holder: Any
    name: str
    how: str
    token: Any

    def now(self) -> Any:
        """What it is now."""
        holder = self.holder
        if self.how == "attribute":
            value = getattr(holder, self.name, MISSING)
        elif self.how == "key":
            value = holder.get(self.name, MISSING)
        else:
            value = holder.cell_contents
        if isinstance(value, PLAIN):
            return (type(value), "nan") if value != value else (type(value), value)
        if isinstance(value, Tensor) and self.token == "a tensor":
            return self.token
        return token(value)

    def changed(self) -> bool:
        """Whether it is another now."""
        try:
            return bool(self.now() != self.token)
        except (UnfollowedError, ValueError, RuntimeError):  # of a cell that is empty, a tensor that cannot be compared
            return True


class Shared:
    """Reads that all copies of a model share: globals, classes, closures.

    Args:
        reads: They are the same for every copy in this process.
        lost: They were pickled and cannot be compared any more.
    """

    def __init__(self, reads: list[Read], lost: bool = False) -> None:
        self.reads, self.lost = reads, lost

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shared":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        named: list[tuple[Any, str, Any]] = []
        for read in self.reads:
            home = sys.modules.get(str(read.holder.get("__name__"))) if read.how == "key" else None
            if home is not None and vars(home) is read.holder:
                named.append((home.__name__, read.name, read.token))
            elif isinstance(read.holder, type):
                named.append((read.holder, read.name, read.token))
            else:
                return Shared, ([], True)
        return _shared, (named,)


def _shared(named: list[tuple[Any, str, Any]]) -> Shared:
    reads = []
    for home, name, was in named:
        if isinstance(home, type):
            reads.append(Read(home, name, "attribute", was))
        elif home in sys.modules:
            reads.append(Read(vars(sys.modules[home]), name, "key", was))
        else:
            return Shared([], lost=True)
    return Shared(reads)


@dataclass
class Guard:
    """What must be as it was for a captured forward to be right.

    Args:
        reads: Attributes of the module's own modules and objects.
        shared: What lies outside of it.
        states: Of torch, by name.
        links: Modules that were gone through: parent, key and child.
        environment: Environment variables that the code names.
    """

    reads: list[Read] = field(default_factory=list)
    shared: Shared = field(default_factory=lambda: Shared([]))
    states: dict[str, object] = field(default_factory=dict)
    links: list[tuple[nn.Module, str, nn.Module]] = field(default_factory=list)
    environment: dict[str, str | None] = field(default_factory=dict)

    def hold(self, module: nn.Module, path: str) -> None:
        """Compare also what decides what a submodule of torch computes: its call was taken out of the graph."""
        layer = module.get_submodule(path)
        names = [n for n, value in vars(layer).items() if isinstance(value, PLAIN) and not n.startswith("_")]
        self.reads += [Read(layer, name, "attribute", token(getattr(layer, name))) for name in (*names, *HOOKS)]
        self.reads.append(Read(layer, "forward", "attribute", token(layer.forward)))
        parent, child = module, module
        for key in path.split("."):
            parent, child = child, child.get_submodule(key)
            self.links.append((parent, key, child))

    def broken(self) -> str:
        """Say what is another than it was; empty where nothing is."""
        for state, was in self.states.items():
            if STATES[state]() != was:
                return f"{state} changed"
        for parent, key, child in self.links:
            if parent._modules.get(key) is not child:
                return f"{key} is another module"
        for read in self.reads:
            if read.changed():
                return f"{read.name} changed"
        if self.shared.lost:
            return "it was loaded where what it read outside the model cannot be compared"
        for read in self.shared.reads:
            if read.changed():
                return f"{read.name} changed"
        for name, value in self.environment.items():
            if os.environ.get(name) != value:
                return f"{name} changed"
        return ""
