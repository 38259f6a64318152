"""Small matrix products of one shape, each on an input of its own: one batched product.

The first product would have to know the inputs of all the others, so the forward of the module around them is captured
and written anew, the inputs first and the product of all after them. That module has to do the same every time: then
what was recorded is all it ever does, and only the order of its own lines changes.
"""

import ast
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from fusionadvisor.errors import StrategyError
from fusionadvisor.flow.graph import FlowGraph, ModuleCall, Op
from fusionadvisor.report.model import Refusal, Source
from fusionadvisor.strategies import leaves, parts, rows, source, sums
from fusionadvisor.strategies.base import Site
from fusionadvisor.strategies.modules import hook, replace
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.usercode import one_line

FEWEST = 3
"""Two are not fewer kernels: their inputs have to be put side by side first."""
LARGEST = 66 * 128 * 128
"""Elements of a result from which on one product fills a GPU by itself: 66 tiles of 128 × 128, half as many as an H100
has multiprocessors."""
_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::mv", "aten::dot", "aten::baddbmm", "aten::addmv")
_RANDOM = ("rand", "bernoulli", "dropout", "multinomial", "poisson")
_BATCHED = ("linear", "aten::mm", "aten::addmm")
_MULTIPLY = (operator.matmul, torch.matmul, torch.mm)
_MEMORY = frozenset({"untyped_storage", "data_ptr", "data"})
"""What tells a slice of a larger tensor from a tensor of its own, or changes it unseen."""

Alone = Callable[[str], str]
"""Says what speaks against changing the layer at a path."""


@dataclass(slots=True)
class _Product:
    """One product of a module's forward in one recording.

    Args:
        name: How it is found again: the layer's path below the module, empty where the forward multiplies by itself,
            and how often that one had multiplied before, ``experts.0@0``.
        path: Of the layer in the model, empty for none.
        reads: What it multiplies; for a layer its input alone.
        writes: Its result.
        kind: What has to be equal for two to become one.
        source: Where it is called.
        needs: Earlier products that it depends on, by number.
    """

    name: str
    path: str
    reads: tuple[int, ...]
    writes: int
    kind: tuple[object, ...]
    source: Source | None
    needs: set[int] = field(default_factory=set)


def found(
    model: nn.Module, graphs: tuple[FlowGraph, ...], code: source.Code, alone: Alone, taken: set[str], written: set[str]
) -> Iterator[Site | Refusal]:
    """Sites and refusals of every module that makes several equal products of no need of each other.

    Args:
        model: The model.
        graphs: Its recordings.
        code: Its source.
        alone: What speaks against changing one layer.
        taken: Layers that are merged otherwise.
        written: Modules whose forward is written anew otherwise.
    """
    for owner in _owners(model, graphs[0]) if graphs else ():
        products = _products(model, graphs[0], owner)
        captured: _Forward | str | None = None
        if owner in written:
            captured = f"the forward of {owner or 'the model'} is written anew for layers that are summed"
        for group in _groups(products, taken):
            if captured is None:
                captured = _fixed_order(model, graphs, code, owner) or _captured(
                    duplicate(model.get_submodule(owner)), owner
                )
            paths = list(dict.fromkeys(product.path for product in group if product.path))
            name = " + ".join(paths) or _title(group, owner)
            reason = _unfit(graphs, group, paths, alone, products) or (captured if isinstance(captured, str) else "")
            if not reason and isinstance(captured, _Forward):
                if not paths and captured.multiplied != sum(not product.path for product in products):
                    reason = "the products cannot be told apart in the captured forward"
                reason = reason or _batch(captured, [product.name for product in group], model.get_submodule(owner))
            if reason:
                yield Refusal(name, f"{reason}.", group[0].source)
                continue
            stacks = len(paths) == len(group)
            data = {
                "how": "batched", "owner": owner, "products": [product.name for product in group],
                "structure": parts.built([model.get_submodule(path) for path in paths]),
                "keys": parts.key_map(model, paths) if stacks else {},
            }  # fmt: skip
            detail = f"the weights are rows of {paths[0]}.merged" if stacks else "one batched product"
            yield Site(name, tuple(paths) or ((owner,) if owner else ()), detail, data)


def rewrite(model: nn.Module, path: str, sites: Sequence[Site]) -> None:
    """Write the forward of the module at ``path`` anew, with all its sites batched.

    Raises:
        StrategyError: If the products are not found again.
    """
    owner: Any = model.get_submodule(path)
    captured = _captured(owner, path)  # it may leave constants on the module
    if isinstance(captured, str):
        raise StrategyError(f"{sites[0].name}: {captured}.", "Make the recipe again.")
    for site in sites:
        if reason := _batch(captured, list(site.data["products"]), owner):
            raise StrategyError(f"{site.name}: {reason}.", "Make the recipe again.")
    for site in sites:
        if site.data["keys"]:
            _stack(model, list(site.members))
    owner.forward = leaves.Rewritten(owner, captured.graph)


