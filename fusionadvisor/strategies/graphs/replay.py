"""A module's forward, replaced by replays of its captured graphs: one a signature, eager where none fits."""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from fusionadvisor.strategies.graphs.backend import CaptureError, GraphBackend
from fusionadvisor.strategies.graphs.captured import CONSTANTS, InferenceGraph, NoGraphError, Spec, TrainingGraph
from fusionadvisor.strategies.graphs.state import contents_kept
from fusionadvisor.strategies.graphs.where import place

MAX_GRAPHS = 8
"""Signatures captured per module; each holds the memory of one whole run."""

_PLAIN_TENSORS = (Tensor, nn.Parameter, nn.Buffer)


@dataclass(slots=True)
class Memory:
    """What graphs of one model share: a pool, the stream of the last call, and the lock that serialises callers.

    Sharing is safe because outputs are held for as long as their graph lives, and calls never overlap.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    pool: Any = None
    last_stream: object = None


@dataclass(slots=True)
class Counts:
    """What became of the calls. ``eager`` counts them by the reason they ran without a graph."""

    replayed: int = 0
    captured: int = 0
    recaptured: int = 0
    eager: Counter[str] = field(default_factory=Counter)


class GraphedForward:
    """Takes the place of ``module.forward``; state dict, module paths and attributes of the model stay as they are.

    Args:
        module: The module to replay. Its own hooks still run; modules below it must have none.
        backend: Where graphs come from.
        training: Capture backward too where gradients are recorded. Otherwise such calls run eagerly.
        static_outputs: Return the graph's own output tensors, which the next call overwrites, instead of copies.
        max_graphs: How many signatures to capture; calls with further ones run eagerly.
        memory: Shared with the other graphed modules of a model.
    """

    def __init__(
        self,
        module: nn.Module,
        backend: GraphBackend,
        *,
        training: bool = False,
        static_outputs: bool = False,
        max_graphs: int = MAX_GRAPHS,
        memory: Memory | None = None,
    ) -> None:
        self.module = module
        self.backend = backend
        self.training = training
        self.static_outputs = static_outputs
        self.max_graphs = max_graphs
        self.counts = Counts()
        self.failures: dict[object, str] = {}
        """Why a signature could not be captured, by signature."""
        self._memory = memory or Memory()
        self._graphs: dict[object, InferenceGraph | TrainingGraph] = {}
        self._modules: list[nn.Module] = []
        self._inference_mode = False
        self.__signature__ = inspect.signature(self.eager)

    @property
    def eager(self) -> Callable[..., Any]:
        """The forward the module's class has."""
        return type(self.module).forward.__get__(self.module)  # type: ignore[no-any-return]

    def install(self) -> None:
        """Put this in the place of the module's forward."""
        self.module.forward = self

    def remove(self) -> None:
        """Give the module its own forward back and free every graph."""
        if self.module.__dict__.get("forward") is self:
            del self.module.forward
        self.reset()

    def reset(self) -> None:
        """Free every graph and forget every failure; the next calls capture anew."""
        with self._memory.lock:
            for graph in self._graphs.values():
                graph.release()
            self._graphs.clear()
            self.failures.clear()
            self._modules = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "GraphedForward":
        """A copy of the module gets a forward of its own, with nothing captured."""
        return self._rebuilt(memo.get(id(self.module), self.module))

    def __reduce__(self) -> tuple[Callable[..., "GraphedForward"], tuple[Any, ...]]:
        return _rebuild, (self.module, self.backend, self.training, self.static_outputs, self.max_graphs)

    def _rebuilt(self, module: nn.Module) -> "GraphedForward":
        return _rebuild(module, self.backend, self.training, self.static_outputs, self.max_graphs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replay where a graph fits the arguments, capture where one could, else run eagerly and count why."""
        leaves, spec = _flattened(args, kwargs)
        try:
            with self._memory.lock:
                graph = self._graph(leaves, spec)
                self._memory.last_stream = self.backend.follow(graph.device, self._memory.last_stream)
                outputs = graph.call(leaves)
                self.counts.replayed += 1
                return outputs
        except NoGraphError as reason:
            self.counts.eager[str(reason)] += 1
        return self.eager(*args, **kwargs)

    def _graph(self, leaves: list[Any], spec: Spec) -> InferenceGraph | TrainingGraph:
        if self.backend.capturing():
            raise NoGraphError("another capture is under way on this stream")
        differentiable = torch.is_grad_enabled() and self._requires_grad(leaves)
        if differentiable and not self.training:
            raise NoGraphError("gradients are being recorded; the graph is for inference (call it under no_grad)")
        key = self._signature(leaves, spec, differentiable)
        graph = self._graphs.get(key)
        if graph is not None and graph.assumed.hooked():
            raise NoGraphError("a hook was registered after the capture")
        if graph is not None and (change := graph.assumed.broken()):
            self._drop_all(change)
            graph, key = None, self._signature(leaves, spec, differentiable)
        if graph is None:
            graph = self._captured(key, leaves, spec, differentiable)
        graph.check_ready()
        return graph

    def _drop_all(self, change: str) -> None:
        """Graphs of every signature read the same parameters: none is right any more."""
        if self.counts.recaptured >= self.max_graphs:
            raise NoGraphError(f"{change} again and again: captured anew {self.counts.recaptured} times already")
        self.counts.recaptured += 1
        self.reset()

    def _captured(
        self, key: object, leaves: list[Any], spec: Spec, differentiable: bool
    ) -> InferenceGraph | TrainingGraph:
        if reason := self.failures.get(key):
            raise NoGraphError(reason)
        device = self._device(leaves)
        if len(self._graphs) >= self.max_graphs:
            raise NoGraphError(f"another signature: {self.max_graphs} are captured already")
        kind = TrainingGraph if differentiable else InferenceGraph
        self._inference_mode = torch.is_inference_mode_enabled()
        try:
            # out of inference mode: what torch keeps for replays elsewhere must not be made of inference tensors
            with (
                torch.inference_mode(False),
                torch.set_grad_enabled(differentiable),
                contents_kept(self.module),
                _autocast_cache_off(),
            ):
                graph = kind(self, leaves, spec, device)
        except (CaptureError, torch.OutOfMemoryError) as error:
            self.failures[key] = self._told(error) if isinstance(error, CaptureError) else "there is too little memory"
            raise NoGraphError(self.failures[key]) from error
        self._graphs[key] = graph
        self.counts.captured += 1
        return graph

    def _told(self, error: CaptureError) -> str:
        paths = {id(module): path for path, module in self.module.named_modules()}
        return f"{place(error.source, paths.get(id(error.owner), ''))} {error.why}"

    def _device(self, leaves: list[Any]) -> torch.device:
        """The one device everything is on: the inputs' where there are any, else the parameters'."""
        devices = {leaf.device for leaf in leaves if isinstance(leaf, Tensor)}
        if not devices:
            devices = {p.device for p in self.module.parameters()}
        if len(devices) != 1:
            raise NoGraphError(f"tensors on {', '.join(sorted(map(str, devices))) or 'no device'}")
        device = devices.pop()
        if not self.backend.accepts(device):
            raise NoGraphError(f"inputs on {device}")
        return device

    def _requires_grad(self, leaves: list[Any]) -> bool:
        return any(isinstance(t, Tensor) and t.requires_grad for t in leaves) or any(
            p.requires_grad for p in self.module.parameters()
        )

    def _signature(self, leaves: list[Any], spec: Spec, differentiable: bool) -> object:
        """Everything a capture depends on that may differ from call to call."""
        if not self._modules:
            self._modules = list(self.module.modules())
        return (
            spec,
            tuple([_leaf_signature(leaf) for leaf in leaves]),
            differentiable,
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
            torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
            tuple([m.training for m in self._modules]),
        )

    def run(self, leaves: list[Any], spec: Spec) -> Any:
        """Run the module's own forward on flattened arguments, for a warm-up or a capture."""
        args, kwargs = (leaves, {}) if spec is None else tree_unflatten(leaves, spec)
        with torch.inference_mode() if self._inference_mode else nullcontext():
            return self.eager(*args, **kwargs)

    def pool(self, device: torch.device) -> Any:
        """The pool this model's inference graphs share."""
        if self._memory.pool is None:
            self._memory.pool = self.backend.new_pool(device)
        return self._memory.pool


def _rebuild(
    module: nn.Module, backend: GraphBackend, training: bool, static_outputs: bool, max_graphs: int
) -> GraphedForward:
    return GraphedForward(module, backend, training=training, static_outputs=static_outputs, max_graphs=max_graphs)


def _flattened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Spec]:
    """The arguments' leaves and how they hang together; None where they are tensors by position, as most are."""
    if not kwargs and {*map(type, args)} <= {Tensor}:
        return list(args), None
    return tree_flatten((args, kwargs))


def _leaf_signature(leaf: Any) -> object:
    if isinstance(leaf, Tensor):
        if type(leaf) not in _PLAIN_TENSORS or leaf.layout != torch.strided:
            raise NoGraphError(f"an input is a {type(leaf).__name__} of layout {leaf.layout}")
        if torch._C._functorch.is_functorch_wrapped_tensor(leaf):
            raise NoGraphError("a function transform is under way")
        return leaf.shape, leaf.dtype, leaf.device, leaf.stride(), leaf.requires_grad and torch.is_grad_enabled()
    if isinstance(leaf, CONSTANTS):
        return type(leaf), leaf
    raise NoGraphError(f"an input is a {type(leaf).__name__}, which may hold anything")


@contextmanager
def _autocast_cache_off() -> Iterator[None]:
    """Weights that autocast has cast and cached live shorter than a graph: none is taken over, none left behind."""
    before = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
