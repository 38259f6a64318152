"""A graph backend without a GPU: it keeps the rules of ``torch.cuda.CUDAGraph``, so that what rests on them is tested.

A capture stores the ops that reached the dispatcher with the memory they used. Nothing it computed survives it: on CUDA
the kernels have not run yet. A replay runs those ops into the same memory; Python is not run again, reassigned
parameters are not seen, outputs of the replay before are gone. Memory that the captured run did not make itself is
borrowed: when it was freed or moved in the meantime, replaying raises where CUDA would read garbage. Waiting raises.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fusionadvisor.flow.graph import SYNC_OPS
from fusionadvisor.strategies.graphs.backend import WARM_UPS, CaptureError, Graph, TensorFunction
from fusionadvisor.strategies.graphs.where import current_frames, locate

_HOST_READS = {"cpu", "numpy", "tolist", "__array__"}
_FROM_PYTHON = "aten::lift_fresh"


@dataclass
class Borrowed:
    """Memory the captured run found: known by address, not kept alive."""

    ref: StorageWeakRef
    address: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "Borrowed":
        storage = tensor.untyped_storage()
        return cls(
            StorageWeakRef(storage),  # type: ignore[no-untyped-call]
            storage.data_ptr(),
            tensor.size(),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.dtype,
        )

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.ref.cdata)
        if storage is None:
            raise RuntimeError("a replay read memory that was freed after the capture")
        if storage.data_ptr() != self.address:
            raise RuntimeError("a replay read memory that moved after the capture")
        found = torch.empty(0, dtype=self.dtype)
        return found.set_(storage, self.offset, self.size, self.stride)


@dataclass
class Step:
    func: Callable[..., Any]
    args: Any
    kwargs: Any
    outputs: Any


class Waits(TorchFunctionMode):
    """Reads of tensors on the CPU that never reach the dispatcher."""

    spoilt = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _HOST_READS:
            self.spoilt = True
            _refuse(func.__name__)
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stores ops while they run, when ``keep`` is set; raises on a wait either way."""

    def __init__(self, keep: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keep = keep
        self.spoilt = False
        self.tape: list[Step] = []
        self.own: dict[int, Tensor] = {}
        self.numbers: set[int] = set()
        self.found: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if name == _FROM_PYTHON and not args[0].shape:
            self.numbers.add(_key(args[0]))
        elif name in SYNC_OPS or name == _FROM_PYTHON or self._masked(name, args):
            self.spoilt = True
            _refuse(name)
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._find(tensor)
        out = func(*args, **kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and _key(tensor) not in self.found:
                self.own.setdefault(_key(tensor), _memory(tensor))
        if self.keep:
            frozen = tree_map_only(Tensor, self._freeze, (args, kwargs, out))
            self.tape.append(Step(func, *frozen))
        return out

    def _masked(self, name: str, args: Any) -> bool:
        """Indexing by a mask, except where a Python number is written: that is a masked_fill."""
        if not name.startswith("aten::index"):
            return False
        masks = [t for t in tree_leaves(args[1:]) if isinstance(t, Tensor) and t.dtype == torch.bool]
        return bool(masks) and not (len(args) > 2 and _key(args[2]) in self.numbers)

    def _find(self, tensor: Tensor) -> None:
        if _key(tensor) not in self.own and _key(tensor) not in self.found:
            whole = _memory(tensor, whole=True)
            with torch.inference_mode(False):
                self.found[_key(tensor)] = whole, whole.clone()

    def _freeze(self, tensor: Tensor) -> Tensor | Borrowed:
        kept = _key(tensor) in self.own or _key(tensor) in self.numbers
        return _memory(tensor) if kept else Borrowed.of(tensor)

    def undo(self) -> None:
        """A captured kernel has not run: memory is as it was, and the run's own holds nothing."""
        for whole, content in self.found.values():
            whole.copy_(content)
        self.found.clear()
        poison(self.own)


def _memory(tensor: Tensor, whole: bool = False) -> Tensor:
    """The same memory, known neither to autograd nor to inference mode; all of its storage if asked for."""
    with torch.inference_mode(False):
        view = torch.empty(0, dtype=tensor.dtype)
        storage = tensor.untyped_storage()
        if whole:
            return view.set_(storage)
        return view.set_(storage, int(tensor.storage_offset()), tensor.size(), tensor.stride())


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _refuse(name: str) -> None:
    raise CaptureError(f"operation not permitted when stream is capturing ({name})", *locate(_outside()))


def _outside() -> Any:
    return (pair for pair in current_frames() if pair[0].f_code.co_filename != __file__)


def poison(tensors: dict[int, Tensor], but: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    """Make a read of this memory visible."""
    for key, tensor in tensors.items():
        if key not in but:
            whole = _memory(tensor, whole=True)
            whole.fill_(float("nan")) if whole.is_floating_point() else whole.zero_()


class CpuGraph:
    """Ops and the memory they live in."""

    active: "CpuGraph | None" = None

    def __init__(self, seed: Tensor) -> None:
        self.seed = seed
        self.tape: list[Step] = []
        self.own: dict[int, Tensor] = {}
        self.outputs: object = None
        self._recorder = Recorder(keep=True)
        self._waits = Waits()

    def begin(self) -> None:
        CpuGraph.active = self
        self._recorder.__enter__()  # type: ignore[no-untyped-call]
        self._waits.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        self._waits.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._recorder.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        CpuGraph.active = None
        self._recorder.undo()
        self.tape, self.own = self._recorder.tape, self._recorder.own

    def capture(self, run: Callable[[], object]) -> None:
        self.begin()
        try:
            self.outputs = run()
        finally:
            self.end()

    def replay(self) -> None:
        self.seed.fill_(torch.initial_seed() % 2)
        poison(self.own)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for step in self.tape:
                args, kwargs, outputs = tree_map_only(Borrowed, Borrowed.tensor, (step.args, step.kwargs, step.outputs))
                fresh = step.func(*args, **kwargs)
                for old, new in zip(tree_leaves(outputs), tree_leaves(fresh), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        assert old.shape == new.shape, "a graph's shapes are fixed"
                        old.copy_(new)

    def release(self) -> None:
        self.tape, self.own, self.outputs = [], {}, None


class CpuGraphBackend:
    """See :class:`fusionadvisor.strategies.graphs.backend.GraphBackend`."""

    def __init__(self) -> None:
        self.pools = 0
        self.graphs: list[CpuGraph] = []
        self.seed: Tensor | None = None

    def __reduce__(self) -> tuple[type["CpuGraphBackend"], tuple[()]]:
        return CpuGraphBackend, ()  # what was captured stays behind

    def accepts(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def capturing(self) -> bool:
        return CpuGraph.active is not None

    def new_pool(self, device: torch.device) -> object:
        self.pools += 1
        return self.pools

    def follow(self, device: torch.device, last: object) -> object:
        return None

    def capture(
        self,
        run: Callable[[], object],
        device: torch.device,
        pool: object,
        generators: Sequence[torch.Generator] = (),
    ) -> Graph:
        return self._capture(run)

    def _capture(self, run: Callable[[], object]) -> CpuGraph:
        for _ in range(WARM_UPS):
            run()
        with Recorder(keep=False), Waits():
            run()
        return self._record(run)

    def _record(self, run: Callable[[], object]) -> CpuGraph:
        if self.seed is None:  # CUDA keeps the random seed in a tensor made at the first capture, filled at replays
            self.seed = torch.empty(1)
        graph = CpuGraph(self.seed)
        graph.capture(run)
        self.graphs.append(graph)
        return graph

    def capture_training(
        self, run: TensorFunction, samples: tuple[Tensor, ...], device: torch.device
    ) -> TensorFunction:
        if torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled():
            raise RuntimeError("autocast caching is not supported")
        wanted = [s for s in samples if s.requires_grad]
        forward = self._capture(lambda: run(*samples))
        outputs: tuple[Tensor, ...] = forward.outputs  # type: ignore[assignment]
        seeds = [torch.empty_like(o) if o.requires_grad else None for o in outputs]
        backward = self._record(
            lambda: torch.autograd.grad(
                [o for o in outputs if o.requires_grad],
                wanted,
                [s for s in seeds if s is not None],
                allow_unused=True,
            )
        )
        found = iter(tree_leaves(backward.outputs))
        gradients = [next(found) if s.requires_grad else None for s in samples]
        kept = {_key(o) for o in outputs}

        class Graphed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
                for mine, given in zip(samples, inputs, strict=True):
                    if mine.data_ptr() != given.data_ptr():
                        mine.copy_(given)
                forward.replay()
                return tuple(o.detach() for o in outputs)

            @staticmethod
            @once_differentiable
            def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
                for mine, given in zip(seeds, grads, strict=True):
                    if mine is not None:
                        mine.copy_(given)
                backward.replay()
                poison(forward.own, but=kept)  # backward frees activations as it goes and may reuse their memory
                return tuple(None if g is None else g.detach() for g in gradients)

        return lambda *args: Graphed.apply(*args)  # type: ignore[no-untyped-call]