def _stack(model: nn.Module, paths: list[str]) -> None:
    layers: list[Any] = [model.get_submodule(path) for path in paths]
    sizes = tuple(parts.width(layer) for layer in layers)
    first = rows.Row(layers[0], parts.Handout(), 0, sizes, None)
    first.merged = parts.joined(layers)
    replace(model, paths[0], first)
    for index, path in enumerate(paths[1:], start=1):
        replace(model, path, rows.Row(layers[index], first.handout, index, sizes, first))


def _title(group: list[_Product], owner: str) -> str:
    line = f" (line {group[0].source.line})" if group[0].source else ""
    return f"{len(group)} products of {owner or 'the model'}{line}"


# what the recordings show ----------------------------------------------------------------------------------------


def _owners(model: nn.Module, graph: FlowGraph) -> Iterator[str]:
    """Modules of the user's whose own forward makes at least as many products as it takes."""
    counts: Counter[str] = Counter(op.module for op in graph.ops if op.name in _PRODUCTS)
    counts.update(source.owner(model, c.module)[0] for c in graph.calls if _is_layer(model, c.module))
    for path, module in model.named_modules():
        if counts[path] >= FEWEST and not type(module).__module__.startswith("torch."):
            yield path


def _is_layer(model: nn.Module, path: str) -> bool:
    return bool(path) and type(model.get_submodule(path)) is nn.Linear


def _products(model: nn.Module, graph: FlowGraph, owner: str) -> list[_Product]:
    """The products of the first call of a module, with what each depends on."""
    around = next((call for call in graph.calls if call.module == owner), None)
    layers = {call.first_op: call for call in graph.calls
              if _is_layer(model, call.module) and source.owner(model, call.module)[0] == owner}  # fmt: skip
    products: list[_Product] = []
    seen: Counter[str] = Counter()
    needs: dict[int, set[int]] = defaultdict(set)
    end = 0
    for op in graph.ops[around.first_op : around.end_op] if around else graph.ops:
        if (call := layers.get(op.index)) is not None and call.inputs and call.outputs:
            below = call.module.removeprefix(f"{owner}.") if owner else call.module
            products.append(_layer(model, graph, call, f"{below}@{seen[below]}"))
            seen[below] += 1
            end = call.end_op
        elif op.index >= end and op.module == owner and op.name in _PRODUCTS:
            kind = (op.name, *((graph.values[v].shape, graph.values[v].dtype) for v in op.reads))
            products.append(_Product(f"@{seen['']}", "", op.reads, op.writes[0], kind, _line(op)))
            seen[""] += 1
            end = op.index + 1
        known = set[int]().union(*(needs[value] for value in op.reads))
        if products and op.index < end:
            own = len(products) - 1
            products[own].needs |= known - {own}
            known |= {own}
        for value in op.writes:
            needs[value] = known
    return products


def _layer(model: nn.Module, graph: FlowGraph, call: ModuleCall, name: str) -> _Product:
    layer: Any = model.get_submodule(call.module)
    given = graph.values[call.inputs[0]]
    kind = ("linear", given.shape, given.dtype, tuple(layer.weight.shape), layer.weight.dtype, layer.bias is not None)
    where = Source(call.source.file, call.source.line) if call.source else None
    return _Product(name, call.module, call.inputs[:1], call.outputs[0], kind, where)


def _groups(products: list[_Product], taken: set[str]) -> Iterator[list[_Product]]:
    """Equal products on different inputs, none of which needs another."""
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, product in enumerate(products):
        if product.path not in taken and product.kind[0] in _BATCHED:
            alike[product.kind].append(number)
    for numbers in alike.values():
        groups: list[list[int]] = []
        for number in numbers:
            group = next((g for g in groups if products[number].needs.isdisjoint(g)), None)
            if group is None:
                groups.append([number])
            else:
                group.append(number)
        for group in groups:
            own = [products[number] for number in group]
            if len(own) >= FEWEST and len({product.reads for product in own}) == len(own):
                yield own


def _unfit(
    graphs: tuple[FlowGraph, ...], group: list[_Product], paths: list[str], alone: Alone, every: list[_Product]
) -> str:
    """Say what the group's size, its layers or its results speak against; empty for nothing."""
    size = graphs[0].values[group[0].writes].numel
    if size > LARGEST:
        return f"each of the {len(group)} products fills a GPU by itself: {size:,} results"
    if 1 < len(paths) < len(group):
        return f"{group[0].path} or another of them is called several times, and others are not"
    if paths and any(product.path in paths and product not in group for product in every):
        return f"{paths[0]} or another of them is also called where it cannot be batched"
    if reason := next((reason for path in paths if (reason := alone(path))), ""):
        return reason
    for graph in graphs:
        for path in paths:
            for call in graph.calls_of(path):
                if graph.escapes(call.outputs[0]):
                    return f"the output of {path} is returned or kept, and would keep the others' alive"
    if any(graphs[0].escapes(product.writes) for product in group):
        return "a result is returned or kept, and would keep the others' alive"
    return ""


