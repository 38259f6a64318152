"""Stretches and groups: which kernels stand next to each other, and which could be one.

A *stretch* is a maximal run of consecutive fusible kernels on one stream and step. A *group* is a connected component
of the data flow over fusible nodes that can legally be one kernel: it is acyclic from outside, and holds at most one
set of reduction axes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusionadvisor.analysis.dataflow import ACCUMULATE, Dataflow
from fusionadvisor.analysis.nodes import FUSIBLE, Flow, Node
from fusionadvisor.analysis.pool import NEAR

if TYPE_CHECKING:
    import pandas as pd


FUSIBLE_KERNELS = frozenset(
    {"elementwise", "cast", "layout", "copy", "reduction", "norm", "softmax", "cat", "rng", "index"}
)
"""Kernel kinds that a stretch runs over."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of consecutive fusible kernels: rows of the kernel table, in order of time."""

    kernels: tuple[int, ...]
    step: int
    us: float


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that could be one kernel.

    Args:
        index: Position in the list of groups.
        nodes: Indices into ``Dataflow.nodes``, in order of time.
        kernels: Rows of the kernel table, of all equal steps.
        us: Sum of the durations of one step's kernels.
        longest_us: The longest node's share of it.
        reads: Bytes it must read from outside.
        writes: Bytes somebody outside needs.
        internal: Bytes written only to be read again inside: one kernel keeps them in registers.
        rows: Rows reduced over the last reduction's axes; None without a reduction.
        flow: How its edges are known.
    """

    index: int
    nodes: tuple[int, ...]
    kernels: tuple[int, ...]
    us: float
    longest_us: float
    reads: int
    writes: int
    internal: int
    rows: int | None
    flow: Flow

    @property
    def external(self) -> int:
        """Bytes one fused kernel must move."""
        return self.reads + self.writes


def stretches(kernels: "pd.DataFrame") -> tuple[Stretch, ...]:
    """Return the stretches of two kernels or more. Kernels replayed from a graph are in none."""
    import numpy as np

    if not len(kernels):
        return ()
    codes = kernels["kind"].cat.codes.to_numpy()
    fusible_codes = [i for i, k in enumerate(kernels["kind"].cat.categories) if k in FUSIBLE_KERNELS]
    fusible = np.isin(codes, fusible_codes) & (kernels["graph_id"].to_numpy() < 0)
    columns = [kernels[c].to_numpy() for c in ("device", "stream", "step", "start_ns")]
    order = np.lexsort((columns[3], columns[2], columns[1], columns[0]))
    same = np.ones(len(order), bool)
    for column in columns[:3]:
        same[1:] &= column[order][1:] == column[order][:-1]
    good = fusible[order]
    starts = good & ~(same & np.concatenate(([False], good[:-1])))
    label = np.cumsum(starts)
    us = kernels["dur_ns"].to_numpy()[order] / 1e3
    found = []
    firsts = np.flatnonzero(starts)
    for at in firsts:
        end = at + 1
        while end < len(order) and good[end] and label[end] == label[at]:
            end += 1
        if end - at >= 2:
            found.append(Stretch(tuple(order[at:end].tolist()), int(columns[2][order[at]]), float(us[at:end].sum())))
    return tuple(found)


class _Union:
    """Disjoint sets of nodes."""

    def __init__(self, count: int) -> None:
        self.parent = list(range(count))

    def find(self, at: int) -> int:
        while self.parent[at] != at:
            self.parent[at] = self.parent[self.parent[at]]
            at = self.parent[at]
        return at

    def join(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        self.parent[max(a, b)] = min(a, b)


def groups(flow: Dataflow) -> tuple[Group, ...]:
    """Return the groups of two kernels or more, disjoint, in order of time."""
    union = _Union(len(flow.nodes))
    _connect(flow, union)
    members: dict[int, list[int]] = {}
    for node in flow.nodes:
        if node.kind in FUSIBLE:
            members.setdefault(union.find(node.index), []).append(node.index)
    found: list[Group] = []
    for nodes in members.values():
        if len(nodes) >= 2:
            found.append(describe(flow, tuple(nodes), len(found)))
    return tuple(found)


def _connect(flow: Dataflow, union: _Union) -> None:
    """Join nodes along the edges that one kernel may hold.

    Each node has a level: one more than that of a source it cannot be fused with. Nodes joined have equal levels, and a
    way from one to another through anything outside would raise the level, so the groups are free of cycles. What came
    from an unknown place counts as made by everything before it; two GEMMs that read the same unknown count as equal.
    Nothing joins across the border of a part (:attr:`Node.part`), nor far away where the flow is assumed.
    """
    level = [0] * len(flow.nodes)
    axes: dict[int, tuple[object, ...] | None] = {}
    shared: dict[tuple[int, ...], int] = {}
    wall: dict[int, int] = {}
    sighted: dict[tuple[int, int], tuple[int, int]] = {}
    for node in flow.nodes:
        sources = [flow.nodes[s] for s in dict.fromkeys(node.sources) if s >= 0]
        fusible = node.kind in FUSIBLE and not node.graphed and node.outer != ACCUMULATE
        own = _axes(node)
        friends = [s for s in sources if fusible and _may_join(flow, s, node, axes.get(union.find(s.index)), own)]
        level[node.index] = max((level[s.index] + (s not in friends) for s in sources), default=0)
        if flow.flow == "assumed":
            outside = _level_outside(node, wall.get(node.step, 0), {} if fusible else sighted)
            if node.phase == "backward":  # saved tensors hide what a gradient came through
                outside = max(outside, wall.get(node.step, 0))
            level[node.index] = max(level[node.index], outside)
        if not fusible:
            wall[node.step] = max(wall.get(node.step, 0), level[node.index] + 1)
            continue
        for friend in friends:
            root = union.find(friend.index)
            if level[friend.index] == level[node.index] and _compatible(
                axes.get(root), _merged(axes, union, node, own)
            ):
                merged = axes.get(root) or _merged(axes, union, node, own)
                union.join(friend.index, node.index)
                axes[union.find(node.index)] = merged
        if own and axes.get(union.find(node.index)) is None:
            axes[union.find(node.index)] = own
        _join_readers(flow, node, level[node.index], axes, shared, union)


def _merged(
    axes: dict[int, tuple[object, ...] | None], union: _Union, node: Node, own: tuple[object, ...] | None
) -> tuple[object, ...] | None:
    return axes.get(union.find(node.index)) or own


def _join_readers(
    flow: Dataflow,
    node: Node,
    level: int,
    axes: dict[int, tuple[object, ...] | None],
    shared: dict[tuple[int, ...], int],
    union: _Union,
) -> None:
    """Join a node with an earlier one of its level that walks over the same space and reads the same large input."""
    if not node.writes or node.writes[0].numel < 2:
        return
    for at, identity in enumerate(node.inputs):
        if flow.flow == "assumed" and identity < 0:
            continue  # equal shapes outside are no proof of one tensor
        if node.reads[at].numel < node.writes[0].numel:
            continue
        if node.kind == "index" and at == 0:
            continue  # it reads here and there, not along with others
        key = (node.step, identity, level, node.part, *node.writes[0].shape)
        other = shared.setdefault(key, node.index)
        if flow.flow == "assumed" and node.index - other > NEAR:
            shared[key] = node.index
            continue
        a, b = union.find(other), union.find(node.index)
        if a != b and _compatible(axes.get(a), axes.get(b)) and flow.nodes[other].lane == node.lane:
            merged = axes.get(a) or axes.get(b)
            union.join(a, b)
            axes[union.find(a)] = merged


def _level_outside(node: Node, wall: int, sighted: dict[tuple[int, int], tuple[int, int]]) -> int:
    """Return the level of what a node reads from an unknown place; what looks like a parameter counts as none.

    ``sighted`` holds, by step and identity, the level and node at which an unknown was last read; what was read again
    soon after is the same tensor.
    """
    if not node.reads:
        return wall
    size = max(t.numel for t in node.reads)
    level = 0
    for source, identity, tensor in zip(node.sources, node.inputs, node.reads, strict=True):
        if source >= 0 or tensor.numel * 2 <= size:
            continue
        key = (node.step, identity)
        before, last = sighted.get(key, (wall, node.index))
        sighted[key] = (before if node.index - last <= NEAR else wall, node.index)
        level = max(level, sighted[key][0])
    return level


def _axes(node: Node) -> tuple[object, ...] | None:
    """What a node reduces over: the space it walks and what is left; None where it reduces nothing."""
    if node.kind not in ("reduction", "softmax", "norm") or not node.reads:
        return None
    if node.kind == "norm" and "batch_norm" in node.op and not _batch_statistics(node):
        return None
    if node.kind == "reduction" and node.writes:
        return _walked(node.reads[0].shape, _reduced_dims(node))
    if node.kind == "softmax":
        return _walked(node.reads[0].shape, _softmax_dims(node))
    if "layer_norm" in node.op or "rms_norm" in node.op:
        return _walked(node.reads[0].shape, frozenset({len(node.reads[0].shape) - 1}))
    return (node.reads[0].numel, node.op)


def _walked(shape: tuple[int, ...], dims: frozenset[int]) -> tuple[object, ...]:
    """A reduction's space as runs of kept and reduced dimensions, the same however neighbours are viewed as one."""
    runs: list[tuple[bool, int]] = []
    for d, size in enumerate(shape):
        gone = d in dims
        if size == 1:
            continue
        if runs and runs[-1][0] == gone:
            runs[-1] = (gone, runs[-1][1] * size)
        else:
            runs.append((gone, size))
    return tuple(runs)


