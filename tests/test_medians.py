"""The median's interval."""

import random

import pytest

from fusionadvisor.medians import median_ci


def test_it_is_the_median_within_its_interval_and_repeatable() -> None:
    generator = random.Random(1)
    samples = [generator.gauss(10, 1) for _ in range(101)]
    middle, low, high = median_ci(samples)
    assert middle == sorted(samples)[50]
    assert low < middle < high
    assert median_ci(samples) == (middle, low, high)
    assert median_ci([3.0]) == (3.0, 3.0, 3.0)
    with pytest.raises(ValueError, match="no samples"):
        median_ci([])


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    generator = random.Random(7)
    hits = 0
    for _ in range(200):
        _, low, high = median_ci([generator.expovariate(1.0) for _ in range(40)])
        hits += low <= 0.6931471805599453 <= high  # ln 2
    assert 178 <= hits <= 200
