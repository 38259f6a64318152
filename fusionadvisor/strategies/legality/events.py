"""What the interpreter saw happen, and where."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from torch import nn

from fusionadvisor.strategies.legality.code import Function, where
from fusionadvisor.strategies.legality.values import Flag, Reach, Result, Value


class Kind(Enum):
    """What happened to the values of an event."""

    CALL = auto()
    """A module was called with them."""
    OPERATION = auto()
    """A function or method computed something from them; ``name`` is its name."""
    METADATA = auto()
    """Their shape, dtype or device was asked for."""
    NAMED = auto()
    """Weights were reached by their names; whether they are there may matter."""
    ASKED = auto()
    """A module was asked for its class."""
    WRITE = auto()
    """They were overwritten, or an attribute of theirs was set."""
    KEEP = auto()
    """They were stored where other calls can read them."""
    RETURN = auto()
    """A public method returned them."""
    ESCAPE = auto()
    """They were given to code that cannot be followed."""
    LOST = auto()
    """A branch that a flag rules out gave them to code after it."""


@dataclass(eq=False)
class Event:
    """One thing that may happen.

    Args:
        kind: What it is.
        name: Of the operation, the attribute or what could not be followed.
        function: The code it happens in; None for a container's own.
        node: The expression or statement.
        inputs: The values it takes.
        modules: The modules that may be called.
        flags: Attributes of which one has to change for it to happen.
        within: The calls of modules around it.
        entry: The public method it happens under.
        order: Its place among all events of that method.
        deferred: Whether it may happen later than its place says, as in a generator.
    """

    kind: Kind
    name: str
    function: Function | None
    node: ast.AST
    inputs: tuple[Value, ...]
    modules: tuple[nn.Module, ...]
    flags: frozenset[Flag]
    within: "tuple[Event, ...]"
    entry: "Entry"
    order: int
    deferred: bool
    origin: "Event | None" = None
    """The first event of the same expression in the same context, which its result is known by; None if it is this."""

    returned: Value = frozenset()
    """Of a call of a module, what it gave back."""

    @property
    def result(self) -> Result:
        """What it returns."""
        return Result(self.origin or self)

    @property
    def place(self) -> str:
        """Where it happens, in words."""
        return where(self.function, self.node)


@dataclass(frozen=True, eq=False)
class Entry:
    """A public method that anybody may call."""

    module: nn.Module
    path: str
    name: str

    @property
    def forward(self) -> bool:
        """Whether it is how a module computes its output."""
        return self.name in ("forward", "__call__")


@dataclass
class Log:
    """Events by what they are about."""

    events: list[Event] = field(default_factory=list)
    calls: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """Calls of a module, by ``id``."""
    occurrences: dict[Event, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """Every time that the expression of an event ran in its context, by the event its result is known by."""
    uses: dict[Event, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """What uses the result of an event."""
    weights: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """What uses the weights of a module, by ``id``."""
    asked: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """Where a module is asked for its class, by ``id``."""
    escapes: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """Where a module is given to code that cannot be followed, by ``id``."""
    writes: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """Where a module's mode, weights or submodules are changed, by ``id``."""

    def add(self, event: Event, reach: Reach) -> None:
        """Note an event under everything that its values hold."""
        self.events.append(event)
        self.occurrences[event.origin or event].append(event)
        for module in event.modules:
            (self.asked if event.kind is Kind.ASKED else self.calls)[id(module)].append(event)
        for result in reach.results:
            self.uses[result.event].append(event)
        for weight in reach.weights:
            self.weights[weight.module].append(event)
        if event.kind is Kind.ESCAPE:
            self.escape(event, reach.modules.values())
        elif event.kind is Kind.WRITE:
            for module in reach.modules.values():
                self.writes[id(module)].append(event)

    def escape(self, event: Event, modules: Iterable[nn.Module]) -> None:
        """Note that code which cannot be followed has these modules."""
        for module in modules:
            self.escapes[id(module)].append(event)
