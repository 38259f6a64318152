"""Dataflow: the nodes of a timeline and what feeds what, proven by a FlowGraph or assumed from shapes."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fusionadvisor.analysis.infer import Signature, signature
from fusionadvisor.analysis.nodes import Flow, Node, Tensor, is_known, kind_of, normal
from fusionadvisor.analysis.pool import CLOSE, NO_READS, SLOTS, Pool, Reads, Saved
from fusionadvisor.analysis.repeats import repeats
from fusionadvisor.flow.graph import FlowGraph, Op

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from fusionadvisor.trace.timeline import Timeline


@dataclass(frozen=True)
class Dataflow:
    """Nodes in order of time, with the edges between them. Equal steps are there once; see :attr:`Node.repeats`."""

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

    def forward_user(self, node: Node) -> Node | None:
        """The one node of the forward pass that reads this one's result, whatever the backward pass keeps of it.

        None where there are more, none, or somebody outside. What is kept until the backward pass has read it may look
        as if somebody outside held it.
        """
        users = [self.nodes[i] for i in self.users[node.index]]
        forward = [u for u in users if u.phase != "backward"]
        return forward[0] if len(forward) == 1 and (len(users) > 1 or not node.escapes) else None


@dataclass(frozen=True, slots=True)
class _Rows:
    """The kernels of one step and those equal to it as plain lists: a rule looks at single kernels.

    ``table`` has a row a step and a column a kernel; ``us`` is the mean over the steps, the rest the first step's.
    """

    table: "npt.NDArray[np.int64]"
    us: list[float]
    kind: list[str]
    op: list[str]
    op_id: list[int]
    forward: list[int]
    module: list[str]
    source: list[str]
    phase: list[str]
    step: int
    flow_op: list[int]
    lane: list[tuple[int, int]]
    graphed: list[bool]

    @staticmethod
    def of(kernels: "pd.DataFrame", table: "npt.NDArray[np.int64]") -> "_Rows":
        part = kernels.iloc[table[0]]

        def text(column: str) -> list[str]:
            return [str(v) for v in part[column].astype(object).tolist()]

        return _Rows(
            table, (kernels["dur_ns"].to_numpy()[table].mean(axis=0) / 1e3).tolist(), text("kind"), text("op"),
            part["op_id"].tolist(), part["forward_op_id"].tolist(), text("module"), text("source"), text("phase"),
            int(part["step"].iloc[0]),
            part["flow_op"].tolist(), list(zip(part["device"].tolist(), part["stream"].tolist(), strict=True)),
            (part["graph_id"].to_numpy() >= 0).tolist(),
        )  # fmt: skip


ACCUMULATE = "accumulate_grad"
"""What stands around the addition of a new gradient to a parameter's."""
HELPER = Signature("convert_layout", False, (), ())
"""A convolution's own layout conversion."""


def build(timeline: "Timeline", flow: FlowGraph | None = None) -> Dataflow:
    """Return the nodes of a timeline. With a FlowGraph, kernels that name one of its ops get its proven flow."""
    ancestry = _Ancestry(timeline.ops)
    nodes: list[Node] = []
    proven = flow is not None and bool((timeline.kernels["flow_op"].to_numpy() >= 0).any())
    for table in repeats(timeline.kernels, timeline.ops):
        rows = _Rows.of(timeline.kernels, table)
        if proven and flow is not None:
            _add_proven(nodes, rows, ancestry, flow)
        else:
            _Assumed(nodes, ancestry, timeline).add(rows)
    return Dataflow(tuple(nodes), "proven" if proven else "assumed", proven or any(n.reads for n in nodes))


