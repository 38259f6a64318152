"""What one call runs, by op name: kernels on a CUDA device, the ops that stand in for them on the CPU."""

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from fusionadvisor import trace
from fusionadvisor.capture import generated
from fusionadvisor.report.model import KernelCount


def count(run: Callable[[], object], device: str) -> Counter[str]:
    """Profile one call after a first one, and count its kernels by the op that launched them.

    Kernels without an op, as in a replayed graph, are counted by their own name.
    """
    cuda = device.startswith("cuda")
    run()
    if cuda:
        torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with generated.named(), torch.profiler.profile(activities=activities) as profile:
        run()
        if cuda:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        kernels = trace.load(path, stand_ins=True).kernels
    return Counter(str(op) or str(name) for op, name in zip(kernels["op"], kernels["name"], strict=True))


def difference(before: Counter[str], after: Counter[str]) -> KernelCount:
    """Say which went and which came."""
    gone, added = before - after, after - before
    return KernelCount(before.total(), after.total(), tuple(sorted(gone.items())), tuple(sorted(added.items())))
