"""Does the GPU wait for the CPU? The queue replayed, and what a graph launch would save."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusionadvisor.analysis.quantities import busy_us, by_step, in_steps, span_us

if TYPE_CHECKING:
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
class Launch:
    """Launch behaviour of the kernels that were launched one by one.

    Args:
        kernels: How many there are.
        busy_us: Union of their intervals, and of the copies and memsets beside them.
        span_us: From the first start to the last end, steps apart.
        break_even_us: The GPU waits if the CPU needs more than this a kernel. None without kernels.
        saving_us: What launching them as a graph saves, over all steps; None where the recording cannot tell.
        reason: Why there is no saving, empty where there is.
    """

    kernels: int
    busy_us: float
    span_us: float
    break_even_us: float | None
    saving_us: float | None
    reason: str = ""

    @property
    def idle_share(self) -> float:
        """Share of the span in which the device did nothing."""
        return max(0.0, 1 - self.busy_us / self.span_us) if self.span_us > 0 else 0.0


def study(timeline: "Timeline", latency_us: float | None = None) -> Launch:
    """Return the launch behaviour of a timeline; ``latency_us`` is the unprofiled time of a step of a live run."""
    kernels = in_steps(timeline.kernels)
    queued = kernels[kernels["graph_id"].to_numpy() < 0]
    busy = busy_us(queued, in_steps(timeline.memory))
    span = sum(span_us(part) for part in by_step(queued))
    break_even = busy / len(queued) if len(queued) else None
    saving, reason = _saving(timeline, queued, busy, latency_us)
    return Launch(len(queued), busy, span, break_even, saving, reason)


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
    if not timeline.recording.light:
        heavy = [w for w in ("stacks", "shapes", "memory", "modules") if getattr(timeline.recording, w)]
        return None, f"recorded with {_listed(heavy)}, which slows the CPU several times"
    if (queued["launch_ns"] < 0).any():
        return None, f"{int((queued['launch_ns'] < 0).sum())} kernels have no launch in the recording"
    if queued.groupby("device", observed=True)["stream"].nunique().max() > 1:
        return None, "kernels ran on several streams, and what waited for what is not recorded"
    saved = 0.0
    for part in by_step(queued):
        launch, dur = part["launch_ns"].to_numpy() / 1e3, part["dur_ns"].to_numpy() / 1e3
        saved += max(0.0, replay_span(launch, dur) - graph_span(dur))
    return saved, ""


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
