"""Layers of one input whose outputs are only added: one layer with the sum of their weights, and no addition.

The additions are lines of the module around the layers, so that module's own forward is captured and written anew. It
has to do the same every time: then what was recorded is all it ever does.
"""

import ast
import copy
import operator
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import fx, nn

from fusionadvisor.errors import StrategyError
from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.strategies import leaves, parts, source
from fusionadvisor.strategies.modules import hook, replace
from fusionadvisor.workload.copies import duplicate

_ADDS = (operator.add, torch.add)
_BUILTINS = ("zip", "enumerate", "range", "reversed", "len")
_BRANCHES = (
    ast.If, ast.IfExp, ast.While, ast.Try, ast.Match, ast.BoolOp, ast.Lambda, ast.Break, ast.Continue, ast.Raise,
    ast.Yield, ast.YieldFrom, ast.NamedExpr,
)  # fmt: skip


class Summed(nn.Identity):
    """Stands where a layer went into the sum of its neighbours. It computes nothing and cannot train."""

    def train(self, mode: bool = True) -> "Summed":
        """Refuse training mode.

        Raises:
            RuntimeError: If ``mode`` is true.
        """
        if mode:
            raise RuntimeError("layers were summed into one here; train the original model and sum again")
        return super().train(mode)


def groups(model: nn.Module, graphs: tuple[FlowGraph, ...], code: source.Code, paths: list[str]) -> Iterator[list[str]]:
    """Sets of ``paths``, layers of one geometry on one input, that are only summed."""
    owner_path = source.owner(model, paths[0])[0]
    owner = model.get_submodule(owner_path)
    own = [path for path in paths if source.owner(model, path)[0] == owner_path]
    if len(own) < 2 or not always_the_same(owner, code) or hook(owner, owner_path):
        return
    own = [path for path in own if all(path not in g.switched and _only_added(g, owner_path, path) for g in graphs)]
    try:
        graph = leaves.trace(duplicate(owner), {})
    except leaves.FAILURES:
        return
    names = {path.removeprefix(f"{owner_path}.") if owner_path else path: path for path in own}
    for _, members in _trees(graph, set(names), owner):
        yield [names[str(node.target)] for node in members]


def rewrite(model: nn.Module, owner_path: str, paths: list[str]) -> None:
    """Put the summed layer in the place of the first, and a forward without the additions on the owner.

    Raises:
        StrategyError: If the sum is not found again.
    """
    owner: Any = model.get_submodule(owner_path)
    names = [path.removeprefix(f"{owner_path}.") if owner_path else path for path in paths]
    known = leaves.rewritten(owner)
    graph = copy.deepcopy(known.graph) if known else leaves.trace(owner, {})
    for root, members in _trees(graph, set(names), owner):
        if sorted(str(node.target) for node in members) == sorted(names):
            _write(graph, root, members)
            break
    else:
        raise StrategyError(f"{' + '.join(paths)} is not summed in this model.", "Make the recipe again.")
    replace(model, paths[0], parts.summed([model.get_submodule(path) for path in paths]))
    for path in paths[1:]:
        replace(model, path, Summed().eval())
    owner.forward = known.again(graph) if known else leaves.Rewritten(owner, graph)


def always_the_same(owner: nn.Module, code: source.Code, *, loops: bool = False) -> bool:
    """Whether the owner's forward has no branch and calls no other method or function of the user's.

    Args:
        owner: The module.
        code: The source of the model it belongs to.
        loops: Allow them; what captures the forward fails where their number depends on a tensor.
    """
    if "forward" in vars(owner) or leaves.impure(owner, ""):
        return False
    own = [f for f in code.functions if f.owner is not None and _runs(owner, f)]
    if len(own) != 1 or own[0].name.rpartition(".")[2] != "forward" or not _branch_free(own[0], loops=loops):
        return False
    arguments = own[0].node.args
    if arguments.defaults or arguments.kw_defaults or arguments.vararg or arguments.kwarg:
        return False
    return not any(
        (isinstance(node, ast.For | ast.comprehension) and not loops)
        or (isinstance(node, ast.Call) and _is_users(own[0], node.func))
        for node in ast.walk(own[0].node)
    )


