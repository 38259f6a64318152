"""One captured signature of a module's forward: static inputs, replay, copies of the outputs, and backward."""

import weakref
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from fusionadvisor.strategies.graphs.backend import CaptureError, Graph, GraphBackend, TensorFunction
from fusionadvisor.strategies.graphs.state import Assumptions

Spec = TreeSpec | None

CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout)


class NoGraphError(Exception):
    """This call has no graph; the message is the reason it is counted under."""


class Owner(Protocol):
    """The forward that a signature was captured of."""

    module: nn.Module
    backend: GraphBackend
    static_outputs: bool

    def run(self, leaves: list[Any], spec: Spec) -> Any:
        """Run the module's own forward on flattened arguments."""

    def pool(self, device: torch.device) -> Any:
        """The memory pool to capture into."""


def _static(leaf: Any, *, differentiable: bool = False) -> Any:
    """The place an input is copied to before each replay."""
    if not isinstance(leaf, Tensor):
        return leaf
    twin = torch.empty_like(leaf, requires_grad=False)
    twin.copy_(leaf.detach())
    return twin.requires_grad_(differentiable and leaf.requires_grad)


def _check_outputs(leaves: list[Any]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *CONSTANTS)):
            raise CaptureError(f"returns a {type(leaf).__name__}, which may hide tensors; register it as a pytree")


class InferenceGraph:
    """One signature's graph, without gradients."""

    def __init__(self, owner: Owner, leaves: list[Any], spec: Spec, device: torch.device) -> None:
        self.device = device
        self._static = [_static(leaf) for leaf in leaves]
        self._inputs = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        generators = _generators(owner.module, device)
        run = lambda: owner.run(self._static, spec)  # noqa: E731
        self._graph: Graph = owner.backend.capture(run, device, owner.pool(device), generators)
        self._outputs, self._spec = tree_flatten(self._graph.outputs)
        _check_outputs(self._outputs)
        self._copy = not owner.static_outputs
        self.assumed = Assumptions(owner.module, gradients=False)

    def check_ready(self) -> None:
        """Without gradients nothing is ever pending."""

    def call(self, leaves: list[Any]) -> Any:
        """Copy the inputs in, replay, and copy the outputs out."""
        for i in self._inputs:
            self._static[i].copy_(leaves[i])
        self._graph.replay()
        if isinstance(self._graph.outputs, Tensor):
            return self._graph.outputs.clone() if self._copy else self._graph.outputs
        outputs = self._outputs
        if self._copy:
            outputs = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in outputs]
        return tree_unflatten(outputs, self._spec)

    def release(self) -> None:
        """Free the memory the graph holds."""
        self._outputs = []
        self._graph.release()


class _Pending:
    """A forward whose backward has not run yet; lives as long as autograd could still run it."""

    done = False


class TrainingGraph:
    """One signature's graphs of forward and backward."""

    def __init__(self, owner: Owner, leaves: list[Any], spec: Spec, device: torch.device) -> None:
        self.device = device
        static = [_static(leaf, differentiable=True) for leaf in leaves]
        self._inputs = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._parameters = [p for p in owner.module.parameters() if p.requires_grad]
        self._pending: weakref.ref[_Pending] | None = None
        self._copy = not owner.static_outputs

        def run(*_: Tensor) -> tuple[Tensor, ...]:
            self._outputs, self._spec = tree_flatten(owner.run(static, spec))
            _check_outputs(self._outputs)
            tensors = tuple(leaf for leaf in self._outputs if isinstance(leaf, Tensor))
            self._differentiable = [t.requires_grad for t in tensors]
            return tensors

        samples = (*(static[i] for i in self._inputs), *self._parameters)
        self._graphed: TensorFunction = owner.backend.capture_training(run, samples, device)
        self._is_tensor = [isinstance(leaf, Tensor) for leaf in self._outputs]
        self._outputs = [None if isinstance(leaf, Tensor) else leaf for leaf in self._outputs]
        self.assumed = Assumptions(owner.module, gradients=True)

    def check_ready(self) -> None:
        """A second forward would overwrite what the first one's backward needs."""
        pending = self._pending() if self._pending else None
        if pending is not None and not pending.done:
            raise NoGraphError("an earlier forward still waits for its backward")

    def call(self, leaves: list[Any]) -> Any:
        """Replay forward; autograd replays backward once when it comes to it."""
        tensors = [leaves[i] for i in self._inputs] + self._parameters
        live = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
        fresh = _FreshGradients.apply(*(tensors[i] for i in live))  # type: ignore[no-untyped-call]
        for i, tensor in zip(live, fresh, strict=True):
            tensors[i] = tensor
        pending = _Pending()
        self._pending = weakref.ref(pending)
        results = self._graphed(*tensors)
        outputs = iter(_Once.apply(pending, self._differentiable, self._copy, *results))  # type: ignore[no-untyped-call]
        filled = [
            next(outputs) if tensor else leaf for tensor, leaf in zip(self._is_tensor, self._outputs, strict=True)
        ]
        return tree_unflatten(filled, self._spec)

    def release(self) -> None:
        """Free the memory the graph holds."""
        del self._graphed


class _FreshGradients(torch.autograd.Function):
    """Identity whose backward copies: a graph's gradients are static, and autograd would adopt them as ``.grad``.

    The next backward would then overwrite the sum of a gradient accumulation with twice the newest term.
    """

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(t.detach() for t in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        held = [g for g in grads if g is not None]
        fresh = [torch.empty_like(g) for g in held]
        if fresh:
            torch._foreach_copy_(fresh, held)
        copies = iter(fresh)
        return tuple(None if g is None else next(copies) for g in grads)


class _Once(torch.autograd.Function):
    """Hands outputs out (as copies, unless static ones were asked for) and lets backward through once."""

    @staticmethod
    def forward(
        ctx: Any, pending: _Pending, differentiable: list[bool], copy: bool, *outputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.pending = pending
        results = tuple(o.clone() if copy else o.detach() for o in outputs)
        ctx.mark_non_differentiable(*(r for r, d in zip(results, differentiable, strict=True) if not d))
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.pending.done:
            raise RuntimeError(
                "backward ran twice through one graphed forward: its activations are gone; run forward again"
            )
        ctx.pending.done = True
        return None, None, None, *grads


def _generators(module: nn.Module, device: torch.device) -> list[torch.Generator]:
    """Random generators the module keeps as attributes, which a graph must be told of."""
    found = (value for m in module.modules() for value in vars(m).values() if isinstance(value, torch.Generator))
    return [generator for generator in dict.fromkeys(found) if generator.device == device]
