"""Optimizers that walk over all parameters at once."""

from collections.abc import Iterable
from math import ceil

from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.kernels import Call, Entry, Kernel, Work, dense_order
from fusionadvisor.capture.predicted.memory import steps

CHUNK, BLOCKS = 65536, 320
"""Elements a block takes, and blocks a launch (MultiTensorApply.cuh, kChunkSize and depth_to_max_blocks)."""
TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Tensors a launch by how many lists it walks (MultiTensorApply.cuh, depth_to_max_tensors)."""
SCALAR_TENSORS = {1: 96, 2: 64, 3: 48, 4: 36, 5: 30}
"""The same where every tensor has its own scalar (depth_to_max_tensors_scalarlist)."""


def multi_tensor_launches(sizes: Iterable[int], tensors: int) -> int:
    """How many launches a walk over these tensors takes (MultiTensorApply.cuh, multi_tensor_apply)."""
    launches = held = blocks = 0
    for size in sizes:
        if not size:
            continue
        held += 1
        chunks = ceil(size / CHUNK)
        for chunk in range(chunks):
            blocks += 1
            last = chunk == chunks - 1
            if (held == tensors and last) or blocks == BLOCKS:
                launches, blocks = launches + 1, 0
                held = 0 if last else 1
    return launches + bool(blocks)


def foreach(call: Call, gpu: Silicon) -> list[Work]:
    """One multi-tensor walk in as few launches as fit; lists that differ in type or layout go one by one."""
    # a fused optimizer reads the step counts beside its lists, and walks not over them
    operands = {name: group for name, group in call.operands.items() if name not in ("state_steps", "grad_scale", "lr")}
    lists = [group for group in operands.values() if len(group) > 1 or len(operands) == 1]
    if not lists:
        lists = [call.reads]
    count = max(map(len, lists))
    lists = [group for group in lists if len(group) == count]
    out_of_place = not call.name.endswith("_")
    regular = all(
        dense_order(a) is not None and a.dtype == b.dtype and a.strides == b.strides
        for group in lists for a, b in zip(group, lists[0], strict=True)
    )  # fmt: skip
    label = call.name.strip("_")
    if not regular or len({v.dtype for v in lists[0]}) > 1:
        return [Kernel("optimizer", label, "pointwise", 2 * v.touched_bytes) for v in lists[0]]
    fused = call.name.startswith("_fused_")
    depth = min(5, len(lists) + out_of_place)
    scalars = fused or any(isinstance(a, tuple) and len(a) == count > 1 for a in call.arguments.values())
    if call.name.startswith("_foreach_norm"):
        depth = 1
    launches = multi_tensor_launches((v.numel for v in lists[0]), (SCALAR_TENSORS if scalars else TENSORS)[depth])
    size = (sum(v.touched_bytes for group in lists for v in group) * 2) // max(1, launches)
    work: list[Work] = [Kernel("optimizer", f"multi_tensor_apply<{label}>", "pointwise", size)] * launches
    if call.name.startswith("_foreach_norm"):  # the blocks' parts of each tensor
        work += [Kernel("optimizer", "lpnorm_cleanup", "reduction", 4096)] * launches
    return work


TABLE = (
    Entry("_amp_foreach_non_finite_check_and_unscale_", foreach, "one walk over all gradients (AmpKernels.cu)"),
    Entry(
        "_amp_update_scale_", steps("elementwise:pointwise"), "one kernel (AmpKernels.cu, amp_update_scale_cuda_kernel)"
    ),
)
