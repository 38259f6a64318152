"""What takes the time of a step that no op takes: Python between ops, a file that is read, a sleep."""

import sys
import threading
from collections import Counter
from collections.abc import Callable

from fusionadvisor.flow.frames import is_user_file
from fusionadvisor.report.model import OUTSIDE, Notice, Timing
from fusionadvisor.trace.timeline import Timeline
from fusionadvisor.units import percent, time_us

MOST = 0.5
"""Of a step: when ops take less than this, the rest is what to look at first."""
WORTH_US = 5000.0
"""Less than this beside the ops is the cost of calling them."""
EVERY_S = 0.005


def outside_ops(timeline: Timeline, latency: Timing | None, run: Callable[[], object]) -> tuple[Notice, ...]:
    """Say how much of a step on the CPU passes outside all ops, and on which line most of that, where it is the most.

    Runs the step once more to see where it is, if there is something to see.
    """
    if latency is None or not timeline.stand_ins or not timeline.steps:
        return ()
    whole = latency.median_ms * 1e3
    rest = whole - int(timeline.kernels["dur_ns"].sum()) / 1e3 / len(timeline.steps)
    if rest < max(WORTH_US, MOST * whole):
        return ()
    line, share = busiest_line(run)
    where = f", most of it at {line}" if line and share >= MOST else ""
    return (
        Notice(
            OUTSIDE,
            f"{time_us(rest)} of the step's {time_us(whole)} ({percent(rest / whole)}) pass outside PyTorch's ops, in "
            f"Python or waiting{where}. Fusing ops cannot shorten that.",
        ),
    )


def busiest_line(run: Callable[[], object]) -> tuple[str, float]:
    """Return the line of user code that a call is in most often, ``net.py:9``, and how often in [0, 1]."""
    caller, done, seen = threading.get_ident(), threading.Event(), Counter[str]()

    def watch() -> None:
        while not done.wait(EVERY_S):
            frame = sys._current_frames().get(caller)
            while frame is not None and not is_user_file(frame.f_code.co_filename):
                frame = frame.f_back
            if frame is not None:
                seen[f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"] += 1

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        run()
    finally:
        done.set()
        watcher.join()
    if not seen:
        return "", 0.0
    (line, count), *_ = seen.most_common(1)
    return line, count / seen.total()
