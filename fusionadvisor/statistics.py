"""Medians with an interval, for samples that are skewed and few. Pure Python, the same result for the same samples."""

import random
from collections.abc import Sequence
from statistics import median

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
    if not samples:
        raise ValueError("no samples")
    middle = median(samples)
    if len(samples) == 1:
        return middle, middle, middle
    generator = random.Random(_SEED)
    resampled = sorted(median(generator.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    tail = (1 - confidence) / 2
    low, high = resampled[int(tail * RESAMPLES)], resampled[min(RESAMPLES - 1, int((1 - tail) * RESAMPLES))]
    return middle, low, high
