"""Times of a set of kernels: the union of their intervals, and the window they lie in."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def busy_us(*tables: "pd.DataFrame") -> float:
    """Return how long at least one row of these tables ran, devices apart and added, in µs."""
    import numpy as np

    device, start, dur = (
        np.concatenate([t[column].to_numpy() for t in tables]) for column in ("device", "start_ns", "dur_ns")
    )
    total = 0
    for at in np.unique(device):
        begin = start[device == at]
        order = np.argsort(begin, kind="stable")
        begin = begin[order]
        end = np.maximum.accumulate(begin + np.maximum(dur[device == at][order], 0))
        covered = np.concatenate((begin[:1], end[:-1]))
        total += int(np.maximum(end - np.maximum(begin, covered), 0).sum())
    return total / 1e3


def span_us(kernels: "pd.DataFrame") -> float:
    """Return the time from the first start to the last end, in µs; 0 without kernels."""
    if not len(kernels):
        return 0.0
    start = kernels["start_ns"].to_numpy()
    return float((start + kernels["dur_ns"].to_numpy()).max() - start.min()) / 1e3


def by_step(kernels: "pd.DataFrame") -> "Iterator[pd.DataFrame]":
    """Yield the kernels of each device and step, in order of start."""
    import numpy as np

    device, step = kernels["device"].to_numpy(), kernels["step"].to_numpy()
    order = np.lexsort((kernels["start_ns"].to_numpy(), step, device))
    cuts = np.flatnonzero(np.diff(device[order]) | np.diff(step[order])) + 1
    for rows in np.split(order, cuts):
        if len(rows):
            yield kernels.iloc[rows]


def in_steps(kernels: "pd.DataFrame") -> "pd.DataFrame":
    """Return the kernels of the recorded steps; those outside belong to a step that was not recorded whole."""
    inside = kernels["step"].to_numpy() >= 0
    return kernels if inside.all() else kernels[inside]
