"""Python state that a model's forward may change, and what it reads: a captured graph holds it as it was."""

import ast
import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from fusionadvisor.strategies import source


def changing(model: nn.Module) -> str:
    """Say where a model's code changes Python state, or reads what changes by itself; empty where it does neither."""
    code = source.read(model)
    if code.unreadable:
        name = code.unreadable[0]
        return f"The source of {name} cannot be read, so Python state it may change cannot be ruled out."
    for function in code.functions:
        for node in ast.walk(function.node):
            if _sets(node) or _changes(function, node):
                return f"{source.where(function, node)} changes Python state, which a graph would not do again."
    for function in code.functions:
        for place in _unfollowed(function):
            return f"{place}: a graph would hold what it gave once."
    return ""


@dataclass(frozen=True)
class Constants:
    """Plain values that a model's code reads and a graph captured of it holds, and whether they are as they were.

    Args:
        held: Where each is kept, its name there, and its value: attributes of the user's modules and of plain objects
            on them, submodules that were captured through, and globals.
        settings: Of torch, by name, where the code asks for one.
    """

    held: tuple[tuple[object, str, object], ...]
    settings: dict[str, object]

    @classmethod
    def of(cls, model: nn.Module) -> "Constants":
        """Read a model's code and take down the values."""
        functions = source.read(model).functions
        names = {node.attr for f in functions for node in ast.walk(f.node) if isinstance(node, ast.Attribute)}
        names |= {str(arg.value) for f in functions for arg in _texts_given_to_getattr(f)}
        names |= {node.id for f in functions for node in ast.walk(f.node) if isinstance(node, ast.Name)}
        held: list[tuple[object, str, object]] = []
        for module in model.modules():
            if not type(module).__module__.startswith("torch."):
                held += _attributes(module, names, _DEPTH)
                held += ((module, name, child) for name, child in module._modules.items() if _users(child))
        for function in functions:
            home = sys.modules.get(str(function.namespace.get("__name__")))
            read = {node.id for node in ast.walk(function.node) if isinstance(node, ast.Name)}
            if home is not None and vars(home) is function.namespace:
                held += _attributes(home, read, 1)
        settings = {name: ask() for name, ask in _SETTINGS.items() if names & _ASKS[name]}
        return cls(tuple(held), settings)

    def hold(self) -> bool:
        """Whether everything is as it was."""
        return not self.changed() and all(_SETTINGS[name]() == value for name, value in self.settings.items())

    def changed(self) -> str:
        """The name of the first value that is another; empty where none is."""
        for place, name, value in self.held:
            now = getattr(place, name, _MISSING)
            if now is not value and (type(now) is not type(value) or isinstance(value, nn.Module) or now != value):
                return name
        return ""

    def __getstate__(self) -> dict[str, Any]:
        # a module of Python's is known by its name to whoever loads this
        held = [(p.__name__ if isinstance(p, ModuleType) else p, name, value) for p, name, value in self.held]
        return {**vars(self), "held": held}

    def __setstate__(self, state: dict[str, Any]) -> None:
        held = ((sys.modules.get(p) if isinstance(p, str) else p, name, value) for p, name, value in state["held"])
        vars(self).update(state, held=tuple(held))


_MISSING = object()
_DEPTH = 3
"""How deep plain objects are looked into: a configuration that holds one for its parts."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_SETTINGS: dict[str, Callable[[], object]] = {
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "autocast": lambda: tuple(
        (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")
    ),
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
}
_ASKS = {
    "grad mode": {"is_grad_enabled", "requires_grad"},
    "inference mode": {"is_inference_mode_enabled", "is_inference"},
    "autocast": {"is_autocast_enabled", "is_autocast_cpu_enabled", "get_autocast_dtype", "get_autocast_gpu_dtype",
                 "get_autocast_cpu_dtype"},
    "default dtype": {"get_default_dtype"},
    "default device": {"get_default_device"},
}  # fmt: skip
"""Attributes by which code asks for each."""
_UNFOLLOWED = {"random", "time", "os", "datetime", "secrets", "uuid"}
"""Modules whose functions may return something else at each call."""


def _attributes(place: object, names: set[str], depth: int) -> Iterator[tuple[object, str, object]]:
    """Plain values among the attributes of these names, and those of the plain objects on it."""
    kinds = type(place).__mro__ if not isinstance(place, ModuleType) else ()
    known = {name for table in (vars(place), *map(vars, kinds)) for name in table}
    for name in sorted(names & known):
        of_class = name not in vars(place)
        value = next((vars(k)[name] for k in kinds if name in vars(k)), None) if of_class else vars(place)[name]
        if _plain(value):
            yield place, name, copy.copy(value)
        elif depth > 1 and hasattr(value, "__dict__") and not _is_code(value):
            yield from _attributes(value, names, depth - 1)


def _plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return all(_plain(item) for item in value)
    return isinstance(value, _PLAIN)


def _is_code(value: object) -> bool:
    return callable(value) or isinstance(value, ModuleType | torch.Tensor | property | classmethod | staticmethod)


def _users(child: object) -> bool:
    return isinstance(child, nn.Module) and not type(child).__module__.startswith("torch.")


def _texts_given_to_getattr(function: source.Function) -> Iterator[ast.Constant]:
    for node in ast.walk(function.node):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            yield from (arg for arg in node.args if isinstance(arg, ast.Constant))


def _unfollowed(function: source.Function) -> Iterator[str]:
    """Places where a function calls what may return something else each time, for a reason no guard can see."""
    for node in ast.walk(function.node):
        base = node.func if isinstance(node, ast.Call) else None
        while isinstance(base, ast.Attribute):
            base = base.value
        found = function.namespace.get(base.id) if isinstance(base, ast.Name) else None
        home = found.__name__ if isinstance(found, ModuleType) else ""
        if isinstance(found, FunctionType) or type(found).__name__ == "builtin_function_or_method":
            home = getattr(found, "__module__", None) or ""
        if home.partition(".")[0] in _UNFOLLOWED or home.startswith("numpy.random"):
            yield f"{source.where(function, node)} calls {ast.unparse(node.func)}"  # type: ignore[attr-defined]


_MUTATORS = frozenset(
    {"append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove", "reverse",
     "setdefault", "sort", "update"}
)  # fmt: skip
"""Methods of Python's containers that change them."""
_SETTERS = frozenset({"register_buffer", "register_parameter", "add_module", "register_module", "setattr"})
"""Functions that set an attribute."""


def _sets(node: ast.AST) -> bool:
    """Whether a node of code sets an attribute or another function's variable."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Store | ast.Del)
    if isinstance(node, ast.Call):
        return (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) in _SETTERS
    return isinstance(node, ast.Global | ast.Nonlocal)


def _changes(function: source.Function, node: ast.AST) -> bool:
    """Whether a node changes what an attribute or a global holds: an element set, a list appended to."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        base: ast.AST = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
        base = node.func.value
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "next" and node.args:
        base = node.args[0]
    else:
        return False
    while isinstance(base, ast.Subscript):
        base = base.value
    if isinstance(base, ast.Attribute):
        return True
    return isinstance(base, ast.Name) and base.id in function.namespace and base.id not in _bound(function)


def _bound(function: source.Function) -> set[str]:
    """Names that are a function's own."""
    arguments = {node.arg for node in ast.walk(function.node) if isinstance(node, ast.arg)}
    stored = (n for n in ast.walk(function.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return arguments | {node.id for node in stored}
