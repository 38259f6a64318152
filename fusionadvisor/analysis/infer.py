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
    if "_backward" in op:  # all but the gradient was saved in the forward pass
        gradient = 1 if op in _GRADIENT_SECOND else 0
        return frozenset(range(len(reads))) - {gradient}
    if kind_of(op, (), reads, ()) in ("conv", "norm") or op == "linear":
        return frozenset(range(1, len(reads)))
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


@dataclass(slots=True, eq=False)
class _Made:
    """A result in the pool. ``tensor`` is None where its shape is unknown; ``family`` is that of the layer it is of."""

    node: int
    slot: int
    tensor: Tensor | None
    family: tuple[object, ...] | None
    used: int = 0


DEPTH = 8
"""How many results of one size are remembered."""
NEAR = 24
"""How many nodes apart layers on one input can be: query, key and value with a norm and a rotation between them."""
CLOSE = 4
"""How many nodes apart the slices of one tensor are read."""
_LAYERS = frozenset({"mm", "addmm", "linear", "convolution", "cudnn_convolution", "miopen_convolution"})


class Pool:
    """Results that a later op may read. One a step.

    An argument is taken to be the latest result of the same element count and dtype that nobody has read yet; where all
    have been read, the latest of exactly its shape, else the latest. A layer whose input looks like that of the same
    kind of layer just before it reads what that one read (query, key and value of one input), not its result; results
    of such layers are read in the order they were made. A slice or an expansion is traced by its strides to what it was
    cut from, first of all to what was read just before.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, deque[_Made]] = defaultdict(lambda: deque(maxlen=DEPTH))
        self._shapeless: deque[_Made] = deque(maxlen=DEPTH)
        self._layers: dict[tuple[object, ...], tuple[int, _Made | None]] = {}
        self._external: dict[tuple[Shape, str, Shape | None], int] = {}
        self._last: dict[int, tuple[int, _Made]] = {}

    def read(self, tensor: Tensor, taken: "set[_Made]", family: tuple[object, ...] | None, at: int) -> _Made | None:
        """Return the assumed maker of an argument of node ``at``, None for what came from outside."""
        found = self._latest(tensor, tensor.numel, taken, family)
        if family is not None and (found is None or found.used) and family in self._layers:
            before, source = self._layers[family]
            if at - before <= NEAR:
                found = source
        elif found is None or found.used:
            found = self._part(tensor, taken, at) or found
        if family is not None:
            self._layers[family] = (at, found)
        if found is not None:
            found.used += 1
            if found.tensor is not None:
                self._last[found.tensor.numel] = (at, found)
        return found

    def _latest(
        self, tensor: Tensor, size: int, taken: "set[_Made]", family: tuple[object, ...] | None
    ) -> _Made | None:
        found: _Made | None = None
        for made in reversed(self._by_size.get(size, ())):
            if made in taken or made.tensor is None or not _fits(tensor, made.tensor):
                continue
            if family is not None and made.family == family:
                continue
            if not made.used:
                found = self._first_of(made, size, taken)
                break
            if found is None or (found.tensor is not None and made.tensor.shape == tensor.shape != found.tensor.shape):
                found = made
        for made in reversed(self._shapeless):
            later = found is None or found.used or made.node > found.node
            if later and not made.used and made not in taken and made.family and _from_conv(tensor, made.family):
                return made
        return found

    def _first_of(self, latest: _Made, size: int, taken: "set[_Made]") -> _Made:
        """Return the earliest unread result of the layers on one input that ``latest`` is of."""
        if latest.family is None:
            return latest
        return next(m for m in self._by_size[size] if m.family == latest.family and not m.used and m not in taken)

    def _part(self, tensor: Tensor, taken: "set[_Made]", at: int) -> _Made | None:
        """Return what a slice was cut from, or an expansion spread out."""
        if tensor.strides is None or len(tensor.strides) != len(tensor.shape):
            return None
        pairs = list(zip(tensor.shape, tensor.strides, strict=True))
        spread = prod(n for n, s in pairs if s)
        extent = max((n * s for n, s in pairs), default=0)
        for size in (spread, extent):
            if size == tensor.numel or size <= 1:
                continue
            before, last = self._last.get(size, (0, None))
            if last is not None and last.tensor is not None and at - before <= CLOSE and _fits(tensor, last.tensor):
                return last
            if (found := self._latest(tensor, size, taken, None)) is not None:
                return found
        return None

    def write(self, node: int, writes: tuple[Tensor, ...], family: tuple[object, ...] | None) -> None:
        """Add an op's results; a layer whose result is not known is remembered by what it read."""
        for slot, tensor in enumerate(writes):
            self._by_size[prod(tensor.shape)].append(_Made(node, slot, tensor, family))
        if not writes and family is not None:
            self._shapeless.append(_Made(node, 0, None, family))

    def overwrite(self, made: _Made | None) -> None:
        """Forget a state that was written over."""
        if made is not None and made.tensor is not None and made in self._by_size[made.tensor.numel]:
            self._by_size[made.tensor.numel].remove(made)

    def outside(self, tensor: Tensor) -> int:
        """Return a number below zero for a tensor from outside; equal for equal shape, dtype and strides."""
        key = (tensor.shape, tensor.dtype, tensor.strides)
        return -2 - self._external.setdefault(key, len(self._external))


def family(found: Signature) -> tuple[object, ...] | None:
    """What layers on one input have in common: the op and its input's layout; None for anything but a layer."""
    if found.op not in _LAYERS or not found.reads:
        return None
    source = found.reads[left(found.op)] if left(found.op) < len(found.reads) else found.reads[0]
    width = found.reads[-1].shape[0] if found.op.endswith("convolution") and len(found.reads) > 1 else 0
    return (found.op, source.shape, source.dtype, source.strides, width if not found.writes else 0)


def left(op: str) -> int:
    """The position of a layer's input among its reads: ``addmm`` reads its bias first."""
    return 1 if op in ("addmm", "baddbmm", "_addmm_activation", "addmv") else 0


def _from_conv(tensor: Tensor, family: tuple[object, ...]) -> bool:
    """True where a tensor can be the result of a convolution of which only its input and width are known."""
    source, width = family[1], family[4]
    return (
        isinstance(source, tuple)
        and len(tensor.shape) == len(source)
        and tensor.shape[:1] == source[:1]
        and tensor.shape[1] == width
    )


def _fits(read: Tensor, made: Tensor) -> bool:
    return not read.dtype or not made.dtype or read.dtype == made.dtype
