"""What Inductor compiled is computed through the graph that it compiled, op by op on the CPU.

A Triton kernel that torch.compile did not make is not computed: what memory holds is unknown then, and reading it
fails.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map_only

from . import core, ops, random
from .memory import fill, host, is_dense, on_host, ranges


def install(after_import: Callable[[str, Callable[[Any], None]], None]) -> None:
    """Have each graph that Inductor compiles from here on computed."""
    after_import("torch._inductor.compile_fx", _patch)


def _patch(module: Any) -> None:
    compile_graph = module._InProcessFxCompile.codegen_and_compile

    def codegen_and_compile(self: Any, gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        reference = _copied(gm)
        compiled = compile_graph(self, gm, *args, **kwargs)
        if getattr(compiled, "current_callable", None) is not None:
            compiled.current_callable = _Computed(reference, compiled.current_callable)
        return compiled

    module._InProcessFxCompile.codegen_and_compile = codegen_and_compile


def _copied(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph as it is now: compiling rewrites it."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return fx.GraphModule(gm, graph)


class _Computed:
    """A compiled graph's callable, and what it means."""

    def __init__(self, reference: fx.GraphModule, launch: Callable[[list[Any]], Any]) -> None:
        self._reference = reference
        self._launch = launch
        nodes = list(reference.graph.nodes)
        names = [node for node in nodes if node.op == "placeholder"]
        written = {node.args[0] for node in nodes if node.target is torch.ops.aten.copy_.default}
        self._mutated = [i for i, node in enumerate(names) if node in written]

    def __call__(self, inputs: list[Any]) -> Any:
        arguments = list(inputs)  # the callable empties the list that it is given
        tensors = [t for t in arguments if is_dense(t)]
        device = tensors[0].device.index if tensors else torch.cuda.current_device()
        draw = random.seed(None, device)
        before: list[Tensor] = []
        with ops.undisturbed():
            given = on_host(arguments)
            mutated = [given[i] for i in self._mutated]

            def keep() -> None:
                before[:] = [view.clone() for view in mutated]

            ops.compute(device, "a compiled graph", keep, ranges(arguments))
        core.scope(1)
        ops.frames.inert += 1
        try:
            outputs = self._launch(inputs)
        finally:
            ops.frames.inert -= 1
            core.scope(-1)
        with ops.undisturbed():
            into = tree_map_only(Tensor, host, outputs)

            def again() -> None:
                for view, content in zip(mutated, before, strict=True):
                    view.copy_(content)
                try:
                    with random.drawing(draw()):
                        ops.store(_OnHost(self._reference).run(*given), into)
                except (RuntimeError, TypeError) as error:
                    for view in tree_leaves((into, mutated)):
                        if isinstance(view, Tensor):
                            fill(view)
                    ops.refuse("a compiled graph", error)

            if not ops.compute(device, "a compiled graph", again, ranges((arguments, outputs))):
                for view in tree_leaves(into):
                    if isinstance(view, Tensor):
                        fill(view)
        return outputs


class _OnHost(fx.Interpreter):
    """Runs a graph of ops over CPU views of its inputs."""

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return tree_map_only(Tensor, host, super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = on_host((args, kwargs))
        if isinstance(target, torch._ops.OpOverload):
            return ops.on_cpu(target, args, kwargs, int(torch.randint(2**62, ())))
        return super().call_function(target, args, kwargs)
