"""Medians with an interval, for samples that are skewed and few. The same result for the same samples."""

from collections.abc import Sequence

import numpy as np

RESAMPLES = 1000
_SEED = 0x5EED


def median_ci(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Median and percentile-bootstrap interval of it.

    Args:
        samples: One or more; a single sample is its own interval.
        confidence: Of the interval, in (0, 1).

    Returns:
        ``(median, low, high)`` in the samples' unit.

    Raises:
        ValueError: There are no samples.
    """
    if not len(samples):
        raise ValueError("no samples")
    values = np.asarray(samples, dtype=np.float64)
    drawn = np.random.default_rng(_SEED).integers(0, values.size, (RESAMPLES, values.size))
    medians = np.sort(np.median(values[drawn], axis=1))
    tail = (1 - confidence) / 2
    low, high = medians[int(tail * RESAMPLES)], medians[min(RESAMPLES - 1, int((1 - tail) * RESAMPLES))]
    return float(np.median(values)), float(low), float(high)
