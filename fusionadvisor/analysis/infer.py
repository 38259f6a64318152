"""What a recorded op read and made, from the shapes, dtypes, strides and scalars a trace keeps. No tensor identity.

A trace names no tensors. Results are inferred from what each op does to its arguments' shapes; which op made which
argument is then assumed from element count, dtype, shape and order in :class:`Pool`.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import prod

from fusionadvisor.analysis.nodes import Shape, Tensor, kind_of, normal

DTYPES: dict[str, tuple[str, int]] = {
    "float": ("float32", 4), "double": ("float64", 8), "c10::Half": ("float16", 2), "c10::BFloat16": ("bfloat16", 2),
    "int": ("int32", 4), "long": ("int64", 8), "long int": ("int64", 8), "short": ("int16", 2), "bool": ("bool", 1),
    "unsigned char": ("uint8", 1), "signed char": ("int8", 1), "c10::Float8_e4m3fn": ("float8_e4m3fn", 1),
    "c10::Float8_e4m3fnuz": ("float8_e4m3fnuz", 1), "c10::Float8_e5m2": ("float8_e5m2", 1), "char": ("int8", 1),
    "c10::complex<float>": ("complex64", 8), "Half": ("float16", 2), "BFloat16": ("bfloat16", 2),
}  # fmt: skip
"""C++ type names as the profiler writes them -> torch dtype and bytes an element."""

_ZERO_DIM = frozenset({"float", "c10::Half", "c10::BFloat16"})
"""Types of a 0-dim argument that is a tensor: Python scalars are recorded as double, long or bool."""

_COMPARES = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "isnan", "isinf",
     "isfinite"}
)  # fmt: skip
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
    """Positions among ``reads`` that are a layer's own parameters by the op's definition."""


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
    if shapes is None:
        return Signature(op, inplace, (), ())
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
    kind = kind_of(op, (), reads, ())
    if kind in ("conv", "norm") or op == "linear":
        return frozenset(range(1, len(reads))) if "backward" not in op else frozenset()
    if op == "embedding":
        return frozenset({0})
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
    if kind in ("norm", "softmax") or op in ("clone", "contiguous"):
        return (Tensor(first.shape, first.dtype, first.strides, first.itemsize),)
    if kind == "reduction":
        return _reduced(first, arguments)
    if kind == "cat":
        return _joined(reads, arguments)
    if kind == "gemm":
        shape = _product(op, reads)
    elif op == "embedding" and len(reads) > 1:
        shape = (*reads[1].shape, first.shape[-1])
    elif kind == "attention" and len(reads) > 2 and "backward" not in op:
        shape = (*first.shape[:-1], reads[2].shape[-1])
    elif kind == "conv" and "backward" not in op:
        shape = _convolved(op, reads, arguments)
    return () if shape is None else (Tensor(shape, first.dtype, None, first.itemsize),)


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


def _convolved(op: str, reads: tuple[Tensor, ...], arguments: dict[str, object]) -> Shape | None:
    """Return a convolution's output shape, from the strides, paddings and dilations the trace keeps."""
    if len(reads) < 2 or "transpose" in op:
        return None
    source, weight = reads[0].shape, reads[1].shape
    space = len(weight) - 2
    lists = [n for v in arguments.values() if str(v).startswith("[") and (n := _numbers(v))]
    if len(lists) < 3 or len(source) != len(weight):
        return None
    stride, padding, dilation = lists[:3]
    if op in ("cudnn_convolution", "miopen_convolution", "mkldnn_convolution"):  # these take the padding first
        stride, padding = padding, stride
    if arguments.get("6") == "True" and op in ("convolution", "_convolution"):  # transposed
        return None
    made = [source[0], weight[0]]
    for d in range(space):
        s, p, q = (x[d] if d < len(x) else x[0] for x in (stride, padding, dilation))
        made.append((source[2 + d] + 2 * p - q * (weight[2 + d] - 1) - 1) // max(s, 1) + 1)
    return tuple(made)


@dataclass(slots=True)
class _Made:
    node: int
    slot: int
    tensor: Tensor
    op: str
    reads: tuple[Tensor, ...]
    used: int = 0


DEPTH = 8
"""How many results of one size are remembered."""


@dataclass(slots=True)
class Pool:
    """Results that a later op may read. One a step.

    An argument is taken to be the latest result of the same element count and dtype that nobody has read yet; where all
    have been read, the latest of exactly its shape, else the latest. A GEMM whose left operand looks like that of the
    same kind of GEMM just before it reads what that one read (query, key and value of one input), not its result.
    """

    by_size: dict[int, deque[_Made]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=DEPTH)))
    external: dict[tuple[Shape, str, Shape | None], int] = field(default_factory=dict)

    def read(self, tensor: Tensor, op: str, taken: set[tuple[int, int]]) -> _Made | None:
        """Return the assumed maker of an argument, None for what came from outside."""
        found: _Made | None = None
        for made in reversed(self.by_size.get(tensor.numel, ())):
            if (made.node, made.slot) in taken or not _fits(tensor, made.tensor):
                continue
            if made.op == op and op in _SIBLINGS and any(_same(tensor, r) for r in made.reads):
                continue
            if not made.used:
                found = made
                break
            if found is None or (made.tensor.shape == tensor.shape != found.tensor.shape):
                found = made
        if found is not None:
            found.used += 1
        return found

    def write(self, node: int, op: str, writes: tuple[Tensor, ...], reads: tuple[Tensor, ...]) -> None:
        """Add an op's results."""
        for slot, tensor in enumerate(writes):
            self.by_size[prod(tensor.shape)].append(_Made(node, slot, tensor, op, reads))

    def overwrite(self, made: _Made | None) -> None:
        """Forget a state that was written over."""
        if made is not None:
            self.by_size[made.tensor.numel].remove(made)

    def outside(self, tensor: Tensor) -> int:
        """Return a number below zero for a tensor from outside; equal for equal shape, dtype and strides."""
        key = (tensor.shape, tensor.dtype, tensor.strides)
        return -2 - self.external.setdefault(key, len(self.external))


_SIBLINGS = frozenset({"mm", "addmm", "linear", "convolution", "cudnn_convolution", "miopen_convolution"})


def _fits(read: Tensor, made: Tensor) -> bool:
    return not read.dtype or not made.dtype or read.dtype == made.dtype


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.strides == b.strides and a.dtype == b.dtype
