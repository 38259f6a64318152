"""Normalisations, softmax, reductions and losses."""

from math import prod

from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.kernels import Call, Entry, Kernel, Work
from fusionadvisor.capture.predicted.memory import elementwise, fill, steps
from fusionadvisor.capture.predicted.products import HALVES

CUDNN_BATCH_NORM = frozenset({"float32", "float16"})
VECTOR = 4
"""Elements a vectorised LayerNorm kernel loads at once; the row must be a multiple (layer_norm_kernel.cu)."""
PARTIAL_ROWS, PARTIAL_COLUMNS = 64 * 1024, 32
"""Above so many rows and below SMs/2 blocks of columns the weight's gradient is summed in two stages."""


def batch_norm(call: Call, gpu: Silicon) -> list[Work]:
    """One kernel of cuDNN; ATen's own for what cuDNN does not take (Normalization.cpp, _batch_norm_impl_index)."""
    source = call.first
    size = call.moved
    cudnn = source.dtype in CUDNN_BATCH_NORM and len(source.shape) >= 3 and len(call.reads) >= 5
    if cudnn:
        return [Kernel("norm", f"batch_norm<{source.dtype}>", "reduction", size, "aten::cudnn_batch_norm")]
    labels: tuple[str, ...] = ("batch_norm_calc_invstd", "batch_norm_transform")
    if call.arguments.get("training", call.arguments.get("train")):
        labels = ("batch_norm_collect_statistics", "batch_norm_update_stats", "batch_norm_transform")
    return [
        Kernel("norm", label, "reduction", size if "transform" in label else source.touched_bytes) for label in labels
    ]


def batch_norm_backward(call: Call, gpu: Silicon) -> list[Work]:
    """One kernel of cuDNN, or a reduction and an elementwise one."""
    gradient = call.first
    if gradient.dtype in CUDNN_BATCH_NORM and len(gradient.shape) >= 3:
        op = "aten::cudnn_batch_norm_backward"
        return [Kernel("norm", f"batch_norm_backward<{gradient.dtype}>", "reduction", call.moved, op)]
    return [Kernel("norm", label, "reduction", call.moved) for label in ("backward_reduce", "backward_elemt")]


def layer_norm(call: Call, gpu: Silicon) -> list[Work]:
    """One vectorised kernel where rows allow it, else moments first."""
    row = _row(call)
    vectorised = row % VECTOR == 0 and call.first.dtype in ("float32", *HALVES)
    name = "rms_norm" if "rms" in call.name else "layer_norm"
    if vectorised:
        return [Kernel("norm", f"vectorized_{name}<{call.first.dtype}>", "layer_norm", call.moved)]
    return [
        Kernel("norm", f"RowwiseMoments<{call.first.dtype}>", "layer_norm", call.first.touched_bytes),
        Kernel("norm", f"{name}_forward<{call.first.dtype}>", "layer_norm", call.moved),
    ]


def layer_norm_backward(call: Call, gpu: Silicon) -> list[Work]:
    """The input's gradient, then weight and bias together; very many rows of few columns need a second stage."""
    row = _row(call)
    rows = call.first.numel // max(1, row)
    work: list[Work] = [Kernel("norm", "layer_norm_grad_input", "layer_norm", call.moved)]
    if len(call.writes) > 1:
        work.append(Kernel("norm", "GammaBetaBackward", "layer_norm", call.moved))
        if rows > PARTIAL_ROWS and row / PARTIAL_COLUMNS < gpu.multiprocessors / 2:
            partial = Kernel("reduction", "sum", "reduction", row * 4 * gpu.multiprocessors, "aten::sum")
            work += [partial] * (len(call.writes) - 1)
    return work


def _row(call: Call) -> int:
    shape = call.arguments.get("normalized_shape")
    if isinstance(shape, tuple) and shape:
        return prod(int(n) for n in shape if isinstance(n, int))
    return call.first.shape[-1] if call.first.shape else 1


def group_norm(call: Call, gpu: Silicon) -> list[Work]:
    """Moments, scale and shift folded into two vectors, one elementwise pass (group_norm_kernel.cu)."""
    flat = call.number("HxW", 2) == 1
    affine = len(call.reads) > 1
    middle = [] if flat or not affine else [Kernel("norm", "ComputeFusedParams", "pointwise", 4096)]
    return [
        Kernel("norm", f"RowwiseMoments<{call.first.dtype}>", "layer_norm", call.first.touched_bytes),
        *middle,
        Kernel("norm", "GroupNorm1dForward" if flat else "group_norm_apply", "strided", call.moved),
    ]


def group_norm_backward(call: Call, gpu: Silicon) -> list[Work]:
    """Two sums a channel, three small kernels for the input's gradient, one for weight and bias."""
    size = call.moved
    return [
        Kernel("norm", "ComputeInternalGradients", "reduction", size),
        Kernel("elementwise", "mul", "pointwise", 4096),
        Kernel("norm", "ComputeBackwardFusedParams", "pointwise", 4096),
        Kernel("norm", "group_norm_grad_input", "strided", size),
        *([Kernel("norm", "GammaBetaBackward", "reduction", 8192)] if len(call.writes) > 1 else []),
    ]


def softmax(call: Call, gpu: Silicon) -> list[Work]:
    """One kernel, a warp or a block a row."""
    dims = call.dims()
    row = call.first.shape[dims[0] if dims else -1] if call.first.shape else 1
    pace = "softmax" if row <= 1024 else "softmax_long"
    return [Kernel("softmax", f"{call.name.strip('_')}<{call.first.dtype}>", pace, call.moved, row=row)]


