"""What a call of a function means: of one that can be read, of one that cannot, and of a class."""

import ast
import functools
import inspect
import logging
from dataclasses import is_dataclass
from types import FunctionType
from typing import Any

from torch import nn

from fusionadvisor.strategies.legality import code, framework
from fusionadvisor.strategies.legality.code import Function, trusted
from fusionadvisor.strategies.legality.events import Kind
from fusionadvisor.strategies.legality.frame import Frame
from fusionadvisor.strategies.legality.machine import Machine
from fusionadvisor.strategies.legality.objects import home_of
from fusionadvisor.strategies.legality.standin import stand_in
from fusionadvisor.strategies.legality.values import (
    NONE,
    NOTHING,
    UNKNOWN,
    Arguments,
    Live,
    Reach,
    Value,
    join,
)

_DEPTH = 3
"""How often one function may be under way at once before a further call counts as one that cannot be followed."""


class Functions(Machine):
    """Calls of functions and classes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.calling: set[int] = set()
        self._stack: list[tuple[ast.AST, Value]] = []
        self._read: dict[FunctionType, Function | None] = {}
        self._roots = {type(module).__module__.partition(".")[0] for module in self.modules.values()}

    def _call_function(self, function: FunctionType, arguments: Arguments, node: ast.AST) -> Value:
        home = home_of(function)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None and (trusted(home) or framework.framework(home)):
            registered = getattr(function, "registry", None)  # of functools.singledispatch
            several = [wrapped] if registered is None else [*registered.values()]
            return self.call(join(*(self.lifted(one) for one in several)), arguments, node)
        if trusted(home):
            return self._call_trusted(function, arguments, node)
        if framework.framework(home) and function.__name__ in framework.ASKS:
            return UNKNOWN
        reach = Reach.of(arguments)
        follows = bool(reach.callables) or any(id(m) in self.modules for m in reach.modules.values())
        if not follows and home.partition(".")[0] not in self._roots and _installed(function) and self._inert(function):
            return self.operation(function.__qualname__, arguments, node)
        read = self.read(function)
        if read is None:
            if follows or not self._inert(function):
                self.unreadable[function.__qualname__] = None
                self.escape(function.__qualname__, node, [*arguments, self.lifted(function)])
            return join(self.operation(function.__qualname__, arguments, node), UNKNOWN)
        return self._run(read, arguments, node)

    def _call_trusted(self, function: FunctionType, arguments: Arguments, node: ast.AST) -> Value:
        """A function of torch or of the standard library. It calls nothing that it is not given."""
        name, home = function.__qualname__, home_of(function)
        if name in ("checkpoint", "checkpoint_sequential") and home.startswith("torch.utils.checkpoint"):
            first = arguments.get(0, "function") or UNKNOWN
            called = first if name == "checkpoint" else join(*self.contents(first))
            named = tuple((name, value) for name, value in arguments.named if name not in _OF_CHECKPOINT)
            return self.call(called, Arguments(arguments.positional[1:], named, arguments.rest), node)
        if home.startswith("torch.nn.init"):
            self.record(Kind.WRITE, name, node, list(arguments))
            return arguments.get(0, "tensor") or UNKNOWN
        if home.partition(".")[0] in ("logging", "warnings"):  # they tell people something
            return self.lifted(logging.getLogger()) if name == "getLogger" else UNKNOWN
        return self._computed(name, arguments, node)

    def read(self, function: FunctionType) -> Function | None:
        """The source of a live function, read once."""
        if function not in self._read:
            self._read[function] = code.read(function)
        return self._read[function]

    def _inert(self, function: FunctionType) -> bool:
        """Whether a function reaches no module of the model by its globals and what it closes over."""
        seen: set[int] = set()
        todo: list[Any] = [function]
        while todo:
            current = todo.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            if len(seen) > 400:
                return False
            if isinstance(current, nn.Module):
                return id(current) not in self.modules
            if isinstance(current, FunctionType) and not trusted(home_of(current)):
                names = _all_names(current.__code__)
                todo += [current.__globals__[name] for name in names if name in current.__globals__]
                todo += inspect.getclosurevars(current).nonlocals.values()
            elif isinstance(current, list | tuple | set):
                todo += list(current)[:100]
            elif isinstance(current, dict):
                todo += list(current.values())[:100]
        return True

    def _run(
        self, function: Function, arguments: Arguments, node: ast.AST, outer: Frame | None = None,
        defaults: dict[str, Value] | None = None,
    ) -> Value:  # fmt: skip
        """Run a function that can be read."""
        receiver = arguments.get(0) or NOTHING
        own = receiver if all(isinstance(a, Live) and isinstance(a.obj, nn.Module) for a in receiver) else NOTHING
        under_way = function.node, own  # of each module apart: modules do not nest without end
        if self._stack.count(under_way) >= _DEPTH:
            held = outer.captured(function) if outer is not None else []
            self.escape(f"{function.name}, which calls itself,", node, [*arguments, *held])
            return join(self.operation(function.name, arguments, node), UNKNOWN)
        self.functions[function.node] = function
        names, context = self._bind(function, arguments, node, defaults), self.context(self.frame.context, node)
        before, deferred = self.frame, self.deferred
        self.frame = frame = Frame(function, names, context, outer)
        self._stack.append(under_way)
        generator = _yields(function.node)
        self.deferred = deferred or generator
        self.body(function.body)
        if frame.names is not None and not isinstance(function.node, ast.Lambda):
            frame.returns |= NONE
        frame.finish()
        for value, flags, place in frame.others:
            frame.returns = self.otherwise(frame.returns, value, flags, place)
        self._stack.pop()
        self.frame, self.deferred = before, deferred
        if generator:
            return self.box(list, node, None, None, join(frame.yields, frame.returns))
        return frame.returns or UNKNOWN

    def _bind(
        self, function: Function, arguments: Arguments, node: ast.AST, made: dict[str, Value] | None
    ) -> dict[str, Value]:
        """The arguments of a call by the names of the parameters."""
        spec = function.node.args
        order = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        defaults = dict(made or {})
        defaults |= {n: self.lifted(v) for n, v in zip(order[::-1], function.defaults[::-1], strict=False)}
        defaults |= {name: self.lifted(value) for name, value in (function.keyword_defaults or {}).items()}
        names: dict[str, Value] = dict(zip(order, arguments.positional, strict=False))
        extra = list(arguments.positional[len(order) :])
        keywords: dict[str, Value] = {}
        known_names = {*order, *(a.arg for a in spec.kwonlyargs)}
        for name, value in arguments.named:
            (names if name in known_names else keywords)[name] = value
        rest = arguments.rest
        for name in (*order, *(a.arg for a in spec.kwonlyargs)):
            if name not in names:
                names[name] = join(rest or NOTHING, defaults.get(name, NOTHING)) or UNKNOWN
        if spec.vararg is not None:
            place = stand_in(function.node, "*")
            names[spec.vararg.arg] = (
                self.box(tuple, place, extra)
                if rest is None
                else self.box(tuple, place, None, None, join(rest, *extra))
            )
        if spec.kwarg is not None:
            place = stand_in(function.node, "**")
            loose = None if rest is None else join(rest, *keywords.values())
            names[spec.kwarg.arg] = (
                self.box(dict, place, None, keywords) if loose is None else self.box(dict, place, None, None, loose)
            )
        return names

    def _construct(self, kind: type, arguments: Arguments, node: ast.AST) -> Value:
        """Make an object."""
        reach = Reach.of(arguments)
        holds = any(id(module) in self.modules for module in reach.modules.values())
        if issubclass(kind, nn.Module):
            children = [atom.obj for value in arguments.positional for atom in value if isinstance(atom, Live)]
            plain = len(children) == len(arguments.positional) and not arguments.named and arguments.rest is None
            if kind is nn.Sequential and plain and all(isinstance(child, nn.Module) for child in children):
                return self.once(("Sequential", *map(id, children)), lambda: nn.Sequential(*children))
            if issubclass(kind, nn.Sequential | nn.ModuleList | nn.ModuleDict):
                held = [value for given in arguments for value in (given, *self.contents(given))]
                return self.box(kind, node, None, None, join(*held))
            if holds:
                self.escape(kind.__name__, node, list(arguments))
            return join(self.operation(kind.__name__, [], node), UNKNOWN)
        maker = inspect.getattr_static(kind, "__new__", None)
        if (
            holds
            and not hasattr(kind, "_fields")
            and isinstance(getattr(maker, "__func__", maker), FunctionType)
            and not trusted(home_of(maker))
        ):
            self.escape(f"{kind.__name__}.__new__", node, list(arguments))
        initializer = inspect.getattr_static(kind, "__init__", None)
        if is_dataclass(kind) or not isinstance(initializer, FunctionType) or trusted(home_of(initializer)):
            if holds and trusted(kind.__module__):
                self.escape(kind.__name__, node, list(arguments))
            if not (reach.results or reach.weights or holds):
                return UNKNOWN
            fields = list(getattr(kind, "__dataclass_fields__", {})) or list(getattr(kind, "_fields", ()))
            given = dict(zip(fields, arguments.positional, strict=False)) | dict(arguments.named)
            loose = join(*arguments) if arguments.rest is not None or len(given) < len(list(arguments)) else NOTHING
            made = self.box(kind, node, None, None if loose else given, loose)
            if (after := inspect.getattr_static(kind, "__post_init__", None)) is not None:
                self.call(self.lifted(after), Arguments((made,)), node)
            return made
        if not (reach.results or reach.weights or holds or reach.callables) and self._inert(initializer):
            return self.box(kind, node, None, {}, UNKNOWN)
        made = self.box(kind, node, None, {})
        self._call_function(initializer, arguments.first(made), node)
        return made

    def _computed(self, name: str, arguments: Arguments, node: ast.AST) -> Value:
        """What a function of torch or Python computes; where it is given ``out``, that is written and returned."""
        out = join(*(value for keyword, value in arguments.named if keyword == "out")) - NONE
        result = self.operation(name, arguments, node, Kind.WRITE if out else Kind.OPERATION)
        return join(result, out)


_OF_CHECKPOINT = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")


def _installed(function: FunctionType) -> bool:
    return "site-packages" in function.__code__.co_filename or "dist-packages" in function.__code__.co_filename


def _all_names(compiled: Any) -> set[str]:
    inner = (constant for constant in compiled.co_consts if hasattr(constant, "co_names"))
    return set(compiled.co_names).union(*(_all_names(constant) for constant in inner))


@functools.lru_cache(maxsize=4096)
def _yields(node: ast.AST) -> bool:
    todo = [*ast.iter_child_nodes(node)]
    while todo:
        current = todo.pop()
        if isinstance(current, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(current, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(current)
    return False
