"""What an op launches: kernels, and the copies and memsets beside them. Types only, no torch."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.flow.graph import FlowGraph, Op, Value

MAX_BYTES_32BIT = 2**31 - 1
"""Largest offset a kernel with 32-bit indices reaches (TensorIterator.cpp, can_use_32bit_indexing)."""


@dataclass(frozen=True, slots=True)
class Call:
    """One op with its operands, ready to be looked up.

    Args:
        name: Bare, ``add_`` or ``convolution``.
        reads: Tensors it reads in order, lists flattened.
        writes: Tensors it makes or writes.
        operands: Tensors by parameter name, as far as known.
        arguments: Everything else by parameter name.
        pointwise: torch itself says that it works element by element.
    """

    name: str
    reads: tuple[Value, ...] = ()
    writes: tuple[Value, ...] = ()
    operands: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    arguments: dict[str, object] = field(default_factory=dict)
    pointwise: bool = False

    @staticmethod
    def of(op: Op, graph: FlowGraph, *, pointwise: bool = False) -> "Call":
        """Look up an op's values."""
        values = graph.values
        return Call(
            op.name.rpartition("::")[2],
            tuple(values[v] for v in op.reads),
            tuple(values[v] for v in op.writes),
            {name: tuple(values[v] for v in ids) for name, ids in op.operands.items()},
            op.arguments,
            pointwise,
        )

    @property
    def out(self) -> Value | None:
        """The first result."""
        return self.writes[0] if self.writes else None

    @property
    def first(self) -> Value:
        """The first tensor read."""
        return self.reads[0]

    @property
    def moved(self) -> int:
        """Bytes of the distinct elements read and written."""
        return sum(v.touched_bytes for v in (*self.reads, *self.writes))

    def operand(self, name: str, position: int) -> Value | None:
        """One tensor by name, or by position where the names are not known."""
        if self.operands:
            return self.operands[name][0] if self.operands.get(name) else None
        return self.reads[position] if position < len(self.reads) else None

    def number(self, name: str, default: float) -> float:
        """A numeric argument."""
        value = self.arguments.get(name, default)
        return float(value) if isinstance(value, int | float) else default

    def dims(self, name: str = "dim") -> tuple[int, ...]:
        """An argument that names dimensions, counted from the front; empty for all."""
        value = self.arguments.get(name)
        if isinstance(value, int):
            value = (value,)
        rank = len(self.first.shape)
        return tuple(d % rank for d in value if isinstance(d, int)) if isinstance(value, tuple) and rank else ()


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product: ``batch`` times (m, k) by (k, n). ``leading`` are the leading dimensions in memory."""

    batch: int
    m: int
    n: int
    k: int
    itemsize: int = 2
    tensor_cores: bool = True
    leading: tuple[int, ...] = ()
    split_k: bool = False
    """Parts of K are computed apart and added up."""

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel.

    Args:
        kind: See :data:`fusionadvisor.trace.kinds.KINDS`.
        label: What it does, for its name.
        pace: Which constants of :mod:`~fusionadvisor.capture.predicted.times` hold; "" where none do.
        bytes: What it reads and writes.
        op: The op that launches it where that is an inner one, ``aten::copy_``.
        product: The matrix product it computes.
        memset: Bytes of workspace zeroed before it; 0 for none.
        row: Elements a row for a softmax, 0 elsewhere.
    """

    kind: str
    label: str
    pace: str = ""
    bytes: int = 0
    op: str = ""
    product: Product | None = None
    memset: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """A memcpy by the copy engine: no kernel. ``direction`` is HtoD, DtoH or DtoD; ``sync``: the CPU waits for it."""

    direction: str
    bytes: int
    sync: bool = False


Work = Kernel | Transfer
Rule = Callable[[Call, Silicon], list[Work]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the table: these ops launch this, because."""

    ops: str
    launches: Rule
    why: str


def dense_order(value: Value) -> tuple[int, ...] | None:
    """Dimensions from the outermost in memory, without those of size 1; None where elements overlap or leave gaps."""
    dims = sorted((d for d, n in enumerate(value.shape) if n != 1), key=lambda d: -value.strides[d])
    expected = 1
    for d in reversed(dims):
        if value.strides[d] != expected:
            return None
        expected *= value.shape[d]
    return tuple(dims)


def alike(a: Value, b: Value) -> bool:
    """Both fill their memory, in the same order: one flat loop covers them."""
    order = dense_order(a)
    return order is not None and order == dense_order(b) and a.numel == b.numel


def splits(call: Call) -> int:
    """Into how many kernels 32-bit indices split an elementwise op (CUDALoops.cuh, with_32bit_indexing)."""
    largest = max((v.numel * v.itemsize for v in (*call.reads, *call.writes)), default=0)
    count = 1
    while largest / count > MAX_BYTES_32BIT:
        count *= 2
    return count


def same_loop(call: Call) -> bool:
    """All operands (0-dim ones aside) are walked over contiguously: no broadcast, no stride."""
    tensors = [v for v in (*call.reads, *call.writes) if v.shape]
    return all(alike(v, tensors[0]) for v in tensors)