def _batches(rows: _Rows, *, use_flow: bool) -> list[list[int]]:
    """Kernel rows of one op together, in the order of their first kernel."""
    found: dict[tuple[int, ...], list[int]] = {}
    for i, op_id in enumerate(rows.op_id):
        if use_flow and rows.flow_op[i] >= 0:
            key: tuple[int, ...] = (0, rows.flow_op[i])
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
        self._columns: list[list[Any]] = [ops[c].tolist() for c in ("shapes", "dtypes", "strides", "concrete")]
        self._signatures: dict[tuple[Any, ...], Signature] = {}
        self.start_ns: list[int] = ops["start_ns"].tolist()
        names = ops["name"]
        self._names: list[Any] = names.astype(object).tolist()
        self._known: dict[int, tuple[str, int]] = {}
        self.differentiated = bool((ops["sequence"].to_numpy() >= 0).any())

    def around(self, op_id: int) -> Iterator[int]:
        """An op and those around it, innermost first."""
        while op_id >= 0:
            yield op_id
            op_id = self._parent[op_id]

    def signature(self, op_id: int) -> Signature:
        """The operands of an op, the same object for equal ones."""
        key = (str(self._names[op_id]), self.outer(op_id), *(c[op_id] for c in self._columns))
        found = self._signatures.get(key)
        if found is None:
            found = self._signatures[key] = signature(key[0], key[2], key[3], key[4], key[5], key[1])
        return found

    def outer(self, op_id: int) -> str:
        """The name of the outermost aten op around it, normalised; its own where there is none."""
        return self._outermost(op_id)[0] if op_id >= 0 else ""

    def top(self, op_id: int) -> int:
        """The row of that op; -1 where the op has several results, all of which others may read."""
        if op_id < 0:
            return -1
        name, row = self._outermost(op_id)
        return -1 if name in _MANY_RESULTS else row

    def _outermost(self, op_id: int) -> tuple[str, int]:
        if op_id not in self._known:
            top = op_id
            accumulates = False
            for at in self.around(op_id):
                name = str(self._names[at])
                if name.startswith("aten::"):
                    top = at
                accumulates |= name.endswith("AccumulateGrad")
            self._known[op_id] = (ACCUMULATE if accumulates else normal(str(self._names[top]))[0], top)
        return self._known[op_id]


_MANY_RESULTS = frozenset(
    {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "var_mean", "std_mean", "_native_multi_head_attention"}
)
_COMMUNICATES = re.compile(r"^(?:_?c10d|_c10d_functional|nccl|gloo)\w*::|^record_param_comms")
"""Ops between which and what follows nothing may be moved: they communicate, or wait for what does."""


class _Assumed:
    """Adds the nodes of one step whose data flow is assumed."""

    def __init__(self, nodes: list[Node], ancestry: "_Ancestry", timeline: "Timeline") -> None:
        self._nodes, self._ancestry, self._calls = nodes, ancestry, timeline.calls
        names = timeline.ops["name"]
        codes = [i for i, name in enumerate(names.cat.categories) if _COMMUNICATES.match(str(name))]
        moments = timeline.ops["start_ns"][names.cat.codes.isin(codes)].tolist()
        self._barriers = sorted([*moments, *timeline.syncs["start_ns"].tolist()])
        self._pools: dict[str, Pool] = {}
        self._saved: dict[int, list[Saved]] = defaultdict(list)

    def add(self, rows: _Rows) -> None:
        """Add the nodes of a step, and of those equal to it."""
        batches = _batches(rows, use_flow=False)
        signatures = [self._signature(rows, batch[0]) for batch in batches]
        places: dict[int, list[int]] = defaultdict(list)
        for at, found in enumerate(signatures):
            places[id(found)].append(at)
        last, call, part, passed = -1, 0, 0, 0
        for at, (batch, found) in enumerate(zip(batches, signatures, strict=True)):
            op_id, outer = rows.op_id[batch[0]], self._ancestry.outer(rows.op_id[batch[0]])
            began = self._ancestry.start_ns[op_id] if op_id >= 0 else -1
            # what equal shapes say of two calls of the whole model is chance: each begins with nothing made yet
            now = bisect_right(self._calls, began) if self._calls and op_id >= 0 else call
            if now > call:
                self._pools, call = {}, now
            if op_id >= 0 and op_id == last:
                self._nodes.append(_node(len(self._nodes), rows, batch, HELPER, NO_READS, outer, part=part))
                continue
            last = op_id
            if op_id >= 0 and (crossed := bisect_right(self._barriers, began)) > passed:
                part, passed = part + 1, crossed
            alike = places[id(found)]
            matched = self._take(found, rows, batch[0], _ahead(alike, at, CLOSE), _ahead(alike, at, 1))
            node = _node(len(self._nodes), rows, batch, found, matched, outer, part=part)
            if not found.known or node.kind in ("collective", "sync"):
                part += 2
                node = replace(node, part=part - 1)
            self._nodes.append(node)

    def _signature(self, rows: _Rows, row: int) -> Signature:
        if rows.op_id[row] >= 0:
            return self._ancestry.signature(rows.op_id[row])
        return Signature(normal(rows.op[row])[0], False, (), (), known=False)

    def _take(self, found: Signature, rows: _Rows, row: int, ahead: int, run: int) -> Reads:
        """Match an op's arguments; a backward op reads gradients, and what its own forward op read and made."""
        phase, index = rows.phase[row] or "forward", len(self._nodes)
        pool = self._pools.setdefault(phase, Pool())
        backward = phase == "backward"
        saved = self._saved.get(rows.forward[row], ()) if backward else ()
        within = self._ancestry.top(rows.op_id[row])
        matched = pool.take(found, index, within=within, ahead=ahead, run=run, saved=saved, overwrites=not found.known)
        if phase == "forward" and self._ancestry.differentiated:
            made = [Saved(t, index, slot, index * SLOTS + slot) for slot, t in enumerate(found.writes)]
            read = map(Saved, found.reads, matched.sources, matched.slots, matched.inputs)
            kept = [*made, *(s for s in read if s.tensor.numel > 1)]
            for op in self._ancestry.around(rows.op_id[row]):
                self._saved[op] += kept
        return matched


