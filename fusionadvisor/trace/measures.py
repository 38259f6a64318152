"""Quantities read off a timeline: busy time, what is linked to the model and what is not."""

import numpy as np
import numpy.typing as npt

from fusionadvisor.trace.numbers import Ints
from fusionadvisor.trace.timeline import Timeline


def busy_us(timeline: Timeline, device: int | None = None) -> float:
    """Return the time in µs in which the device ran a kernel, memcpy or memset: a union, so overlap counts once.

    Args:
        timeline: The trace.
        device: Its index; None sums over all devices.
    """
    indices = [info.index for info in timeline.devices] if device is None else [device]
    return sum(union_ns(*_intervals(timeline, index)) for index in indices) / 1e3


def span_us(timeline: Timeline, device: int) -> float:
    """Return the time in µs from the device's first kernel, memcpy or memset to the end of its last."""
    start, end = _intervals(timeline, device)
    return float(end.max() - start.min()) / 1e3 if len(start) else 0.0


def step_us(timeline: Timeline) -> float:
    """Return the time of a step in µs: the median over the steps of :func:`step_times_ns`, never less than its work.

    This is the one definition of a step: shares, idle time, ranks and comparisons are of it.
    """
    times = step_times_ns(timeline)
    work = [step_busy_us(timeline, info.index) for info in timeline.devices]
    return max(float(np.median(times)) / 1e3 if len(times) else 0.0, *work, 0.0)


def step_times_ns(timeline: Timeline) -> Ints:
    """Return each step's time: its range on the CPU, or the span of what it launched on the device if that is longer.

    Work that was put on the device in advance may begin before the step before is done: a span ends where the next
    step's kernels begin.
    """
    steps = timeline.steps
    on_cpu = np.array([step.end_ns - step.start_ns for step in steps], dtype=np.int64)
    if timeline.stand_ins or not len(steps):
        return on_cpu
    first, last = step_bounds_ns(timeline)
    following = np.append(first[1:], np.iinfo(np.int64).max)
    end = np.where(following > first, np.minimum(last, following), last)
    return np.maximum(on_cpu, np.where(last > first, end - first, 0))


def step_bounds_ns(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return when each step's first kernel began and its last kernel or copy ended; equal for a step without any."""
    count, far = len(timeline.steps), np.iinfo(np.int64).max
    first, last = np.full(count, far), np.full(count, -far)
    for table in (timeline.kernels, timeline.memory):
        step, start = table["step"].to_numpy(), table["start_ns"].to_numpy()
        inside = step >= 0
        if table is timeline.kernels or not len(timeline.kernels):
            np.minimum.at(first, step[inside], start[inside])
        np.maximum.at(last, step[inside], (start + table["dur_ns"].to_numpy())[inside])
    bare = (first == far) | (last == -far)
    first[bare] = last[bare] = 0
    return first, np.maximum(first, last)


def step_busy_us(timeline: Timeline, device: int | None = None) -> float:
    """Return how long a device runs a kernel, memcpy or memset a step, in µs; None sums over devices.

    What ran outside all steps, launched before the first or not at all in the trace, is no part of a step.
    """
    indices = [info.index for info in timeline.devices] if device is None else [device]
    busy = sum(union_ns(*_intervals(timeline, index, inside=True)) for index in indices)
    return busy / 1e3 / max(1, len(timeline.steps))


def busy_share(timeline: Timeline) -> float:
    """Return the share of a step, in [0, 1], in which the devices that ran something did so; their mean."""
    used = [b for info in timeline.devices if (b := step_busy_us(timeline, info.index))]
    whole = step_us(timeline) * len(used)
    return min(1.0, sum(used) / whole) if whole else 0.0


def kernel_us(timeline: Timeline) -> float:
    """Return the sum of all kernels' durations in µs; where kernels overlap it exceeds :func:`busy_us`."""
    return float(timeline.kernels["dur_ns"].sum()) / 1e3


def linked_share(timeline: Timeline) -> float:
    """Return the share of kernel time, in [0, 1], whose launching op is known; 1 for a timeline without kernels."""
    return _share(timeline, timeline.kernels["op_id"].to_numpy() >= 0)


def orphan_kernels(timeline: Timeline) -> int:
    """Return how many kernels have no launch in the trace: launched before it began, or their launch was lost."""
    return 0 if timeline.stand_ins else int((timeline.kernels["launch_id"] < 0).sum())


def graphed_share(timeline: Timeline) -> float:
    """Return the share of kernel time, in [0, 1], that was replayed by graph launches."""
    return _share(timeline, timeline.kernels["graph_id"].to_numpy() >= 0, empty=0.0)


def kind_share(timeline: Timeline, kind: str) -> float:
    """Return the share of kernel time, in [0, 1], in kernels of a kind (``"fused"``, ``"custom"``, …)."""
    return _share(timeline, (timeline.kernels["kind"] == kind).to_numpy(), empty=0.0)


def _share(timeline: Timeline, rows: npt.NDArray[np.bool_], empty: float = 1.0) -> float:
    durations = timeline.kernels["dur_ns"].to_numpy()
    total = int(durations.sum())
    return float(durations[rows].sum()) / total if total else empty


def _intervals(timeline: Timeline, device: int, *, inside: bool = False) -> tuple[Ints, Ints]:
    starts, ends = [], []
    for table in (timeline.kernels, timeline.memory):
        mine = (table["device"] == device).to_numpy()
        if inside:
            mine = mine & (table["step"].to_numpy() >= 0)
        start = table["start_ns"].to_numpy()[mine]
        starts.append(start)
        ends.append(start + table["dur_ns"].to_numpy()[mine])
    return np.concatenate(starts), np.concatenate(ends)


def union_ns(start: Ints, end: Ints) -> int:
    """Return the length of the union of intervals."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(end[order])
    covered = np.concatenate((start[:1], latest[:-1]))
    return int(np.maximum(latest - np.maximum(start, covered), 0).sum())
