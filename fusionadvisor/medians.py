"""Medians with an interval, for samples that are skewed and few. The same result for the same samples."""

from collections.abc import Sequence
from math import exp, lgamma, log, log1p
from statistics import median


def median_ci(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Median and percentile-bootstrap interval of it.

    The bootstrap of a median needs no drawing: a resample's median is at most the k-th smallest sample where at least
    half of its draws are, and how many are is binomial. Ends of the interval are samples.

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
    ordered, count = sorted(samples), len(samples)
    tail = (1 - confidence) / 2
    # of an even number of draws the median lies between two; each end of the interval takes the one farther out
    low = _first_rank(count, (count + 1) // 2, tail)
    high = _first_rank(count, count // 2 + 1, 1 - tail)
    return median(ordered), ordered[low - 1], ordered[high - 1]


def _first_rank(count: int, needed: int, share: float) -> int:
    """The smallest rank k such that a share of all resamples has ``needed`` draws or more among the k smallest."""
    below, rank = 0, count
    while rank - below > 1:
        middle = (below + rank) // 2
        if _at_least(count, needed, middle / count) >= share:
            rank = middle
        else:
            below = middle
    return rank


def _at_least(count: int, needed: int, chance: float) -> float:
    """Probability of ``needed`` or more successes in ``count`` draws."""
    total = lgamma(count + 1)
    yes, no = log(chance), log1p(-chance)
    return sum(
        exp(total - lgamma(k + 1) - lgamma(count - k + 1) + k * yes + (count - k) * no)
        for k in range(needed, count + 1)
    )
