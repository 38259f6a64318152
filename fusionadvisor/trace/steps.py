"""Where one iteration ends and the next begins: what the profiler marked, else what repeats, else the whole window."""

import re

import numpy as np

from fusionadvisor.trace.link import Calls, Ops, matching
from fusionadvisor.trace.numbers import Ints
from fusionadvisor.trace.reader import RawTrace
from fusionadvisor.trace.timeline import Step

_MARK = re.compile(r"^ProfilerStep#?\s*\d+")


def find_steps(raw: RawTrace, ops: Ops, calls: Calls, window: tuple[int, int]) -> tuple[tuple[Step, ...], str]:
    """Return the steps in order of start, and what they were told by."""
    if marked := _marked(raw):
        return marked, "ProfilerStep"
    return (Step(0, "window", *window),), "window"


def _marked(raw: RawTrace) -> tuple[Step, ...]:
    names = list(raw.names)
    found = []
    for table in (raw.annotations, raw.ops):
        if len(table):
            for row in np.flatnonzero(matching(raw.names, _MARK)[table["name"]]).tolist():
                start = int(table["start"][row])
                found.append((start, start + int(table["dur"][row]), names[table["name"][row]]))
    found = sorted(set(found))
    return tuple(Step(index, name, start, end) for index, (start, end, name) in enumerate(found))


def step_of(steps: tuple[Step, ...], moments: Ints) -> Ints:
    """Return the step each moment falls in, of overlapping ones the last to begin; -1 outside all."""
    if not steps:
        return np.full(len(moments), -1, dtype=np.int64)
    starts = np.array([step.start_ns for step in steps], dtype=np.int64)
    ends = np.maximum.accumulate(np.array([step.end_ns for step in steps], dtype=np.int64))
    own = np.array([step.end_ns for step in steps], dtype=np.int64)
    at = np.searchsorted(starts, moments, side="right") - 1
    while True:
        # a short step inside a longer one may have ended: fall back to the one before, where that still runs
        over = np.flatnonzero((at >= 0) & (own[at] < moments) & (ends[at] >= moments))
        if not len(over):
            break
        at[over] -= 1
    return np.where((at >= 0) & (own[at] >= moments), at, -1)
