"""The questions that strategies ask of a model's code.

Every answer is a reason, empty where the code shows that there is none. What could not be followed is a reason.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn

from fusionadvisor.strategies.legality.code import Function
from fusionadvisor.strategies.legality.events import Event, Kind
from fusionadvisor.strategies.legality.interpreter import Interpreter
from fusionadvisor.strategies.legality.values import PLAIN, Constant, Flag, Result, Value, Weight, known

_PASSING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_AXES: dict[str, tuple[tuple[object, ...], ...]] = {
    "flatten": ((0, 1),),
    "transpose": ((1, 2), (2, 1), (-1, -2), (-2, -1), (1, -1), (-1, 1)),
    "permute": ((0, 2, 1),),
}
"""Views of a linear layer's output, with their arguments, after which a batch norm still normalises its features."""


def passes(module: nn.Module) -> bool:
    """Whether a module in evaluation returns its input."""
    return isinstance(module, nn.Identity) or type(module) in _PASSING


@dataclass(frozen=True)
class Verdict:
    """An answer.

    Args:
        reason: What speaks against it, empty where nothing does.
        event: Where that is.
        flags: Attributes that have to stay as they are for the answer to hold.
        between: Modules between the two that were asked about; they return their input in evaluation.
        views: The kinds of the views between them: ``axes`` keep the rank or lower it by one, ``rows`` make rows.
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

    def against(self, event: Event, reason: str, place: Event | None = None) -> None:
        """Note an event that must not happen, and where people should look."""
        if event.flags:
            self.flags |= event.flags
        elif not self.reason:
            self.reason, self.event = reason, place or event


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
        self._computing = {e.entry for e in self.log.events if e.kind is Kind.CALL or e.entry.forward}
        """The methods that compute something: others only count, show, store and reset."""

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

    def given_away(self, event: Event, path: str) -> str:
        """Say that code which cannot be followed is given a module."""
        if event.name in self._interpreter.unreadable:
            return f"the source of {event.name} cannot be read, so another use of {path} cannot be ruled out"
        return f"{event.place} gives {path} to {event.name}, which cannot be followed"

    def only_called(self, module: nn.Module, path: str) -> Verdict:
        """Whether a module is only called: its weights are read by nobody but itself, and it is changed by nobody.

        Nor may it be once a flag is set: a guard minds calls alone. Only what happens in training is left to the guard.
        """
        if self.unknown:
            return Verdict(self.unknown)
        if not self.log.calls[id(module)]:
            return Verdict(f"no call of {path} is seen in the code")
        problems = [(event, self.given_away(event, path)) for event in self.log.escapes[id(module)]]
        problems += [(e, f"{e.place} reads a weight of {path} ({e.name})") for e in self._reads(module)]
        problems += [
            (e, f"{e.place} changes {path} ({e.name})")
            for e in self.log.writes[id(module)]
            if e.entry in self._computing
        ]
        flags: set[Flag] = set()
        for event, reason in problems:
            if not event.flags or any(flag.name != "training" for flag in event.flags):
                return Verdict(reason, event)
            flags |= event.flags
        return Verdict(flags=frozenset(flags))

    def _reads(self, module: nn.Module) -> Iterator[Event]:
        """Events in which the values of a module's weights matter to something that it does not do itself.

        A public method beside forward may show, store, hand out and overwrite weights.
        """
        todo = list(self.log.weights[id(module)])
        seen: set[Event] = set()
        while todo:
            event = todo.pop(0)
            if event in seen or any(module in call.modules for call in event.within) or event.entry.module is module:
                continue
            seen.add(event)
            if event.kind in (Kind.METADATA, Kind.NAMED):
                continue
            if not event.entry.forward:
                if event.kind in (Kind.KEEP, Kind.RETURN, Kind.LOST) or _overwrites_weights(event):
                    continue
                if event.kind is Kind.OPERATION and event.name in _SHOWN:
                    continue
                if event.kind is Kind.OPERATION and event.name in _SAME:
                    todo += self.log.uses[event.result.event]
                    continue
            yield event

    def asks_for(self, module: nn.Module, becomes: type[nn.Module], weights: frozenset[str], path: str) -> Verdict:
        """Whether the code asks what changes when a module becomes one of another class and some weights come or go."""
        answer = _Answer()
        for event in self.log.weights[id(module)]:
            names = {
                a.name for value in event.inputs for a in value if isinstance(a, Weight) and a.module == id(module)
            }
            inside = event.entry.module is module or any(module in call.modules for call in event.within)
            if event.kind is Kind.NAMED and names & weights and not inside and event.entry in self._computing:
                answer.against(event, f"{event.place} asks for {path}.{event.name}")
        for event in self.log.asked[id(module)]:
            kinds = self._interpreter.kinds(event.inputs[0])
            same = kinds is not None and isinstance(module, kinds) == issubclass(becomes, kinds)
            if not same and event.entry in self._computing:
                answer.against(event, f"{event.place} asks for the class of {path}")
        return Verdict(answer.reason, answer.event, frozenset(answer.flags))

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
                if any(second in call.modules for call in use.within) or use.kind in (Kind.METADATA, Kind.NAMED):
                    continue
                if use.kind is Kind.CALL and use.modules == (second,):
                    continue
                if use.kind is Kind.CALL and len(use.modules) == 1 and passes(use.modules[0]):
                    between[id(use.modules[0])] = use.modules[0]
                elif views and use.kind is Kind.OPERATION and (kind := _view(use)):
                    passed[kind] = None
                elif use.kind is Kind.CALL and self._opens(use):
                    continue  # a module whose own code is followed: what it does with it are events of their own
                elif use.kind is Kind.RETURN:
                    answer.against(use, f"{made.place} may return the output of {names[0]} without {names[1]}", made)
                    continue
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
            passing = event.kind is Kind.CALL and len(event.modules) == 1 and passes(event.modules[0])
            if not (passing or (views and event.kind is Kind.OPERATION and bool(_view(event)))):
                return False
            given = [a for again in self.log.occurrences[event] or [event] for a in (again.inputs or ((),))[0]]
            todo += [a for a in given if a not in seen]
            seen.update(given)
        return True

    def views_of(self, module: nn.Module) -> Iterator[Event]:
        """Everything that is done to what a module returns, and to views of that."""
        for call in self.log.calls[id(module)]:
            todo, seen = [call.result.event], {call.result.event}
            while todo:
                for use in self.log.uses[todo.pop()]:
                    yield use
                    following = use.result.event
                    if use.kind in (Kind.OPERATION, Kind.WRITE) and following not in seen and use.name in _VIEWING:
                        seen.add(following)
                        todo.append(following)

    def at_once(self, first: nn.Module, second: nn.Module) -> bool:
        """Whether nothing happens between a call of ``first`` and the call of ``second`` that takes its result."""
        calls = {(e.entry, e.order): e for e in self.log.calls[id(second)]}
        return all((e.entry, e.order + 1) in calls for e in self.log.calls[id(first)])


_VIEWING = frozenset(
    {"view", "view_as", "reshape", "flatten", "unflatten", "transpose", "permute", "squeeze", "unsqueeze", "getitem",
     "unpack", "unbind", "split", "chunk", "narrow", "expand", "T", "mT", "detach", "data", "swapaxes", "movedim"}
)  # fmt: skip
"""Operations whose result may live in the memory of what they are given."""


def _several(call: Event) -> bool:
    return len(call.inputs) != 1


def _numbers(event: Event) -> tuple[object, ...]:
    constants = [known(value) for value in event.inputs[1:]]
    return tuple(constant.value if isinstance(constant, Constant) else None for constant in constants)


def _view(event: Event) -> str:
    """The kind of a view that keeps the features of a linear layer what a batch norm normalises; empty for another."""
    numbers = _numbers(event)
    if event.name in ("view", "reshape") and len(numbers) == 2:
        return "rows"  # of two dimensions the second has to be the number of features, or the norm fails
    if event.name == "flatten" and numbers == (0, -2):
        return "rows"
    return "axes" if numbers in _AXES.get(event.name, ()) else ""


def _overwrites_weights(event: Event) -> bool:
    """Whether an event writes into weights alone, whatever it writes: loading and initialising do."""
    return event.kind is Kind.WRITE and all(isinstance(atom, Weight) for atom in event.inputs[0])


_SHOWN = frozenset({"print", "format", "save", "data_ptr", "grad", "is_contiguous"})
"""Operations on weights that show something, or tell nothing of their values."""
_SAME = frozenset(
    {"data", "clone", "detach", "cpu", "to", "float", "getitem", "unpack", "view", "reshape", "numpy", "T", "copy"}
)
"""Operations whose result is the weight again: what is done with it counts."""


def _said(use: Event, name: str) -> str:
    if use.kind is Kind.CALL:
        return f"gives the output of {name} to {use.name}"
    if use.kind is Kind.KEEP:
        return f"keeps the output of {name} in {use.name}"
    if use.kind is Kind.ESCAPE:
        return f"gives the output of {name} to {use.name}, which cannot be followed"
    if use.kind is Kind.WRITE:
        return f"overwrites the output of {name}"
    return f"uses the output of {name} in {use.name}"


_CODES: "weakref.WeakKeyDictionary[nn.Module, tuple[object, Code]]" = weakref.WeakKeyDictionary()


def read(model: nn.Module) -> Code:
    """The code of a model; interpreted once as long as its modules and their attributes stay as they are."""
    state = tuple(_state(path, module) for path, module in model.named_modules(remove_duplicate=False))
    known = _CODES.get(model)
    if known is None or known[0] != state:
        known = _CODES[model] = state, Code(model)
    return known[1]


def _state(path: str, module: nn.Module) -> tuple[object, ...]:
    """What the interpretation of a module's code rests on."""
    held = [(name, value if type(value) in PLAIN else id(value)) for name, value in vars(module).items()]
    inner = [id(value) for group in (module._parameters, module._buffers, module._modules) for value in group.values()]
    return path, id(module), tuple(held), tuple(inner)