def _reduced_dims(node: Node) -> frozenset[int]:
    """The dimensions a reduction takes away: by its result's shape, with them kept or not, else by its arguments."""
    before, after = node.reads[0].shape, node.writes[0].shape
    if len(before) == len(after):
        return frozenset(d for d, (n, m) in enumerate(zip(before, after, strict=True)) if n != m)
    if dims := _dims(node, len(before), "dim", "1"):
        return dims
    if after == before[: len(after)]:
        return frozenset(range(len(after), len(before)))
    return frozenset(range(len(before)))


def _softmax_dims(node: Node) -> frozenset[int]:
    rank = len(node.reads[0].shape)
    return _dims(node, rank, "dim", "2" if "backward" in node.op else "1") or frozenset({rank - 1})


def _dims(node: Node, rank: int, name: str, position: str) -> frozenset[int]:
    """The dimensions an argument names."""
    given = node.arguments.get(name, node.arguments.get(position, ""))
    words = str(given).strip("[]() ").replace(",", " ").split()
    return frozenset(int(w) % rank for w in words if w.lstrip("-").isdigit()) if rank else frozenset()


def _batch_statistics(node: Node) -> bool:
    """True where a batch norm computes its statistics from the batch, and so reduces."""
    training = node.arguments.get("training", node.arguments.get("train", node.arguments.get("5")))
    return str(training) == "True" or "backward" in node.op


