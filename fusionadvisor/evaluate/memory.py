"""The most memory that one call holds beyond what was there before it."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity

_EVENT = "[memory]"
"""Name of the profiler's event for an allocation or a release."""


def peak_bytes(run: Callable[[], object], device: str) -> int:
    """Run once and return the largest sum of bytes allocated and not yet released meanwhile, on the device."""
    if device.startswith("cuda"):  # gpu-only: asks the CUDA allocator
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    results = profile.profiler.kineto_results if profile.profiler else None
    held = most = 0
    for event in sorted(results.events() if results else (), key=lambda event: event.start_ns()):
        if event.name() == _EVENT:
            held += event.nbytes()
            most = max(most, held)
    return most
