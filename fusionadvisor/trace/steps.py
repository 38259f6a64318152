"""Where one iteration ends and the next begins: what the profiler marked, else what repeats, else the whole window."""

import re

import numpy as np

from fusionadvisor.trace.link import BACKWARD, Calls, Ops, matching
from fusionadvisor.trace.numbers import Ints
from fusionadvisor.trace.reader import RawTrace
from fusionadvisor.trace.timeline import Step

_MARK = re.compile(r"^ProfilerStep#?\s*\d+")
_REPEATS = 3
"""A sequence seen twice may be two layers; three times and to the end of the trace, it is taken for iterations."""
_FILLED = 0.5
"""Of the trace at least this share has to be repeats; the rest may be warm-up."""
_LONGEST_SEQUENCE = 1 << 18


def find_steps(raw: RawTrace, ops: Ops, calls: Calls, window: tuple[int, int]) -> tuple[tuple[Step, ...], str]:
    """Return the steps in order of start, and what they were told by.

    Args:
        raw: The trace.
        ops: Its ops.
        calls: Its runtime calls.
        window: Start and end of the whole trace.
    """
    if marked := _marked(raw):
        return marked, "ProfilerStep"
    if len(starts := ops.module_calls) > 1:
        return _from_starts(starts, window[1], "module call"), "module calls"
    if len(starts := _repetition(ops, calls)) > 1:
        return _from_starts(starts, window[1], "repeat"), "repetition"
    return (Step(0, "window", *window),), "window"


def _from_starts(starts: Ints, end: int, name: str) -> tuple[Step, ...]:
    bounds = [*starts.tolist(), max(end, int(starts[-1]))]
    return tuple(Step(i, f"{name} {i}", bounds[i], bounds[i + 1]) for i in range(len(starts)))


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


def _repetition(ops: Ops, calls: Calls) -> Ints:
    """Return where each repeat begins of the sequence of top-level ops and launches that fills the trace's end."""
    columns = ops.columns
    top = np.flatnonzero((ops.nest.parent < 0) & (ops.phase != BACKWARD))
    bare = np.flatnonzero((calls.launch | calls.graph) & (calls.op < 0))
    thread = np.concatenate((columns["tid"][top], calls.columns["tid"][bare]))
    if len(thread) < _REPEATS:
        return np.zeros(0, dtype=np.int64)
    threads, counts = np.unique(thread, return_counts=True)
    mine = thread == threads[np.argmax(counts)]
    start = np.concatenate((columns["start"][top], calls.columns["start"][bare]))[mine]
    name = np.concatenate((columns["name"][top], calls.columns["name"][bare])).astype(np.int64)[mine]
    shapes = np.concatenate((columns["shapes"][top], np.full(len(bare), -1))).astype(np.int64)[mine]
    order = np.argsort(start, kind="stable")[-_LONGEST_SEQUENCE:]
    sequence = (name << 32) + shapes
    period, count = repeating_end(sequence[order].tolist())
    if count < _REPEATS or period * count < _FILLED * len(order):
        return np.zeros(0, dtype=np.int64)
    starts: Ints = start[order][len(order) - period * count :: period]
    return starts


def repeating_end(sequence: list[int]) -> tuple[int, int]:
    """Return the period and the number of repeats of the longest end of a sequence that repeats; (0, 0) if none does.

    >>> repeating_end([9, 1, 2, 1, 2, 1, 2])
    (2, 3)
    """
    # Knuth-Morris-Pratt on the sequence read backwards: fail[n] is the longest border of its first n items
    backwards = sequence[::-1]
    fail = [0] * (len(backwards) + 1)
    border, best = 0, (0, 0)
    for length in range(2, len(backwards) + 1):
        item = backwards[length - 1]
        while border and backwards[border] != item:
            border = fail[border]
        if backwards[border] == item:
            border += 1
        fail[length] = border
        period = length - border
        if length >= _REPEATS * period:
            best = (period, length // period)
    return best


def step_of(steps: tuple[Step, ...], moments: Ints) -> Ints:
    """Return the step each moment falls in, of overlapping ones the last to begin; -1 outside all."""
    if not steps:
        return np.full(len(moments), -1, dtype=np.int64)
    starts = np.array([step.start_ns for step in steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in steps], dtype=np.int64)
    latest = np.maximum.accumulate(ends)
    at = np.searchsorted(starts, moments, side="right") - 1
    while True:
        # a short step inside a longer one may have ended: fall back to the one before, where that still runs
        over = np.flatnonzero((at >= 0) & (ends[at] < moments) & (latest[at] >= moments))
        if not len(over):
            break
        at[over] -= 1
    return np.where((at >= 0) & (ends[at] >= moments), at, -1)
