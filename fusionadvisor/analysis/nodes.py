"""Nodes: the ops of the timeline that did device work, with what each read, wrote and took.

A node is one op of one step with its kernels. Where the flow was recorded, it is an op of the FlowGraph; in a trace it
is a row of ``Timeline.ops``; a kernel without an op is a node of its own. Op names are normalised: no ``aten::``, no
trailing underscore, and a copy is called for what it does (``cast``, ``layout``, ``copy``).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Literal

Flow = Literal["proven", "assumed"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """What is known of one operand. ``dtype`` is a torch dtype without prefix, empty where unknown.

    One object stands for the operand of many equal ops: what follows from its shape is computed once.
    """

    shape: Shape
    dtype: str = ""
    strides: Shape | None = None
    itemsize: int = 4

    @cached_property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @cached_property
    def expanded(self) -> bool:
        """It shows its elements several times."""
        return any(n > 1 and not s for n, s in zip(self.shape, self.strides or (), strict=False))

    @cached_property
    def gappy(self) -> bool:
        """It is a slice: its elements leave gaps in memory."""
        pairs = list(zip(self.shape, self.strides or (), strict=False))
        return bool(pairs) and max(n * s for n, s in pairs) > prod(n for n, s in pairs if s)

    @cached_property
    def bytes(self) -> int:
        """Bytes of the distinct elements: a dimension expanded with stride 0 is read once."""
        if self.strides is None or len(self.strides) != len(self.shape):
            return self.numel * self.itemsize
        return prod(n for n, s in zip(self.shape, self.strides, strict=True) if s or not n) * self.itemsize


@dataclass(frozen=True, slots=True)
class Node:
    """One op with its kernels.

    Args:
        index: Position in ``Dataflow.nodes``.
        op: Normalised name, ``add``; empty for a kernel without an op.
        kind: ``pointwise``, ``cast``, ``layout``, ``copy``, ``fill``, ``reduction``, ``norm``, ``softmax``, ``cat``,
            ``rng``, ``index``, ``gemm``, ``conv``, ``helper`` (a convolution's own layout conversion), ``attention``,
            ``fused``, ``sync``, ``collective``, or ``other``.
        kernels: Rows of ``Timeline.kernels``, of all equal steps, step by step.
        repeats: How many equal steps that is.
        us: Sum of the durations in µs of one step's kernels, the mean over these steps.
        reads: Its tensor arguments; empty where the recording has no shapes.
        writes: Its results.
        sources: For each of ``reads``, the node that made it, -1 where it came from outside or is not known.
        slots: For each of ``reads``, which of its maker's results it is.
        inputs: For each of ``reads``, an identity: equal numbers are the same tensor state.
        inplace: It overwrote its first argument.
        outer: The outermost op around it, normalised: ``rms_norm`` over a ``mean``.
        arguments: Its non-tensor arguments, by name where the flow was recorded, by position (``"2"``) in a trace.
        escapes: Somebody outside the run holds its result.
        flow_op: Index in ``FlowGraph.ops``, -1 without one.
    """

    index: int
    op: str
    kind: str
    kernels: tuple[int, ...]
    us: float
    repeats: int = 1
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    sources: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    inplace: bool = False
    outer: str = ""
    arguments: dict[str, object] = field(default_factory=dict)
    module: str = ""
    source: str = ""
    phase: str = ""
    step: int = 0
    lane: tuple[int, int] = (0, 0)
    """Device and stream."""
    graphed: bool = False
    escapes: bool = False
    part: int = 0
    """Nodes of different parts cannot be one kernel: between them something waits, communicates, or is not known."""
    flow_op: int = -1

    @property
    def first(self) -> tuple[int, ...]:
        """The kernels of the first of its steps."""
        return self.kernels[: len(self.kernels) // self.repeats]

    @property
    def out(self) -> Tensor | None:
        """Its first result, None where unknown."""
        return self.writes[0] if self.writes else None


FUSIBLE = frozenset(
    {"pointwise", "cast", "layout", "copy", "fill", "reduction", "norm", "softmax", "cat", "rng", "index"}
)
"""Kinds that can be one kernel with a neighbour: they walk over an iteration space and keep nothing else."""

POINTWISE_KINDS = frozenset({"pointwise", "cast", "layout", "copy", "fill", "rng"})

ACTIVATIONS = frozenset(
    {
        "relu", "relu6", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "selu", "celu", "hardtanh", "clamp",
        "clamp_min", "hardswish", "hardsigmoid", "mish", "softplus", "threshold", "prelu", "_prelu_kernel",
    }
)  # fmt: skip


def _all(kind: str, ops: str) -> dict[str, str]:
    return dict.fromkeys(ops.split(), kind)


_KINDS: dict[str, str] = {
    **_all("pointwise", """
        add sub rsub mul div true_divide floor_divide pow sqrt rsqrt reciprocal neg exp exp2 expm1 log log2 log1p abs
        sign sgn sin cos tan erf erfc addcmul addcdiv lerp where maximum minimum fmod remainder floor ceil round trunc
        square xlogy clip eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or
        bitwise_not masked_fill tril triu log_sigmoid_forward glu mse_loss isnan isinf isfinite nan_to_num
        threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward hardtanh_backward
        hardswish_backward hardsigmoid_backward elu_backward leaky_relu_backward mish_backward softplus_backward
        native_dropout_backward mse_loss_backward"""),
    **dict.fromkeys(ACTIVATIONS, "pointwise"),
    **_all("fill", "fill zero zeros ones full arange zeros_like ones_like full_like new_zeros new_ones new_full eye "
                   "linspace scalar_tensor"),
    **_all("reduction", """
        sum mean var std var_mean std_mean amax amin max min prod norm linalg_vector_norm any all argmax argmin
        logsumexp nansum count_nonzero aminmax"""),
    **_all("norm", """
        native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit
        _native_batch_norm_legit_no_training _batch_norm_no_update _batch_norm_with_update batch_norm_elemt
        batch_norm_stats batch_norm native_layer_norm layer_norm native_group_norm group_norm instance_norm
        _fused_rms_norm rms_norm native_layer_norm_backward native_group_norm_backward native_batch_norm_backward
        cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward _fused_rms_norm_backward"""),
    **_all("softmax", """
        _softmax _log_softmax softmax log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax
        _masked_softmax"""),
    **_all("cat", "cat stack _cat"),
    **_all("rng", """
        native_dropout dropout bernoulli rand rand_like randn randn_like normal uniform random randint randperm
        _fused_dropout exponential"""),
    **_all("index", """
        index index_select gather scatter scatter_add index_put index_add embedding take_along_dim
        _index_put_impl embedding_dense_backward index_copy index_fill slice_backward select_backward"""),
    **_all("gemm", """
        mm addmm bmm baddbmm addmv mv dot linear matmul _addmm_activation addbmm mkldnn_linear _scaled_mm _int_mm
        _grouped_mm mkl_linear"""),
    **_all("conv", """
        convolution _convolution cudnn_convolution miopen_convolution mkldnn_convolution conv2d conv1d conv3d
        slow_conv2d_forward _slow_conv2d_forward thnn_conv2d _conv_depthwise2d cudnn_convolution_transpose
        miopen_depthwise_convolution convolution_overrideable miopen_convolution_transpose slow_conv_transpose2d
        _nnpack_spatial_convolution slow_conv3d_forward"""),
    **_all("fused", "cudnn_convolution_relu cudnn_convolution_add_relu miopen_convolution_relu"),
    **_all("sync", """
        _local_scalar_dense nonzero is_nonzero equal masked_select _unique2 unique_consecutive unique_dim"""),
    **_all("helper", "convert_layout"),
    **_all("copy", "clone copy contiguous _to_copy to"),
}  # fmt: skip

_FROM_KERNEL: dict[str, str] = {
    "elementwise": "pointwise", "cast": "cast", "layout": "layout", "copy": "copy", "reduction": "reduction",
    "norm": "norm", "softmax": "softmax", "cat": "cat", "rng": "rng", "index": "index", "embedding": "index",
    "gemm": "gemm", "conv": "conv", "attention": "attention", "fused": "fused",
}  # fmt: skip
"""What the kernel's own kind says of an op this program does not know."""


@lru_cache(4096)
def normal(op: str) -> tuple[str, bool]:
    """Return an op's bare name and whether it works in place: ``aten::add_`` is ``("add", True)``."""
    bare = op.rpartition("::")[2].partition(".")[0]
    if bare.endswith("_") and not bare.endswith("__"):
        return bare[:-1], True
    return bare, False


@lru_cache(4096)
def is_known(op: str) -> bool:
    """True for an op of PyTorch's own: what it reads, makes and overwrites follows from its name."""
    return op.startswith(("aten::", "prims::"))


def kind_of(
    op: str,
    kernel_kinds: Iterable[str],
    reads: tuple[Tensor, ...],
    writes: tuple[Tensor, ...],
    *,
    known: bool = True,
) -> str:
    """Return a node's kind from its normalised op, its kernels' kinds, and for a copy from what it changes.

    An op that is not PyTorch's own (``known`` is False) may do more than its name says: it is no part of a chain.
    """
    kinds = tuple(kernel_kinds)
    if "collective" in kinds:
        return "collective"
    kind = _told(op, kinds, reads, writes)
    return kind if known or kind not in FUSIBLE else "other"


def _told(op: str, kinds: tuple[str, ...], reads: tuple[Tensor, ...], writes: tuple[Tensor, ...]) -> str:
    known = _KINDS.get(op)
    if known is None:
        if "attention" in op:
            return "attention"
        if "convolution" in op:
            return "conv"
        if op.startswith("triton_") or "fused" in kinds:
            return "fused"
        # of several kernels the heaviest decides; light ones of different kinds are nothing in particular
        said = {_FROM_KERNEL.get(k, "other") for k in kinds}
        heavy = said & {"gemm", "conv", "attention"}
        return min(heavy) if heavy else said.pop() if len(said) == 1 else "other"
    if known == "copy" and reads and writes:
        if reads[-1].dtype and writes[0].dtype and reads[-1].dtype != writes[0].dtype:
            return "cast"
        if reads[-1].strides and writes[0].strides and dense(reads[-1]) != dense(writes[0]):
            return "layout"
    # a Triton kernel can run under the name of the op it replaced; a library epilogue is still a GEMM
    return "fused" if kinds and set(kinds) == {"fused"} and known not in ("gemm", "conv") else known


def dense(tensor: Tensor) -> tuple[int, ...]:
    """The order of a tensor's dimensions in memory, outermost first, leaving out those of size 1."""
    if tensor.strides is None:
        return ()
    dims = [d for d, n in enumerate(tensor.shape) if n != 1]
    return tuple(sorted(dims, key=lambda d: -tensor.strides[d] if tensor.strides else 0))
