"""Why the device did nothing: what it waited for, gap by gap."""

from typing import TYPE_CHECKING

from fusionadvisor.analysis.quantities import in_steps
from fusionadvisor.report.model import Idle
from fusionadvisor.trace.measures import step_bounds_ns, step_times_ns, step_us

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
    """Return how long the devices computed nothing a step, by cause.

    Times are µs a step; the mean of the devices. A copy to the device and a collective are no computation: what runs
    beside nothing else is waited for. None where nothing was recorded on a device.

    A gap is *sync* where the CPU waited for the device between the launches of the kernels on its two sides, else
    *launch* where the next kernel was launched only when the work before had ended; *data* and *communication* are the
    part in which a batch was fetched or copied in, or a collective ran; what was launched in time and still did not run
    is *other* (gaps between queued kernels, waits between streams, launches that were not recorded). What of a step
    passes before its first kernel starts, or after its last one has ended, is *launch* too.
    """
    import numpy as np

    if timeline.stand_ins or timeline.basis == "predicted":
        return None
    devices = in_steps(timeline.kernels)["device"].unique()
    if not len(devices):
        return None
    usual = _usual(timeline)
    found = np.zeros(5)
    for device in devices:
        gaps = _Gaps(timeline, int(device), usual)
        found += gaps.causes()
        found[0] += max(0.0, float(step_times_ns(timeline)[usual].sum()) - gaps.window_ns)
    return Idle(*(found / 1e3 / len(devices) / max(1, len(usual))).tolist())


def _usual(timeline: "Timeline") -> "Ints":
    """Return the steps that take no longer than the median: one that is interrupted says nothing of the others."""
    import numpy as np

    usual: Ints = np.flatnonzero(step_times_ns(timeline) <= step_us(timeline) * 1e3 + 1)
    return usual


def costs(timeline: "Timeline") -> "npt.NDArray[np.int64]":
    """Return for each row of ``Timeline.syncs`` how long the devices stood idle after the CPU had waited in it, in ns.

    A gap belongs to the longest wait between the launches of the kernels on its two sides.
    """
    import numpy as np

    found, usual = np.zeros(len(timeline.syncs), np.int64), _usual(timeline)
    if not timeline.stand_ins and timeline.basis != "predicted" and len(found):
        for device in in_steps(timeline.kernels)["device"].unique():
            gaps = _Gaps(timeline, int(device), usual)
            waited = gaps.wait >= 0
            np.add.at(found, gaps.wait[waited], gaps.rest[waited])
    return found * len(timeline.steps) // max(1, len(usual))


class _Gaps:
    """The gaps of one device within its steps: when nothing computed, and what each gap waited for."""

    def __init__(self, timeline: "Timeline", device: int, steps: "Ints") -> None:
        import numpy as np

        kernels = timeline.kernels[timeline.kernels["device"] == device]
        memory = timeline.memory[timeline.memory["device"] == device]
        collective = (kernels["kind"] == "collective").to_numpy()
        incoming = memory["name"].astype(str).str.contains(_TO_DEVICE).to_numpy(bool)
        window = _merged([_windows(timeline, steps)])
        self.window_ns = int((window[1] - window[0]).sum())
        begin, end, before, after = _between(kernels[~collective], memory[~incoming], window)
        communicating = [_intervals(kernels[collective])]
        loading = timeline.ops[timeline.ops["name"].astype(str).str.contains(_LOADING)]
        self.communication = _overlap(begin, end, communicating)
        self.data = (
            _overlap(begin, end, [*communicating, _intervals(memory[incoming]), _intervals(loading)])
            - self.communication
        )
        self.rest = end - begin - self.communication - self.data
        self.late = after >= begin
        self.wait = np.where(self.late, _wait_between(before, after, _intervals(timeline.syncs)), -1)

    def causes(self) -> "npt.NDArray[np.float64]":
        """Return ns by cause, in the order of ``Idle``."""
        import numpy as np

        late, waited = self.late & (self.wait < 0), self.wait >= 0
        parts = (self.rest[late], self.rest[waited], self.data, self.communication, self.rest[~self.late])
        return np.array([float(part.sum()) for part in parts])


def _windows(timeline: "Timeline", steps: "Ints") -> "Intervals":
    """From each step's first kernel to the end of its last, but not into the next step's."""
    import numpy as np

    first, last = step_bounds_ns(timeline)
    following = np.append(first[1:], np.iinfo(np.int64).max)
    last = np.where(following > first, np.minimum(last, following), last)
    some = steps[last[steps] > first[steps]]
    return first[some], last[some]


def _between(kernels: "pd.DataFrame", memory: "pd.DataFrame", window: "Intervals") -> "tuple[Ints, Ints, Ints, Ints]":
    """Return when nothing of these tables ran within the windows, and the launches before and after each gap."""
    import numpy as np

    start, dur, launch = (
        np.concatenate([t[column].to_numpy() for t in (kernels, memory)])
        for column in ("start_ns", "dur_ns", "launch_ns")
    )
    order = np.argsort(start, kind="stable")
    start, end, launch = start[order], (start + dur)[order], launch[order]
    latest = np.maximum.accumulate(end) if len(end) else end
    begin, stop = latest[:-1], start[1:]
    before, after = np.maximum.accumulate(launch)[:-1] if len(launch) else launch, launch[1:]
    at = np.searchsorted(window[0], begin, side="right") - 1
    inside = (stop > begin) & (at >= 0) & (stop <= window[1][at]) if len(window[0]) else np.zeros(len(begin), bool)
    return begin[inside], stop[inside], before[inside], after[inside]


def _wait_between(before: "Ints", after: "Ints", waits: "Intervals") -> "Ints":
    """Return for each pair of launches the longest wait that lies between them, -1 for none."""
    import numpy as np

    start, end = waits
    found = np.full(len(before), -1, np.int64)
    order = np.argsort(start, kind="stable")
    low = np.searchsorted(start[order], before, side="left")
    high = np.searchsorted(start[order], after, side="right")
    for row in np.flatnonzero(high > low).tolist():
        among = order[low[row] : high[row]]
        among = among[end[among] <= after[row]]
        if len(among):
            found[row] = among[np.argmax((end - start)[among])]
    return found


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