def reduction(call: Call, gpu: Silicon) -> list[Work]:
    """One kernel, however much is reduced: blocks hand their parts to the last one (Reduce.cuh, global_reduce)."""
    whole = bool(call.writes) and all(v.numel <= 1 for v in call.writes)
    workspace = 4 if whole and call.first.numel > 65536 else 0  # semaphores of the blocks, zeroed before
    return [
        Kernel("reduction", f"{call.name.strip('_')}<{call.first.dtype}>", "reduction", call.moved, memset=workspace)
    ]


def logsumexp(call: Call, gpu: Silicon) -> list[Work]:
    """Nine ops in a row (ReduceOps.cpp, logsumexp_out_impl)."""
    names = "amax abs eq masked_fill sub exp sum log add".split()  # noqa: SIM905
    small = call.out.touched_bytes if call.out else 0
    sizes = {"amax": call.first.touched_bytes, "sub": 2 * call.first.touched_bytes, "exp": 2 * call.first.touched_bytes,
             "sum": call.first.touched_bytes}  # fmt: skip
    return [
        Kernel("reduction" if n in ("amax", "sum") else "elementwise", n, "reduction" if n in ("amax", "sum") else
               "pointwise", sizes.get(n, 2 * small), f"aten::{n}")
        for n in names
    ]  # fmt: skip


def loss(call: Call, gpu: Silicon) -> list[Work]:
    """The elementwise loss, then its mean or sum."""
    first = Kernel("elementwise", f"{call.name}<{call.first.dtype}>", "pointwise", call.moved)
    if call.arguments.get("reduction", 1) == 0:
        return [first]
    return [first, Kernel("reduction", "mean", "reduction", call.first.touched_bytes)]


def nll_backward(call: Call, gpu: Silicon) -> list[Work]:
    """The gradient is zeroed, then one element a row is written."""
    return [*fill(call, gpu), Kernel("reduction", "nll_loss_backward", "index", call.first.touched_bytes)]


def safe_softmax(call: Call, gpu: Silicon) -> list[Work]:
    """Softmax, then rows that are all masked set to zero (SoftMax.cpp, _safe_softmax)."""
    around = steps("elementwise:pointwise", "elementwise:pointwise", "reduction:reduction", "elementwise:strided")
    return [*softmax(call, gpu), *around(call, gpu)]


TABLE = (
    Entry(
        "_fft_r2c _fft_c2r _fft_c2c",
        steps("custom"),
        "cuFFT, one kernel for a plan that fits one pass (SpectralOps.cpp)",
    ),
    Entry(
        "_ctc_loss _ctc_loss_backward",
        steps("reduction", "reduction", "reduction"),
        "alphas, betas, and the gradient or the loss (LossCTC.cu)",
    ),
    Entry(
        "_weight_norm_interface _weight_norm_interface_backward",
        steps("norm:reduction"),
        "one kernel (WeightNorm.cu)",
    ),
    Entry(
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm "
        "_batch_norm_with_update _batch_norm_no_update _native_batch_norm_legit_functional",
        batch_norm,
        "cudnnBatchNormalizationForward*, one kernel; bfloat16 runs ATen's own (Normalization.cpp)",
    ),
    Entry(
        "native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward",
        batch_norm_backward,
        "one kernel of cuDNN, or two of ATen (Normalization.cuh)",
    ),
    Entry(
        "native_layer_norm _fused_rms_norm",
        layer_norm,
        "one vectorised kernel for rows of a multiple of 4 (layer_norm_kernel.cu, LayerNormKernelImplInternal)",
    ),
    Entry(
        "native_layer_norm_backward _fused_rms_norm_backward",
        layer_norm_backward,
        "grad_input, then gamma and beta (layer_norm_kernel.cu, LayerNormBackwardKernelImplInternal)",
    ),
    Entry("native_group_norm", group_norm, "three kernels, two without weight (group_norm_kernel.cu)"),
    Entry("native_group_norm_backward", group_norm_backward, "five kernels (group_norm_kernel.cu)"),
    Entry(
        "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _masked_softmax",
        softmax,
        "one kernel (SoftMax.cu, PersistentSoftmax.cuh)",
    ),
    Entry("_safe_softmax", safe_softmax, "softmax, eq, all, where (SoftMax.cpp)"),
    Entry(
        "sum mean prod amax amin max min any all argmax argmin var std var_mean std_mean norm linalg_vector_norm "
        "nansum aminmax _aminmax cosine_similarity _fused_moving_avg_obs_fq_helper",
        reduction,
        "reduce_kernel, one launch (Reduce.cuh)",
    ),
    Entry(
        "count_nonzero",
        steps("elementwise:pointwise", "reduction:reduction"),
        "ne, then sum (TensorAdvancedIndexing.cpp)",
    ),
    Entry("logsumexp", logsumexp, "nine ops (ReduceOps.cpp, logsumexp_out_impl)"),
    Entry(
        "mse_loss smooth_l1_loss huber_loss binary_cross_entropy l1_loss",
        loss,
        "elementwise, then its mean (Loss.cpp, Loss.cu)",
    ),
    Entry("nll_loss_forward nll_loss2d_forward", steps("reduction"), "one kernel (NLLLoss.cu)"),
    Entry("nll_loss_backward nll_loss2d_backward", nll_backward, "zero_, then one kernel (NLLLoss.cu)"),
    Entry("where add sub mul div", elementwise, "one kernel, as every pointwise op (CUDALoops.cuh, gpu_kernel)"),
)
