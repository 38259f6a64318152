"""The CUDA side: ``torch.cuda.CUDAGraph`` and ``make_graphed_callables``, with what they leave to the caller."""

import gc
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fusionadvisor.strategies.graphs.backend import WARM_UPS, CaptureError, Pool, TensorFunction
from fusionadvisor.strategies.graphs.where import current_frames, locate, traceback_frames

_DEVICE_FAULTS = ("illegal memory access", "device-side assert", "unspecified launch failure", "uncorrectable ECC")

_one_capture = threading.RLock()
"""CUDA allows one capture at a time in a process, and what is switched off meanwhile is the process's, too."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A stream and its address, which is cheaper to ask for."""

    address: int
    stream: torch.cuda.Stream


class CudaGraphBackend:
    """Captures on a side stream of the model's device."""

    def accepts(self, device: torch.device) -> bool:
        """CUDA devices only."""
        return device.type == "cuda"

    def capturing(self) -> bool:
        """A capture on the current stream, for instance of a graph around this one."""
        return torch.cuda.is_current_stream_capturing()

    def new_pool(self, device: torch.device) -> Pool:
        """An id; memory is taken when the first graph is captured into it."""
        return torch.cuda.graph_pool_handle()

    def follow(self, device: torch.device, last: object) -> object:
        """Callers on different streams share static buffers: the later one waits for the earlier one's work."""
        address = torch._C._cuda_getCurrentRawStream(device.index)
        if isinstance(last, _Seen) and last.address == address:
            return last
        current = torch.cuda.current_stream(device)
        if isinstance(last, _Seen):
            current.wait_stream(last.stream)
        return _Seen(address, current)

    def capture(
        self,
        run: Callable[[], object],
        device: torch.device,
        pool: Pool,
        generators: Sequence[torch.Generator] = (),
    ) -> "_CapturedGraph":
        """See :class:`GraphBackend`. A wait is found by the last warm-up, before it can spoil a capture."""
        with _one_capture, _side_stream(device) as stream, _undisturbed(device, pool, generators):
            graph = torch.cuda.CUDAGraph()
            for generator in generators:
                graph.register_generator_state(generator)
            for _ in range(WARM_UPS):
                run()
            with _no_waiting():
                run()
            _let_autograd_finish(device)
            # thread_local: a data loader or another model's thread may allocate meanwhile without ending this capture
            with (
                _own_workspaces(),
                torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
            ):
                outputs = run()
        return _CapturedGraph(graph, outputs, device)

    def capture_training(
        self, run: TensorFunction, samples: tuple[Tensor, ...], device: torch.device
    ) -> TensorFunction:
        """See :class:`GraphBackend`. A pool of its own: what backward needs must outlive other graphs' replays."""
        pool = torch.cuda.graph_pool_handle()
        with (
            _one_capture,
            _side_stream(device) as stream,
            _undisturbed(device, pool),
            _default_capture_stream(stream),
        ):
            for _ in range(WARM_UPS):
                _forward_backward(run, samples)
            with _no_waiting():
                _forward_backward(run, samples)
            _let_autograd_finish(device)
            with _own_workspaces():
                graphed: TensorFunction = torch.cuda.make_graphed_callables(  # type: ignore[assignment]
                    run, samples, num_warmup_iters=0, allow_unused_input=True, pool=pool
                )
            return graphed


