"""The questions that strategies ask of a model's code.

Every answer is a reason, empty where the code shows that there is none. What could not be followed is a reason.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from torch import nn

from fusionadvisor.strategies.legality.code import Function
from fusionadvisor.strategies.legality.events import Event, Kind
from fusionadvisor.strategies.legality.interpreter import Interpreter
from fusionadvisor.strategies.legality.values import OPAQUE, Constant, Flag, Result, Value, known

PASSING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Modules that in evaluation return their input."""
_VIEWS: dict[str, Callable[[Event], bool]] = {
    "flatten": lambda event: _numbers(event) == (0, 1),
    "transpose": lambda event: _numbers(event) in ((1, 2), (2, 1), (-1, -2), (-2, -1), (1, -1), (-1, 1)),
    "permute": lambda event: _numbers(event) == (0, 2, 1),
}
"""Views of a linear layer's output after which a batch norm still normalises its features."""


@dataclass(frozen=True)
class Verdict:
    """An answer.

    Args:
        reason: What speaks against it, empty where nothing does.
        event: Where that is.
        flags: Attributes that have to stay as they are for the answer to hold.
        between: Modules between the two that were asked about; they return their input in evaluation.
        views: Names of the views between them.
    """

    reason: str = ""
    event: Event | None = None
    flags: frozenset[Flag] = frozenset()
    between: tuple[nn.Module, ...] = ()
    views: tuple[str, ...] = ()


@dataclass
class _Answer:
    """Collects what speaks against something: what only happens once a flag is set needs a guard, not a refusal."""

    reason: str = ""
    event: Event | None = None
    flags: set[Flag] = field(default_factory=set)

    def against(self, event: Event, reason: str) -> None:
        """Note an event that must not happen."""
        if event.flags:
            self.flags |= event.flags
        elif not self.reason:
            self.reason, self.event = reason, event


