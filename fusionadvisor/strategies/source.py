"""The functions that a model's forward can reach, as syntax trees, for questions about one function alone.

Who uses a value or a module on any path is a question for ``legality``.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any

from torch import nn

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)
_ROOTS = ("forward", "__call__")


_READ_DTYPES = frozenset(
    {"transformers.modeling_utils:get_parameter_dtype", "transformers.modeling_utils:get_parameter_device"}
)  # fmt: skip
"""Functions that go through all modules of a model, and only to ask for the dtype or device of their tensors."""


@dataclass(frozen=True, eq=False)
class Function:
    """One function that forward can reach. ``owner`` is the class it is a method of."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: type | None
    name: str
    namespace: dict[str, Any]
    file: str = ""

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node that each node hangs on."""
        return {child: node for node in ast.walk(self.node) for child in ast.iter_child_nodes(node)}

    @cached_property
    def self_name(self) -> str:
        """What the method calls its module, ``self``; empty for a plain function."""
        return self.node.args.args[0].arg if self.owner is not None and self.node.args.args else ""

    def on_self(self, base: ast.expr) -> bool:
        """Whether ``base`` is the method's own module."""
        return isinstance(base, ast.Name) and base.id == self.self_name != ""

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around ``node``, from the inside out, within this function."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent


@dataclass(frozen=True)
class Code:
    """The functions of a model's classes that its forward can reach, and those whose source cannot be read."""

    functions: tuple[Function, ...]
    unreadable: tuple[str, ...]


def read(model: nn.Module) -> Code:
    """Read the source of every function that the model's forward can reach."""
    found: dict[int, Function] = {}
    unreadable: list[str] = []
    methods = _methods(model)
    todo: list[tuple[FunctionType, type | None]] = [(f, owner) for name in _ROOTS for f, owner in methods.get(name, ())]
    todo += [(f, None) for module in model.modules() for f in _attached(module)]
    set_names = _set_in(methods)
    while todo:
        function, owner = todo.pop()
        if id(function.__code__) in found or _trusted(function.__module__) or _name(function) in _READ_DTYPES:
            continue
        node = _parse(function)
        if node is None:
            unreadable.append(function.__qualname__)
            continue
        if owner is not None:
            kept = [module for module in model.modules() if isinstance(module, owner)]
            node = _Settled(node, kept, set_names).visit(node)
        found[id(function.__code__)] = Function(
            node, owner, function.__qualname__, function.__globals__, function.__code__.co_filename
        )
        for inner in _run(node):
            if isinstance(inner, ast.Attribute):
                todo += methods.get(inner.attr, ())
            elif isinstance(inner, ast.Name) and isinstance(called := function.__globals__.get(inner.id), FunctionType):
                todo.append((called, None))
    return Code(tuple(found.values()), tuple(dict.fromkeys(unreadable)))


