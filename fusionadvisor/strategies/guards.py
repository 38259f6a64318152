"""What a captured forward took for constant: recorded while it is captured, compared whenever it is called.

A capture follows the one path that the model takes at that moment. Every attribute of a module or of a plain object
that the code read on it, every global and every variable of a closure, and every state of torch it asked for is noted
with its value. A call for which one of them is another runs the module's own code.
"""

import enum
import functools
import gc
import itertools
import os
import random
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

PLAIN = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    type(Ellipsis), range, re.Pattern,
)  # fmt: skip
_TENSORS = (Tensor, nn.Parameter, nn.Buffer)
_FIXED = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
          types.ModuleType, types.GenericAlias, type, torch._ops.OpOverload, torch._ops.OpOverloadPacket)  # fmt: skip
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8
"""Flags of a class: it was made while Python ran; its attributes cannot be set."""
_MISSING = "no such attribute"
_MOST = 2000
"""Values in one container that are compared at each call; a larger one is refused."""
_CHANGING = frozenset({"time", "random", "datetime"})
"""Modules whose functions answer otherwise each time."""
_HOME = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
TRUSTED = (_HOME, _TORCH, sysconfig.get_paths()["stdlib"] + "/")
"""Where code lies that reads nothing of the user's but what it is given."""
_MODULE_FILE = nn.Module.__init__.__code__.co_filename
_TOOLS = (str(Path(fx.__file__).parent), _HOME, str(Path(_TORCH) / "utils" / "_pytree.py"))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _autocast() -> tuple[object, ...]:
    on = torch.is_autocast_enabled
    return tuple((torch.get_autocast_dtype(kind) if on(kind) else None) for kind in ("cpu", "cuda"))


STATES: dict[str, Callable[[], object]] = {
    "autocast": _autocast,
    "gradients": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "scripting": torch.jit.is_scripting,
    "tracing": torch.jit.is_tracing,
    "compiling": torch.compiler.is_compiling,
    "exporting": torch.onnx.is_in_onnx_export,
    "default dtype": torch.get_default_dtype,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "matmul precision": torch.get_float32_matmul_precision,
    "number of threads": torch.get_num_threads,
    "CUDA": torch.cuda.is_available,
}
"""Global state that code may ask for. Autocast is always compared: a fused op may round otherwise under it."""
_ASKED = {
    "is_grad_enabled": "gradients", "no_grad": "gradients", "enable_grad": "gradients", "set_grad_enabled": "gradients",
    "is_inference_mode_enabled": "inference mode", "inference_mode": "inference mode",
    "is_inference": "inference mode", "is_scripting": "scripting", "is_tracing": "tracing",
    "_get_tracing_state": "tracing", "is_compiling": "compiling", "is_dynamo_compiling": "compiling",
    "is_torchdynamo_compiling": "compiling", "is_exporting": "compiling", "is_in_onnx_export": "exporting",
    "get_default_dtype": "default dtype", "are_deterministic_algorithms_enabled": "deterministic algorithms",
    "get_float32_matmul_precision": "matmul precision", "get_num_threads": "number of threads", "is_available": "CUDA",
}  # fmt: skip
"""Names in code, each with the state that it asks for."""


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
    if isinstance(value, (Tensor, *_FIXED)):
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
    if _followed(kind):
        return _Is(value)
    raise UnfollowedError(f"a {kind.__name__}, which cannot be compared")


def _followed(kind: type) -> bool:
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
            value = getattr(holder, self.name, _MISSING)
        elif self.how == "key":
            value = holder.get(self.name, _MISSING)
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
        named = []
        for read in self.reads:
            home = sys.modules.get(str(read.holder.get("__name__"))) if read.how == "key" else None
            if home is None or vars(home) is not read.holder:
                return Shared, ([], True)
            named.append((home.__name__, read.name, read.token))
        return _shared, (named,)


def _shared(named: list[tuple[str, str, Any]]) -> Shared:
    homes = [(sys.modules.get(home), name, was) for home, name, was in named]
    if any(home is None for home, _, _ in homes):
        return Shared([], lost=True)
    return Shared([Read(vars(home), name, "key", was) for home, name, was in homes])


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
        self.reads += [Read(layer, name, "attribute", token(getattr(layer, name))) for name in (*names, *_HOOKS)]
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


