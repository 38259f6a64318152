"""Why the device did nothing: what it waited for, gap by gap."""

from typing import TYPE_CHECKING

from fusionadvisor.analysis.quantities import in_steps
from fusionadvisor.report.model import Idle

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from fusionadvisor.trace.timeline import Timeline

    Ints = npt.NDArray[np.int64]
    Intervals = tuple[Ints, Ints]

_TO_DEVICE = "HtoD|HostToDevice"
_LOADING = "DataLoader"
"""In the name of the op around fetching a batch, ``enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__``."""


def split(timeline: "Timeline") -> Idle | None:
    """Return how long the devices computed nothing from the first step's first kernel to the last one's end, by cause.

    Times are µs a step; the mean of the devices. A copy to the device and a collective are no computation: what runs
    beside nothing else is waited for. None where nothing was recorded on a device.

    A gap is *launch* where the next kernel was launched only when the work before had ended, *sync* where the CPU was
    at that moment waiting for the device, *data* and *communication* for the part in which a batch was fetched or
    copied in, or a collective ran; what was launched in time and still did not run is *other* (gaps between queued
    kernels, waits between streams, launches that were not recorded).
    """
    import numpy as np

    if timeline.stand_ins or timeline.basis == "predicted":
        return None
    stepped = in_steps(timeline.kernels)
    devices = stepped["device"].unique()
    if not len(devices):
        return None
    found = np.sum([_causes(timeline, stepped[stepped["device"] == device], int(device)) for device in devices], axis=0)
    return Idle(*(found / 1e3 / len(devices) / max(1, len(timeline.steps))).tolist())


def _causes(timeline: "Timeline", stepped: "pd.DataFrame", device: int) -> "npt.NDArray[np.int64]":
    """Return ns by cause, in the order of ``Idle``."""
    import numpy as np

    low, high = int(stepped["start_ns"].min()), int((stepped["start_ns"] + stepped["dur_ns"]).max())
    kernels = timeline.kernels[timeline.kernels["device"] == device]
    memory = timeline.memory[timeline.memory["device"] == device]
    collective = (kernels["kind"] == "collective").to_numpy()
    incoming = memory["name"].astype(str).str.contains(_TO_DEVICE).to_numpy(bool)
    begin, end, launch = _gaps(kernels[~collective], memory[~incoming], low, high)

    communicating = [_intervals(kernels[collective])]
    loading = timeline.ops[timeline.ops["name"].astype(str).str.contains(_LOADING)]
    fetching = [*communicating, _intervals(memory[incoming]), _intervals(loading)]
    communication = _overlap(begin, end, communicating)
    data = _overlap(begin, end, fetching) - communication
    rest = end - begin - communication - data
    late = launch >= begin
    waited = late & _within(begin, _intervals(timeline.syncs))
    return np.array(
        [rest[late & ~waited].sum(), rest[waited].sum(), data.sum(), communication.sum(), rest[~late].sum()]
    )


def _gaps(kernels: "pd.DataFrame", memory: "pd.DataFrame", low: int, high: int) -> "tuple[Ints, Ints, Ints]":
    """Return when nothing of these tables ran between two moments, and when what ended each gap was launched."""
    import numpy as np

    start, dur, launch = (
        np.concatenate([t[column].to_numpy() for t in (kernels, memory)])
        for column in ("start_ns", "dur_ns", "launch_ns")
    )
    order = np.argsort(start, kind="stable")
    order = order[(start[order] < high) & (start[order] + dur[order] > low)]
    begin = np.maximum.accumulate(np.concatenate(([low], start[order] + dur[order])))
    end = np.concatenate((start[order], [high]))
    launch = np.concatenate((launch[order], [-1]))
    idle = end > begin
    return begin[idle], end[idle], launch[idle]


def _intervals(table: "pd.DataFrame") -> "Intervals":
    start = table["start_ns"].to_numpy()
    return start, start + table["dur_ns"].to_numpy()


def _merged(parts: "list[Intervals]") -> "Intervals":
    """Return the union of intervals as intervals that are apart and in order."""
    import numpy as np

    start, end = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(end[order])
    first = np.ones(len(start), bool)
    first[1:] = start[1:] > latest[:-1]
    last = np.append(first[1:], True) if len(first) else first
    return start[first], latest[last]


def _overlap(begin: "Ints", end: "Ints", parts: "list[Intervals]") -> "Ints":
    """Return how much of each gap the union of intervals covers."""
    import numpy as np

    starts, ends = _merged(parts)
    before = np.concatenate(([0], np.cumsum(ends - starts)))

    def covered(moments: "Ints") -> "Ints":
        at = np.searchsorted(starts, moments, side="right")
        over = np.where(at > 0, ends[at - 1] - moments, 0) if len(ends) else np.zeros_like(moments)
        left: Ints = before[at] - np.maximum(over, 0)
        return left

    return covered(end) - covered(begin)


def _within(moments: "Ints", intervals: "Intervals") -> "npt.NDArray[np.bool_]":
    """True for each moment that lies in one of the intervals."""
    import numpy as np

    starts, ends = _merged([intervals])
    at = np.searchsorted(starts, moments, side="right")
    if not len(starts):
        return np.zeros(len(moments), bool)
    inside: npt.NDArray[np.bool_] = (at > 0) & (ends[at - 1] >= moments)
    return inside
