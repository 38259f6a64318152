"""Which op made which argument, assumed from element count, dtype, layout and order: a trace names no tensors.

How often this is right is measured by ``benchmarks/flow_inference.py``.
"""

from collections import defaultdict, deque
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from fusionadvisor.analysis.infer import Signature, left
from fusionadvisor.analysis.nodes import ACTIVATIONS, Shape, Tensor

DEPTH = 32
"""How many results of one size are remembered."""
NEAR = 24
"""How many nodes apart layers on one input can be: query, key and value with a norm and a rotation between them."""
CLOSE = 4
"""How many nodes apart the slices of one tensor are read."""
LEAST_PART = 8
"""A slice smaller than this part of what its strides span is taken to be of something else."""
_LAYERS = frozenset({"mm", "addmm", "linear", "convolution", "cudnn_convolution", "miopen_convolution",
                     "mkldnn_convolution", "thnn_conv2d"})  # fmt: skip

_IN_ORDER = frozenset({"copy", "clone", "cat", "stack"})
"""Ops that read the results that wait for them in the order these were made."""

Family = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Reads:
    """For each argument of an op: the node that made it, which of its results it is, and its identity."""

    sources: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()


NO_READS = Reads()


@dataclass(slots=True, eq=False)
class _Made:
    """A result in the pool.

    Args:
        tensor: None where its shape is unknown.
        family: That of the layer it is of.
        like: Equal for results of the same op on the same shapes.
        stream: It is a running sum: an addition of two tensors, or an activation of one.
        spent: Nobody reads it again once it was read: a square, a product with a number.
    """

    node: int
    slot: int
    tensor: Tensor | None
    family: Family | None
    like: object
    stream: bool = False
    spent: bool = False
    used: int = 0


@dataclass(slots=True, eq=False)
class _Reading:
    """An op while its arguments are matched."""

    found: Signature
    node: int
    family: Family | None
    taken: set[_Made]


class Pool:
    """Results that a later op may read. One a step.

    An argument is taken to be a result of the same element count and dtype that nobody has read yet: the one whose
    layout fits best, of these the latest, of results of equal ops the first. What the same op has just read of several
    equal layers (query, then key) decides before that. Where all have been read:

    - a layer reads what an equal layer with an equal input just before it read;
    - a slice or an expansion is of what its strides span, first of all of what was read just before;
    - an addition reads the running sum, else the earliest result of its shape; anything else the latest.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, deque[_Made]] = defaultdict(lambda: deque(maxlen=DEPTH))
        self._shapeless: deque[_Made] = deque(maxlen=DEPTH)
        self._layers: dict[Family, tuple[int, _Made | None]] = {}
        self._applied: dict[tuple[int, int], tuple[int, object]] = {}
        self._last: dict[int, tuple[int, _Made]] = {}
        self._external: dict[tuple[Shape, str, Shape | None], int] = {}

    def take(self, found: Signature, node: int) -> Reads:
        """Match an op's arguments with earlier results, and add its own."""
        sources, slots, inputs = [], [], []
        reading = _Reading(found, node, family(found), set())
        makers: list[_Made | None] = []
        for at, tensor in enumerate(found.reads):
            made = None if at in found.weights else self._maker(tensor, at, reading)
            makers.append(made)
            sources.append(-1 if made is None else made.node)
            slots.append(0 if made is None else made.slot)
            inputs.append(self._outside(tensor) if made is None else made.node * 8 + made.slot)
        if found.inplace and makers:
            self._overwrite(makers[0])
        self._write(reading, makers)
        return Reads(tuple(sources), tuple(slots), tuple(inputs))

    def _maker(self, tensor: Tensor, at: int, reading: _Reading) -> _Made | None:
        own = reading.family if at == left(reading.found.op) else None
        made = self._part(tensor, at, reading) if _gappy(tensor) else None
        if made is None:
            made = self._unread(tensor, tensor.numel, at, reading, own)
        if made is None and own is not None and own in self._layers:
            before, source = self._layers[own]
            made = source if reading.node - before <= NEAR else None
        if made is None:
            made = self._part(tensor, at, reading) or self._reread(tensor, reading)
        if own is not None:
            self._layers[own] = (reading.node, made)
        if made is not None:
            made.used += 1
            reading.taken.add(made)
            self._applied[id(reading.found), at] = (reading.node, made.like)
            if made.tensor is not None:
                self._last[made.tensor.numel] = (reading.node, made)
        return made

    def _unread(self, tensor: Tensor, size: int, at: int, reading: _Reading, own: Family | None) -> _Made | None:
        fresh = [
            m for m in self._by_size.get(size, ())
            if not m.used and m not in reading.taken and m.tensor is not None and _fits(tensor, m.tensor)
            and (own is None or m.family != own)
        ]  # fmt: skip
        before, like = self._applied.get((id(reading.found), at), (0, None))
        if like is not None and reading.node - before <= NEAR and reading.found.op not in _IN_ORDER:
            same = [m for m in fresh if m.like == like]
            if same:
                return same[0]
        best = max(fresh, key=lambda m: (*_agreement(tensor, m.tensor), m.node), default=None)
        if best is not None and (best.family is not None or reading.found.op in _IN_ORDER):
            fit = _agreement(tensor, best.tensor)
            best = next(
                m for m in fresh
                if _agreement(tensor, m.tensor) == fit and best.node - m.node <= NEAR
                and (m.like == best.like or reading.found.op in _IN_ORDER)
            )  # fmt: skip
        for made in reversed(self._shapeless):
            later = best is None or made.node > best.node
            if later and not made.used and made.family and _from_conv(tensor, made.family):
                return made
        return best

    def _part(self, tensor: Tensor, at: int, reading: _Reading) -> _Made | None:
        """Return what a slice was cut from, or an expansion spread out."""
        if tensor.strides is None or len(tensor.strides) != len(tensor.shape):
            return None
        pairs = list(zip(tensor.shape, tensor.strides, strict=True))
        spread = prod(n for n, s in pairs if s)
        extent = max((n * s for n, s in pairs), default=0)
        for size in (spread, extent):
            if size == tensor.numel or size <= 1 or tensor.numel * LEAST_PART < size:
                continue
            before, last = self._last.get(size, (0, None))
            if last is not None and last.tensor is not None and reading.node - before <= CLOSE:
                return last if _fits(tensor, last.tensor) else None
            if (made := self._unread(tensor, size, at, reading, None)) is not None:
                return made
        return None

    def _reread(self, tensor: Tensor, reading: _Reading) -> _Made | None:
        """Return a result that was read before and still fits."""
        known = [
            m for m in reversed(self._by_size.get(tensor.numel, ()))
            if m not in reading.taken and not m.spent and m.tensor is not None and _fits(tensor, m.tensor)
        ]  # fmt: skip
        if reading.found.op == "add":
            known = [m for m in known if m.stream] or known[::-1]
            known = [m for m in known if m.tensor is not None and m.tensor.shape == tensor.shape] or known
        whole = [m for m in known if _agreement(tensor, m.tensor)[0] > 1]
        return next(iter(whole or known), None)

    def _write(self, reading: _Reading, makers: list[_Made | None]) -> None:
        """Add an op's results; a layer whose result is not known is remembered by what it read."""
        found, made_by = reading.found, [m for m in makers if m is not None]
        large = [t for t in found.reads if found.writes and t.numel == found.writes[0].numel]
        stream = (found.op == "add" and len(large) == 2) or (found.op in ACTIVATIONS and any(m.stream for m in made_by))
        like = reading.family or id(found)
        spent = found.op in ("pow", "square") or (found.op in ("mul", "div", "neg") and len(found.reads) == 1)
        for slot, tensor in enumerate(found.writes):
            self._by_size[tensor.numel].append(_Made(reading.node, slot, tensor, reading.family, like, stream, spent))
        if not found.writes and reading.family is not None:
            self._shapeless.append(_Made(reading.node, 0, None, reading.family, like))

    def _overwrite(self, made: _Made | None) -> None:
        """Forget a state that was written over."""
        if made is not None and made.tensor is not None and made in self._by_size[made.tensor.numel]:
            self._by_size[made.tensor.numel].remove(made)

    def _outside(self, tensor: Tensor) -> int:
        """Return a number below zero for a tensor from outside; equal for equal shape, dtype and strides."""
        key = (tensor.shape, tensor.dtype, tensor.strides)
        return -2 - self._external.setdefault(key, len(self._external))


