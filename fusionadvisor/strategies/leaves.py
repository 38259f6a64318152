"""One module's own forward as a graph whose calls of submodules stay calls, and as a function again.

Only the module's own lines are captured: whatever its submodules do, they still do it live. The function reads
parameters, buffers and submodules from the module itself each time.
"""

import ast
import functools
import importlib
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from fusionadvisor.strategies import source

FAILURES = (
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
    KeyError,
    IndexError,
    AssertionError,
    NameError,
    NotImplementedError,
    ArithmeticError,
    ImportError,
    StopIteration,
)
"""What torch.fx raises on code it does not understand: its TraceError is a ValueError, and a module that is called and
is not a child of the one captured is a NameError."""
_FACTORIES = ("ones", "zeros", "full", "arange", "empty")
CHECKS = ("_assert", "_assert_is_none")


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True
    record_stack_traces = True

    def __init__(self, through: bool) -> None:
        super().__init__()
        self.through = through

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not (self.through and source.runs_in_order(m))


def trace(module: nn.Module, literals: Mapping[str, Any], *, through: bool = False) -> fx.Graph:
    """Capture the forward of ``module``, whose source was read: it has no branch. See also ``captured``.

    Args:
        module: It gets an attribute for each tensor constant that its forward makes; pass a copy.
        literals: Its arguments that are no tensors, by name, held to these values.
        through: Calls of a Sequential become calls of the modules in it.

    Raises:
        RuntimeError, TypeError, …: See :data:`FAILURES`.
    """
    with warnings.catch_warnings(), _factories():
        warnings.simplefilter("ignore")
        graph = _Tracer(through).trace(module, concrete_args=dict(literals) or None)
    names = inspect.signature(module.forward).parameters
    given = (node for node in graph.nodes if node.op == "placeholder")
    for node, name in zip(given, names, strict=False):
        if str(node.target).rpartition("_")[0] == name:
            node.target = name  # held to a value, an argument gets a number to its name: callers know the name alone
    for node in reversed(graph.nodes):
        if node.op == "call_function" and getattr(node.target, "__name__", "") in CHECKS:
            compared = [arg for arg in node.args if isinstance(arg, fx.Node)]
            graph.erase_node(node)
            for other in compared:
                if not other.users and other.op != "placeholder":
                    graph.erase_node(other)
    return graph


def function(graph: fx.Graph) -> Callable[..., Any]:
    """The graph as ``forward(self, …)``."""
    graph.lint()
    code = graph.python_code("self")
    scope = dict(code.globals)
    exec(compile(code.src, "<captured forward>", "exec"), scope)
    made: Callable[..., Any] = scope["forward"]
    return made


class AnotherPathError(RuntimeError):
    """A call that the captured path is not the one of."""


