"""What a call of a module means: its hooks, its forward, the methods that it has from torch."""

import ast
import inspect
from types import FunctionType
from typing import Any

from torch import nn

from fusionadvisor.strategies.legality import framework
from fusionadvisor.strategies.legality.code import Function, trusted
from fusionadvisor.strategies.legality.events import Event, Kind
from fusionadvisor.strategies.legality.functions import Functions
from fusionadvisor.strategies.legality.objects import home_of
from fusionadvisor.strategies.legality.values import (
    NONE,
    NOTHING,
    UNKNOWN,
    Arguments,
    Live,
    Value,
    join,
)

CAPTURED = "<captured forward>"
"""The file of functions that a strategy captured."""


class ModuleCalls(Functions):
    """Calls of modules."""

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
            if not trusted(home_of(hook)):
                with_names = key in module._forward_pre_hooks_with_kwargs
                returned = self.call(self.lifted(hook), Arguments((own, *given[: 1 + with_names])), node) - NONE
                if returned:
                    changed = join(*self._parts(returned), *arguments)
                    arguments = Arguments(tuple(changed for _ in arguments.positional), (), changed)
        custom = inspect.getattr_static(type(module), "__call__", None)
        if isinstance(custom, FunctionType) and not trusted(home_of(custom)) and event is not None:
            result = self._call_function(custom, arguments.first(own), node)
        else:
            result = self._run_forward(module, arguments, node, event)
        for key, hook in module._forward_hooks.items():
            if not trusted(home_of(hook)):
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
        elif isinstance(forward, FunctionType) and not trusted(home_of(forward)):
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


def _runs_in_order(module: nn.Module, forward: object) -> bool:
    return isinstance(module, nn.Sequential) and forward is nn.Sequential.forward
