"""Dataflow: the nodes of a timeline and what feeds what, proven by a FlowGraph or assumed from shapes."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fusionadvisor.analysis.infer import Signature, signature
from fusionadvisor.analysis.nodes import Flow, Node, Tensor, kind_of, normal
from fusionadvisor.analysis.pool import NO_READS, Pool, Reads
from fusionadvisor.flow.graph import FlowGraph, Op

if TYPE_CHECKING:
    import pandas as pd

    from fusionadvisor.trace.timeline import Timeline


@dataclass(frozen=True)
class Dataflow:
    """Nodes in order of time, with the edges between them."""

    nodes: tuple[Node, ...]
    flow: Flow
    shaped: bool = True
    """The recording has the shapes that flow rests on."""

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes that read its result, in order; its further results (a mask) do not count."""
        found: list[dict[int, None]] = [{} for _ in self.nodes]
        for node in self.nodes:
            for source, slot in zip(node.sources, node.slots, strict=True):
                if source >= 0 and not slot:
                    found[source][node.index] = None
        return tuple(map(tuple, found))

    @cached_property
    def readers(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """For each (step, input identity), the nodes that read it."""
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for node in self.nodes:
            for identity in dict.fromkeys(node.inputs):
                found[node.step, identity].append(node.index)
        return {k: tuple(v) for k, v in found.items()}

    def producer(self, node: Node, argument: int) -> Node | None:
        """The node that made an argument, None where it came from outside or is unknown."""
        if argument >= len(node.sources) or node.sources[argument] < 0:
            return None
        return self.nodes[node.sources[argument]]

    def consumers(self, node: Node) -> tuple[Node, ...]:
        """The nodes that read this one's result."""
        return tuple(self.nodes[i] for i in self.users[node.index])

    def sole_user(self, node: Node) -> Node | None:
        """The one node that reads this one's result, None where there are more, none, or somebody outside."""
        users = self.users[node.index]
        return self.nodes[users[0]] if len(users) == 1 and not node.escapes else None


@dataclass(frozen=True, slots=True)
class _Rows:
    """The kernel table as plain lists: a rule looks at single kernels, for which a DataFrame is slow."""

    us: list[float]
    kind: list[str]
    op: list[str]
    op_id: list[int]
    module: list[str]
    source: list[str]
    phase: list[str]
    step: list[int]
    flow_op: list[int]
    lane: list[tuple[int, int]]
    graphed: list[bool]

    @staticmethod
    def of(kernels: "pd.DataFrame") -> "_Rows":
        def text(column: str) -> list[str]:
            return [str(v) for v in kernels[column].astype(object).tolist()]

        return _Rows(
            (kernels["dur_ns"].to_numpy() / 1e3).tolist(), text("kind"), text("op"), kernels["op_id"].tolist(),
            text("module"), text("source"), text("phase"), kernels["step"].tolist(), kernels["flow_op"].tolist(),
            list(zip(kernels["device"].tolist(), kernels["stream"].tolist(), strict=True)),
            (kernels["graph_id"].to_numpy() >= 0).tolist(),
        )  # fmt: skip


ACCUMULATE = "accumulate_grad"
"""What stands around the addition of a new gradient to a parameter's."""
HELPER = Signature("convert_layout", False, (), ())
"""A convolution's own layout conversion."""


def build(timeline: "Timeline", flow: FlowGraph | None = None) -> Dataflow:
    """Return the nodes of a timeline. With a FlowGraph, kernels that name one of its ops get its proven flow."""
    rows = _Rows.of(timeline.kernels)
    batches = _batches(rows, use_flow=flow is not None)
    ancestry = _Ancestry(timeline.ops)
    if flow is not None and any(op >= 0 for op in rows.flow_op):
        return _proven(rows, batches, ancestry, flow)
    return _assumed(rows, batches, ancestry, timeline.ops)


def _batches(rows: _Rows, *, use_flow: bool) -> list[list[int]]:
    """Kernel rows of one op together, in the order of their first kernel."""
    found: dict[tuple[int, ...], list[int]] = {}
    for i, op_id in enumerate(rows.op_id):
        if use_flow and rows.flow_op[i] >= 0:
            key: tuple[int, ...] = (0, rows.step[i], rows.flow_op[i])
        else:
            key = (1, op_id) if op_id >= 0 else (2, i)
        found.setdefault(key, []).append(i)
    return [part for batch in found.values() for part in _without_helpers(rows, batch)]


def _without_helpers(rows: _Rows, batch: list[int]) -> list[list[int]]:
    """Set apart the kernels in which a convolution converts the layout of its operands: they could go by themselves."""
    helpers = [i for i in batch if rows.kind[i] == "layout"]
    work = [i for i in batch if rows.kind[i] != "layout"]
    is_conv = bool(helpers and work) and kind_of(normal(rows.op[batch[0]])[0], (), (), ()) == "conv"
    return [work, helpers] if is_conv else [batch]


class _Ancestry:
    """The outermost op around an op: ``aten::linear`` around the ``aten::addmm`` that launched a kernel."""

    def __init__(self, ops: "pd.DataFrame") -> None:
        self._parent: list[int] = ops["parent"].tolist()
        names = ops["name"]
        self._names: list[Any] = names.astype(object).tolist()
        self._known: dict[int, str] = {}

    def name(self, op_id: int) -> str:
        """The op's own name as recorded."""
        return str(self._names[op_id])

    def worker(self, op_id: int, shapes: list[Any]) -> int:
        """The op that did the work: on the CPU, the copy of a scalar inside an op stands for that op."""
        if shapes[op_id] is None or any(shapes[op_id]):
            return op_id
        at = self._parent[op_id]
        while at >= 0 and str(self._names[at]).startswith("aten::"):
            if shapes[at] is not None and any(shapes[at]):
                return at
            at = self._parent[at]
        return op_id

    def outer(self, op_id: int) -> str:
        """The name of the outermost aten op around it, normalised; its own where there is none."""
        if op_id < 0:
            return ""
        if op_id not in self._known:
            top, at = op_id, op_id
            accumulates = False
            while at >= 0:
                name = str(self._names[at])
                if name.startswith("aten::"):
                    top = at
                accumulates |= name.endswith("AccumulateGrad")
                at = self._parent[at]
            self._known[op_id] = ACCUMULATE if accumulates else normal(str(self._names[top]))[0]
        return self._known[op_id]


def _assumed(rows: _Rows, batches: list[list[int]], ancestry: _Ancestry, ops: "pd.DataFrame") -> Dataflow:
    columns = [ops[c].tolist() for c in ("shapes", "dtypes", "strides", "concrete")]
    known: dict[tuple[Any, ...], Signature] = {}
    pools: dict[int, Pool] = defaultdict(Pool)
    nodes: list[Node] = []
    shaped = False
    for batch in batches:
        row = batch[0]
        op_id = rows.op_id[row]
        outer = ancestry.outer(op_id)
        if nodes and op_id >= 0 and op_id == rows.op_id[nodes[-1].kernels[0]]:
            nodes.append(_node(len(nodes), rows, batch, HELPER, NO_READS, outer))
            continue
        if op_id >= 0:
            at = ancestry.worker(op_id, columns[0])
            key = (ancestry.name(at), outer, *(c[at] for c in columns))
            found = known.get(key)
            if found is None:
                found = known[key] = signature(key[0], key[2], key[3], key[4], key[5], outer)
            shaped = shaped or bool(found.reads)
        else:
            found = Signature(normal(rows.op[row])[0], False, (), ())
        nodes.append(_node(len(nodes), rows, batch, found, pools[rows.step[row]].take(found, len(nodes)), outer))
    return Dataflow(tuple(nodes), "assumed", shaped)


def _node(
    index: int,
    rows: _Rows,
    batch: list[int],
    found: Signature,
    matched: Reads,
    outer: str,
    *,
    escapes: bool = False,
) -> Node:
    row = batch[0]
    kind = kind_of(found.op, {rows.kind[i] for i in batch}, found.reads, found.writes)
    return Node(
        index=index, op=found.op, kind=kind, kernels=tuple(batch), us=sum(rows.us[i] for i in batch),
        reads=found.reads, writes=found.writes, sources=matched.sources, slots=matched.slots, inputs=matched.inputs,
        inplace=found.inplace, outer=outer,
        arguments=found.arguments, module=rows.module[row], source=rows.source[row], phase=rows.phase[row],
        step=rows.step[row], lane=rows.lane[row], graphed=rows.graphed[row], escapes=escapes,
        flow_op=rows.flow_op[row],
    )  # fmt: skip


def _proven(rows: _Rows, batches: list[list[int]], ancestry: _Ancestry, flow: FlowGraph) -> Dataflow:
    roots = _Roots(flow)
    made: dict[tuple[int, int], int] = {}
    nodes: list[Node] = []
    for batch in batches:
        row = batch[0]
        step, at = rows.step[row], rows.flow_op[row]
        outer = ancestry.outer(rows.op_id[row])
        if nodes and at >= 0 and (step, at) in made:
            nodes.append(_node(len(nodes), rows, batch, HELPER, NO_READS, outer))
            continue
        if not 0 <= at < len(flow.ops):
            name = normal(rows.op[row])[0]
            nodes.append(_node(len(nodes), rows, batch, Signature(name, False, (), ()), NO_READS, outer))
            continue
        op = flow.ops[at]
        values = [roots.of(v) for v in op.reads]
        makers = [flow.producer(v) for v in values]
        sources = tuple(-1 if p is None else made.get((step, p.index), -1) for p in makers)
        slots = tuple(0 if p is None else p.writes.index(v) for p, v in zip(makers, values, strict=True))
        escapes = any(flow.escapes(v) for v in op.writes)
        inputs = tuple(roots.identity(v) for v in op.reads)
        matched = Reads(sources, slots, inputs)
        nodes.append(_node(len(nodes), rows, batch, _recorded(op, flow), matched, outer, escapes=escapes))
        made[step, at] = len(nodes) - 1
    return Dataflow(tuple(nodes), "proven")


class _Roots:
    """A value behind its views: the state some op computed, or what the run was given."""

    def __init__(self, flow: FlowGraph) -> None:
        self._flow = flow
        self._known: dict[int, int] = {}
        self._parts: dict[tuple[object, ...], int] = {}

    def identity(self, value: int) -> int:
        """Return a number that is equal for equal data: the root's where the view shows all of it, else the part's."""
        root, seen = self.of(value), self._flow.values[value]
        if seen.numel == self._flow.values[root].numel:
            return root
        return self._parts.setdefault((root, seen.offset, seen.shape, seen.strides), value)

    def of(self, value: int) -> int:
        """Follow views back to the value they look at."""
        if value not in self._known:
            at = value
            while (op := self._flow.producer(at)) is not None and op.view and op.reads:
                at = op.reads[0]
            self._known[value] = at
        return self._known[value]


def _recorded(op: Op, flow: FlowGraph) -> Signature:
    name, inplace = normal(op.name)
    reads = tuple(_tensor(flow, v) for v in op.reads)
    writes = tuple(_tensor(flow, v) for v in op.writes)
    if name == "copy" and len(reads) == 2:  # copy_(target, source): the target is written, not read
        return Signature(name, True, reads, writes, op.arguments)
    return Signature(name, inplace and bool(op.mutates), reads, writes, op.arguments)


def _tensor(flow: FlowGraph, value: int) -> Tensor:
    found = flow.values[value]
    return Tensor(found.shape, found.dtype, found.strides, found.itemsize)


def in_step(nodes: tuple[Node, ...], step: int) -> Iterator[Node]:
    """The nodes of one step."""
    return (n for n in nodes if n.step == step)
