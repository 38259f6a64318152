"""One module's own forward as a graph whose calls of submodules stay calls, and as a function again.

Only the module's own lines are captured: whatever its submodules do, they still do it live. The function reads
parameters, buffers and submodules from the module itself each time.
"""

import ast
import functools
import importlib
import inspect
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from fusionadvisor.strategies import source
from fusionadvisor.workload.copies import duplicate

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
)
"""What torch.fx raises on code it does not understand: its TraceError is a ValueError, and a module that is called and
is not a child of the one captured is a NameError."""
_FACTORIES = ("ones", "zeros", "full", "arange", "empty")
_CHECKS = ("_assert", "_assert_is_none")


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True
    record_stack_traces = True

    def __init__(self, through: bool, lengths: Sequence[int]) -> None:
        super().__init__()
        self.through, self.lengths = through, iter(lengths)
        self.known: dict[fx.Node, int] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not (self.through and source.runs_in_order(m))

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Sized(node, self)

    def iter(self, obj: Any) -> Iterator[Any]:
        return iter([obj[i] for i in range(self.length(obj.node))])

    def length(self, node: fx.Node) -> int:
        if node not in self.known:
            length = next(self.lengths, None)
            if length is None:
                raise UnpackedError(node)
            self.known[node] = length
        return self.known[node]


class _Sized(fx.Proxy):
    """Says its length where it is known, as unpacking asks for it."""

    def __getattr__(self, k: str) -> fx.proxy.Attribute:
        return _SizedAttribute(self, k)

    def __len__(self) -> int:
        return self.tracer.length(self.node)  # type: ignore[attr-defined,no-any-return]


class _SizedAttribute(fx.proxy.Attribute):
    __len__ = _Sized.__len__


class UnpackedError(TypeError):
    """A forward unpacks something whose length is not known, or asks for it."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__("it goes by the length of something that may be another for other sizes")
        self.node = node


def unpacked(
    module: nn.Module, literals: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[nn.Module, fx.Graph, list[int]]:
    """Capture the forward of a copy of ``module`` that may unpack shapes, and slices of shapes.

    Their lengths follow from how many dimensions the tensors have. Those of anything else may be others for other
    sizes.

    Args:
        module: It stays as it is.
        literals: See :func:`trace`.
        given: The arguments of a call, by name.

    Returns:
        The copy, its graph, and the lengths for :func:`trace`.

    Raises:
        RuntimeError, TypeError, …: See :data:`FAILURES`.
    """
    lengths: list[int] = []
    while True:
        work = duplicate(module)
        try:
            return work, trace(work, literals, lengths=lengths), lengths
        except UnpackedError as error:
            try:
                size = _value(error.node, work, given)
            except FAILURES:
                raise error from None
            if not isinstance(size, torch.Size):
                raise
            lengths.append(len(size))


def _value(wanted: fx.Node, module: nn.Module, given: Mapping[str, Any]) -> Any:
    """What a node of a graph that is not finished is in a call with these arguments."""
    known: dict[fx.Node, Any] = {}

    def value(node: fx.Node) -> Any:
        if node not in known:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
            called: Any = node.target
            if node.op == "placeholder":
                known[node] = given[called]
            elif node.op == "get_attr":
                known[node] = operator.attrgetter(called)(module)
            elif node.op == "call_method":
                known[node] = getattr(args[0], called)(*args[1:], **kwargs)
            else:
                called = module.get_submodule(called) if node.op == "call_module" else called
                known[node] = called(*args, **kwargs)
        return known[node]

    with torch.no_grad(), torch.random.fork_rng():
        return value(wanted)


def trace(
    module: nn.Module, literals: Mapping[str, Any], *, through: bool = False, lengths: Sequence[int] = ()
) -> fx.Graph:
    """Capture the forward of ``module``.

    Args:
        module: It gets an attribute for each tensor constant that its forward makes; pass a copy.
        literals: Its arguments that are no tensors, by name, held to these values.
        through: Calls of a Sequential become calls of the modules in it.
        lengths: Of what it unpacks, in order; see :func:`unpacked`.

    Raises:
        RuntimeError, TypeError, …: See :data:`FAILURES`.
    """
    with warnings.catch_warnings(), _factories():
        warnings.simplefilter("ignore")
        graph = _Tracer(through, lengths).trace(module, concrete_args=dict(literals) or None)
    names = inspect.signature(module.forward).parameters
    given = (node for node in graph.nodes if node.op == "placeholder")
    for node, name in zip(given, names, strict=False):
        if str(node.target).rpartition("_")[0] == name:
            node.target = name  # held to a value, an argument gets a number to its name: callers know the name alone
    for node in reversed(graph.nodes):
        if node.op == "call_function" and getattr(node.target, "__name__", "") in _CHECKS:
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


class Rewritten:
    """A module's forward, written anew from its graph."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        self.module, self.graph = module, graph
        self.lines = lines(graph)
        self._run = function(graph)

    @property
    def __code__(self) -> Any:  # torch.export asks for it, and for the signature
        return self._own.__code__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._own.__get__(self.module))

    @property
    def _own(self) -> Any:
        return type(self.module).forward

    def again(self, graph: fx.Graph) -> "Rewritten":
        """The same with this graph, which was made from its own."""
        return Rewritten(self.module, graph)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it on the module as it is now."""
        return self._run(self.module, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_run"}  # code that no file holds

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _run=function(state["graph"]))


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
