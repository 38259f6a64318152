"""Does the GPU wait for the CPU? The queue replayed, and what a graph launch would save."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusionadvisor.analysis.quantities import busy_us, by_step, in_steps, span_us
from fusionadvisor.trace.measures import busy_share

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from fusionadvisor.trace.timeline import Timeline

GAP_US = 1.2
"""Between the end of a kernel and the start of the next queued one, on an H100."""
LAUNCH_TO_START_US = 6.4
"""From the launching call to the kernel's start on an idle stream, on an H100."""


def replay_ends(launch_us: "npt.NDArray[np.float64]", dur_us: "npt.NDArray[np.float64]") -> "npt.NDArray[np.float64]":
    """Return when each kernel of a queue ends: ``start = max(previous end + 1.2, launch + 6.4)`` µs.

    Kernels are in queue order. The recurrence is a running maximum once the work done so far is taken off.
    """
    import numpy as np

    done = np.cumsum(dur_us + GAP_US)
    before = done - (dur_us + GAP_US)
    return done + np.maximum.accumulate(launch_us + LAUNCH_TO_START_US - before) - GAP_US


def replay_span(launch_us: "npt.NDArray[np.float64]", dur_us: "npt.NDArray[np.float64]") -> float:
    """Return the replayed time from the first kernel's start to the last one's end."""
    if not len(dur_us):
        return 0.0
    ends = replay_ends(launch_us, dur_us)
    return float(ends[-1] - (launch_us[0] + LAUNCH_TO_START_US))


def graph_span(dur_us: "npt.NDArray[np.float64]") -> float:
    """Return the time of the same kernels with every launch already in the queue."""
    return float(dur_us.sum() + GAP_US * max(0, len(dur_us) - 1))


@dataclass(frozen=True, slots=True)
class Merge:
    """Kernels (rows of ``Timeline.kernels``) that become one, and the share of their time that this one takes."""

    kernels: tuple[int, ...]
    remaining: float