def _ahead(places: list[int], at: int, gap: int) -> int:
    """How many equal ops follow, each at most so many places after the one before it."""
    first = bisect_right(places, at)
    count = 0
    for place in places[first:]:
        if place - at > gap:
            break
        count, at = count + 1, place
    return count


def _node(
    index: int,
    rows: _Rows,
    batch: list[int],
    found: Signature,
    matched: Reads,
    outer: str,
    *,
    escapes: bool = False,
    part: int = 0,
) -> Node:
    row = batch[0]
    kind = kind_of(found.op, {rows.kind[i] for i in batch}, found.reads, found.writes, known=found.known)
    return Node(
        index=index, op=found.op, kind=kind, kernels=tuple(rows.table[:, batch].ravel().tolist()),
        us=sum(rows.us[i] for i in batch), repeats=len(rows.table),
        reads=found.reads, writes=found.writes, sources=matched.sources, slots=matched.slots, inputs=matched.inputs,
        inplace=found.inplace, outer=outer,
        arguments=found.arguments, module=rows.module[row], source=rows.source[row], phase=rows.phase[row],
        step=rows.step, lane=rows.lane[row], graphed=rows.graphed[row], escapes=escapes,
        part=part, flow_op=rows.flow_op[row],
    )  # fmt: skip


def _add_proven(nodes: list[Node], rows: _Rows, ancestry: _Ancestry, flow: FlowGraph) -> None:
    roots = _Roots(flow)
    made: dict[int, int] = {}
    for batch in _batches(rows, use_flow=True):
        row = batch[0]
        at = rows.flow_op[row]
        outer = ancestry.outer(rows.op_id[row])
        if at in made:
            nodes.append(_node(len(nodes), rows, batch, HELPER, NO_READS, outer))
            continue
        if not 0 <= at < len(flow.ops):
            bare = Signature(normal(rows.op[row])[0], False, (), (), known=is_known(rows.op[row]))
            nodes.append(_node(len(nodes), rows, batch, bare, NO_READS, outer))
            continue
        op = flow.ops[at]
        values = [roots.of(v) for v in op.reads]
        makers = [flow.producer(v) for v in values]
        matched = Reads(
            tuple(-1 if p is None else made.get(p.index, -1) for p in makers),
            tuple(0 if p is None else p.writes.index(v) for p, v in zip(makers, values, strict=True)),
            tuple(roots.identity(v) for v in op.reads),
        )
        escapes = any(flow.escapes(v) for v in op.writes)
        nodes.append(_node(len(nodes), rows, batch, _recorded(op, flow), matched, outer, escapes=escapes))
        made[at] = len(nodes) - 1


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
    return Signature(name, inplace and bool(op.mutates), reads, writes, op.arguments, known=is_known(op.name))


def _tensor(flow: FlowGraph, value: int) -> Tensor:
    found = flow.values[value]
    return Tensor(found.shape, found.dtype, found.strides, found.itemsize)
