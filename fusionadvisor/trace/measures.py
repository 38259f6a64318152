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


def _intervals(timeline: Timeline, device: int) -> tuple[Ints, Ints]:
    starts, ends = [], []
    for table in (timeline.kernels, timeline.memory):
        mine = (table["device"] == device).to_numpy()
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
