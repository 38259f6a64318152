"""What a call means: of a module, of a function that can be read, of one that cannot."""

import ast
import contextlib
import functools
import inspect
import itertools
import logging
from dataclasses import is_dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import nn

from fusionadvisor.strategies.legality import builtin, code, framework
from fusionadvisor.strategies.legality.code import Function, trusted
from fusionadvisor.strategies.legality.containers import container_method
from fusionadvisor.strategies.legality.events import Entry, Event, Kind
from fusionadvisor.strategies.legality.frame import Frame
from fusionadvisor.strategies.legality.machine import Machine
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

CAPTURED = "<captured forward>"
"""The file of functions that a strategy captured."""
_DEPTH = 3
"""How often one function may be under way at once before a further call counts as one that cannot be followed."""


class Calls(Machine):
    """Calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.calling: set[int] = set()
        self._stack: list[tuple[ast.AST, Value]] = []
        self._read: dict[FunctionType, Function | None] = {}
        self._roots = {type(module).__module__.partition(".")[0] for module in self.modules.values()}

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
            self.keep((id(obj), "cache"), result, node, _name(obj))
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
            self.escape(_name(obj), node, [self.lifted(obj), *arguments])
        if _name(obj).endswith("_like") and trusted(_home(obj)):
            for argument in arguments:
                self.ask(argument, _name(obj), node)
            return self.operation(_name(obj), [], node)
        return self._computed(_name(obj), arguments, node)

    def _computed(self, name: str, arguments: Arguments, node: ast.AST) -> Value:
        """What a function of torch or Python computes; where it is given ``out``, that is written and returned."""
        out = join(*(value for keyword, value in arguments.named if keyword == "out")) - NONE
        result = self.operation(name, arguments, node, Kind.WRITE if out else Kind.OPERATION)
        return join(result, out)

    def _call_bound(self, bound: Bound, arguments: Arguments, node: ast.AST) -> Value:
        function = bound.function
        if not isinstance(function, Live):
            return self._call(function, arguments.first(bound.receiver), node)
        results = []
        for atom in bound.receiver:
            receiver: Value = frozenset({atom})
            if isinstance(atom, Live) and isinstance(atom.obj, nn.Module) and trusted(_home(function.obj)):
                name = _name(function.obj).rpartition(".")[2]
                if name == "forward":
                    results.append(self._call_torch_forward(atom.obj, function.obj, arguments, node))
                else:
                    results.append(self._call_torch_method(atom.obj, name, arguments, node))
            else:
                results.append(self._call_live(function.obj, arguments.first(receiver), node))
        return join(*results)

    def _call_torch_forward(self, module: nn.Module, forward: Any, arguments: Arguments, node: ast.AST) -> Value:
        """The forward of a class of torch, called as it is: the module's own, or one that its own extends."""
        if inspect.getattr_static(type(module), "forward", None) is forward:
            return self.call_module(module, arguments, node)
        if forward is nn.Sequential.forward:
            return self._run_in_order(module, arguments, node)
        return self._run_torch(module, arguments, node, None)

    def _call_torch_method(self, module: nn.Module, name: str, arguments: Arguments, node: ast.AST) -> Value:
        """A method that a module has from torch."""
        if name in ("__call__", "_call_impl", "_wrapped_call_impl"):
            return self.call_module(module, arguments, node)
        method = framework.METHODS.get(name)
        if method is not None:
            return method(self, module, arguments, node)
        receiver: Value = frozenset({Live(module)})
        if name in framework.CHANGES or name.startswith("register_"):
            self.record(Kind.WRITE, name, node, [receiver])
            return receiver
        return self.operation(f"{type(module).__name__}.{name}", [receiver, *arguments], node)

    # Modules

    def call_module(self, module: nn.Module, arguments: Arguments, node: ast.AST) -> Value:
        """Call a module: note it, and run its hooks and its forward."""
        event = self.record(Kind.CALL, self.paths.get(id(module), type(module).__name__), node, arguments, (module,))
        return self._run_module(module, arguments, node, event)

    def _run_module(self, module: nn.Module, arguments: Arguments, node: ast.AST, event: Event | None = None) -> Value:
        before, context = self.within, self.frame.context
        self.within = (*before, event) if event is not None else before
        self.frame.context = self.context(context, node, id(module))
        own: Value = frozenset({Live(module)})
        given = self._given(arguments, node)
        for key, hook in module._forward_pre_hooks.items():
            if not trusted(_home(hook)):
                with_names = key in module._forward_pre_hooks_with_kwargs
                returned = self.call(self.lifted(hook), Arguments((own, *given[: 1 + with_names])), node) - NONE
                if returned:
                    changed = join(*self._parts(returned), *arguments)
                    arguments = Arguments(tuple(changed for _ in arguments.positional), (), changed)
        custom = inspect.getattr_static(type(module), "__call__", None)
        if isinstance(custom, FunctionType) and not trusted(_home(custom)) and event is not None:
            result = self._call_function(custom, arguments.first(own), node)
        else:
            result = self._run_forward(module, arguments, node, event)
        for key, hook in module._forward_hooks.items():
            if not trusted(_home(hook)):
                with_names = key in module._forward_hooks_with_kwargs
                returned = self.call(self.lifted(hook), Arguments((own, *given[: 1 + with_names], result)), node)
                result = join(result, returned - NONE)
        self.within, self.frame.context = before, context
        if event is not None:
            event.returned = result
        return result

    def _given(self, arguments: Arguments, node: ast.AST) -> tuple[Value, Value]:
        """The arguments of a call as a hook sees them."""
        known_ones = list(arguments.positional) if arguments.rest is None else None
        loose = NOTHING if arguments.rest is None else join(arguments.rest, *arguments.positional)
        named = dict(arguments.named) if arguments.rest is None else None
        return self.box(tuple, node, known_ones, None, loose), self.box(
            dict, node, None, named, arguments.rest or NOTHING
        )

    def _parts(self, value: Value) -> list[Value]:
        """A value, and what is in it, two deep: what a hook returns for the arguments."""
        inner = self.contents(value)
        return [value, *inner, *(part for one in inner for part in self.contents(one))]

    def _run_forward(self, module: nn.Module, arguments: Arguments, node: ast.AST, event: Event | None = None) -> Value:
        stored = self.heap.get((id(module), "forward"))
        results = [self.call(stored, arguments, node)] if stored else []
        held = vars(module).get("forward")
        if held is not None:
            results.append(self._run_held(module, held, arguments, node))
            if not hasattr(held, "graph"):
                return join(*results)
        forward = inspect.getattr_static(type(module), "forward", None)
        if _runs_in_order(module, forward):
            results.append(self._run_in_order(module, arguments, node))
        elif isinstance(forward, FunctionType) and not trusted(_home(forward)):
            results.append(self._call_function(forward, arguments.first(frozenset({Live(module)})), node))
        else:
            results.append(self._run_torch(module, arguments, node, event))
        return join(*results)

    def _run_held(self, module: nn.Module, held: Any, arguments: Arguments, node: ast.AST) -> Value:
        """A forward that is set on the instance; of one that was captured, its graph."""
        graph = getattr(held, "graph", None)
        if graph is None:
            return self.call(self.lifted(held), arguments, node)
        function = self.nested.get((id(graph), 0))
        if function is None:
            text = graph.python_code("self")
            definition = next(n for n in ast.parse(text.src).body if isinstance(n, ast.FunctionDef))
            function = Function(definition, f"{type(module).__name__}.forward", CAPTURED, text.globals, {})
            self.nested[id(graph), 0] = function
        if getattr(held, "captured", None) is not None:  # it takes the tensors among the arguments, wherever they are
            tensors = join(*(part for value in arguments for part in self._parts(value))) or UNKNOWN
            arguments = Arguments((tensors,) * len(graph.find_nodes(op="placeholder")))
        return self._run(function, arguments.first(frozenset({Live(module)})), node)

    def _run_in_order(self, module: nn.Module, arguments: Arguments, node: ast.AST) -> Value:
        value = arguments.get(0, "input") or UNKNOWN
        context = self.frame.context
        for index, child in enumerate(module._modules.values()):
            if child is not None:
                self.frame.context = self.context(context, node, index)
                value = self.call_module(child, Arguments((value,)), node)
        self.frame.context = context
        return value

    def _run_torch(self, module: nn.Module, arguments: Arguments, node: ast.AST, event: Event | None) -> Value:
        """A module of torch's own: nobody reads its code, so its submodules are used in a way that is not known."""
        inner = [child for child in module.modules() if child is not module]
        if inner and not type(module).__module__.startswith(__name__.partition(".")[0]):
            escaped = self.record(Kind.ESCAPE, type(module).__name__, node, [])
            self.log.escape(escaped, inner)
        if event is not None:
            return frozenset({event.result})
        return self.operation(type(module).__name__, arguments, node)

    # Functions

    def _call_function(self, function: FunctionType, arguments: Arguments, node: ast.AST) -> Value:
        home = _home(function)
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
        name, home = function.__qualname__, _home(function)
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
            if isinstance(current, FunctionType) and not trusted(_home(current)):
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

    # What is neither module nor function

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
            and not trusted(_home(maker))
        ):
            self.escape(f"{kind.__name__}.__new__", node, list(arguments))
        initializer = inspect.getattr_static(kind, "__init__", None)
        if is_dataclass(kind) or not isinstance(initializer, FunctionType) or trusted(_home(initializer)):
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
        home = _home(made)
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


_OF_CHECKPOINT = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")


def _runs_in_order(module: nn.Module, forward: object) -> bool:
    return isinstance(module, nn.Sequential) and forward is nn.Sequential.forward


def _home(obj: Any) -> str:
    """The module whose code a callable runs, whatever it is called."""
    if isinstance(obj, functools.partial):
        return _home(obj.func)
    namespace = getattr(obj, "__globals__", None)
    if namespace is not None:
        return str(namespace.get("__name__", ""))
    if not isinstance(obj, type) and not isinstance(obj, BuiltinFunctionType):
        member = inspect.getattr_static(type(obj), "__call__", None)
        if isinstance(member, FunctionType):
            return _home(member)
    return str(getattr(obj, "__module__", None) or type(obj).__module__)


def _name(obj: Any) -> str:
    return str(getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None) or type(obj).__name__)


def _installed(function: FunctionType) -> bool:
    return "site-packages" in function.__code__.co_filename or "dist-packages" in function.__code__.co_filename


def _quiet(obj: Any) -> bool:
    """Whether an object's methods only tell people something."""
    return type(obj).__module__.partition(".")[0] == "logging" or type(obj).__name__ == "Logger"


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
