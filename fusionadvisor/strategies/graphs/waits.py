"""Ops for which the CPU waits: it reads a value back, or must know a size before it goes on.

Facts of torch 2.13's CUDA kernels (``aten/src/ATen/native/cuda`` and the composites above them).
"""

from fusionadvisor.flow.graph import SYNC_OPS, FlowGraph, Op

_COUNT = "makes as many elements as the data says"
_NO_NESTED = "Set enable_nested_tensor=False"

_WAITS: dict[str, tuple[str, str]] = {
    "aten::_local_scalar_dense": ("reads a value back to the CPU (.item())", "Keep it on the GPU"),
    "aten::item": ("reads a value back to the CPU (.item())", "Keep it on the GPU"),
    "aten::is_nonzero": ("uses a tensor as a condition", "Use torch.where"),
    "aten::equal": ("compares tensors for a Python condition (torch.equal)", "Keep the comparison on the GPU"),
    "aten::allclose": ("compares tensors for a Python condition (torch.allclose)", "Use torch.isclose"),
    "aten::nonzero": ("finds non-zero positions, whose number the CPU waits for", "Use a mask with torch.where"),
    "aten::masked_select": (f"{_COUNT} (masked_select)", "Use torch.where or multiply by the mask"),
    "aten::repeat_interleave": (f"{_COUNT} (repeat_interleave)", "Pass output_size"),
    "aten::bincount": (f"{_COUNT} (bincount)", "Use scatter_add into a tensor of fixed size"),
    "aten::isin": ("sorts out duplicates, whose number the CPU waits for (isin)", "Compare with broadcasting"),
    "aten::normal": ("checks its standard deviations on the CPU (torch.normal)", "Use randn_like"),
    "aten::histc": ("reads the range of the data back to the CPU (histc)", "Pass min and max"),
    "aten::mode": ("sorts on the CPU's command where slices are long (mode)", ""),
    "aten::embedding_renorm_": ("finds the distinct rows to normalise (max_norm)", "Normalise the weight beforehand"),
    "aten::_linalg_check_errors": ("waits to see whether torch.linalg failed", "Use the _ex variant"),
    "aten::_pack_padded_sequence": ("packs sequences by lengths on the CPU", "Pad to a fixed length"),
    "aten::_ctc_loss": ("reads the lengths back to the CPU (ctc_loss)", "Leave the loss out of the graph"),
    "aten::_to_sparse": ("counts non-zeros to make a sparse tensor", "Keep it dense"),
    "aten::_coalesce": ("counts the distinct entries of a sparse tensor", "Keep it dense"),
    "aten::_nested_tensor_from_mask": ("makes a nested tensor as large as the mask says", _NO_NESTED),
    "aten::_nested_tensor_from_mask_left_aligned": ("checks the padding mask on the CPU", _NO_NESTED),
    "torchvision::nms": ("keeps as many boxes as the data says (nms)", "Leave it out of the graph"),
    "higher_order::cond": ("chooses a branch by a value on the GPU (torch.cond)", "Use torch.where"),
    "higher_order::while_loop": ("loops by a value on the GPU (while_loop)", "Use a fixed number of steps"),
}

_CAPTURABLE_LINALG = ("aten::linalg_vector_norm", "aten::linalg_cross", "aten::linalg_solve_triangular")
_OTHER_SOLVERS = ("aten::geqrf", "aten::cholesky_inverse", "aten::cholesky_solve", "aten::linalg_lu_solve")
_MASKS = ("bool", "uint8")

KNOWN = frozenset(_WAITS)


def wait_of(graph: FlowGraph, op: Op) -> tuple[str, str] | None:
    """Return why the CPU waits for this op and what to do about it; None where it does not."""
    if _harmless(op):
        return None
    if op.name in _WAITS:
        return _WAITS[op.name]
    if op.name in SYNC_OPS:
        return f"waits for a result ({op.name})", ""
    if op.name in _OTHER_SOLVERS or (
        op.name.startswith(("aten::linalg_", "aten::_linalg_")) and op.name not in _CAPTURABLE_LINALG
    ):
        return f"runs a decomposition whose solver may wait ({op.name})", ""
    if op.name == "aten::lift_fresh" and not literal(graph, op.writes[0]):
        return "builds a tensor from Python data", "Make it once, as a buffer"
    if op.name.startswith(("aten::index", "aten::_index_put")) and _masked(graph, op):
        return "indexes with a boolean mask", "Use torch.where or masked_fill"
    return None


def literal(graph: FlowGraph, value: int) -> bool:
    """A number in the code that became a 0-dim tensor on its way, as in ``x[mask] = 0.0``."""
    maker = graph.producer(value)
    return not graph.values[value].shape and maker is not None and maker.name == "aten::lift_fresh"


def _harmless(op: Op) -> bool:
    """The variants of these ops that need no answer."""
    given = op.arguments
    match op.name:
        case "aten::repeat_interleave":
            return given.get("output_size") is not None
        case "aten::normal":
            return "std" not in op.operands
        case "aten::histc":
            return given.get("min") != given.get("max")
    return False


def _masked(graph: FlowGraph, op: Op) -> bool:
    """A mask among the indices, except where one Python number is written: that is a masked_fill."""
    indices, written = op.operands.get("indices", ()), op.operands.get("values", ())
    if not any(graph.values[v].dtype in _MASKS for v in indices):
        return False
    return not (len(indices) == 1 and written and literal(graph, written[0]))