def _compatible(a: tuple[object, ...] | None, b: tuple[object, ...] | None) -> bool:
    return a is None or b is None or a == b


_SCATTERS = frozenset(
    {"scatter", "scatter_add", "index_add", "index_put", "_index_put_impl", "index_copy", "index_fill",
     "embedding_dense_backward", "masked_scatter"}
)  # fmt: skip
"""Index ops whose result is whole only when all of it is written."""


def _may_join(
    flow: Dataflow,
    source: Node,
    node: Node,
    source_axes: tuple[object, ...] | None,
    own: tuple[object, ...] | None,
) -> bool:
    """True where nothing about the two nodes themselves forbids that one kernel does both."""
    if source.kind not in FUSIBLE or source.graphed or source.lane != node.lane or source.part != node.part:
        return False
    if flow.flow == "assumed" and node.index - source.index > NEAR:
        return False
    if source.op in _SCATTERS or (node.kind == "index" and source.index in node.sources[:1]):
        return False  # a gather may need any element of what it reads: all of it has to be there first
    whole = source.kind == "reduction" and bool(source.writes) and source.writes[0].numel == 1
    return not whole and _compatible(source_axes, own)


def describe(flow: Dataflow, nodes: tuple[int, ...], index: int = -1) -> Group:
    """Return a set of nodes as a group, with the bytes that go in, out and around inside."""
    inside = set(nodes)
    seen: set[int] = set()
    reads = writes = internal = 0
    rows: int | None = None
    members = [flow.nodes[i] for i in nodes]
    for node in members:
        for source, identity, tensor in zip(node.sources, node.inputs, node.reads, strict=True):
            if source not in inside and identity not in seen:
                seen.add(identity)
                reads += tensor.bytes
        users = flow.users[node.index]
        if node.escapes or not users or any(u not in inside for u in users):
            writes += sum(t.bytes for t in node.writes[:1])
        else:
            internal += sum(t.bytes for t in node.writes[:1])
        if node.kind == "reduction" and node.writes:
            rows = node.writes[0].numel
        elif _axes(node) is not None and node.reads[0].shape:
            rows = node.reads[0].numel // max(node.reads[0].shape[-1], 1)
    return Group(
        index, nodes, tuple(k for n in members for k in n.kernels), sum(n.us for n in members),
        max(n.us for n in members), reads, writes, internal, rows, flow.flow,
    )  # fmt: skip
