"""What the recordings of a model show against capturing it: waits, other devices, written inputs, paths that differ."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from fusionadvisor.flow.graph import SYNC_OPS, FlowGraph, Op
from fusionadvisor.report.model import Source
from fusionadvisor.strategies.graphs.obstacle import CANT_WAIT, Obstacle

_COUNT = "makes as many elements as the data says"
_NO_NESTED = "Set enable_nested_tensor=False"

_WAITS: dict[str, tuple[str, str]] = {
    "aten::_local_scalar_dense": ("reads a value back to the CPU (.item())", "Keep it on the GPU"),
    "aten::is_nonzero": ("uses a tensor as a condition", "Use torch.where"),
    "aten::equal": ("compares tensors for a Python condition (torch.equal)", "Keep the comparison on the GPU"),
    "aten::nonzero": ("finds non-zero positions, whose number the CPU waits for", "Use a mask with torch.where"),
    "aten::masked_select": (f"{_COUNT} (masked_select)", "Use torch.where or multiply by the mask"),
    "aten::repeat_interleave": (f"{_COUNT} (repeat_interleave)", "Pass output_size"),
    "aten::bincount": (f"{_COUNT} (bincount)", "Use scatter_add into a tensor of fixed size"),
    "aten::multinomial": ("checks its probabilities on the CPU (multinomial)", "Sample with the Gumbel-max trick"),
    "aten::histc": ("reads the range of the data back to the CPU (histc)", ""),
    "aten::_linalg_check_errors": ("waits to see whether torch.linalg failed", "Use the _ex variant"),
    "aten::_pack_padded_sequence": ("packs sequences by lengths on the CPU", "Pad to a fixed length"),
    "aten::_ctc_loss": ("reads the lengths back to the CPU (ctc_loss)", "Leave the loss out of the graph"),
    "aten::_to_sparse": ("counts non-zeros to make a sparse tensor", "Keep it dense"),
    "aten::_nested_tensor_from_mask": ("makes a nested tensor as large as the mask says", _NO_NESTED),
    "aten::_nested_tensor_from_mask_left_aligned": ("checks the padding mask on the CPU", _NO_NESTED),
    "torchvision::nms": ("keeps as many boxes as the data says (nms)", "Leave it out of the graph"),
    "higher_order::cond": ("chooses a branch by a value on the GPU (torch.cond)", "Use torch.where"),
    "higher_order::while_loop": ("loops by a value on the GPU (while_loop)", "Use a fixed number of steps"),
}  # fmt: skip
"""Ops for which the CPU waits, beyond :data:`SYNC_OPS` or with better words (aten native functions, torch 2.13)."""

_SOLVERS = (
    "aten::_linalg_eigh",
    "aten::linalg_eig",
    "aten::_linalg_svd",
    "aten::linalg_lstsq",
    "aten::_linalg_eigvals",
)
"""Decompositions that run partly on the CPU or wait for cuSOLVER's status."""

_COMMUNICATION = ("c10d", "_c10d_functional")
_KNOWN_NAMESPACES = ("aten", "prims", "higher_order", "quantized", *_COMMUNICATION)
_MASKS = ("bool", "uint8")


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
    return sorted(names - _WAITS.keys())


def source_of(op: Op) -> Source | None:
    """The line an op was called from."""
    return Source(op.source.file, op.source.line) if op.source else None


def _obstacle(op: Op, why: str, remedy: str) -> Obstacle:
    return Obstacle(op.module, why, remedy, source_of(op))


def _waits(graph: FlowGraph, op: Op) -> Iterator[Obstacle]:
    if op.name == "aten::repeat_interleave" and op.arguments.get("output_size") is not None:
        return
    if op.name in _WAITS:
        why, remedy = _WAITS[op.name]
        yield _obstacle(op, f"{why} {CANT_WAIT}", remedy)
    elif op.name in SYNC_OPS:
        yield _obstacle(op, f"waits for a result ({op.name}) {CANT_WAIT}", "")
    elif op.name in _SOLVERS:
        yield _obstacle(op, f"runs a solver that waits for its status ({op.name}) {CANT_WAIT}", "")
    elif op.name == "aten::lift_fresh" and not _literal(graph, op.writes[0]):
        yield _obstacle(op, f"builds a tensor from Python data {CANT_WAIT}", "Make it once, as a buffer")
    elif op.name.partition("::")[0] in _COMMUNICATION:
        yield _obstacle(op, f"communicates with other processes ({op.name})", "")
    elif op.name.startswith(("aten::index", "aten::_index_put")) and _masked(graph, op):
        yield _obstacle(
            op,
            f"indexes with a boolean mask, whose count the CPU needs, {CANT_WAIT}",
            "Use torch.where or masked_fill",
        )


def _literal(graph: FlowGraph, value: int) -> bool:
    """A number in the code that became a 0-dim tensor on its way, as in ``x[mask] = 0.0``."""
    maker = graph.producer(value)
    return not graph.values[value].shape and maker is not None and maker.name == "aten::lift_fresh"


def _masked(graph: FlowGraph, op: Op) -> bool:
    """A mask among the indices, except where one Python number is written: that is a masked_fill."""
    indices, written = op.operands.get("indices", ()), op.operands.get("values", ())
    if not any(graph.values[v].dtype in _MASKS for v in indices):
        return False
    return not (len(indices) == 1 and written and _literal(graph, written[0]))


def _moves(graph: FlowGraph, op: Op) -> Iterator[Obstacle]:
    """Tensors of the CPU among those of the GPU. A 0-dim CPU tensor is no exception: its value would be frozen."""
    touched = [v for v in (*op.reads, *op.writes) if not _literal(graph, v)]
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