class Recorder:
    """Notes what code reads while it runs, and what it changes.

    Args:
        module: What is captured. Its modules and what they hold are copied with it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.reads: dict[tuple[int, str, str], Read] = {}
        self.shared: dict[tuple[int, str, str], Read] = {}
        self.outside: set[int] = set()
        self.problem = ""
        self.asked: set[str] = {"autocast"}
        self.names: set[str] = set()
        self.lines: set[tuple[str, int]] = set()
        self.codes: dict[int, types.CodeType] = {}
        self.entered: dict[int, nn.Module] = {}
        """Modules whose own code was gone through."""
        self._inner: set[int] = set()
        self._importing = 0
        self._kept: list[Any] = []
        self._patched: dict[type, dict[str, Any]] = {}

    # while it runs ----------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch everything that runs on this thread."""
        rng = torch.get_rng_state(), random.getstate()
        before = sys.gettrace()
        self._watch(nn.Module)
        sys.settrace(self._tracing)
        try:
            yield
        finally:
            sys.settrace(before)
            for kind, had in self._patched.items():
                for name, original in had.items():
                    if original is not None:
                        setattr(kind, name, original)
                    elif name in vars(kind):
                        delattr(kind, name)
        if not torch.equal(rng[0], torch.get_rng_state()) or rng[1] != random.getstate():
            self.fail("it draws random numbers in Python")
        for read in (*self.reads.values(), *self.shared.values()):
            if read.changed():
                self.fail(f"it changes Python state ({read.name})")

    def fail(self, reason: str) -> None:
        """Note why it cannot be followed; the first reason counts."""
        self.problem = self.problem or reason

    def enter(self, module: nn.Module) -> None:
        """Note that a module's code is gone through: it must have no hooks later either."""
        if id(module) not in self.entered:
            self.entered[id(module)] = module
            for name in _HOOKS:
                self._note(module, name, "attribute", vars(module)[name])
            if module is not self.module:
                self._note(module, "forward", "attribute", module.forward)

    def guard(self) -> Guard:
        """What must be as it was.

        Raises:
            UnfollowedError: If something cannot be followed.
        """
        if self.problem:
            raise UnfollowedError(self.problem)
        states = {name: STATES[name]() for name in sorted(self.asked)}
        environment = {name: os.environ.get(name) for name in sorted(self.names)}
        return Guard(
            list(self.reads.values()), Shared(list(self.shared.values())), states, self._links(), environment
        )

    def _links(self) -> list[tuple[nn.Module, str, nn.Module]]:
        """Where the modules that were read from are held, from the outside in."""
        held = {id(read.holder) for read in self.reads.values()} | set(self.entered)
        links: dict[tuple[int, str], tuple[nn.Module, str, nn.Module]] = {}
        known = dict(self.module.named_modules())
        for path, child in known.items():
            if id(child) not in held or not path:
                continue
            parts = path.split(".")
            for depth in range(len(parts)):
                parent, inner = known[".".join(parts[:depth])], known[".".join(parts[: depth + 1])]
                links[id(parent), parts[depth]] = parent, parts[depth], inner
        return list(links.values())

    # attributes -------------------------------------------------------------------------------------------------------

    def _watch(self, kind: type) -> None:
        """Have reads and writes of the attributes of its instances noted."""
        if any(known in self._patched for known in kind.__mro__):
            return
        recorder = self
        read, write, remove = kind.__getattribute__, kind.__setattr__, kind.__delattr__

        def getting(holder: Any, name: str) -> Any:
            try:
                value = read(holder, name)
            except AttributeError:
                recorder._missed(holder, name)
                raise
            recorder._read(holder, name, value)
            return value

        def setting(holder: Any, name: str, value: Any) -> None:
            recorder._changes(name)
            write(holder, name, value)

        def deleting(holder: Any, name: str) -> None:
            recorder._changes(name)
            remove(holder, name)

        patches = {"__getattribute__": getting, "__setattr__": setting, "__delattr__": deleting}
        self._patched[kind] = {name: vars(kind).get(name) for name in patches}
        for name, patch in patches.items():
            setattr(kind, name, patch)

    def _changes(self, name: str) -> None:
        frame = _asker()
        if frame is not None:
            self.fail(f"{_place(frame)} changes Python state ({name})")

    def _read(self, holder: Any, name: str, value: Any) -> None:
        if name.startswith("__") and name != "__dict__":
            return
        frame = _asker()
        if frame is None or (name == "__dict__" and frame.f_code.co_filename == _MODULE_FILE):
            return
        if isinstance(getattr(type(holder), name, None) if not isinstance(holder, nn.Module) else
                      _on_class(type(holder), name), property):  # fmt: skip
            return  # its code was run, and what that read is noted
        if isinstance(value, types.MethodType) and value.__self__ is holder and name not in _vars(holder):
            return
        try:
            self._note(holder, name, "attribute", value)
        except UnfollowedError as error:
            self.fail(f"{_place(frame)} reads {name}, {error}")

    def _missed(self, holder: Any, name: str) -> None:
        """A read that raises AttributeError: of a parameter, buffer or submodule, or of what is not there."""
        if name.startswith("__") or _asker() is None:
            return
        if isinstance(holder, nn.Module):
            held = object.__getattribute__(holder, "__dict__")
            for group in ("_parameters", "_buffers", "_modules"):
                if name in held.get(group, ()):
                    value = held[group][name]
                    was = None if value is None else "a tensor" if group != "_modules" else "a module"
                    self._keep(holder, name, "attribute", was)
                    return
            if type(holder).__getattr__ is not nn.Module.__getattr__:
                return
        elif hasattr(type(holder), "__getattr__"):
            return  # its code was run, and what that read is noted
        self._keep(holder, name, "attribute", _MISSING)

    def _keep(self, holder: Any, name: str, how: str, was: Any) -> None:
        found = was if was in ("a tensor", "a module") else (type(was), was)
        self._store(Read(holder, name, how, found))

    def _note(self, holder: Any, name: str, how: str, value: Any) -> None:
        self._store(Read(holder, name, how, token(value)))
        self._reach(value, id(holder) in self.outside or how != "attribute")

    def _store(self, read: Read) -> None:
        self._kept.append(read.holder)
        key = id(read.holder), read.name, read.how
        where = self.shared if id(read.holder) in self.outside or read.how != "attribute" else self.reads
        where.setdefault(key, read)

    def _reach(self, value: Any, outside: bool) -> None:
        """Watch the objects in a value that code has come by."""
        if isinstance(value, (*PLAIN, *_TENSORS, nn.Module, enum.Enum, fx.Proxy)):
            return
        if outside and id(value) in self.outside:
            return
        self._kept.append(value)
        if outside:
            self.outside.add(id(value))
        if isinstance(value, types.MethodType):
            self._reach(value.__self__, outside)
        elif isinstance(value, functools.partial):
            self._reach((value.func, value.args, value.keywords), outside)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._scan(value.__wrapped__.__code__, value.__wrapped__.__globals__)
        elif isinstance(value, Mapping):
            for item in (*value.keys(), *value.values()):
                self._reach(item, outside)
        elif isinstance(value, tuple | list | set | frozenset):
            for item in value:
                self._reach(item, outside)
        if not isinstance(value, _FIXED) and _followed(type(value)):
            self._watch(type(value))

    # code -------------------------------------------------------------------------------------------------------------

    def _tracing(self, frame: types.FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if code.co_name == "_find_and_load":
            self._importing += 1
            return self._import
        if self._importing:
            return None
        home = str(frame.f_globals.get("__name__")).partition(".")[0]
        tool = home in ("torch", "fusionadvisor") or home.startswith("namedtuple_")
        if tool or code.co_filename.startswith((*TRUSTED, "<frozen")):
            if code.co_name == "decorate_context":  # the wrapper that @torch.no_grad() puts around a function
                self.asked.add("gradients")
            return None
        if id(code) not in self.codes:
            self._scan(code, frame.f_globals)
            if code.co_argcount:
                self._scan_class(code, frame.f_locals.get(code.co_varnames[0]))
        if code.co_freevars and id(code) not in self._inner:
            self._scan_closure(code, frame)
        self.lines.add((code.co_filename, frame.f_lineno))
        return self._line

    def _import(self, frame: types.FrameType, event: str, arg: object) -> Any:
        """What runs while a module is imported is not the model's code."""
        self._importing -= event == "return"
        return self._import

    def _line(self, frame: types.FrameType, event: str, arg: object) -> Any:
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def _scan(self, code: types.CodeType, namespace: dict[str, Any]) -> None:
        """Note the globals that a function names, and the state it asks for."""
        self.codes[id(code)] = code
        self._inner |= {id(c) for c in code.co_consts if isinstance(c, types.CodeType)}
        self.asked |= {_ASKED[name] for name in code.co_names if name in _ASKED}
        if any("autocast" in name for name in code.co_names):
            self.asked.add("autocast")
        if {"environ", "getenv"} & set(code.co_names):
            self.names |= {text for text in code.co_consts if isinstance(text, str) and text.isidentifier()}
        package = str(namespace.get("__package__") or "")
        for name in code.co_names:
            if name in namespace:
                self._global(code, namespace, name)
            elif name in sys.modules or f"{package}.{name}" in sys.modules:  # imported in the function
                self._module(code, sys.modules.get(f"{package}.{name}") or sys.modules[name])
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._scan(inner, namespace)

    def _global(self, code: types.CodeType, namespace: dict[str, Any], name: str) -> None:
        value = namespace[name]
        if isinstance(value, types.ModuleType):
            self._module(code, value)
            return
        if isinstance(value, fx.Proxy) or str(getattr(value, "__module__", "")).partition(".")[0] == "torch":
            return
        try:
            self._note(namespace, name, "key", value)
        except UnfollowedError as error:
            self.fail(f"{_named(code)} reads the global {name}, {error}")
        if isinstance(value, type):
            self._scan_class(code, value)

    def _module(self, code: types.CodeType, module: types.ModuleType) -> None:
        """What a function may read of a Python module of the user's."""
        if module.__name__ in _CHANGING:
            self.fail(f"{_named(code)} uses {module.__name__}, which answers otherwise each time")
        if (getattr(module, "__file__", None) or _TORCH).startswith(TRUSTED):
            return
        for name in code.co_names:
            if name in vars(module) and vars(module)[name] is not module:
                self._global(code, vars(module), name)

    def _scan_class(self, code: types.CodeType, value: Any) -> None:
        """What a function may read of a class: of its first argument, or of one that it names."""
        kind = value if isinstance(value, type) else type(value)
        for base in kind.__mro__:
            if base.__module__.partition(".")[0] in ("torch", "builtins") or issubclass(kind, enum.Enum):
                return
            for name in code.co_names:
                value = None if name.startswith("__") else vars(base).get(name)
                if value is not None and isinstance(value, (*PLAIN, list, dict, tuple)):
                    self.outside.add(id(base))
                    try:
                        self._note(base, name, "attribute", value)
                    except UnfollowedError as error:
                        self.fail(f"{_named(code)} reads {base.__name__}.{name}, {error}")

    def _scan_closure(self, code: types.CodeType, frame: types.FrameType) -> None:
        """Note what a function reads of the function around it, which has returned."""
        seen = {name: frame.f_locals[name] for name in code.co_freevars if name in frame.f_locals}
        if all(isinstance(value, (*_FIXED, nn.Module, fx.Proxy)) for value in seen.values()):
            return
        for function in gc.get_referrers(code):
            if not (isinstance(function, types.FunctionType) and function.__code__ is code and function.__closure__):
                continue
            for name, cell in zip(code.co_freevars, function.__closure__, strict=True):
                value = seen.get(name)
                if isinstance(value, (nn.Module, fx.Proxy)) or cell.cell_contents is not value:
                    continue
                try:
                    self._note(cell, name, "cell", value)
                except UnfollowedError as error:
                    self.fail(f"{_named(code)} reads {name}, {error}")


def _on_class(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _vars(holder: Any) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return {}
    return found


def _asker() -> types.FrameType | None:
    """The code that asks for an attribute; None where the tools that capture ask."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, _MODULE_FILE):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(_TOOLS):
        return None
    return frame


def _place(frame: types.FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} ({code.co_qualname})"


def _named(code: types.CodeType) -> str:
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno} ({code.co_qualname})"

