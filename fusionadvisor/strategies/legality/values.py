"""Abstract values: what an expression may denote on any path, as a set of atoms."""

import functools
import gc
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fusionadvisor.strategies.legality.code import Function

if TYPE_CHECKING:
    from fusionadvisor.strategies.legality.events import Event
    from fusionadvisor.strategies.legality.frame import Frame

PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Flag:
    """A plain attribute of a module, with the value that decided a branch. It may be set from outside."""

    module: int
    """``id`` of the module: the model outlives its analysis."""
    path: str
    name: str
    value: Any


class OverrunError(Exception):
    """The model's code, or what it holds, is too much to follow."""


class Atom:
    """One thing that an expression may denote."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Constant(Atom):
    """Plain data; ``flags`` are the attributes it was computed from."""

    kind: type
    value: Any
    flags: frozenset[Flag] = frozenset()


class Live(Atom):
    """A live object: a module of the model, a function, a container, an object of the user's."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Live) and other.obj is self.obj

    def __hash__(self) -> int:
        return id(self.obj)


@dataclass(frozen=True, slots=True)
class Result(Atom):
    """What a call of a module, or an operation, returned."""

    event: "Event"


@dataclass(frozen=True, slots=True)
class Weight(Atom):
    """A parameter or buffer of a module, also one that is None."""

    module: int
    name: str


class Opaque(Atom):
    """A value from outside or one that was computed from such. It holds no module of the model."""

    __slots__ = ()


class Box(Atom):
    """A container or object that the code makes.

    Args:
        items: Its items in order, None once they are not known one by one.
        keys: Its values by key or attribute, None once they are not known one by one.
        path: The branch it was made in: what is added in another branch may not be there.
    """

    __slots__ = ("content", "items", "keys", "kind", "path")

    def __init__(
        self, kind: type, items: "list[Value] | None" = None, keys: "dict[Any, Value] | None" = None, path: int = 0
    ) -> None:
        self.kind, self.items, self.keys, self.path = kind, items, keys, path
        self.content: Value = join(*(items or ()), *(keys or {}).values())

    def put(self, value: "Value") -> bool:
        """Add something at a place that is not known; return whether it was new."""
        self.items = self.keys = None
        before = len(self.content)
        self.content |= value
        return len(self.content) > before


@dataclass(frozen=True, slots=True)
class Closure(Atom):
    """A function that the code makes, with the frame it was made in and its defaults."""

    function: Function
    frame: "Frame"
    defaults: "tuple[tuple[str, Value], ...]" = ()


@dataclass(frozen=True, slots=True)
class Bound(Atom):
    """A function with its first argument."""

    function: Atom
    receiver: "Value"


@dataclass(frozen=True, slots=True)
class Method(Atom):
    """A method of something that is not live: of a tensor, or of a container that the code made."""

    name: str
    receiver: "Value"


@dataclass(frozen=True, slots=True)
class Partial(Atom):
    """A call that waits for more arguments."""

    function: "Value"
    arguments: "Arguments"


@dataclass(frozen=True, slots=True)
class Super(Atom):
    """``super()`` in a method of ``owner``."""

    owner: type
    receiver: "Value"


@dataclass(frozen=True, slots=True)
class Other(Atom):
    """What an expression would denote once one of the flags is set."""

    value: "Value"
    flags: frozenset[Flag]


