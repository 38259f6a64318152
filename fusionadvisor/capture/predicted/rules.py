"""The table: which op launches which kernels, in one place to look it up."""

from fusionadvisor.capture.predicted import attention, convolutions, indexing, memory, norms, optimizers, products
from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.kernels import Call, Entry, Work
from fusionadvisor.trace.kinds import op_kind

TABLE: tuple[Entry, ...] = (
    *products.TABLE,
    *convolutions.TABLE,
    *norms.TABLE,
    *attention.TABLE,
    *memory.TABLE,
    *indexing.TABLE,
    *optimizers.TABLE,
)
_BY_OP = {name: entry for entry in TABLE for name in entry.ops.split()}

FOREACH = Entry("_foreach_* _fused_*", optimizers.foreach, "multi_tensor_apply (MultiTensorApply.cuh)")
POINTWISE = Entry("*", memory.elementwise, "every pointwise op is one kernel (CUDALoops.cuh, gpu_kernel)")


def entry(call: Call) -> Entry | None:
    """The line of the table for an op, None where there is none and its kernels are a guess."""
    if call.name.startswith(("_foreach_", "_fused_")) and call.name not in _BY_OP:
        return FOREACH
    if found := _BY_OP.get(call.name):
        return found
    if call.pointwise or op_kind(f"aten::{call.name}") == "elementwise":
        return POINTWISE
    return None


def launched(call: Call, gpu: Silicon) -> list[Work]:
    """What one op launches. Ops on the CPU, and those without an element to work on, launch nothing.

    An op that is not in the table counts as one kernel of the kind its name tells.
    """
    tensors = (*call.reads, *call.writes)
    if not any(memory.on_gpu(v) for v in tensors):
        return []
    if call.writes and not any(v.numel for v in call.writes) and call.name not in ("nonzero", "masked_select"):
        return []
    found = entry(call)
    if found is not None:
        return found.launches(call, gpu)
    return memory.steps(f"{op_kind(f'aten::{call.name}')}:strided")(call, gpu)
