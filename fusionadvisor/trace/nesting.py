"""Which event encloses which, per thread; and which encloses a moment."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fusionadvisor.trace.numbers import Ints

_MIX = np.int64(6364136223846793005)  # odd, so that (pid, tid) pairs keep apart when mixed into one number


def thread_keys(pid: Ints, tid: Ints) -> Ints:
    """Return one number for each (process, thread)."""
    with np.errstate(over="ignore"):
        return pid * _MIX + tid


def nested_order(keys: Ints, start: Ints, dur: Ints) -> npt.NDArray[np.intp]:
    """Return the order by thread, then start, enclosing events first."""
    return np.lexsort((-dur, start, keys))


class Nest:
    """Events in nested order (:func:`nested_order`) with the row of the event that encloses each."""

    def __init__(self, keys: Ints, start: Ints, dur: Ints) -> None:
        self.start, self.end = start, start + dur
        self.parent = _parents(keys, start, self.end)
        self._threads, self._first = np.unique(keys, return_index=True) if len(keys) else (keys, keys)
        self._last = np.append(self._first[1:], len(keys)) if len(keys) else keys

    def find(self, keys: Ints, moments: Ints) -> Ints:
        """Return the row of the innermost event on the thread that encloses each moment, -1 where none does."""
        rows = np.full(len(moments), -1, dtype=np.int64)
        if not len(self.start):
            return rows
        for thread, first, last in self._each_thread():
            mine = np.flatnonzero(keys == thread)
            if len(mine):
                found = first + np.searchsorted(self.start[first:last], moments[mine], side="right") - 1
                rows[mine] = np.where(found >= first, found, -1)
        while True:
            ended = np.flatnonzero((rows >= 0) & (self.end[rows] < moments))
            if not len(ended):
                return rows
            rows[ended] = self.parent[rows[ended]]

    def _each_thread(self) -> Iterator[tuple[int, int, int]]:
        return zip(self._threads.tolist(), self._first.tolist(), self._last.tolist(), strict=True)


def _parents(keys: Ints, start: Ints, end: Ints) -> Ints:
    parents = [-1] * len(keys)
    stack: list[int] = []
    thread = None
    ends = end.tolist()
    for row, (key, begun, ended) in enumerate(zip(keys.tolist(), start.tolist(), ends, strict=True)):
        if key != thread:
            thread = key
            stack.clear()
        # an event that begins where another ends follows it, unless it takes no time itself
        while stack and (ends[stack[-1]] < begun or (ends[stack[-1]] == begun and ended > begun)):
            stack.pop()
        if stack:
            parents[row] = stack[-1]
        stack.append(row)
    return np.array(parents, dtype=np.int64)


def inherited(parent: Ints, own: npt.NDArray[np.int64], missing: int = -1) -> Ints:
    """Return each row's own value, or where that is ``missing`` the nearest enclosing row's."""
    values = own.copy()
    rows = np.flatnonzero((values == missing) & (parent >= 0))
    above = parent[rows]
    while len(rows):
        values[rows] = values[above]
        open_ = (values[rows] == missing) & (parent[above] >= 0)
        rows, above = rows[open_], parent[above[open_]]
    return values