class _CapturedGraph:
    """A graph and the tensors it writes."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: object, device: torch.device) -> None:
        self._graph = graph
        self._device = device
        self.outputs = outputs

    def replay(self) -> None:
        self._graph.replay()

    def release(self) -> None:
        torch.cuda.synchronize(self._device)  # its memory goes to others now, on any stream
        self.outputs = None
        self._graph.reset()


def _forward_backward(run: TensorFunction, samples: tuple[Tensor, ...]) -> None:
    """One eager step that leaves every ``.grad`` alone."""
    outputs = [o for o in run(*samples) if o.requires_grad]
    wanted = [s for s in samples if s.requires_grad]
    if outputs:
        torch.autograd.grad(outputs, wanted, [torch.ones_like(o) for o in outputs], allow_unused=True)


def _let_autograd_finish(device: torch.device) -> None:
    """Wait until autograd's thread holds nothing of earlier backwards, which it lets go of only after they returned.

    Dropping a tensor that another stream used records an event. Once the capture has begun, that event is of the
    capture, and asking for it later is an error that breaks the process. The thread takes one task after the other, so
    it is done with the earlier ones when it has done this one, whose tensors are of one stream.
    """
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.zeros(1, device=device, requires_grad=True)
        torch.autograd.grad(leaf.sum(), leaf)


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures on a device: the allocator gives freed memory of a pool only to the stream that had it."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _side_stream(device: torch.device) -> Iterator[torch.cuda.Stream]:
    """A stream beside the current one: waits for it on entry, is waited for on exit, and is left even after a failure.

    ``torch.cuda.graph`` does not restore the current stream when ending an invalid capture raises; this does.
    """
    with torch.cuda.device(device):
        outer = torch.cuda.current_stream(device)
        stream = _capture_stream(device)
        stream.wait_stream(outer)
        with torch.cuda.stream(stream):
            yield stream
        outer.wait_stream(stream)


@contextmanager
def _undisturbed(device: torch.device, pool: Pool, generators: Sequence[torch.Generator] = ()) -> Iterator[None]:
    """No collection of dead CUDA objects mid-capture; a failed capture is cleaned up and told as CaptureError."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:
        if any(fault in str(error) for fault in _DEVICE_FAULTS):
            raise
        _clean_up(device, pool, generators)
        cause = _cause(error)
        raise CaptureError(_first_line(cause), *locate(traceback_frames(cause))) from cause
    finally:
        if collecting:
            gc.enable()


def _clean_up(device: torch.device, pool: Pool, generators: Sequence[torch.Generator]) -> None:
    """Undo what an aborted capture leaves behind: ending an invalid one raises before torch gets to do it.

    The allocator would go on believing that a capture is under way, which breaks its out-of-memory path. So would the
    random generators in versions of torch that keep one state for all captures: neither eager calls nor graphs captured
    earlier could use them. Ending any capture in order sets them right.
    """
    _capture_stream.cache_clear()
    try:
        torch._C._cuda_endAllocateToPool(device.index, pool)
    except RuntimeError:
        pass  # this capture was ended in order, or had not begun
    else:
        torch._C._cuda_releasePool(device.index, pool)
    torch.cuda.synchronize(device)
    if _generator_stuck(device):
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=_capture_stream(device), capture_error_mode="thread_local"):
            torch.zeros(1, device=device)


def _generator_stuck(device: torch.device) -> bool:
    """Whether random numbers can no longer be had outside a capture."""
    try:
        torch.empty(1, device=device).uniform_()
    except RuntimeError:
        return True
    return False


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Raise CaptureError at the end if this thread made the CPU wait for the device.

    In torch's sync debug mode a wait is a warning raised where it happens. Its error mode would also hit the other
    threads of the process, which may wait as they please.
    """
    thread, waits = threading.get_ident(), []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def note(message: Warning | str, *rest: Any) -> None:
            if "synchronizing CUDA operation" in str(message):
                if threading.get_ident() == thread:
                    waits.append(locate(current_frames()))
            elif "debug mode is a prototype" not in str(message):
                show(message, *rest)

        warnings.showwarning = note  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    if waits:
        raise CaptureError("makes the CPU wait for the GPU during forward; a graph can't wait", *waits[0])


@contextmanager
def _default_capture_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Let ``make_graphed_callables`` capture on a stream of this device.

    Left alone it keeps the stream of its first use in the process, which may belong to another device.
    """
    before = torch.cuda.graph.default_capture_stream
    torch.cuda.graph.default_capture_stream = stream
    try:
        yield
    finally:
        torch.cuda.graph.default_capture_stream = before


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Let cuBLAS take its workspace from the graph's pool instead of one that it shares with everything else.

    Two graphs replayed at the same time would otherwise write the same workspace.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def _cause(error: BaseException) -> BaseException:
    """The error in the user's forward: ending the capture it spoilt raises another one, which hides it."""
    inner: BaseException | None = error
    while inner is not None and locate(traceback_frames(inner))[1] is None:
        inner = inner.__context__
    return inner or error.__context__ or error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
