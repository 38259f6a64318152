"""What a recorded op read and made, from the shapes, dtypes, strides and scalars a trace keeps. No tensor identity.

A trace names no tensors. Results are inferred from what each op does to its arguments' shapes.
"""

from dataclasses import dataclass, field

from fusionadvisor.analysis.nodes import Shape, Tensor, is_known, kind_of, normal

DTYPES: dict[str, tuple[str, int]] = {
    "float": ("float32", 4), "double": ("float64", 8), "c10::Half": ("float16", 2), "c10::BFloat16": ("bfloat16", 2),
    "int": ("int32", 4), "long": ("int64", 8), "long int": ("int64", 8), "short": ("int16", 2), "bool": ("bool", 1),
    "unsigned char": ("uint8", 1), "signed char": ("int8", 1), "c10::Float8_e4m3fn": ("float8_e4m3fn", 1),
    "c10::Float8_e4m3fnuz": ("float8_e4m3fnuz", 1), "c10::Float8_e5m2": ("float8_e5m2", 1), "char": ("int8", 1),
    "c10::complex<float>": ("complex64", 8), "Half": ("float16", 2), "BFloat16": ("bfloat16", 2),
}  # fmt: skip
"""C++ type names as the profiler writes them -> torch dtype and bytes an element."""

_GRADIENT_SECOND = frozenset(
    {"cudnn_batch_norm_backward", "miopen_batch_norm_backward", "cudnn_convolution_backward",
     "miopen_convolution_backward", "cudnn_convolution_backward_input", "cudnn_convolution_backward_weight"}
)  # fmt: skip
"""Backward ops whose second argument is the gradient (aten native functions, torch 1.8 to 2.13)."""
_ZERO_DIM = frozenset({"float", "c10::Half", "c10::BFloat16"})
"""Types of a 0-dim argument that is a tensor: Python scalars are recorded as double, long or bool."""

_COMPARES = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "isnan", "isinf",
     "isfinite"}
)  # fmt: skip
_SAME_SHAPE = frozenset(
    {"clone", "contiguous", "cumsum", "cumprod", "flip", "roll", "sort", "scatter", "scatter_add", "index_add",
     "index_copy", "index_fill", "index_put", "masked_scatter"}
)  # fmt: skip
"""Ops whose result is as large as their first argument."""
_RANK = {"bool": 0, "uint8": 1, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 6, "bfloat16": 6,
         "float32": 7, "float64": 8}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signature:
    """An op's operands. ``writes`` is empty where its result's shape cannot be inferred."""

    op: str
    inplace: bool
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    arguments: dict[str, object] = field(default_factory=dict)
    weights: frozenset[int] = frozenset()
    """Positions among ``reads`` that no earlier op computed, by the op's definition: a layer's own parameters."""
    known: bool = True
    """False for an op whose effect nobody here knows: it may write what it is given, and waits for all of it."""


def signature(
    name: str,
    shapes: tuple[object, ...] | None,
    dtypes: tuple[str, ...] | None,
    strides: tuple[object, ...] | None,
    concrete: tuple[str, ...] | None,
    outer: str = "",
) -> Signature:
    """Return the operands of one recorded op; without shapes, its normalised name alone."""
    op, inplace = normal(name)
    known = is_known(name)
    if shapes is None:
        return Signature(op, inplace, (), (), known=known)
    reads: list[Tensor] = []
    arguments: dict[str, object] = {}
    first_is_list = False
    for i, shape in enumerate(shapes):
        kind = dtypes[i] if dtypes and i < len(dtypes) else ""
        stride = strides[i] if strides and i < len(strides) else None
        if isinstance(shape, tuple) and shape and isinstance(shape[0], tuple):
            first_is_list |= i == 0
            steps = stride if isinstance(stride, tuple) and len(stride) == len(shape) else (None,) * len(shape)
            reads.extend(_tensor(s, "", t) for s, t in zip(shape, steps, strict=True))
        elif isinstance(shape, tuple) and (shape or kind in _ZERO_DIM):
            reads.append(_tensor(shape, kind, stride))
        elif concrete and i < len(concrete) and concrete[i]:
            arguments[str(i)] = concrete[i]
    tensors = tuple(reads)
    if op == "copy" and len(tensors) == 2:
        return Signature(op, False, tensors[1:], tensors[:1], arguments)
    if not known:
        return Signature(op, False, tensors, (), arguments, known=False)
    writes = _results(op, inplace, tensors, arguments)
    return Signature(op, inplace, tensors, writes, arguments, _weights(op, outer, tensors))


def _tensor(shape: object, kind: str, stride: object) -> Tensor:
    dtype, size = DTYPES.get(kind, ("", 4))
    plain = tuple(shape) if isinstance(shape, tuple) else ()
    return Tensor(plain, dtype, tuple(stride) if isinstance(stride, tuple) and stride else None, size)


