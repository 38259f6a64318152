"""torch's own graph code on a CPU: what ``torch/cuda/graphs.py`` asks of the C++ side is answered by the double.

``torch.cuda.graph`` and ``make_graphed_callables`` run as they are, and so does the CUDA backend; only streams, devices
and the captured graph itself are stand-ins. Every call is logged.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fusionadvisor.flow.frames import is_user_file
from fusionadvisor.strategies.graphs import cuda, where
from tests.doubles.cpu_graph import CpuGraph, Recorder, Waits

_DOUBLES = str(Path(__file__).parent)


class FakeStream:
    log: ClassVar[list[str]] = []
    made: ClassVar[int] = 0

    def __init__(self, device: Any = None) -> None:
        self.name = f"side{FakeStream.made}" if FakeStream.made else "outer"
        FakeStream.made += 1

    def wait_stream(self, other: "FakeStream") -> None:
        FakeStream.log.append(f"{self.name} waits for {other.name}")


class _Warns(Recorder):  # type: ignore[no-untyped-call]
    """Sync debug mode: a wait is a warning where it happens."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except RuntimeError as error:
            if "not permitted" not in str(error):
                raise
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
            return func(*args, **(kwargs or {}))


class _WaitsWarn(Waits):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_function__(func, types, args, kwargs)
        except RuntimeError as error:
            if "not permitted" not in str(error):
                raise
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
            return func(*args, **(kwargs or {}))


class FakeCuda:
    """Installed by a fixture; ``log`` holds what was called, the rest is the state that has to be restored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        FakeStream.log, FakeStream.made = self.log, 0
        self.outer = FakeStream()
        self.current = self.outer
        self.debug_mode: int | str = 0
        self.recording = False
        """Whether the allocator believes that a capture is under way."""
        self.stuck = False
        """Whether the random generators do."""
        self.seed = torch.empty(1)
        self._debug: list[Any] = []
        for name, value in {
            "device": self._on, "stream": self._on, "Stream": FakeStream, "synchronize": self._noted("synchronize"),
            "current_stream": lambda device=None: self.current, "CUDAGraph": self._graph,
            "graph_pool_handle": lambda: (0, 7),
            "is_current_stream_capturing": lambda: CpuGraph.active is not None,
            "get_sync_debug_mode": lambda: self.debug_mode, "set_sync_debug_mode": self._set_debug_mode,
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        for name, call in {
            "_cuda_clearCublasWorkspaces": self._noted("clear workspaces"),
            "_cuda_getCurrentRawStream": lambda device: id(self.current),
            "_host_emptyCache": lambda: None,
            "_cuda_endAllocateToPool": self._end_allocation,
            "_cuda_releasePool": self._noted("release"),
        }.items():
            monkeypatch.setattr(torch._C, name, call, raising=False)
        monkeypatch.setattr(where, "is_user_file", lambda file: _DOUBLES not in file and is_user_file(file))
        monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", "theirs")
        monkeypatch.setattr(cuda.CudaGraphBackend, "accepts", lambda self, device: device.type == "cpu")
        monkeypatch.setattr(cuda, "_generator_stuck", lambda device: self.stuck)
        cuda._capture_stream.cache_clear()

    def _noted(self, word: str) -> Any:
        return lambda *arguments: self.log.append(" ".join((word, *map(str, arguments))))

    def _on(self, what: Any) -> Any:
        return _On(self, what)

    def _graph(self) -> "_FakeGraph":
        return _FakeGraph(self)

    def _set_debug_mode(self, mode: int | str) -> None:
        self.log.append(f"sync debug {mode}")
        self.debug_mode = mode
        if mode == "warn":
            self._debug = [_Warns(keep=False), _WaitsWarn()]
            for each in self._debug:
                each.__enter__()
        else:
            for each in reversed(self._debug):
                each.__exit__(None, None, None)
            self._debug = []

    def _end_allocation(self, device: int, pool: Any) -> None:
        if not self.recording:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording = False
        self.log.append(f"end allocation to {pool}")


class _On:
    """``torch.cuda.device`` and ``torch.cuda.stream``."""

    def __init__(self, cuda: FakeCuda, what: Any) -> None:
        self.cuda = cuda
        self.what = what

    def __enter__(self) -> None:
        self.before = self.cuda.current
        if isinstance(self.what, FakeStream):
            self.cuda.current = self.what

    def __exit__(self, *_: object) -> None:
        self.cuda.current = self.before


class _FakeGraph(CpuGraph):
    """``torch.cuda.CUDAGraph``: captures what runs between begin and end; ending a spoilt capture raises."""

    def __init__(self, owner: FakeCuda) -> None:
        super().__init__(owner.seed)
        self.owner = owner

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.owner.log.append("register generator")

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: object) -> None:
        self.owner.log.append(f"begin {capture_error_mode} {pool} on {self.owner.current.name}")
        self.owner.recording = True
        self.begin()

    def capture_end(self) -> None:
        self.end()
        if self._recorder.spoilt or self._waits.spoilt:
            self.owner.stuck = True
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.owner.recording = self.owner.stuck = False
        self.owner.log.append("end")

    def reset(self) -> None:
        self.owner.log.append("reset")
        self.release()


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Answer torch's graph code on the CPU for a while."""
    yield FakeCuda(monkeypatch)
    cuda._capture_stream.cache_clear()
