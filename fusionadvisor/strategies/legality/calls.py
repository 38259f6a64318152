"""What a call means: of a module, a function, a method or whatever else can be called."""

import ast
import contextlib
import functools
import inspect
import itertools
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import nn

from fusionadvisor.strategies.legality import builtin
from fusionadvisor.strategies.legality.code import Function, trusted
from fusionadvisor.strategies.legality.containers import container_method
from fusionadvisor.strategies.legality.events import Entry, Kind
from fusionadvisor.strategies.legality.frame import Frame
from fusionadvisor.strategies.legality.module_calls import ModuleCalls
from fusionadvisor.strategies.legality.objects import home_of, name_of
from fusionadvisor.strategies.legality.standin import stand_in
from fusionadvisor.strategies.legality.values import (
    NONE,
    NOTHING,
    UNKNOWN,
    Arguments,
    Atom,
    Bound,
    Box,
    Closure,
    Live,
    Method,
    Other,
    Partial,
    Reach,
    Result,
    Super,
    Value,
    Weight,
    join,
)


class Calls(ModuleCalls):
    """Calls."""

    def enter(self, entry: Entry) -> None:
        """Run a public method on values from outside."""
        outside = stand_in(entry.module, entry.name)
        self.entry, self.within, self.flags, self.deferred = entry, (), frozenset(), False
        empty = Function(ast.Lambda(args=_NO_ARGUMENTS, body=ast.Constant(None)), "the model", "", {}, {})
        self.frame = Frame(empty, {}, self.context(0, outside))
        arguments = Arguments(rest=UNKNOWN)
        receiver: Value = frozenset({Live(entry.module)})
        if entry.name == "forward":
            returned = self._run_module(entry.module, arguments, outside)
        else:
            member = self.attribute(receiver, entry.name, outside)
            is_property = isinstance(
                inspect.getattr_static(type(entry.module), entry.name, None), property | functools.cached_property
            )
            returned = member if is_property else self.call(member, arguments, outside)
        self.record(Kind.RETURN, entry.name, outside, [returned])

    def is_called(self, node: ast.AST) -> bool:
        """Whether an expression is what a call calls."""
        return id(node) in self.calling

    def _get_Call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return self._super()
        self.calling.add(id(node.func))
        called = self.value(node.func)
        positional: list[Value] = []
        rest: list[Value] = []
        for argument in node.args:
            value = self.value(argument)
            if not isinstance(argument, ast.Starred):
                if rest:
                    rest.append(value)
                else:
                    positional.append(value)
                continue
            items, each = self.elements(value, argument)
            if items is None or rest:
                rest.append(each)
            else:
                positional += items
        named: list[tuple[str, Value]] = []
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                named.append((keyword.arg, value))
                continue
            boxes = [atom for atom in value if isinstance(atom, Box)]
            if len(value) == 1 and boxes and boxes[0].keys is not None and boxes[0].kind is dict:
                named += boxes[0].keys.items()
            else:
                rest += self.contents(value) or [UNKNOWN]
        return self.call(called, Arguments(tuple(positional), tuple(named), join(*rest) if rest else None), node)

    def _super(self) -> Value:
        frame: Frame | None = self.frame
        while frame is not None and "__class__" not in frame.function.cells:
            frame = frame.outer
        node = frame.function.node if frame is not None else None
        if frame is None or node is None or not (node.args.posonlyargs or node.args.args):
            return UNKNOWN
        first = (*node.args.posonlyargs, *node.args.args)[0].arg
        return frozenset({Super(frame.function.cells["__class__"], frame.current.get(first, NOTHING))})

    def call(self, called: Value, arguments: Arguments, node: ast.AST) -> Value:
        """Call a value."""
        return join(*(self._call(atom, arguments, node) for atom in called)) if called else UNKNOWN

    def _call(self, atom: Atom, arguments: Arguments, node: ast.AST) -> Value:
        if isinstance(atom, Other):
            before, self.flags = self.flags, self.flags | atom.flags
            with self.branch():
                self.record(Kind.LOST, "value", node, (self.call(atom.value, arguments, node),))
            self.flags = before
            return NOTHING
        if isinstance(atom, Live):
            return self._call_live(atom.obj, arguments, node)
        if isinstance(atom, Closure):
            return self._run(atom.function, arguments, node, outer=atom.frame, defaults=dict(atom.defaults))
        if isinstance(atom, Bound):
            return self._call_bound(atom, arguments, node)
        if isinstance(atom, Partial):
            given = atom.arguments
            both = Arguments(
                (*given.positional, *arguments.positional), (*given.named, *arguments.named),
                join(*(rest for rest in (given.rest, arguments.rest) if rest is not None)) or None,
            )  # fmt: skip
            return self.call(atom.function, both, node)
        if isinstance(atom, Method):
            return self._call_method(atom, arguments, node)
        if isinstance(atom, Box) and issubclass(atom.kind, nn.Sequential):
            return self._call_any(atom, arguments, node)
        if isinstance(atom, Box):
            member = inspect.getattr_static(atom.kind, "__call__", None)
            if isinstance(member, FunctionType):
                return self._call_function(member, arguments.first(frozenset({atom})), node)
        return join(self.operation("a call of something unknown", [frozenset({atom}), *arguments], node), UNKNOWN)

    def _call_any(self, box: Box, arguments: Arguments, node: ast.AST) -> Value:
        """Call a sequence of modules whose order is not known: each may be given what any other returns."""
        value = join(*arguments)
        for _ in range(3):
            value = join(value, self.call(box.content - UNKNOWN, Arguments((value,)), node))
        return value

    def _call_live(self, obj: Any, arguments: Arguments, node: ast.AST) -> Value:
        if isinstance(obj, nn.Module):
            return self.call_module(obj, arguments, node)
        if isinstance(obj, functools.partial):
            given = Arguments(
                tuple(self.lifted(a) for a in obj.args), tuple((n, self.lifted(v)) for n, v in obj.keywords.items())
            )
            return self._call(Partial(self.lifted(obj.func), given), arguments, node)
        if isinstance(obj, MethodType):
            return self._call_bound(Bound(Live(obj.__func__), self.lifted(obj.__self__)), arguments, node)
        handler = builtin.HANDLERS.get(id(obj))
        if handler is not None:
            return handler(self, arguments, node)
        if isinstance(obj, type):
            return self._construct(obj, arguments, node)
        if isinstance(obj, FunctionType):
            return self._call_function(obj, arguments, node)
        wrapped = getattr(obj, "__wrapped__", None)
        if isinstance(wrapped, FunctionType):  # lru_cache and the like give the same again
            result = self._call_function(wrapped, arguments, node)
            self.keep((id(obj), "cache"), result, node, name_of(obj))
            return result
        owner = getattr(obj, "__self__", None)
        if owner is itertools.chain:
            return builtin.chained(self, arguments, node)
        if isinstance(obj, BuiltinFunctionType) and isinstance(owner, list | dict | set):
            return self._call_method(Method(obj.__name__, self.lifted(owner)), arguments, node)
        member = inspect.getattr_static(type(obj), "__call__", None)
        if isinstance(member, FunctionType) and not isinstance(obj, BuiltinFunctionType):
            return self._call_function(member, arguments.first(self.lifted(obj)), node)
        if any(id(module) in self.modules for module in Reach.of([self.lifted(obj)]).modules.values()):
            self.escape(name_of(obj), node, [self.lifted(obj), *arguments])
        if name_of(obj).endswith("_like") and trusted(home_of(obj)):
            for argument in arguments:
                self.ask(argument, name_of(obj), node)
            return self.operation(name_of(obj), [], node)
        return self._computed(name_of(obj), arguments, node)

    def _call_bound(self, bound: Bound, arguments: Arguments, node: ast.AST) -> Value:
        function = bound.function
        if not isinstance(function, Live):
            return self._call(function, arguments.first(bound.receiver), node)
        results = []
        for atom in bound.receiver:
            receiver: Value = frozenset({atom})
            if isinstance(atom, Live) and isinstance(atom.obj, nn.Module) and trusted(home_of(function.obj)):
                name = name_of(function.obj).rpartition(".")[2]
                if name == "forward":
                    results.append(self._call_torch_forward(atom.obj, function.obj, arguments, node))
                else:
                    results.append(self._call_torch_method(atom.obj, name, arguments, node))
            else:
                results.append(self._call_live(function.obj, arguments.first(receiver), node))
        return join(*results)

    def _call_method(self, method: Method, arguments: Arguments, node: ast.AST) -> Value:
        """A method of a tensor, of a container or of plain data."""
        results = []
        for atom in method.receiver:
            container = container_method(self, atom, method.name, arguments, node)
            if container is not None:
                results.append(container)
                continue
            receiver: Value = frozenset({atom})
            if (
                isinstance(atom, Result | Weight)
                and method.name in builtin.METADATA_METHODS
                and not Reach.of(arguments).results
            ):
                self.record(Kind.METADATA, method.name, node, [receiver])
                results.append(UNKNOWN)
                continue
            if isinstance(atom, Live) and _quiet(atom.obj):
                results.append(UNKNOWN)
                continue
            if method.name in builtin.SHAPED:  # of the argument only the shape or dtype is read
                for argument in arguments:
                    self.ask(argument, method.name, node)
                results.append(self.operation(method.name, [receiver], node))
                continue
            writes = method.name.endswith("_") and not method.name.endswith("__")
            kind = Kind.WRITE if writes else Kind.OPERATION
            result = self.operation(method.name, [receiver, *arguments], node, kind)
            results.append(join(receiver, result) if writes else result)
        return join(*results)

    def entered(self, manager: Value, node: ast.expr) -> Value:
        """What ``with manager as …`` gives."""
        found = []
        for atom in manager:
            if _manages(atom):
                found.append(self.call(self.attribute(frozenset({atom}), "__enter__", node), Arguments(), node))
            elif isinstance(atom, Box):
                found.append(atom.content)
        return join(*found) or UNKNOWN

    def left(self, manager: Value, node: ast.expr) -> Value:
        """Leave ``with manager``; what its ``__exit__`` returns where that can be followed."""
        given = Arguments((NONE, NONE, NONE))
        return join(
            *(self.call(self.attribute(frozenset({a}), "__exit__", node), given, node) for a in manager if _manages(a))
        )

    def passes_on(self, made: Any) -> bool:
        """Whether a context manager that ``made`` returns passes exceptions on."""
        home = home_of(made)
        if home.partition(".")[0] == "torch" or made is contextlib.nullcontext:
            return True
        wrapped = getattr(made, "__wrapped__", None)
        read = self.read(wrapped) if home == "contextlib" and isinstance(wrapped, FunctionType) else None
        return read is not None and not any(isinstance(node, ast.Try) for node in ast.walk(read.node))


def _manages(atom: Atom) -> bool:
    """Whether an atom is a context manager of the user's."""
    kind = atom.kind if isinstance(atom, Box) else type(atom.obj) if isinstance(atom, Live) else object
    return not trusted(kind.__module__) and hasattr(kind, "__enter__")


_NO_ARGUMENTS = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def _quiet(obj: Any) -> bool:
    """Whether an object's methods only tell people something."""
    return type(obj).__module__.partition(".")[0] == "logging" or type(obj).__name__ == "Logger"