class Code:
    """A model's code, interpreted once.

    Args:
        model: The model. Its attributes and weights are read; nothing of it is run.
    """

    def __init__(self, model: nn.Module) -> None:
        self._interpreter = Interpreter(model)
        self._interpreter.run()
        self.log = self._interpreter.log
        self.paths = self._interpreter.paths

    @property
    def fingerprint(self) -> str:
        """What identifies the code; empty where some of it could not be read."""
        return self._interpreter.fingerprint

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that were run."""
        return tuple(self._interpreter.functions.values())

    @property
    def unknown(self) -> str:
        """Why nothing is known of the code; empty where it was followed to its end."""
        overrun = self._interpreter.overrun
        return f"the model's code cannot be followed: {overrun}" if overrun else ""

    def escaped(self, module: nn.Module) -> Verdict:
        """Whether code that cannot be followed is given a module."""
        answer = _Answer()
        for event in self.log.escapes[id(module)]:
            answer.against(event, f"{event.place} gives it to {event.name}, which cannot be followed")
        return Verdict(answer.reason, answer.event, frozenset(answer.flags))

    def only_called(self, module: nn.Module, path: str) -> Verdict:
        """Whether a module is only called: its weights are read by nobody but itself, and it is changed by nobody."""
        if self.unknown:
            return Verdict(self.unknown)
        answer = _Answer()
        for event in self.log.escapes[id(module)]:
            answer.against(event, f"{event.place} gives {path} to {event.name}, which cannot be followed")
        for event in self._reads(module):
            answer.against(event, f"{event.place} reads a weight of {path} ({event.name})")
        for event in self.log.writes[id(module)]:
            if event.entry.forward:
                answer.against(event, f"{event.place} changes {path} ({event.name})")
        return Verdict(answer.reason, answer.event, frozenset(answer.flags))

    def _reads(self, module: nn.Module) -> Iterator[Event]:
        """Events in which the values of a module's weights matter to something that it does not do itself."""
        for event in self.log.weights[id(module)]:
            if any(module in call.modules for call in event.within) or event.entry.module is module:
                continue
            if event.kind is Kind.METADATA or (event.kind is Kind.WRITE and not event.entry.forward):
                continue
            if event.kind is Kind.RETURN and not event.entry.forward:
                continue  # a method that hands out parameters, to an optimizer say
            if event.kind in (Kind.KEEP, Kind.LOST) and not event.entry.forward:
                continue
            if not event.entry.forward and _maintains(event):
                continue
            yield event

    def feeds(self, first: nn.Module, second: nn.Module, names: tuple[str, str], *, views: bool = False) -> Verdict:
        """Whether what ``first`` returns goes to ``second`` alone, and ``second`` is given nothing else.

        Args:
            first: A module that returns one tensor.
            second: The module that takes it.
            names: Their paths, for the reason.
            views: Allow views after which a batch norm over the features of a linear layer is still that.
        """
        if self.unknown:
            return Verdict(self.unknown)
        answer = _Answer()
        between: dict[int, nn.Module] = {}
        passed: dict[str, None] = {}
        for name, module in zip(names, (first, second), strict=True):
            verdict = self.only_called(module, name)
            if verdict.reason:
                return verdict
            answer.flags |= verdict.flags
        for call in self.log.calls[id(first)]:
            if len(call.modules) > 1 or _several(call):
                answer.against(call, f"{call.place} gives {names[0]} more than its input")
            self._follow(call, second, names, views, answer, between, passed)
        for call in self.log.calls[id(second)]:
            if not call.inputs or _several(call) or not self._comes_from(call.inputs[0], first, views):
                answer.against(call, f"{call.place} gives {names[1]} something else than what {names[0]} returns")
        return Verdict(
            answer.reason, answer.event, frozenset(answer.flags), tuple(between.values()), tuple(passed)
        )  # fmt: skip

    def _follow(
        self, made: Event, second: nn.Module, names: tuple[str, str], views: bool, answer: _Answer,
        between: dict[int, nn.Module], passed: dict[str, None],
    ) -> None:  # fmt: skip
        """Look at everything that uses what an event returned, through what leaves its values as they are."""
        todo, seen = [made.result.event], {made.result.event}
        while todo:
            source = todo.pop()
            for use in self.log.uses[source]:
                if any(second in call.modules for call in use.within) or use.kind is Kind.METADATA:
                    continue
                if use.kind is Kind.CALL and use.modules == (second,):
                    continue
                if use.kind is Kind.CALL and len(use.modules) == 1 and type(use.modules[0]) in PASSING:
                    between[id(use.modules[0])] = use.modules[0]
                elif views and use.kind is Kind.OPERATION and _is_view(use):
                    passed[use.name] = None
                elif use.kind is Kind.CALL and self._opens(use):
                    continue  # a module whose own code is followed: what it does with it are events of their own
                else:
                    answer.against(use, f"{use.place} {_said(use, names[0])}")
                    continue
                following = use.result.event
                if following not in seen:
                    seen.add(following)
                    todo.append(following)

    def _opens(self, call: Event) -> bool:
        """Whether the code of the module that is called is followed."""
        return call.returned != frozenset({call.result})

    def _comes_from(self, value: Value, first: nn.Module, views: bool) -> bool:
        """Whether a value is surely what ``first`` returned."""
        todo, seen = list(value), set(value)
        if not todo:
            return True  # no path leads there
        while todo:
            atom = todo.pop()
            if not isinstance(atom, Result):
                return False
            event = atom.event
            if event.kind is Kind.CALL and event.modules == (first,):
                continue
            passing = event.kind is Kind.CALL and len(event.modules) == 1 and type(event.modules[0]) in PASSING
            if not (passing or (views and event.kind is Kind.OPERATION and _is_view(event))):
                return False
            given = [a for occurrence in self._occurrences(event) for a in (occurrence.inputs or ((),))[0]]
            todo += [a for a in given if a not in seen]
            seen.update(given)
        return True

    def _occurrences(self, event: Event) -> list[Event]:
        """Every time that the same expression ran in the same context."""
        return [other for other in self.log.events if (other.origin or other) is event] or [event]

    def at_once(self, first: nn.Module, second: nn.Module) -> bool:
        """Whether nothing happens between a call of ``first`` and the call of ``second`` that takes its result."""
        calls = {(e.entry, e.order): e for e in self.log.calls[id(second)]}
        return all((e.entry, e.order + 1) in calls for e in self.log.calls[id(first)])


def _several(call: Event) -> bool:
    return len(call.inputs) != 1


def _numbers(event: Event) -> tuple[object, ...]:
    constants = [known(value) for value in event.inputs[1:]]
    return tuple(constant.value if isinstance(constant, Constant) else None for constant in constants)


def _is_view(event: Event) -> bool:
    return event.name in _VIEWS and _VIEWS[event.name](event)


def _maintains(event: Event) -> bool:
    """Whether a method that computes no output reads weights to count, compare, show or store them."""
    return event.name in _MAINTENANCE


_MAINTENANCE = frozenset(
    {"numel", "data", "clone", "detach", "copy_", "data_ptr", "cpu", "getitem", "unpack", "is_", "grad", "compare",
     "shape", "to", "print", "format", "save"}
)  # fmt: skip


def _said(use: Event, name: str) -> str:
    if use.kind is Kind.RETURN:
        return f"returns the output of {name}" if use.entry.name != "forward" else f"returns the output of {name} as it is"
    if use.kind is Kind.CALL:
        return f"gives the output of {name} to {use.name}"
    if use.kind is Kind.KEEP:
        return f"keeps the output of {name} in {use.name}"
    if use.kind is Kind.ESCAPE:
        return f"gives the output of {name} to {use.name}, which cannot be followed"
    if use.kind is Kind.WRITE:
        return f"overwrites the output of {name}"
    return f"uses the output of {name} in {use.name}"


_READ: "weakref.WeakKeyDictionary[nn.Module, Code]" = weakref.WeakKeyDictionary()


def read(model: nn.Module) -> Code:
    """The code of a model."""
    return Code(model)


__all__ = ["OPAQUE", "PASSING", "Code", "Iterable", "Verdict", "read"]
