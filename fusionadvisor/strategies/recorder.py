"""Notes what a forward reads while it is captured, and refuses what a graph of it would not do again."""

import ast
import dis
import enum
import functools
import gc
import inspect
import itertools
import os
import random
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from fusionadvisor.strategies.guards import (
    FIXED,
    HOME,
    HOOKS,
    MISSING,
    PLAIN,
    STATES,
    TENSORS,
    TORCH,
    TRUSTED,
    Guard,
    Read,
    Shared,
    UnfollowedError,
    followed,
    token,
)

_CHANGING = frozenset({"time", "random", "datetime"})
"""Modules whose functions answer otherwise each time."""
_MODULE_FILE = nn.Module.__init__.__code__.co_filename
_BETWEEN = (__file__, _MODULE_FILE)
ASKS = "stands_for_hasattr"
"""What is called in the place of ``hasattr``: not itself what asks."""
_TOOLS = (str(Path(fx.__file__).parent), HOME, str(Path(TORCH) / "utils" / "_pytree.py"))
_CONTAINERS = frozenset(
    {"append", "extend", "insert", "add", "update", "setdefault", "pop", "clear", "remove", "discard", "sort"}
)
ASKED = {
    "is_grad_enabled": "gradients", "no_grad": "gradients", "enable_grad": "gradients", "set_grad_enabled": "gradients",
    "is_inference_mode_enabled": "inference mode", "inference_mode": "inference mode",
    "is_inference": "inference mode", "is_scripting": "scripting", "is_tracing": "tracing",
    "_get_tracing_state": "tracing", "is_compiling": "compiling", "is_dynamo_compiling": "compiling",
    "is_torchdynamo_compiling": "compiling", "is_exporting": "compiling", "is_in_onnx_export": "exporting",
    "get_default_dtype": "default dtype", "are_deterministic_algorithms_enabled": "deterministic algorithms",
    "get_float32_matmul_precision": "matmul precision", "get_num_threads": "number of threads", "is_available": "CUDA",
}  # fmt: skip
"""Names in code, each with the state that it asks for."""


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
        before, collecting = sys.gettrace(), gc.isenabled()
        gc.disable()  # callbacks and finalizers of a collection are no part of the forward
        self._watch(nn.Module)
        sys.settrace(self._tracing)
        try:
            yield
        finally:
            sys.settrace(before)
            if collecting:
                gc.enable()
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
            for name in HOOKS:
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
        return Guard(list(self.reads.values()), Shared(list(self.shared.values())), states, self._links(), environment)

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
        read: Any
        write: Any
        remove: Any
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
        self._keep(holder, name, "attribute", MISSING)

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
        if isinstance(value, (*PLAIN, *TENSORS, nn.Module, enum.Enum, fx.Proxy)):
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
        if not isinstance(value, FIXED) and followed(type(value)):
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
        self.asked |= {ASKED[name] for name in code.co_names if name in ASKED}
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
        if isinstance(value, types.FunctionType) and value.__code__.co_filename.startswith(_TOOLS[0]):
            value = inspect.unwrap(value)  # what stands there while it is captured
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
        home = getattr(module, "__file__", None) or ""
        if home.startswith(TRUSTED) or module.__name__ in sys.builtin_module_names or module.__name__ == "torch":
            return
        for name in code.co_names:
            if name in vars(module) and vars(module)[name] is not module:
                self._global(code, vars(module), name)

    def _scan_class(self, code: types.CodeType, value: Any) -> None:
        """What a function may read of a class: of its first argument, or of one that it names."""
        kind = value if isinstance(value, type) else type(value)
        if kind.__module__.partition(".")[0] in ("torch", "builtins") or issubclass(kind, enum.Enum):
            return
        for name in code.co_names:
            value = None if name.startswith("__") else _on_class(kind, name)
            if value is not None and isinstance(value, (*PLAIN, list, dict, tuple)):
                self.outside.add(id(kind))
                try:
                    self._note(kind, name, "attribute", value)
                except UnfollowedError as error:
                    self.fail(f"{_named(code)} reads {kind.__name__}.{name}, {error}")

    def _scan_closure(self, code: types.CodeType, frame: types.FrameType) -> None:
        """Note what a function reads of the function around it, which has returned."""
        seen = {name: frame.f_locals[name] for name in code.co_freevars if name in frame.f_locals}
        if all(isinstance(value, (*FIXED, nn.Module, fx.Proxy)) for value in seen.values()):
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
    while frame is not None and (frame.f_code.co_filename in _BETWEEN or frame.f_code.co_name == ASKS):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(_TOOLS):
        return None
    return frame


def _place(frame: types.FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} ({code.co_qualname})"


def _named(code: types.CodeType) -> str:
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno} ({code.co_qualname})"


def effect(recorder: Recorder) -> str:
    """Say where a call was made for its effect alone, which a graph would not have; empty where none was."""
    run = {code.co_name for code in recorder.codes.values()}
    for code in recorder.codes.values():
        lines = {line for _, _, line in code.co_lines() if line and (code.co_filename, line) in recorder.lines}
        if not lines or code.co_name.startswith("<"):
            continue
        tree = _parsed(code)
        if tree is None:
            if _discards(code):
                return f"the source of {code.co_qualname} cannot be read"
            continue
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.lineno in lines):
                continue
            called = node.value.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name not in run | _CONTAINERS and not (name.endswith("_") and isinstance(called, ast.Attribute)):
                place = f"{code.co_filename.rpartition('/')[2]}:{node.lineno} ({code.co_qualname})"
                return f"{place} calls something for its effect alone"
    return ""


def _parsed(code: types.CodeType) -> ast.AST | None:
    try:
        text, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(text)))
    except (OSError, TypeError, SyntaxError):
        return None
    return ast.increment_lineno(tree, first - 1)


def _discards(code: types.CodeType) -> bool:
    """Whether the code drops the result of a call."""
    steps = [step.opname for step in dis.get_instructions(code)]
    return any(a == "CALL" and b == "POP_TOP" for a, b in itertools.pairwise(steps))