def _fixed_order(model: nn.Module, graphs: tuple[FlowGraph, ...], code: source.Code, owner: str) -> str:
    """Say why the lines of a module's forward have to stay in their order, or may differ another time."""
    module, name = model.get_submodule(owner), owner or "the model"
    for path, inner in module.named_modules():
        if (not path or source.runs_in_order(inner)) and (reason := hook(inner, f"{owner}.{path}".strip(".") or name)):
            return reason
    if not sums.always_the_same(module, code, loops=True):
        return f"{name} may do something else another time: it branches, changes state or calls functions of its own"
    for op in (op for graph in graphs for op in graph.within(owner)):
        line = f" (line {op.source.line})" if op.source else ""
        if any(word in op.name for word in _RANDOM):
            return f"{op.name}{line} in {name} draws random numbers, whose order would change"
        if op.mutates:
            return f"{op.name}{line} in {name} writes in place, so its place among the products matters"
    for function in code.functions:
        for node in ast.walk(function.node):
            if isinstance(node, ast.Attribute) and node.attr in _MEMORY:
                return f"{source.where(function, node)} uses .{node.attr}, for which a slice is no tensor of its own"
    return ""


def _line(op: Op) -> Source | None:
    return Source(op.source.file, op.source.line) if op.source else None


# the graph of one module's own lines ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Forward:
    """A module's forward down to its layers, and the products in it by the names they have in a recording."""

    graph: fx.Graph
    named: dict[str, fx.Node]

    @property
    def multiplied(self) -> int:
        """How many products it makes without a layer."""
        return sum(name.startswith("@") for name in self.named)


def _captured(owner: nn.Module, path: str) -> _Forward | str:
    """The module's forward, or why it cannot be captured."""
    if "forward" in vars(owner):
        return f"the forward of {path or 'the model'} was written anew already"
    try:
        graph = leaves.trace(owner, {}, through=True)
    except leaves.FAILURES as error:
        return f"the forward of {path or 'the model'} cannot be captured: {one_line(error)}"
    return _Forward(graph, _named(graph, owner))


def _named(graph: fx.Graph, owner: nn.Module) -> dict[str, fx.Node]:
    seen: Counter[str] = Counter()
    named = {}
    for node in graph.nodes:
        if node.op == "call_module" and type(owner.get_submodule(str(node.target))) is nn.Linear:
            path = str(node.target)
        elif _multiplies(node) or node.target is F.linear:
            path = ""
        else:
            continue
        named[f"{path}@{seen[path]}"] = node
        seen[path] += 1
    return named


def _multiplies(node: fx.Node) -> bool:
    named = node.op == "call_method" and node.target in ("matmul", "mm")
    return named or (node.op == "call_function" and node.target in _MULTIPLY)


def _batch(forward: _Forward, names: list[str], owner: nn.Module) -> str:
    """Make one of the products of these names, after all their inputs; say why not, leaving the graph as it is."""
    graph, named = forward.graph, forward.named
    if any(name not in named for name in names):
        return "the products cannot be told apart in the captured forward"
    members = sorted((named[name] for name in names), key=list(graph.nodes).index)
    if any(node.kwargs or len(node.args) != len(members[0].args) or not all(isinstance(arg, fx.Node)
           for arg in node.args) or (node.op, node.target is F.linear) != (members[0].op, members[0].target is F.linear)
           for node in members):  # fmt: skip
        return "the products are written in different ways"
    late = _dependents(members)
    if not late.isdisjoint(members):
        return "one of the products needs another's result"
    order = list(graph.nodes)
    window = order[order.index(members[0]) : order.index(members[-1]) + 1]
    for node in window:
        if node.op == "call_module" and node not in members:
            module = owner.get_submodule(str(node.target))
            if not type(module).__module__.startswith("torch.nn.") or hook(module, ""):
                return f"{node.target} is called between the products, and may depend on the order"
    anchor = members[0].prev
    for node in [node for node in window if node not in late and node not in members]:
        anchor.append(node)
        anchor = node
    with graph.inserting_before(anchor.next):
        batch = _emitted(graph, members, owner)
        for index, member in enumerate(members):
            anchor = graph.call_function(operator.getitem, (batch, index))
            member.replace_all_uses_with(anchor)
    for node in [node for node in window if node in late]:
        anchor.append(node)
        anchor = node
    for member in members:
        graph.erase_node(member)
    return ""


def _dependents(nodes: list[fx.Node]) -> set[fx.Node]:
    todo, seen = list(nodes), set[fx.Node]()
    while todo:
        fresh = [user for user in todo.pop().users if user not in seen]
        seen.update(fresh)
        todo += fresh
    return seen


def _emitted(graph: fx.Graph, members: list[fx.Node], owner: nn.Module) -> fx.Node:
    """The node that computes what the members do, at the graph's insertion point."""
    columns = [[node.args[i] for node in members] for i in range(len(members[0].args))]
    target = str(members[0].target)
    if members[0].op != "call_module":
        if members[0].target is F.linear:
            return graph.call_function(rows.separate, (*columns, *[None] * (3 - len(columns))))
        return graph.call_function(rows.products, tuple(columns))
    if len({node.target for node in members}) > 1:
        return graph.call_module(target, tuple(columns))
    bias = None if owner.get_submodule(target).bias is None else graph.get_attr(f"{target}.bias")
    return graph.call_function(rows.shared, (*columns, graph.get_attr(f"{target}.weight"), bias))
