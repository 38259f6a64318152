"""What a captured graph becomes: a module's forward, for the calls and the state it was captured for."""

from typing import Any

import torch
from torch import fx, nn
from torch.fx.graph import CodeGen
from torch.utils._pytree import tree_flatten, tree_unflatten

from fusionadvisor.strategies import leaves
from fusionadvisor.strategies.pythonstate import Constants


class Traced(leaves.Rewritten):
    """A graph in the place of a module's forward; where it does not stand for a call, the module's own code runs.

    It stands for calls that give every argument, while what the graph holds as constants is what it was. Parameters,
    buffers and submodules are those that the module has when it is called.
    """

    def __init__(self, module: nn.Module, graph: fx.GraphModule) -> None:
        _adopt(module, graph)
        super().__init__(module, graph.graph)
        self.constants = Constants.of(module)
        given = [node for node in self.graph.nodes if node.op == "placeholder"]
        self.names = tuple(str(node.target) for node in given)
        self.ran = False
        """Whether the graph has run for any call."""
        self.optional = frozenset(name for name, node in zip(self.names, given, strict=True) if node.args == (None,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph, or the module's own forward."""
        if not self._stands_for(args, kwargs):
            return type(self.module).forward(self.module, *args, **kwargs)
        self.ran = True
        return self._run(self.module, *args, **kwargs)

    def _stands_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        for value in (*args, *kwargs.values()):
            if value is None:
                return False
            if isinstance(value, fx.Proxy):
                raise fx.proxy.TraceError("a forward that fx wrote compares its arguments")
        if self.optional and not self.optional <= {*self.names[: len(args)], *kwargs}:
            return False
        return self.constants.hold()


class Exported(Traced):
    """A graph of ``torch.export``, whose own guards say which sizes it stands for."""

    def __init__(self, module: nn.Module, graph: fx.GraphModule) -> None:
        self.outputs: Any = graph._out_spec
        guards = [n for n in graph.graph.nodes if n.op == "call_module" and n.target == "_guards_fn"]
        self.guards = getattr(graph, "_guards_fn", None)
        for node in guards:
            graph.graph.erase_node(node)
        graph.graph.set_codegen(CodeGen())
        for node in graph.graph.nodes:
            node.meta = {"stack_trace": node.stack_trace}  # else of tensors that only the capture had
        super().__init__(module, graph)

    def again(self, graph: fx.Graph) -> "Exported":
        """See :class:`~fusionadvisor.strategies.leaves.Rewritten`."""
        raise fx.proxy.TraceError("a forward that torch.export captured is not captured again")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph, or the module's own forward."""
        flat = tree_flatten((args, kwargs))[0]
        if len(flat) == len(self.names) and self._stands_for(args, kwargs) and self._fits(flat):
            self.ran = True
            return tree_unflatten(self._run(self.module, *flat), self.outputs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def _fits(self, flat: list[Any]) -> bool:
        try:
            if self.guards is not None:
                self.guards(*flat)
        except AssertionError:
            return False
        return all(isinstance(leaf, torch.Tensor) for leaf in flat)


def _adopt(module: nn.Module, graph: fx.GraphModule) -> None:
    """Give a module what a graph reads and the module does not have so: a pass may have added or replaced it."""
    names: dict[str, str] = {}
    for node in graph.graph.nodes:
        if node.op not in ("get_attr", "call_module"):
            continue
        target = str(node.target)
        if target not in names:
            value = _at(graph, target)
            names[target] = target if _at(module, target) is value else _added(module, target, value)
        node.target = names[target]


def _added(module: nn.Module, target: str, value: Any) -> str:
    name = f"fx_{target.replace('.', '_')}"
    while hasattr(module, name):
        name += "_"
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        module.register_buffer(name, value, persistent=False)
    else:
        setattr(module, name, value)
    return name


def _at(root: nn.Module, target: str) -> Any:
    value: Any = root
    for part in target.split("."):
        value = getattr(value, part, None)
    return value