class _Settled(ast.NodeTransformer):
    """Takes the branch of ``if self.norm is not None:`` that every module of the class takes.

    Args:
        method: The method whose code is visited.
        modules: The model's modules it is a method of.
        set_names: Attributes that any method may set: of those nothing is known.
    """

    def __init__(
        self, method: ast.FunctionDef | ast.AsyncFunctionDef, modules: list[nn.Module], set_names: frozenset[str]
    ) -> None:
        self._self = method.args.args[0].arg if method.args.args else ""
        self._modules, self._set_names = modules, set_names

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Replace the statement by its branch where that is known."""
        self.generic_visit(node)
        known = self._known(node.test)
        if known is None:
            return node
        return (node.body if known else node.orelse) or ast.copy_location(ast.Pass(), node)

    def _known(self, test: ast.expr) -> bool | None:
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is | ast.IsNot)):
            return None
        asked, against = test.left, test.comparators[0]
        if not (
            isinstance(asked, ast.Attribute) and names(asked.value, self._self) and asked.attr not in self._set_names
        ):
            return None
        if not (isinstance(against, ast.Constant) and against.value is None):
            return None
        missing = object()
        absent = {getattr(module, asked.attr, missing) is None for module in self._modules}
        if len(absent) != 1:
            return None
        return absent.pop() is isinstance(test.ops[0], ast.Is)


def _set_in(methods: dict[str, list[tuple[FunctionType, type]]]) -> frozenset[str]:
    """Names of the attributes that methods set, ``__init__`` apart, which ran already; ``setattr`` for any."""
    parsed = (_parse(function) for group in methods.values() for function, _ in group)
    nodes = [inner for node in parsed if node is not None for inner in ast.walk(node)]
    stored = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store | ast.Del)}
    return frozenset(stored | {"setattr" for n in nodes if names(n, "setattr")})


def _run(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """What a call of a function runs: its body, and not its decorators, defaults and annotations."""
    for statement in function.body:
        yield from ast.walk(statement)


def _name(function: FunctionType) -> str:
    return f"{function.__module__}:{function.__qualname__}"


def names(node: ast.AST, name: str) -> bool:
    """Whether a node is the local name ``name``."""
    return isinstance(node, ast.Name) and node.id == name


def where(function: Function, node: ast.AST) -> str:
    """A place in a function, in words: ``model.py:12 (Block.forward)``."""
    return f"{function.file.rpartition('/')[2]}:{getattr(node, 'lineno', 0)} ({function.name})"


def owner(model: nn.Module, path: str) -> tuple[str, tuple[str, ...]]:
    """Split a path at the innermost module that is no container: its path, then the keys from there down."""
    parts = path.split(".")
    cut = len(parts) - 1
    while cut and _is_container(model.get_submodule(".".join(parts[:cut]))):
        cut -= 1
    return ".".join(parts[:cut]), tuple(parts[cut:])


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, _CONTAINERS) or runs_in_order(module)


def runs_in_order(module: nn.Module) -> bool:
    """Whether a module is a Sequential with torch's own forward."""
    return (
        isinstance(module, nn.Sequential)
        and type(module).forward is nn.Sequential.forward
        and "forward" not in vars(module)
    )


def _methods(model: nn.Module) -> dict[str, list[tuple[FunctionType, type]]]:
    """The methods of the classes of a model's modules, torch's own left out, by name."""
    found: dict[str, list[tuple[FunctionType, type]]] = {}
    for kind in dict.fromkeys(type(module) for module in model.modules()):
        for owner in kind.__mro__:
            if _trusted(owner.__module__):
                continue
            for name, attribute in vars(owner).items():
                if (function := _plain(attribute)) is not None and name != "__init__":
                    found.setdefault(name, []).append((function, owner))
    return found


def _attached(module: nn.Module) -> Iterator[FunctionType]:
    """Functions set on the instance and hooks: they run with forward and may read any module."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, {"forward": vars(module).get("forward")})
    for attribute in (f for group in hooks for f in group.values()):
        function = _plain(attribute) or _plain(vars(type(attribute)).get("__call__"))
        if function is not None:
            yield function


def _plain(attribute: object) -> FunctionType | None:
    """The function behind a method, property, static or class method, or decorator."""
    inner: Any = attribute
    if isinstance(inner, staticmethod | classmethod):
        inner = inner.__func__
    elif isinstance(inner, property):
        inner = inner.fget
    elif inspect.ismethod(inner):
        inner = inner.__func__
    inner = inspect.unwrap(inner) if callable(inner) else inner
    return inner if isinstance(inner, FunctionType) else None


def _parse(function: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    ast.increment_lineno(tree, first - 1)
    node = tree.body[0]
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _trusted(module: str | None) -> bool:
    """Torch's own code, this package's and the standard library's: they reach no module they were not given."""
    root = (module or "").partition(".")[0]
    if root in ("__main__", "builtins"):  # what exec makes without a name of its own says that it is of builtins
        return False
    return root in ("torch", __name__.partition(".")[0]) or root in sys.stdlib_module_names
