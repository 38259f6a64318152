"""What a trace says of itself, and what it lacks: devices, versions, rank, how it was recorded."""

import re
from typing import Any

import numpy as np

from fusionadvisor.errors import InputError
from fusionadvisor.trace import frames
from fusionadvisor.trace.link import matching
from fusionadvisor.trace.numbers import whole
from fusionadvisor.trace.reader import RawTrace, lower_first
from fusionadvisor.trace.timeline import DeviceInfo, Recording


def no_gpu(raw: RawTrace, *, untimed: bool) -> InputError:
    """Return why a trace without GPU events is refused.

    Args:
        raw: The trace.
        untimed: Whether it had GPU events, but none with a time.
    """
    if untimed:
        return InputError(f"{raw.name} holds GPU events, but none has a start and a duration.", "Record it again.")
    if raw.lost:
        reason = lower_first(raw.lost[0])
        return InputError(f"{raw.name} holds no GPU events in what can be read of it: {reason}", "Record it again.")
    launch = matching(raw.names, re.compile("LaunchKernel"))
    launches = int(launch[raw.runtime["name"]].sum()) if len(raw.runtime) else 0
    if launches:
        return InputError(
            f"{raw.name} holds {launches} kernel launches but no GPU events: the profiler lost the device's side.",
            "Record it with ProfilerActivity.CUDA and no other tool using CUPTI; `fusion-advisor doctor` checks that.",
        )
    return InputError(
        f"{raw.name} holds no GPU events: it was recorded without ProfilerActivity.CUDA, or without a GPU.",
        "Record it on the GPU with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
    )


def devices(raw: RawTrace) -> tuple[DeviceInfo, ...]:
    """Return the devices that ran something, with what the header says of each."""
    listed = raw.header.get("deviceProperties") or raw.header.get("computeProperties")
    known = {whole(d.get("id")): d for d in listed if isinstance(d, dict)} if isinstance(listed, list) else {}
    return tuple(_device(index, known.get(index, {})) for index in np.unique(raw.gpu["device"]).tolist())


def _device(index: int, stated: dict[str, Any]) -> DeviceInfo:
    name, sms, memory = stated.get("name"), whole(stated.get("numSms")), whole(stated.get("totalGlobalMem"))
    major, minor = whole(stated.get("computeMajor")), whole(stated.get("computeMinor"))
    return DeviceInfo(
        index,
        name if isinstance(name, str) and name else None,
        sms if sms > 0 else None,
        memory if memory > 0 else None,
        f"{major}.{minor}" if major > 0 and minor >= 0 else None,
    )


def recording(raw: RawTrace) -> Recording:
    """Return how the trace was taken, by what it holds and by what it says."""
    header = raw.header
    modules = any(name.startswith(frames.MODULE) for name in raw.python_names)
    return Recording(
        stacks=len(raw.python) > 0 or bool(header.get("with_stack")) or any(raw.texts["stack"]),
        shapes=any(raw.texts["shapes"]) or bool(header.get("record_shapes")),
        memory=raw.memory_recorded or bool(header.get("profile_memory")),
        modules=modules or bool(header.get("with_modules")),
    )


def rank(raw: RawTrace) -> int | None:
    """Return the rank the trace states, None where it states none."""
    info = raw.header.get("distributedInfo")
    stated = whole(info.get("rank")) if isinstance(info, dict) else -1
    return stated if stated >= 0 else None


def versions(raw: RawTrace) -> dict[str, str]:
    """Return the versions the trace states: ``cuda``, ``driver``, ``hip``, ``torch``."""
    header = raw.header
    found = {}
    for key, stated in (
        ("cuda", "cuda_runtime_version"),
        ("driver", "cuda_driver_version"),
        ("hip", "hip_runtime_version"),
    ):
        number = whole(header.get(stated))
        if number > 0:  # CUDA writes 12.4 as 12040
            found[key] = f"{number // 1000}.{number % 1000 // 10}" if key != "hip" else str(number)
    for stated in ("torch_version", "pytorch_version", "PyTorch version"):
        if isinstance(header.get(stated), str):
            found["torch"] = header[stated]
    return found