Value = frozenset[Atom]
OPAQUE: Atom = Opaque()
UNKNOWN: Value = frozenset({OPAQUE})
NOTHING: Value = frozenset()
NONE: Value = frozenset({Constant(type(None), None)})


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call.

    Args:
        positional: Those given by position.
        named: Those given by name.
        rest: What ``*`` and ``**`` unpack where their number is not known, any of it at any place.
    """

    positional: tuple[Value, ...] = ()
    named: tuple[tuple[str, Value], ...] = ()
    rest: Value | None = None

    def first(self, value: Value) -> "Arguments":
        """The same with ``value`` before the others."""
        return Arguments((value, *self.positional), self.named, self.rest)

    def __iter__(self) -> Iterator[Value]:
        yield from self.positional
        yield from (value for _, value in self.named)
        if self.rest is not None:
            yield self.rest

    def get(self, position: int, name: str = "") -> Value | None:
        """An argument by its position or its name; None where it is not given."""
        if position < len(self.positional):
            return self.positional[position]
        return dict(self.named).get(name, self.rest)


def join(*values: Value) -> Value:
    """What is denoted where any of the values may be."""
    return frozenset().union(*values)


def constant(value: Any, flags: Iterable[Flag] = ()) -> Value:
    """Plain data as a value."""
    return frozenset({Constant(type(value), value, frozenset(flags))})


def live(value: Any) -> Value:
    """A live object as a value."""
    if type(value) in PLAIN:
        return constant(value)
    if isinstance(value, Tensor):
        return UNKNOWN
    return frozenset({Live(value)})


def known(value: Value) -> Constant | None:
    """The one constant that a value denotes; None where it may denote anything else."""
    kinds = {(atom.kind, atom.value) for atom in value if isinstance(atom, Constant)}
    if len(kinds) != 1 or not all(isinstance(atom, Constant) for atom in value):
        return None
    kind, data = next(iter(kinds))
    return Constant(kind, data, frozenset(flag for atom in value for flag in atom.flags))  # type: ignore[attr-defined]


@dataclass
class Reach:
    """What a value holds, containers opened: results, weights, modules, functions."""

    results: list[Result] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    modules: dict[int, nn.Module] = field(default_factory=dict)
    callables: list[Atom] = field(default_factory=list)

    @classmethod
    def of(cls, values: Iterable[Value], limit: int = 20_000) -> "Reach":
        """Open values. Of a live object what it refers to counts.

        Raises:
            OverrunError: If that is more than ``limit`` objects.
        """
        reach = cls()
        seen: set[int] = set()
        stack: list[Any] = []
        for value in values:
            for atom in value:
                kind = type(atom)
                if kind is Result:
                    reach.results.append(atom)  # type: ignore[arg-type]
                elif kind is Weight:
                    reach.weights.append(atom)  # type: ignore[arg-type]
                elif kind is not Constant and kind is not Opaque:
                    stack.append(atom)
        while stack:
            item = stack.pop()
            if id(item) in seen or isinstance(item, (Tensor, type, ModuleType, CodeType, *PLAIN)):
                continue
            seen.add(id(item))
            if len(seen) > limit:
                raise OverrunError("it holds too many objects")
            if isinstance(item, Result):
                reach.results.append(item)
            elif isinstance(item, Weight):
                reach.weights.append(item)
            elif isinstance(item, Box):
                stack += item.content
            elif isinstance(item, Closure):
                reach.callables.append(item)
                stack += [atom for _, value in item.defaults for atom in value]
                stack += [atom for value in item.frame.captured(item.function) for atom in value]
                stack += item.function.cells.values()
            elif isinstance(item, Bound):
                reach.callables.append(item)
                stack += [item.function, *item.receiver]
            elif isinstance(item, Method):
                stack += item.receiver
            elif isinstance(item, Other):
                stack += item.value
            elif isinstance(item, Partial):
                reach.callables.append(item)
                stack += [atom for value in (item.function, *item.arguments) for atom in value]
            elif isinstance(item, Super):
                stack += item.receiver
            elif isinstance(item, Live):
                stack.append(item.obj)
            elif isinstance(item, nn.Module):
                reach.modules |= {id(module): module for module in item.modules()}
            else:
                stack += _referred(item)
        return reach


def _referred(item: Any) -> list[Any]:
    """What a live object of the user's refers to."""
    if isinstance(item, Atom):
        return []
    if isinstance(item, dict):
        return [*item.values()]
    if isinstance(item, list | tuple | set | frozenset):
        return [*item]
    if isinstance(item, weakref.ReferenceType):
        return [item()]
    if type(item).__module__ in _NATIVE and not isinstance(item, FunctionType | MethodType | BuiltinMethodType):
        return gc.get_referents(item)  # iterators, generators that wait, views of dicts
    found = [value for name, value in _attributes(item).items() if name != "__wrapped__"]
    slots = [name for kind in type(item).__mro__ for name in _names(vars(kind).get("__slots__", ()))]
    found += [getattr(item, name) for name in slots if hasattr(item, name)]
    if isinstance(item, MethodType | BuiltinMethodType):
        found.append(item.__self__)
    if isinstance(item, functools.partial):
        found += [item.func, *item.args, *item.keywords.values()]
    if isinstance(item, FunctionType):
        found += [cell.cell_contents for cell in item.__closure__ or () if _filled(cell)]
    return found


_NATIVE = ("builtins", "itertools", "functools", "collections", "operator", "types")
"""Modules whose objects show what they hold to the garbage collector alone."""


def _attributes(item: Any) -> dict[str, Any]:
    try:
        held = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return {}
    return held if type(held) is dict else {}


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _names(slots: Any) -> tuple[str, ...]:
    return (
        (slots,) if isinstance(slots, str) else tuple(name for name in slots if name not in ("__dict__", "__weakref__"))
    )
