"""FlowGraph: the ops of one run in order, with the values they read and write. Types and queries, no torch.

A *value* is one state of one tensor: writing in place makes a new value on the same storage. Views are ops that make
a value on their input's storage without moving data. Rules read this to prove a flow, strategies to prove a rewrite
legal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Phase = Literal["forward", "backward", "optimizer"]
Role = Literal["activation", "input", "parameter", "buffer", "constant"]


@dataclass(frozen=True, slots=True)
class Value:
    """One state of a tensor.

    Args:
        id: Index in :attr:`FlowGraph.values`.
        storage: Which storage it lives on; values that share one alias each other.
        offset: Storage offset in elements.
        dtype: A torch dtype without its prefix, ``float32``.
        strides: In elements; empty for a 0-dim tensor.
        role: Where it came from. ``constant`` is a tensor made outside the run that is no input, parameter or buffer.
        name: The parameter's, buffer's or input's name, empty for activations.
    """

    id: int
    storage: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    offset: int = 0
    device: str = "cpu"
    role: Role = "activation"
    name: str = ""
    requires_grad: bool = False
    itemsize: int = 4

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def touched_bytes(self) -> int:
        """Bytes of the distinct elements: an expanded dimension (stride 0) is read once."""
        count = 1
        for size, stride in zip(self.shape, self.strides, strict=True):
            count *= size if stride or size == 0 else 1
        return count * self.itemsize


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of user code."""

    file: str
    line: int
    function: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """One call that reached the dispatcher.

    Args:
        index: Position in :attr:`FlowGraph.ops`.
        name: ``aten::convolution``, as the profiler prints it.
        reads: Value ids of its tensor arguments in order (lists flattened).
        writes: Value ids it made, including the new states of what it wrote in place.
        mutates: Ids of the states it overwrote, among ``reads``.
        view: It moves no data; its outputs live on the storage of its first tensor argument.
        arguments: Its non-tensor arguments by parameter name, defaults included, as Python literals (dtypes and the
            like as text; None for an optional tensor that was not given).
        module: Qualified path of the innermost module whose forward called it, ``layer1.0.bn1``; empty at top level.
        call: How often that module had been called before in this run.
        source: The innermost frame outside torch and this package; for a backward op that of its forward.
        phase: forward, backward or optimizer.
        operands: Its tensor arguments by parameter name, each the ids among ``reads`` it stands for.
    """

    index: int
    name: str
    overload: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    mutates: tuple[int, ...] = ()
    view: bool = False
    arguments: dict[str, object] = field(default_factory=dict)
    module: str = ""
    call: int = 0
    source: Frame | None = None
    phase: Phase = "forward"
    operands: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def sync(self) -> bool:
        """The CPU waits for the device here: a value is read back or a size depends on data."""
        return self.name in SYNC_OPS


SYNC_OPS = frozenset(
    {
        "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal", "aten::masked_select",
        "aten::unique_dim", "aten::_unique2", "aten::unique_consecutive", "aten::repeat_interleave",
    }
)  # fmt: skip
"""Ops whose result or output size the CPU must know before it goes on (aten native functions, torch 2.13)."""


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module's forward: which values went in and came out."""

    module: str
    class_name: str
    call: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    first_op: int
    """Index of the first op inside, and of the first op after it."""
    end_op: int
    parent: str = ""
    source: Frame | None = None
    """Where the caller called it."""


@dataclass(frozen=True)
class FlowGraph:
    """Ops, values and module calls of one run.

    ``outputs`` are the values the run returned, ``held`` those that something else still held after it (a cache on a
    module, a hook's list, a gradient).
    """

    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    calls: tuple[ModuleCall, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)
    """Module paths that name the same module object as an earlier path."""
    switched: tuple[str, ...] = ()
    """Modules that the run itself switched between training and evaluation, for however long."""

    @cached_property
    def _producer(self) -> dict[int, int]:
        return {v: op.index for op in self.ops for v in op.writes}

    @cached_property
    def _consumers(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for op in self.ops:
            for v in dict.fromkeys(op.reads):
                found.setdefault(v, []).append(op.index)
        return {v: tuple(ops) for v, ops in found.items()}

    @cached_property
    def _escaped(self) -> frozenset[int]:
        return frozenset(self.values[v].storage for v in (*self.outputs, *self.held))

    @cached_property
    def _on_storage(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for value in self.values:
            found.setdefault(value.storage, []).append(value.id)
        return {s: tuple(ids) for s, ids in found.items()}

    def producer(self, value: int) -> Op | None:
        """The op that made this value, None for what existed before the run."""
        index = self._producer.get(value)
        return None if index is None else self.ops[index]

    def consumers(self, value: int) -> tuple[Op, ...]:
        """Ops that read exactly this value, in order."""
        return tuple(self.ops[i] for i in self._consumers.get(value, ()))

    def aliases_of(self, value: int) -> tuple[int, ...]:
        """All values on the same storage, this one included."""
        return self._on_storage[self.values[value].storage]

    def readers(self, value: int) -> tuple[Op, ...]:
        """Ops that read this value's data, through views too, in order; views themselves are left out."""
        seen, todo, found = {value}, [value], set()
        while todo:
            for op in self.consumers(todo.pop()):
                if op.view:
                    fresh = [v for v in op.writes if v not in seen]
                    seen.update(fresh)
                    todo.extend(fresh)
                else:
                    found.add(op.index)
        return tuple(self.ops[i] for i in sorted(found))

    def escapes(self, value: int) -> bool:
        """True where somebody outside holds this value or a view of it: it was returned or kept."""
        return self.values[value].storage in self._escaped

    def calls_of(self, module: str) -> tuple[ModuleCall, ...]:
        """The calls of one module, by the path it is first known under."""
        return tuple(c for c in self.calls if c.module == self.aliases.get(module, module))

    def within(self, module: str) -> Iterator[Op]:
        """Ops called by this module or below it."""
        prefix = f"{module}."
        return (op for op in self.ops if not module or op.module == module or op.module.startswith(prefix))

    def work(self) -> Iterator[Op]:
        """Ops that move or compute data: everything but views."""
        return (op for op in self.ops if not op.view)
