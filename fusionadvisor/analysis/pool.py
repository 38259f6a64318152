"""Which op made which argument, assumed from element count, dtype, layout and order: a trace names no tensors.

How often this is right is measured by ``benchmarks/flow_inference.py``.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import mul

from fusionadvisor.analysis.infer import Signature, left
from fusionadvisor.analysis.nodes import ACTIVATIONS, Shape, Tensor

DEPTH = 32
"""How many results of one size are remembered."""
NEAR = 24
"""How many nodes apart layers on one input can be: query, key and value with a norm and a rotation between them."""
BLOCK = 64
"""How many nodes a residual goes around, at most: an attention or a feed-forward block with its norm."""
CLOSE = 4
"""How many nodes apart the slices of one tensor are read, and the same is done to several tensors."""
SLOTS = 64
"""More results, or arguments written over, than any op has."""
LEAST_PART = 8
"""A slice smaller than this part of what its strides span is taken to be of something else."""
_LAYERS = frozenset({"mm", "addmm", "linear", "convolution", "cudnn_convolution", "miopen_convolution",
                     "mkldnn_convolution", "thnn_conv2d"})  # fmt: skip

_PAIR = {"sin": "cos", "cos": "sin"}
"""Ops that come in pairs on one input: the tables of a rotary or positional embedding."""
_WHOLE = ACTIVATIONS - {"sigmoid", "tanh", "softplus", "clamp", "clamp_min"}
"""Activations that are no part of a formula that reads their input once more."""
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


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that a forward op read or made: who made it, which of the results it is, and its identity."""

    tensor: Tensor
    source: int
    slot: int
    identity: int


@dataclass(slots=True, eq=False)
class _Made:
    """A result in the pool.

    Args:
        tensor: None where its shape is unknown.
        family: That of the layer it is of.
        like: Equal for results of the same op on the same shapes.
        stream: It is a running sum: an addition of two tensors, or an activation of one.
        spent: Nobody reads it again once it was read: a square, a product with a number.
        last: The node that made it or read it last.
        squared: It is a square or cube, or a sum or multiple of such.
        origin: What it is a power, a mean or a multiple of.
        within: The call it was made in, of an op that itself calls others.
        hidden: Nothing outside that call sees it: the call went on to make something else of it.
    """

    node: int
    slot: int
    tensor: Tensor | None
    family: Family | None
    like: object
    stream: bool = False
    spent: bool = False
    used: int = 0
    last: int = 0
    squared: bool = False
    origin: "_Made | None" = None
    within: int = -1
    hidden: bool = False
    op: str = ""

    @property
    def identity(self) -> int:
        """A number that is equal for equal states; below zero for what came from outside."""
        return self.node * SLOTS + self.slot if self.node >= 0 else -2 - self.slot


@dataclass(slots=True, eq=False)
class _Reading:
    """An op while its arguments are matched."""

    found: Signature
    node: int
    family: Family | None
    ahead: int
    run: int
    within: int
    taken: set[_Made]

    def sees(self, made: _Made) -> bool:
        """True where this op can have been given that result."""
        return made not in self.taken and (not made.hidden or made.within == self.within)