@dataclass(frozen=True, eq=False, slots=True)
class Queue:
    """The kernels of the steps in the order they were queued, to be replayed with some of them made one.

    Args:
        launch_us: When each was launched.
        dur_us: How long each ran.
        place: For each row of ``Timeline.kernels`` its place in the queue, -1 for none.
        starts: Places at which a new part begins: a step, a device, or the first launch after the CPU had waited for
            the device. What is saved before a wait moves all that follows, so the savings of the parts add up.
    """

    launch_us: "npt.NDArray[np.float64]"
    dur_us: "npt.NDArray[np.float64]"
    place: "npt.NDArray[np.int64]"
    starts: "npt.NDArray[np.int64]"

    def saved(self, merges: "Iterable[Merge]", *, earlier: bool) -> float:
        """Return how many µs sooner the queue is done when each merge is one kernel, launched where its first was.

        Args:
            merges: What becomes one; a merge without remaining time leaves no kernel at all.
            earlier: The CPU no longer spends time on the launches that fall away, and later ones come earlier. A launch
                is taken to cost the time since the one before it, at most the median of these.
        """
        import numpy as np

        dur, gone = self.dur_us.copy(), np.zeros(len(self.dur_us), bool)
        changed = [np.zeros(0, np.int64)]
        for merge in merges:
            at = np.sort(self.place[list(merge.kernels)])
            dur[at[0]] = merge.remaining * self.dur_us[at].sum()
            gone[at[1:] if merge.remaining > 0 else at] = True
            changed.append(at)
        launch = self.launch_us - np.cumsum(np.where(gone, self._cost(), 0.0)) if earlier else self.launch_us
        total = 0.0
        for part in np.unique(np.searchsorted(self.starts, np.concatenate(changed), side="right")):
            span = slice(self.starts[part - 1], self.starts[part] if part < len(self.starts) else None)
            before = replay_ends(self.launch_us[span], self.dur_us[span])[-1]
            kept = ~gone[span]
            first = self.launch_us[span][0]
            moved = launch[span][kept] + first - launch[span][0]  # what earlier parts save is theirs
            total += before - (replay_ends(moved, dur[span][kept])[-1] if kept.any() else first + LAUNCH_TO_START_US)
        return float(max(0.0, total))

    def _cost(self) -> "npt.NDArray[np.float64]":
        """What launching each cost the CPU; 0 for the first of a part."""
        import numpy as np

        gaps = np.maximum(np.diff(self.launch_us, prepend=self.launch_us[:1]), 0.0)
        gaps[self.starts] = 0.0
        within = np.delete(gaps, self.starts)
        return np.minimum(gaps, np.median(within)) if len(within) else gaps


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch behaviour of the kernels that were launched one by one.

    Args:
        kernels: How many there are.
        busy_us: How long the devices ran anything in the steps, replayed graphs, copies and memsets included.
        idle_share: Share of a step in which the devices did nothing, in [0, 1].
        graphed_share: Share of the steps' kernel time that was replayed from graphs.
        break_even_us: The GPU waits if the CPU needs more than this a kernel. None without kernels.
        saving_us: What launching them as a graph saves, over all steps; None where the recording cannot tell.
        reason: Why there is no saving, empty where there is.
    """

    kernels: int
    busy_us: float
    idle_share: float
    graphed_share: float
    break_even_us: float | None
    saving_us: float | None
    reason: str = ""


def study(timeline: "Timeline", latency_us: float | None = None) -> Launch:
    """Return the launch behaviour of a timeline; ``latency_us`` is the unprofiled time of a step of a live run."""
    kernels, memory = in_steps(timeline.kernels), in_steps(timeline.memory)
    queued = kernels[kernels["graph_id"].to_numpy() < 0]
    busy, alone = busy_us(kernels, memory), busy_us(queued, memory)
    idle = 1 - busy_share(timeline)
    if latency_us:
        idle = max(0.0, 1 - busy / max(1, len(timeline.steps)) / latency_us)
    total = float(kernels["dur_ns"].sum())
    graphed = 1 - float(queued["dur_ns"].sum()) / total if total else 0.0
    break_even = alone / len(queued) if len(queued) else None
    saving, reason = _saving(timeline, queued, busy, latency_us)
    return Launch(len(queued), busy, idle, graphed, break_even, saving, reason)


def _saving(
    timeline: "Timeline", queued: "pd.DataFrame", busy: float, latency_us: float | None
) -> tuple[float | None, str]:
    if not len(queued):
        return None, "no kernel was launched on its own"
    if timeline.stand_ins:
        return None, "no GPU here: CPU ops are not launched"
    if timeline.basis == "predicted":
        return None, "how fast a CPU launches is not predicted"
    steps = max(1, len(timeline.steps))
    if latency_us is not None:  # the profiler slows the CPU, an unprofiled latency does not know it
        return max(0.0, latency_us * steps - busy - GAP_US * len(queued)), ""
    if reason := _obstacle(timeline, queued):
        return None, reason
    saved = 0.0
    for part in by_step(queued):
        launch, dur = part["launch_ns"].to_numpy() / 1e3, part["dur_ns"].to_numpy() / 1e3
        idle = span_us(part) - busy_us(part)  # whatever the model says, no more can be saved
        saved += min(idle, max(0.0, replay_span(launch, dur) - graph_span(dur)))
    return saved, ""


def _obstacle(timeline: "Timeline", queued: "pd.DataFrame") -> str:
    """Say why these kernels cannot be replayed, empty where they can."""
    if not timeline.recording.light:
        heavy = [w for w in ("stacks", "shapes", "memory", "modules") if getattr(timeline.recording, w)]
        return f"recorded with {_listed(heavy)}, which slows the CPU several times"
    if (queued["launch_ns"] < 0).any():
        return f"{int((queued['launch_ns'] < 0).sum())} kernels have no launch in the recording"
    if queued.groupby("device", observed=True)["stream"].nunique().max() > 1:
        return "kernels ran on several streams, and what waited for what is not recorded"
    return ""


def queue(timeline: "Timeline") -> Queue | None:
    """Return the queue of the kernels that were launched one by one; None where it cannot be replayed."""
    import numpy as np

    kernels = timeline.kernels
    rows = np.flatnonzero((kernels["step"].to_numpy() >= 0) & (kernels["graph_id"].to_numpy() < 0))
    if not len(rows) or timeline.stand_ins or timeline.basis == "predicted" or _obstacle(timeline, kernels.iloc[rows]):
        return None
    device, step, start, launch, dur = (
        kernels[c].to_numpy()[rows] for c in ("device", "step", "start_ns", "launch_ns", "dur_ns")
    )
    waits = np.searchsorted(np.sort(timeline.syncs["start_ns"].to_numpy()), launch)
    order = np.lexsort((start, step, device))
    changes = [np.diff(column[order]) != 0 for column in (device, step, waits)]
    place = np.full(len(kernels), -1, np.int64)
    place[rows[order]] = np.arange(len(rows))
    starts = np.flatnonzero(np.concatenate(([True], np.logical_or.reduce(changes))))
    return Queue(launch[order] / 1e3, dur[order] / 1e3, place, starts)


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