def family(found: Signature) -> Family | None:
    """What layers on one input have in common: the op and its input's layout; None for anything but a layer."""
    if found.op not in _LAYERS or not found.reads:
        return None
    source = found.reads[left(found.op)] if left(found.op) < len(found.reads) else found.reads[0]
    width = found.reads[1].shape[0] if "conv" in found.op and len(found.reads) > 1 else 0
    return (found.op, source.shape, source.dtype, source.strides, width if not found.writes else 0)


def _from_conv(tensor: Tensor, family: Family) -> bool:
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


def _agreement(read: Tensor, made: Tensor | None) -> tuple[int, bool]:
    """How well two layouts agree: 3 for a permutation, 2 for a reshaping without moving data, 1 for a view, else 0.

    The second part says whether the last dimensions are equally long.
    """
    if made is None or read.strides is None or made.strides is None:
        return 3, True  # nothing speaks against it
    last = read.shape[-1:] == made.shape[-1:]
    if _dims(read.shape, read.strides) == _dims(made.shape, made.strides):
        return 3, last
    a, b = _runs(read.shape, read.strides), _runs(made.shape, made.strides)
    return 2 if a == b else int(len(b) == 1 and not _gappy(read)), last


def _gappy(tensor: Tensor) -> bool:
    """True for a slice: its elements leave gaps in memory."""
    pairs = list(zip(tensor.shape, tensor.strides or (), strict=False))
    return bool(pairs) and max(n * s for n, s in pairs) > prod(n for n, s in pairs if s)


@lru_cache(4096)
def _dims(shape: Shape, strides: Shape) -> tuple[tuple[int, int], ...]:
    """Dimensions with their strides, in order of stride."""
    return tuple(sorted(((n, s) for n, s in zip(shape, strides, strict=False) if n > 1), key=lambda d: -d[1]))


@lru_cache(4096)
def _runs(shape: Shape, strides: Shape) -> tuple[tuple[int, int], ...]:
    """Dimensions with their strides, neighbours that lie next to each other in memory joined, in order of stride."""
    runs: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=False):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    return tuple(sorted(runs, key=lambda run: -run[1]))
