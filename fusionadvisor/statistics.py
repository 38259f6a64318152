"""Medians with honest intervals. Percentile bootstrap, seeded: the same samples give the same interval."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
"""Enough that the interval's ends move by less than a tenth of its width between seeds."""


def median_ci(
    samples: Sequence[float] | npt.NDArray[np.float64], *, confidence: float = 0.95, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """Return the median and its bootstrap interval, in the unit of the samples.

    Raises:
        ValueError: If there are no samples.
    """
    values = np.asarray(samples, dtype=np.float64)
    if not values.size:
        raise ValueError("no samples")
    drawn = np.random.default_rng(seed).integers(0, values.size, (RESAMPLES, values.size))
    medians = np.median(values[drawn], axis=1)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(medians, (tail, 100 - tail))
    return float(np.median(values)), (float(low), float(high))