class Captured(Protocol):
    """What a forward was captured from: see :class:`fusionadvisor.strategies.captured.Captured`."""

    def unlike(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Say why a call does not go the captured way; empty where it does."""

    def tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """What the graph takes of a call."""


@dataclass(slots=True)
class Counts:
    """What became of the calls: ``captured`` counts those that ran the graph, ``own`` the others by the reason."""

    captured: int = 0
    own: Counter[str] = field(default_factory=Counter)


class Rewritten:
    """A module's forward, written anew from its graph.

    Args:
        module: The module.
        graph: Its forward, rewritten.
        captured: What must hold for the graph to be right; where it does not, the module's own code runs. None where
            the graph is right for every call and takes the arguments as they are.
    """

    def __init__(self, module: nn.Module, graph: fx.Graph, captured: Captured | None = None) -> None:
        self.module, self.graph, self.captured = module, graph, captured
        self.counts = Counts()
        self.lines = lines(graph)
        self._prepare()

    def _prepare(self) -> None:
        self._run = function(self.graph)
        self.__signature__ = inspect.signature(type(self.module).forward.__get__(self.module))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_run", "__signature__")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    @property
    def __wrapped__(self) -> Any:
        """The module's own forward, for what asks a function for its source or signature."""
        return type(self.module).forward

    @property
    def __code__(self) -> Any:
        return inspect.unwrap(self.__wrapped__).__code__

    @property
    def __globals__(self) -> Any:
        return inspect.unwrap(self.__wrapped__).__globals__

    def again(self, graph: fx.Graph) -> "Rewritten":
        """The same with this graph, which was made from its own."""
        return Rewritten(self.module, graph, self.captured)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it on the module as it is now, or the module's own code where the graph is not the way it would take."""
        if self.captured is None:
            return self._run(self.module, *args, **kwargs)
        if any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values())):
            return self._own(args, kwargs)  # captured by somebody else
        reason = self.captured.unlike(self.module, args, kwargs)
        if not reason:
            try:
                result = self._run(self.module, *self.captured.tensors(args, kwargs))
            except AnotherPathError as error:
                reason = str(error)
            else:
                self._count("")
                return result
        self._count(reason)
        return self._own(args, kwargs)

    def _own(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return type(self.module).forward(self.module, *args, **kwargs)

    def _count(self, reason: str) -> None:
        if torch.compiler.is_compiling():
            return
        if reason:
            self.counts.own[reason] += 1
        else:
            self.counts.captured += 1


def counts(model: nn.Module) -> dict[str, Counts]:
    """How often each rewritten forward ran its graph, and the module's own code and why, by module path."""
    held = {path: rewritten(module) for path, module in model.named_modules()}
    return {path: forward.counts for path, forward in held.items() if forward is not None}


def rewritten(module: nn.Module) -> Rewritten | None:
    """The forward that a strategy has given a module; None where it has its own."""
    held = vars(module).get("forward")
    return held if isinstance(held, Rewritten) else None


def lines(graph: fx.Graph) -> frozenset[tuple[str, int]]:
    """The lines a graph was captured from, each with its file."""
    found = (re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or "") for node in graph.nodes)
    return frozenset((file, int(line)) for pairs in found for file, line in pairs)


def impure(module: nn.Module, path: str) -> str:
    """Say where the module's own forward does more than compute what it returns; empty where it does not."""
    code = source.read(module)
    if code.unreadable:
        return f"the source of {code.unreadable[0]} cannot be read"
    for owned in code.functions:
        if owned.owner is not None and not isinstance(module, owned.owner):
            continue
        for node in ast.walk(owned.node):
            stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
            if stored or isinstance(node, ast.Global | ast.Nonlocal):
                return f"{source.where(owned, node)} changes Python state"
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _adds_to_list(owned, node.value):
                return f"{source.where(owned, node)} calls something for its effect alone"
    return ""


def _adds_to_list(function: source.Function, call: ast.Call) -> bool:
    """Whether a call appends to a list that the function itself made."""
    of = call.func
    if not (isinstance(of, ast.Attribute) and of.attr in ("append", "extend") and isinstance(of.value, ast.Name)):
        return False
    name = of.value.id
    made = [
        node.value
        for node in ast.walk(function.node)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and any(source.names(t, name) for t in (node.targets if isinstance(node, ast.Assign) else [node.target]))
    ]
    bound = sum(source.names(n, name) and isinstance(n.ctx, ast.Store) for n in ast.walk(function.node))  # type: ignore[attr-defined]
    return bool(made) and len(made) == bound and all(isinstance(value, ast.List | ast.ListComp) for value in made)


@contextmanager
def _factories() -> Iterator[None]:
    """Let ``torch.ones(n, n)`` be captured where ``n`` is a size that is not known yet."""
    # torch.fx imports Dynamo when it notes where a node comes from. Imported now, Dynamo learns torch's own functions;
    # imported later, it would keep the stand-ins below for good and never compile through torch.ones again.
    importlib.import_module("torch._dynamo")
    originals = {name: getattr(torch, name) for name in _FACTORIES}

    def captured(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            found = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, fx.Proxy)]
            if not found:
                return original(*args, **kwargs)
            return found[0].tracer.create_proxy("call_function", original, args, kwargs)

        return make

    try:
        for name, original in originals.items():
            setattr(torch, name, captured(original))
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)