def _weights(op: str, outer: str, reads: tuple[Tensor, ...]) -> frozenset[int]:
    if op in ("addmm", "_addmm_activation") and outer == "linear":
        return frozenset({0, 2})
    if op in ("mm", "matmul") and outer == "linear":
        return frozenset({1})
    if "_backward" in op:  # all but the gradient was saved in the forward pass
        gradient = 1 if op in _GRADIENT_SECOND else 0
        return frozenset(range(len(reads))) - {gradient}
    if kind_of(op, (), reads, ()) in ("conv", "norm") or op == "linear":
        return frozenset(range(1, len(reads)))
    if op == "embedding":
        return frozenset({0})
    if kind_of(op, (), (), ()) == "fill":  # what it is given is a place or a size, no data
        return frozenset(range(len(reads)))
    return frozenset()


def broadcast(shapes: list[Shape]) -> Shape | None:
    """Return the shape a pointwise op over these makes, None where they do not fit each other."""
    rank = max(map(len, shapes))
    made = []
    for d in range(rank):
        sizes = {s[d - rank + len(s)] for s in shapes if d - rank + len(s) >= 0} - {1}
        if len(sizes) > 1:
            return None
        made.append(sizes.pop() if sizes else 1)
    return tuple(made)


def _results(op: str, inplace: bool, reads: tuple[Tensor, ...], arguments: dict[str, object]) -> tuple[Tensor, ...]:
    if not reads:
        return ()
    first = reads[0]
    if inplace:
        return (first,)
    kind = kind_of(op, (), reads, ())
    shape: Shape | None = None
    if kind in ("pointwise", "rng", "fill"):
        shape = broadcast([t.shape for t in reads])
        if shape is None:
            return ()
        best = max(reads, key=lambda t: _RANK.get(t.dtype, 5))
        dtype, size = ("bool", 1) if op in _COMPARES else (best.dtype, best.itemsize)
        return (Tensor(shape, dtype, next((t.strides for t in reads if t.shape == shape), None), size),)
    if kind in ("norm", "softmax") or op in _SAME_SHAPE:
        return (Tensor(first.shape, first.dtype, first.strides, first.itemsize),)
    if kind == "reduction":
        return _reduced(first, arguments)
    if kind == "cat":
        return _joined(reads, arguments)
    if kind == "gemm":
        shape = _product(op, reads)
    elif op == "embedding" and len(reads) > 1:
        shape = (*reads[1].shape, first.shape[-1])
    elif op in ("gather", "take_along_dim") and len(reads) > 1:
        shape = reads[1].shape
    elif op == "index_select" and len(reads) > 1:
        shape = _selected(first.shape, reads[1].numel, arguments)
    elif kind == "attention" and len(reads) > 2 and "backward" not in op:
        shape = (*first.shape[:-1], reads[2].shape[-1])
    elif kind == "conv" and "backward" not in op:
        shape = _convolved(op, reads, arguments)
    elif "pool" in op and "backward" not in op:
        shape = _pooled(op, first.shape, arguments)
    if shape is None:
        return ()
    # a GEMM makes a contiguous result; a convolution's lies in memory as its input does
    plain = kind == "gemm" or (kind == "conv" and first.strides == contiguous(first.shape))
    return (Tensor(shape, first.dtype, contiguous(shape) if plain else None, first.itemsize),)


def contiguous(shape: Shape) -> Shape:
    """Return the strides of a contiguous tensor."""
    made, step = [], 1
    for size in reversed(shape):
        made.append(step)
        step *= max(size, 1)
    return tuple(reversed(made))


def _numbers(text: object) -> list[int]:
    """Integers of ``"[1, -1]"`` or ``"-1"``; empty for anything else."""
    try:
        return [int(part) for part in str(text).strip("[]").split(",") if part.strip()]
    except ValueError:
        return []


def _reduced(first: Tensor, arguments: dict[str, object]) -> tuple[Tensor, ...]:
    dims = {d % len(first.shape) for d in _numbers(arguments.get("1", "")) if -len(first.shape) <= d < len(first.shape)}
    if not dims and arguments.get("1") not in (None, "[]"):
        return ()
    dims = dims or set(range(len(first.shape)))
    keep = "True" in [str(v) for k, v in arguments.items() if k in ("2", "3")]
    shape = tuple(1 if d in dims else n for d, n in enumerate(first.shape) if keep or d not in dims)
    return (Tensor(shape, first.dtype, None, first.itemsize),)


def _joined(reads: tuple[Tensor, ...], arguments: dict[str, object]) -> tuple[Tensor, ...]:
    rank = len(reads[0].shape)
    dims = _numbers(arguments.get("1", "0"))
    parts = [t for t in reads if len(t.shape) == rank]
    if len(dims) != 1 or not -rank <= dims[0] < rank:
        return ()
    axis = dims[0] % rank
    shape = tuple(sum(t.shape[d] for t in parts) if d == axis else n for d, n in enumerate(reads[0].shape))
    return (Tensor(shape, reads[0].dtype, None, reads[0].itemsize),)


