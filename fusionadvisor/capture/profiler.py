"""The profiler, started lightly: ``torch.profiler`` would first import the compiler, which takes seconds."""

import os
from pathlib import Path

import torch
from torch.autograd.profiler import profile

_QUIET = {
    "KINETO_LOG_LEVEL": "99",  # it writes its start and stop to stderr at every level that it names itself
    "DISABLE_CUPTI_LAZY_REINIT": "1",  # as torch.profiler sets these two: CUPTI taken down and set up again between
    "TEARDOWN_CUPTI": "0",  # replays of a CUDA graph crashes the process with some drivers
}


class Profiler:
    """One recording of CPU ops with their shapes, and of GPU kernels where ``on_cuda``."""

    def __init__(self, *, on_cuda: bool) -> None:
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        self._on_cuda = on_cuda
        self._profile = profile(use_device="cuda" if on_cuda else None, record_shapes=True, use_kineto=True)

    def start(self) -> None:
        """Record from here on."""
        self._profile.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Record no more; waits for the GPU, so that nothing launched is lost."""
        if self._on_cuda:
            torch.cuda.synchronize()
        self._profile.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def export(self, path: Path) -> None:
        """Write what was recorded as a trace."""
        self._profile.export_chrome_trace(str(path))  # type: ignore[no-untyped-call]