def _branch_free(function: source.Function, *, loops: bool = False) -> bool:
    """Whether every call of the function does the same things: then what was recorded once is always so.

    Args:
        function: The function.
        loops: Allow loops over anything; a capture fails where their number depends on a tensor.
    """
    body = function.node.body
    for node in ast.walk(function.node):
        if isinstance(node, _BRANCHES) or (isinstance(node, ast.Return) and node is not body[-1]):
            return False
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node is not function.node:
            return False
        if isinstance(node, ast.comprehension) and (node.ifs or not (loops or _static(function, node.iter))):
            return False
        if isinstance(node, ast.For) and not (loops or _static(function, node.iter)):
            return False
    return True


def _static(function: source.Function, node: ast.expr) -> bool:
    """Whether a loop runs over the module's own attributes and constants alone."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Attribute):
        return function.on_self(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return node.func.id in _BUILTINS and all(_static(function, a) for a in node.args)
    return False


def _runs(owner: nn.Module, method: source.Function) -> bool:
    """Whether a method is one of the owner's that no class of its own overrides without calling it."""
    name = method.node.name
    kinds = [kind for kind in type(owner).__mro__ if name in vars(kind)]
    if method.owner not in kinds:
        return False
    over = kinds[: kinds.index(method.owner)]
    return not over or any("super" in vars(kind)[name].__code__.co_names for kind in over)


def _is_users(function: source.Function, called: ast.expr) -> bool:
    """Whether a function of the user's is called, whose own branches a trace would not show."""
    base = called.value if isinstance(called, ast.Attribute) else called
    while isinstance(base, ast.Attribute):
        base = base.value
    found = function.namespace.get(base.id) if isinstance(base, ast.Name) else None
    if isinstance(found, ModuleType):
        return found.__name__.partition(".")[0] not in ("torch", "math", "operator")
    return isinstance(found, FunctionType | type) and not found.__module__.startswith("torch")


def _only_added(graph: FlowGraph, owner: str, path: str) -> bool:
    """Whether the recording shows the output go into an addition alone, and nothing written in place around it."""
    calls = graph.calls_of(path)
    if not calls:
        return True
    if len(calls) != 1 or any(op.mutates for op in graph.within(owner)) or graph.escapes(calls[0].outputs[0]):
        return False
    value = graph.values[calls[0].outputs[0]]
    readers = graph.readers(value.id)
    if [op.name for op in readers] != ["aten::add"] or readers[0].arguments.get("alpha", 1) != 1:
        return False
    around = [graph.values[v] for v in (*readers[0].reads, *readers[0].writes)]
    return len(readers[0].reads) == 2 and all((v.shape, v.dtype) == (value.shape, value.dtype) for v in around)


def _trees(graph: fx.Graph, names: set[str], owner: nn.Module) -> Iterator[tuple[fx.Node, list[fx.Node]]]:
    """Roots of additions, each with the layers among what it adds that have one input and one geometry."""
    for node in graph.nodes:
        if not _adds(node) or any(_adds(user) and len(node.users) == 1 for user in node.users):
            continue
        by_input: dict[Any, list[fx.Node]] = {}
        for leaf in _leaves(node):
            if leaf.op == "call_module" and str(leaf.target) in names and len(leaf.users) == 1:
                layer: Any = owner.get_submodule(str(leaf.target))
                key = (leaf.args, parts.width(layer), str(parts.geometry(layer)))
                by_input.setdefault(key, []).append(leaf)
        for members in by_input.values():
            if len(members) > 1:
                yield node, members


def _adds(node: Any) -> bool:
    if not isinstance(node, fx.Node) or node.kwargs or len(node.args) != 2:
        return False
    named = node.op == "call_method" and node.target == "add"
    return (named or (node.op == "call_function" and node.target in _ADDS)) and all(
        isinstance(arg, fx.Node) for arg in node.args
    )


def _leaves(root: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    for arg in root.args:
        assert isinstance(arg, fx.Node)
        found += _leaves(arg) if _adds(arg) and len(arg.users) == 1 else [arg]
    return found


def _write(graph: fx.Graph, root: fx.Node, members: list[fx.Node]) -> None:
    """Add what is left, the first member standing for all."""
    rest = [leaf for leaf in _leaves(root) if leaf not in members[1:]]
    inner = [node for node in reversed(graph.nodes) if _adds(node)]
    with graph.inserting_before(root):
        total = rest[0]
        for leaf in rest[1:]:
            total = graph.call_function(operator.add, (total, leaf))
    root.replace_all_uses_with(total)
    graph.erase_node(root)
    for node in (*inner, *members[1:]):
        if node is not root and not node.users:
            graph.erase_node(node)