def _product(op: str, reads: tuple[Tensor, ...]) -> Shape | None:
    if op in ("addmm", "baddbmm", "_addmm_activation", "addmv"):
        reads = reads[1:]
    if len(reads) < 2:
        return None
    left, right = reads[0].shape, reads[1].shape
    if op in ("linear", "mkldnn_linear", "mkl_linear"):
        return (*left[:-1], right[0])
    return (*left[:-1], right[-1]) if len(left) > 1 and len(right) > 1 else left[:-1]


def _selected(shape: Shape, count: int, arguments: dict[str, object]) -> Shape | None:
    dims = _numbers(arguments.get("1", ""))
    if len(dims) != 1 or not -len(shape) <= dims[0] < len(shape):
        return None
    return tuple(count if d == dims[0] % len(shape) else n for d, n in enumerate(shape))


def _convolved(op: str, reads: tuple[Tensor, ...], arguments: dict[str, object]) -> Shape | None:
    """Return a convolution's output shape, from the strides, paddings and dilations the trace keeps."""
    if len(reads) < 2 or len(reads[0].shape) != len(reads[1].shape):
        return None
    weight, lists = reads[1].shape, _lists(arguments)
    spread = "transpose" in op or arguments.get("6") == "True"
    if spread and op in ("convolution", "_convolution", "convolution_overrideable"):
        stride, padding, dilation, extra = lists[:1], lists[1:2], lists[2:3], lists[3:4]
    elif spread:  # cudnn_convolution_transpose and its like
        padding, extra, stride, dilation = lists[:1], lists[1:2], lists[2:3], lists[3:4]
    elif op in _KERNEL_FIRST:
        stride, padding, dilation, extra = lists[1:2], lists[2:3], [[1]], [[0]]
    elif op in ("cudnn_convolution", "miopen_convolution", "mkldnn_convolution"):
        padding, stride, dilation, extra = lists[:1], lists[1:2], lists[2:3], [[0]]
    else:
        stride, padding, dilation, extra = lists[:1], lists[1:2], lists[2:3], [[0]]
    if not (stride and padding and dilation and extra):
        return None
    around = (reads[0].shape[2:], weight[2:], stride[0], padding[0], dilation[0])
    if not spread:
        return (reads[0].shape[0], weight[0], *_slid(*around))
    groups = _numbers(arguments.get("8" if "transpose" not in op else "6", "1")) or [1]
    return (reads[0].shape[0], weight[1] * groups[0], *_spread(*around, extra[0]))


_KERNEL_FIRST = frozenset(
    {"thnn_conv2d", "_slow_conv2d_forward", "slow_conv2d_forward", "_conv_depthwise2d", "slow_conv3d_forward"}
)
"""Convolutions whose first list is the kernel size."""


def _pooled(op: str, shape: Shape, arguments: dict[str, object]) -> Shape | None:
    """Return a pooling's output shape."""
    lists = _lists(arguments)
    if not lists or len(shape) < 3:
        return None
    if "adaptive" in op:
        return (*shape[: len(shape) - len(lists[0])], *lists[0])
    kernel, *rest = lists
    stride = rest[0] if rest else kernel
    padding = rest[1] if len(rest) > 1 else [0]
    space = len(kernel)
    return (*shape[:-space], *_slid(shape[-space:], tuple(kernel), stride, padding, [1]))


def _lists(arguments: dict[str, object]) -> list[list[int]]:
    return [n for v in arguments.values() if str(v).startswith("[") and (n := _numbers(v))]


def _slid(sizes: Shape, kernel: Shape, stride: list[int], padding: list[int], dilation: list[int]) -> Shape:
    """Return how often a window of this kernel fits along each dimension."""
    made = []
    for d, (size, width) in enumerate(zip(sizes, kernel, strict=True)):
        s, p, q = (x[d] if d < len(x) else x[0] for x in (stride, padding, dilation))
        made.append((size + 2 * p - q * (width - 1) - 1) // max(s, 1) + 1)
    return tuple(made)


def _spread(
    sizes: Shape, kernel: Shape, stride: list[int], padding: list[int], dilation: list[int], extra: list[int]
) -> Shape:
    """Return the size of a transposed convolution's result along each dimension."""
    made = []
    for d, (size, width) in enumerate(zip(sizes, kernel, strict=True)):
        s, p, q, more = (x[d] if d < len(x) else x[0] for x in (stride, padding, dilation, extra))
        made.append((size - 1) * s - 2 * p + q * (width - 1) + more + 1)
    return tuple(made)


def left(op: str) -> int:
    """The position of a layer's input among its reads: ``addmm`` reads its bias first."""
    return 1 if op in ("addmm", "baddbmm", "_addmm_activation", "addmv") else 0
