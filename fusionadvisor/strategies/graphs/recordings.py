"""What the recordings of a model show against capturing it: waits, other devices, written inputs, paths that differ."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from fusionadvisor.flow.graph import FlowGraph, Op
from fusionadvisor.report.model import Source
from fusionadvisor.strategies.graphs.obstacle import CANT_WAIT, Obstacle
from fusionadvisor.strategies.graphs.waits import KNOWN, literal, wait_of

_COMMUNICATION = ("c10d", "_c10d_functional")
_KNOWN_NAMESPACES = ("aten", "prims", "higher_order", "quantized", *_COMMUNICATION)


def obstacles(graphs: Iterable[FlowGraph]) -> Iterator[Obstacle]:
    """What the runs did that a graph cannot, in order.

    Where inputs of the same shapes were recorded more than once, the first run is left out: in it a model builds what
    it builds once, as it would in the runs that precede a capture.
    """
    by_shape: dict[object, list[FlowGraph]] = {}
    for graph in graphs:
        shapes = tuple((graph.values[v].shape, graph.values[v].dtype) for v in graph.inputs)
        by_shape.setdefault(shapes, []).append(graph)
    for alike in by_shape.values():
        settled = alike[1:] or alike
        for graph in settled:
            for op in _own(graph):
                yield from _waits(graph, op)
                yield from _moves(graph, op)
                yield from _writes(graph, op)
        for other in settled[1:]:
            yield from _difference(settled[0], other)


def _own(graph: FlowGraph) -> list[Op]:
    """Ops of the model itself: those of its forward and backward, not of the loss or the optimizer around it."""
    calls = graph.calls_of("")
    if not calls:
        return list(graph.ops)
    inside = {index for call in calls for index in range(call.first_op, call.end_op)}
    return [op for op in graph.ops if op.index in inside or op.phase == "backward"]


def written_inputs(graph: FlowGraph, site: str) -> Iterator[Obstacle]:
    """Writes into what the site was given: a graph would write into its own copy instead."""
    calls = graph.calls_of(site)
    given = {v for call in calls for v in call.inputs} if calls else set(graph.inputs)
    storages = {graph.values[v].storage for v in given if graph.values[v].role in ("input", "activation", "constant")}
    inside = [op for call in calls for op in graph.ops[call.first_op : call.end_op]] if calls else graph.ops
    for op in inside:
        if op.phase == "forward" and any(graph.values[v].storage in storages for v in op.mutates):
            yield _obstacle(op, f"writes into its input in place ({op.name})", "Use the out-of-place op")


def calls_pending(graph: FlowGraph, site: str) -> int:
    """How many calls of a site follow each other without a backward between them, at most."""
    most = run = 0
    for before, call in pairwise((None, *graph.calls_of(site))):
        between = graph.ops[before.end_op : call.first_op] if before and call else ()
        run = 1 if any(op.phase == "backward" for op in between) else run + 1
        most = max(most, run)
    return most


def unknown_ops(graph: FlowGraph) -> list[str]:
    """Ops that are not torch's own; whether they wait is not known."""
    names = {op.name for op in _own(graph) if op.name.partition("::")[0] not in _KNOWN_NAMESPACES}
    return sorted(names - KNOWN)


def source_of(op: Op) -> Source | None:
    """The line an op was called from."""
    return Source(op.source.file, op.source.line) if op.source else None


def _obstacle(op: Op, why: str, remedy: str) -> Obstacle:
    return Obstacle(op.module, why, remedy, source_of(op))


def _waits(graph: FlowGraph, op: Op) -> Iterator[Obstacle]:
    if wait := wait_of(graph, op):
        why, remedy = wait
        yield _obstacle(op, f"{why} {CANT_WAIT}", remedy)
    elif op.name.partition("::")[0] in _COMMUNICATION:
        yield _obstacle(op, f"communicates with other processes ({op.name})", "")


def _moves(graph: FlowGraph, op: Op) -> Iterator[Obstacle]:
    """Tensors of the CPU among those of the GPU. A 0-dim CPU tensor is no exception: its value would be frozen."""
    touched = [v for v in (*op.reads, *op.writes) if not literal(graph, v)]
    devices = {graph.values[v].device.partition(":")[0] for v in touched}
    if len(devices) > 1:
        yield _obstacle(op, f"mixes tensors of {' and '.join(sorted(devices))} ({op.name})", "Keep all on the GPU")


def _writes(graph: FlowGraph, op: Op) -> Iterator[Obstacle]:
    written = {alias for v in op.mutates for alias in graph.aliases_of(v)} if op.phase == "forward" else ()
    names = [graph.values[v].name for v in written if graph.values[v].role == "parameter"]
    if names:
        why = f"writes the parameter {names[0]} in forward; the runs before a capture would change it"
        yield _obstacle(op, why, "Keep it in a buffer")


def _difference(one: FlowGraph, other: FlowGraph) -> Iterator[Obstacle]:
    ours, theirs = _own(one), _own(other)
    for a, b in zip(ours, theirs, strict=False):
        if (a.name, a.overload, a.module) != (b.name, b.overload, b.module):
            yield _obstacle(a, "takes another path when its input changes", "Make the choice with torch.where")
            return
        if a.arguments != b.arguments:
            changed = next(k for k in a.arguments if a.arguments[k] != b.arguments.get(k))
            why = f"passes a number that changes from call to call ({changed} of {a.name}); a graph repeats the first"
            yield _obstacle(a, why, "Keep it in a tensor on the GPU")
            return
        if [one.values[v].shape for v in a.reads] != [other.values[v].shape for v in b.reads]:
            yield _obstacle(a, "works on shapes that depend on the data", "Pad to a fixed size")
            return
    if len(ours) != len(theirs):
        longer = max(ours, theirs, key=len)
        yield _obstacle(longer[min(len(ours), len(theirs))], "is reached only for some inputs", "")