class Pool:
    """Results that a later op may read: one pool a step, call of the model, and direction of it.

    An argument is taken to be a result of the same element count and dtype that nobody has read yet: the one whose
    layout fits best, of these the latest. Of results of equal ops it is the first, where as many equal ops follow to
    read them. What the same op has just read of several equal layers (query, then key) decides before that. Where all
    have been read:

    - a layer reads what an equal layer with an equal input just before it read;
    - a slice or an expansion is of what its strides span, first of all of what was read just before;
    - an addition reads the running sum, else the earliest result of its shape; anything else the latest. Other than
      the running sum, a result that nothing touched for a while is not taken: equal size proves nothing.

    What an op makes on the way, for itself alone, nobody else reads: the cast inside a ``sum``.
    What formulas say comes first: a mean is subtracted from what it is of, and ``x³`` is added to ``x``.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, deque[_Made]] = defaultdict(lambda: deque(maxlen=DEPTH))
        self._shapeless: deque[_Made] = deque(maxlen=DEPTH)
        self._layers: dict[Family, tuple[int, _Made | None]] = {}
        self._applied: dict[tuple[int, int], tuple[int, object]] = {}
        self._last: dict[int, tuple[int, _Made]] = {}
        self._external: dict[tuple[Shape, str, Shape | None], _Made] = {}
        self._inside: dict[int, list[_Made]] = {}
        self._queue: tuple[tuple[int, int], list[_Made]] = ((0, 0), [])

    def take(
        self,
        found: Signature,
        node: int,
        *,
        within: int = -1,
        ahead: int = 0,
        run: int = 0,
        saved: Sequence[Saved] = (),
        overwrites: bool = False,
    ) -> Reads:
        """Match an op's arguments with earlier results, and add its own.

        Args:
            found: The op's operands.
            node: Its number.
            within: A number for the outermost call around it.
            ahead: How many equal ops follow soon.
            run: How many of these follow at once.
            saved: What the forward op of a backward op read and made: its second and further arguments may be these.
            overwrites: Nobody knows what the op does: it may write every tensor it is given.
        """
        reading = _Reading(found, node, family(found), ahead, run, within, set())
        makers: list[_Made] = []
        kept: dict[int, Saved] = {}
        formula = self._by_formula(reading)
        for at, tensor in enumerate(found.reads):
            made = None
            if at and (known := _saved(tensor, saved)):
                kept[at] = known
            elif at in formula:
                made = self._read(formula[at], at, reading)
            elif at not in found.weights:
                made = self._maker(tensor, at, reading)
            makers.append(self._outside(tensor, node) if made is None else made)
        reads = [
            (kept[at].source, kept[at].slot, kept[at].identity) if at in kept
            else (made.node, made.slot if made.node >= 0 else 0, made.identity)
            for at, made in enumerate(makers)
        ]  # fmt: skip
        if overwrites:
            self._write_arguments(reading, makers)
        else:
            if found.inplace and makers:
                self._overwrite(makers[0])
            self._write(reading, makers)
        return Reads(*(tuple(column) for column in zip(*reads, strict=True))) if reads else NO_READS

    def _maker(self, tensor: Tensor, at: int, reading: _Reading) -> _Made | None:
        own = reading.family if at == left(reading.found.op) else None
        made = self._part(tensor, at, reading) if tensor.gappy or tensor.expanded else None
        if made is None:
            made = self._unread(tensor, tensor.numel, at, reading, own)
        if made is None and own is not None and own in self._layers:
            before, source = self._layers[own]
            made = source if reading.node - before <= NEAR else None
        if made is None:
            made = self._part(tensor, at, reading) or self._reread(tensor, reading)
        if own is not None:
            self._layers[own] = (reading.node, made)
        return made if made is None else self._read(made, at, reading)

    def _read(self, made: _Made, at: int, reading: _Reading) -> _Made:
        made.used += 1
        made.last = reading.node
        made.spent |= reading.found.op in _WHOLE
        reading.taken.add(made)
        self._applied[id(reading.found), at] = (reading.node, made.like)
        if made.tensor is not None and made.node >= 0:
            self._last[made.tensor.numel] = (reading.node, made)
        return made

    def _by_formula(self, reading: _Reading) -> dict[int, _Made]:
        """Return what an op reads by the formula it is a step of, where shapes and order alone mislead.

        ``x - mean(x)``, whatever else of the mean's shape waits; ``pow(x)`` beside a waiting ``0.5 * x``, and
        ``x + 0.044715 * x³``: steps of LayerNorm and of the tanh GELU.
        """
        found = reading.found
        if found.op in ("pow", "square") and found.reads:
            waiting = self._latest(found.reads[0], reading)
            if waiting is not None and not waiting.used and waiting.spent and not waiting.squared and waiting.origin:
                return {0: waiting.origin}
        if found.op in _PAIR and found.reads:
            waiting = self._latest(found.reads[0], reading)
            if waiting is not None and not waiting.used and waiting.op == _PAIR[found.op] and waiting.origin:
                return {0: waiting.origin}
        if len(found.reads) != 2:
            return {}
        sizes = [t.numel for t in found.reads]
        if found.op == "sub" and sizes[0] > sizes[1] > 1:
            known = [
                m for m in reversed(self._by_size.get(sizes[1], ()))
                if m.origin is not None and not m.squared and m.tensor and m.tensor.shape == found.reads[1].shape
                and m.origin.tensor and m.origin.tensor.shape == found.reads[0].shape
                and reading.sees(m) and reading.node - m.last <= NEAR
            ]  # fmt: skip
            if known and known[0].origin is not None:
                return {0: known[0].origin, 1: known[0]}
        cube = self._latest(found.reads[1], reading) if found.op == "add" and sizes[0] == sizes[1] else None
        if cube is None or not cube.squared or cube.used or cube.origin is None or cube.origin.tensor is None:
            return {}
        return {0: cube.origin, 1: cube} if cube.origin.tensor.numel == sizes[0] else {}

    def _latest(self, tensor: Tensor, reading: _Reading) -> _Made | None:
        """The latest result of this size and dtype."""
        known = self._by_size.get(tensor.numel, ())
        return next(
            (m for m in reversed(known) if reading.sees(m) and m.tensor is not None and _fits(tensor, m.tensor)), None
        )

    def _unread(self, tensor: Tensor, size: int, at: int, reading: _Reading, own: Family | None) -> _Made | None:
        fresh = [
            m for m in self._by_size.get(size, ())
            if not m.used and reading.sees(m) and m.tensor is not None and _fits(tensor, m.tensor)
            and (own is None or m.family != own)
        ]  # fmt: skip
        key, in_order = (id(reading.found), at), reading.found.op in _IN_ORDER
        if self._queue[0] == key and (waiting := [m for m in self._queue[1] if m in fresh]):
            return waiting[0]
        before, like = self._applied.get(key, (0, None))
        if like is not None and reading.node - before <= NEAR and not in_order:
            same = [m for m in fresh if m.like == like and (m.family or reading.node - before <= 2 * CLOSE)]
            if same:
                return same[0]
        best = max(fresh, key=lambda m: (*_agreement(tensor, m.tensor), m.node), default=None)
        if best is not None:
            fit = _agreement(tensor, best.tensor)
            equal = [m for m in fresh if _agreement(tensor, m.tensor) == fit]
            alike = [m for m in equal if m.like == best.like]
            if best.family is not None or in_order:
                best = next(m for m in (equal if in_order else alike) if best.node - m.node <= NEAR)
            elif 1 < len(equal) == reading.run + 1 or 1 < len(alike) == len(equal) == reading.ahead + 1:
                best, self._queue = equal[0], (key, equal)
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
        if tensor.expanded and (made := self._unread(tensor, spread, at, reading, None)) is not None:
            return made
        for size in (spread, extent):
            if size == tensor.numel or size <= 1 or tensor.numel * LEAST_PART < size:
                continue
            before, last = self._last.get(size, (0, None))
            if last is not None and last.tensor is not None and reading.node - before <= CLOSE and reading.sees(last):
                return last if _fits(tensor, last.tensor) else None
            if (made := self._unread(tensor, size, at, reading, None)) is not None:
                return made
        return None

    def _reread(self, tensor: Tensor, reading: _Reading) -> _Made | None:
        """Return a result that was read before and still fits."""
        known = [
            m for m in reversed(self._by_size.get(tensor.numel, ()))
            if reading.sees(m) and not m.spent and m.tensor is not None and _fits(tensor, m.tensor)
            and _regroups(tensor.shape, m.tensor.shape)
        ]  # fmt: skip
        near = [m for m in known if reading.node - m.last <= NEAR]
        if reading.found.op == "add":
            sums = [m for m in known if m.stream and m.tensor is not None and m.tensor.shape == tensor.shape]
            if not sums and (outside := self._external.get(_key(tensor))) and reading.node - outside.last <= BLOCK:
                return outside
            near = sums or [m for m in known[::-1] if reading.node - m.last <= BLOCK]
        whole = [m for m in near if _agreement(tensor, m.tensor)[0] > 1]
        return next(iter(whole or near), None)

    def _write(self, reading: _Reading, made_by: list[_Made]) -> None:
        """Add an op's results; a layer whose result is not known is remembered by what it read."""
        found = reading.found
        large = [t for t in found.reads if found.writes and t.numel == found.writes[0].numel]
        stream = (found.op == "add" and len(large) == 2) or (found.op in ACTIVATIONS and any(m.stream for m in made_by))
        like = reading.family or id(found)
        power = found.op in ("pow", "square") or (
            found.op == "mul" and len(made_by) == 2 and made_by[0] is made_by[1] and made_by[0].node >= 0
        )
        scaled = found.op in ("mul", "div", "neg") and len(found.reads) == 1
        origin, squared = None, False
        if made_by and (power or scaled or found.op in ("mean", "sum", *_PAIR)):
            squared = power or made_by[0].squared
            origin = made_by[0].origin if scaled and made_by[0].squared else made_by[0]
        for slot, target in enumerate(found.writes):
            tensor = target
            if (found.inplace or found.op == "copy") and target.gappy and target.strides:
                # a write into a slice makes another state of the whole
                size = max(n * s for n, s in zip(target.shape, target.strides, strict=True))
                whole = next((m for m in reversed(self._by_size.get(size, ())) if m.tensor), None)
                if whole is None or whole.tensor is None:
                    continue
                self._overwrite(whole)
                tensor = whole.tensor
            self._add(
                _Made(
                    reading.node, slot, tensor, reading.family, like, stream, spent=power or scaled,
                    last=reading.node, squared=squared, origin=origin, op=found.op,
                ),
                reading,
            )  # fmt: skip
        if not found.writes and reading.family is not None:
            self._shapeless.append(_Made(reading.node, 0, None, reading.family, like))

    def _write_arguments(self, reading: _Reading, makers: list[_Made]) -> None:
        """Every tensor an unknown op was given may be another afterwards."""
        for at, tensor in enumerate(reading.found.reads[:SLOTS]):
            self._overwrite(makers[at])
            if tensor.numel > 1:
                like = (id(reading.found), at)
                self._add(_Made(reading.node, at, tensor, None, like, last=reading.node), reading)

    def _add(self, made: _Made, reading: _Reading) -> None:
        if made.tensor is None:
            return
        self._by_size[made.tensor.numel].append(made)
        if reading.within >= 0:
            made.within = reading.within
            for before in self._inside.get(reading.within, ()):
                before.hidden |= before.node != made.node
            if reading.within not in self._inside:
                self._inside = {reading.within: []}
            self._inside[reading.within].append(made)

    def _overwrite(self, made: _Made) -> None:
        """Forget a state that was written over."""
        if made.tensor is not None and made in self._by_size[made.tensor.numel]:
            self._by_size[made.tensor.numel].remove(made)

    def _outside(self, tensor: Tensor, node: int) -> _Made:
        """Return what stands for a tensor from outside: the same for equal shape, dtype and strides."""
        made = self._external.get(_key(tensor))
        if made is None:
            made = self._external[_key(tensor)] = _Made(-1, len(self._external), tensor, None, None)
        made.last = node
        return made


def _key(tensor: Tensor) -> tuple[Shape, str, Shape | None]:
    return tensor.shape, tensor.dtype, tensor.strides


@lru_cache(4096)
def _regroups(a: Shape, b: Shape) -> bool:
    """True where one shape only joins or splits neighbouring dimensions of the other, or orders the same ones anew.

    Equal element counts alone say little: ``[64, 256, 64, 64]`` is no view of ``[64, 64, 128, 128]``.
    """
    if sorted(n for n in a if n != 1) == sorted(n for n in b if n != 1):
        return True
    first, second = (set(accumulate(shape, mul)) for shape in (a, b))
    return first <= second | {1} or second <= first | {1}


def _saved(tensor: Tensor, saved: Sequence[Saved]) -> Saved | None:
    """Which of the tensors of a forward op this one is, by shape and dtype."""
    return next((s for s in saved if s.tensor.shape == tensor.shape and _fits(tensor, s.tensor)), None)


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
    return 2 if a == b else int(len(b) == 1 and not read.gappy), last


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
