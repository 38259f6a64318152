"""The state of an interpretation, and how it notes what happens."""

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from fusionadvisor.strategies.legality.code import Function, trusted
from fusionadvisor.strategies.legality.events import Entry, Event, Kind, Log
from fusionadvisor.strategies.legality.frame import Frame
from fusionadvisor.strategies.legality.framework import LOADERS, framework
from fusionadvisor.strategies.legality.values import (
    NOTHING,
    PLAIN,
    UNKNOWN,
    Arguments,
    Atom,
    Box,
    Flag,
    Live,
    Reach,
    Result,
    Value,
    Weight,
    constant,
    join,
)

_STEPS = 3_000_000
"""Statements and expressions that are followed before the code counts as too large; about twenty seconds."""


class Machine(ABC):
    """What all parts of the interpreter share.

    Args:
        model: The model whose code is run.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.paths: dict[int, str] = {id(module): path for path, module in model.named_modules()}
        self.modules: dict[int, nn.Module] = {id(module): module for module in model.modules()}
        self.storages: dict[int, list[Weight]] = {}
        for module in self.modules.values():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None and tensor.layout is torch.strided and tensor.numel():
                    at = tensor.untyped_storage().data_ptr()
                    self.storages.setdefault(at, []).append(Weight(id(module), name))
        self.namespaces: dict[int, nn.Module] = {
            id(held): module
            for module in self.modules.values()
            for held in (vars(module), module._modules, module._parameters, module._buffers)
        }
        """The modules by their dicts: who writes into one of these sets an attribute."""
        self.log = Log()
        self.heap: dict[tuple[int, str], Value] = {}
        """What the code stored in attributes, globals and containers, beside what is there now."""
        self.changed = False
        self.growth = 0
        """Counts changes of containers, which names do not show."""
        self.functions: dict[ast.AST, Function] = {}
        self.loads: dict[ast.AugAssign, ast.expr] = {}
        """The expressions that read what augmented assignments write."""
        self.nested: dict[tuple[int, int], Function] = {}
        self.unreadable: dict[str, None] = {}
        self.overrun = ""
        self.steps = _STEPS
        self.flags: frozenset[Flag] = frozenset()
        self.within: tuple[Event, ...] = ()
        self.deferred = False
        self.path = 0
        """The branch that is followed: 0 where every call comes by."""
        self._paths = 0
        self.origins: dict[tuple[Any, ...], Event] = {}
        self.boxes: dict[tuple[Any, ...], Box] = {}
        self._fresh: set[Box] = set()
        self.frame: Frame
        self.entry: Entry
        self._contexts: dict[tuple[int, int, int], int] = {}
        self._objects: dict[Hashable, Any] = {}
        self._kept_alive: list[Any] = []
        """Objects that the code was given or made while it ran, whose ``id`` must stay theirs."""

    # What happens

    def record(
        self, kind: Kind, name: str, node: ast.AST, inputs: Iterable[Value], modules: tuple[nn.Module, ...] = ()
    ) -> Event:
        """Note an event, and everything its values hold under it."""
        values = tuple(inputs)
        event = Event(
            kind, name, self.frame.function, node, values, modules, self.flags, self.within, self.entry,
            len(self.log.events), self.deferred,
        )  # fmt: skip
        key = (self.frame.context, id(node), kind, name, modules)
        first = self.origins.setdefault(key, event)
        event.origin = None if first is event else first
        self.log.add(event, Reach.of(values))
        return event

    def operation(self, name: str, inputs: Iterable[Value], node: ast.AST, kind: Kind = Kind.OPERATION) -> Value:
        """Note that something is computed from values, and return its result; modules among them escape."""
        values = tuple(inputs)
        reach = Reach.of(values)
        if any(id(module) in self.modules for module in reach.modules.values()):
            self.escape(name, node, values)
        return frozenset({self.record(kind, name, node, values).result})

    def escape(self, name: str, node: ast.AST, inputs: Iterable[Value]) -> None:
        """Note that values are given to code that cannot be followed."""
        self.record(Kind.ESCAPE, name, node, inputs)

    def keep(self, place: tuple[int, str], value: Value, node: ast.AST, name: str) -> None:
        """Store a value where other calls can read it."""
        reach = Reach.of([value])
        if reach.results or reach.weights:
            self.record(Kind.KEEP, name, node, [value])
        if not (self.entry.forward or reach.results or reach.weights or reach.callables):
            return  # set from outside: plain data is checked when the model runs, other submodules are another model
        before = self.heap.get(place, NOTHING)
        after = before | value
        if after != before:
            self.heap[place] = after
            self.changed = True

    def box(
        self, kind: type, node: ast.AST, items: list[Value] | None = None, keys: dict[Any, Value] | None = None,
        loose: Value = NOTHING,
    ) -> Value:  # fmt: skip
        """A container that an expression makes; made again in the same context, it is the same with more in it."""
        key = (self.frame.context, id(node), kind)
        box = self.boxes.get(key)
        if box is None:
            box = self.boxes[key] = Box(kind, items, keys, self.path)
            box.content |= loose
            self._fresh.add(box)
            return frozenset({box})
        if box not in self._fresh:  # the first time in this round: what an earlier round put in stays possible
            self._fresh.add(box)
            box.items, box.keys, box.path = items, keys, self.path
        before = len(box.content)
        box.content = join(box.content, loose, *(items or ()), *(keys or {}).values())
        if items is None or box.items is None or len(items) != len(box.items):
            box.items = None
        else:
            box.items = [join(*pair) for pair in zip(box.items, items, strict=True)]
        if keys is None or box.keys is None:
            box.keys = None
        else:
            box.keys = {name: join(box.keys.get(name, NOTHING), keys.get(name, NOTHING)) for name in {*box.keys, *keys}}
        self.growth += len(box.content) > before
        return frozenset({box})

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Follow a branch that may not be taken."""
        before, self._paths = self.path, self._paths + 1
        self.path = self._paths
        yield
        self.path = before

    def begin(self) -> None:
        """Begin a round: what happened in the last one is forgotten, what it stored is not."""
        self.log, self.changed = Log(), False
        self._fresh.clear()

    def context(self, before: int, node: ast.AST, turn: int = 0) -> int:
        """A number for what runs at ``node`` after the calls of context ``before``."""
        return self._contexts.setdefault((before, id(node), turn), len(self._contexts) + 1)

    def once(self, key: Hashable, make: Callable[[], Any]) -> Value:
        """A live object that the code makes: made again in a loop, it is the same."""
        if key not in self._objects:
            self._objects[key] = make()
        return self.lifted(self._objects[key])

    def lifted(self, obj: Any, flags: Iterable[Flag] = ()) -> Value:
        """A live object as a value; a tensor that lives in a parameter or buffer as that."""
        if type(obj) in PLAIN:
            return constant(obj, flags)
        if isinstance(obj, Tensor):
            if obj.layout is not torch.strided or not obj.numel() or type(obj).__name__ == "FakeTensor":
                return UNKNOWN
            return frozenset(self.storages.get(obj.untyped_storage().data_ptr(), ())) or UNKNOWN
        self._kept_alive.append(obj)
        return frozenset({Live(obj)})

    def unsettled(self, obj: Any) -> Value:
        """The same where anybody may set it: plain data decides no branch."""
        return join(self.lifted(obj), UNKNOWN) if type(obj) in PLAIN else self.lifted(obj)

    def ask(self, value: Value, name: str, node: ast.AST) -> None:
        """Note that something was asked for that does not depend on values."""
        tensors = frozenset(atom for atom in value if isinstance(atom, Result | Weight))
        if tensors:
            self.record(Kind.METADATA, name, node, [tensors])

    def entries(self) -> Iterator[Entry]:
        """Every public method of the model's modules but torch's and a framework's own; the model's forward always."""
        for path, module in self.model.named_modules():
            names = {"forward": None} if not path or not trusted(type(module).__module__) else {}
            for kind in type(module).__mro__:
                if not (trusted(kind.__module__) or framework(kind.__module__)):
                    names |= {name: None for name, member in vars(kind).items() if _public(name, member)}
            names |= {name: None for name, member in vars(module).items() if _set_method(name, member)}
            for name in names:
                yield Entry(module, path, name)

    # What the parts of the interpreter give each other

    @abstractmethod
    def enter(self, entry: Entry) -> None:
        """Run a public method on values from outside."""

    @abstractmethod
    def body(self, statements: list[ast.stmt]) -> None:
        """Run statements."""

    @abstractmethod
    def value(self, node: ast.expr | None) -> Value:
        """What an expression may denote."""

    @abstractmethod
    def truth(self, value: Value) -> tuple[bool | None, frozenset[Flag]]:
        """Whether a value is true on every path, or on none."""

    @abstractmethod
    def otherwise(self, value: Value, other: Value, flags: frozenset[Flag], node: ast.AST) -> Value:
        """A value that would be another one once a flag is set."""

    @abstractmethod
    def call(self, called: Value, arguments: Arguments, node: ast.AST) -> Value:
        """Call a value."""

    @abstractmethod
    def attribute(self, value: Value, name: str, node: ast.AST) -> Value:
        """Read an attribute."""

    @abstractmethod
    def any_attribute(self, atom: Atom, node: ast.AST) -> Value:
        """Whatever attribute a name that is not known may give."""

    @abstractmethod
    def set_attribute(self, value: Value, name: str, new: Value, node: ast.AST) -> None:
        """Set an attribute."""

    @abstractmethod
    def item(self, value: Value, index: Value, node: ast.AST) -> Value:
        """Read ``value[index]``."""

    @abstractmethod
    def elements(self, value: Value, node: ast.AST | None) -> tuple[list[Value] | None, Value]:
        """The items of a sequence where they are known one by one, and what any of them may be."""

    @abstractmethod
    def contents(self, value: Value) -> list[Value]:
        """Everything that containers hold directly."""

    @abstractmethod
    def loosen(self, atom: Live) -> None:
        """Note that the items of a live container may be others, or in another order."""

    @abstractmethod
    def put_in(self, atom: Live, new: Value, node: ast.AST, name: str) -> None:
        """Store a value in a live container."""

    @abstractmethod
    def kinds(self, value: Value) -> tuple[type, ...] | None:
        """The classes that the second argument of isinstance names; None where they are not known."""


def _public(name: str, member: Any) -> bool:
    if name in LOADERS:
        return False
    if name.startswith("_") or hasattr(nn.Module, name):
        return name in ("forward", "__call__")
    return not isinstance(member, type) and (callable(member) or hasattr(type(member), "__get__"))


def _set_method(name: str, member: Any) -> bool:
    """Whether an attribute of an instance is a public method of it."""
    return not name.startswith("_") and name != "forward" and isinstance(member, FunctionType | MethodType | partial)
