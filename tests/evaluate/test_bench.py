import random
from collections.abc import Callable
from typing import cast

import pytest

from fusionadvisor.evaluate import bench
from fusionadvisor.report.model import Speedup


class FakeClock:
    """Each arm takes what its own function says, in no time."""

    def __init__(self) -> None:
        self.time = 0.0
        self.calls: list[tuple[object, int]] = []

    def seconds(self, run: bench.Run, calls: int) -> float:
        took = sum((cast(float, run()) for _ in range(calls)), 0.0)
        self.calls.append((run, calls))
        self.time += took
        return took

    def now(self) -> float:
        return self.time


def arm(seconds: float, seed: int, noise: float = 0.05) -> Callable[[], float]:
    draw = random.Random(seed)
    return lambda: seconds * draw.lognormvariate(0, noise)


def test_a_real_gain_is_found_with_its_size() -> None:
    result = bench.compare(arm(0.01, 1), arm(0.01, 2), arm(0.008, 3), FakeClock(), budget_s=100)
    assert result.verdict == "faster"
    assert result.speedup.ci95[0] < 1.25 < result.speedup.ci95[1]
    assert result.speedup.aa_band[0] < 1 < result.speedup.aa_band[1]
    assert result.before.median_ms == pytest.approx(10, rel=0.03)
    assert len(result.before.samples_ms) == len(result.after.samples_ms) == bench.ROUNDS


def test_a_loss_is_found_and_nothing_is_nothing() -> None:
    slower = bench.compare(arm(0.01, 1), arm(0.01, 2), arm(0.012, 3), FakeClock(), budget_s=100)
    same = bench.compare(arm(0.01, 1), arm(0.01, 2), arm(0.01, 3), FakeClock(), budget_s=100)
    assert (slower.verdict, same.verdict) == ("slower", "equivalent")


def test_a_gain_within_what_two_copies_differ_by_is_not_proven() -> None:
    # the control, which does the same work, came out 6 % apart: so 5 % proves nothing
    result = bench.compare(arm(0.01, 1), arm(0.0106, 2), arm(0.0095, 3), FakeClock(), budget_s=100)
    assert result.verdict == "equivalent"
    assert result.speedup.aa_band[0] == pytest.approx(1 / result.speedup.aa_band[1])


def test_the_arms_take_turns_in_every_order_equally_often() -> None:
    orders: dict[tuple[int, ...], int] = {}
    taken: list[int] = []

    def of(index: int) -> Callable[[], float]:
        def run() -> float:
            taken.append(index)
            return 0.01

        return run

    bench.compare(of(0), of(1), of(2), FakeClock(), budget_s=1000)
    rounds = taken[-3 * bench.ROUNDS :]
    for i in range(0, len(rounds), 3):
        order = tuple(rounds[i : i + 3])
        orders[order] = orders.get(order, 0) + 1
    assert set(orders.values()) == {bench.ROUNDS // 6}
    assert len(orders) == 6


def test_short_calls_are_repeated_and_the_budget_ends_the_rounds() -> None:
    clock = FakeClock()
    result = bench.compare(arm(1e-5, 1, 0), arm(1e-5, 2, 0), arm(1e-5, 3, 0), clock, budget_s=100)
    assert clock.calls[-1][1] == 100
    assert result.before.median_ms == pytest.approx(0.01)
    long = bench.compare(arm(5, 1), arm(5, 2), arm(5, 3), FakeClock(), budget_s=20)
    assert len(long.before.samples_ms) == bench.FEWEST_ROUNDS


def test_warm_up_ends_when_calls_agree() -> None:
    took = iter([5.0, 3.0, 2.0, 1.0, 1.0, 1.0, 9.0])
    clock = FakeClock()
    bench.warm_up(lambda: next(took), clock)
    assert len(clock.calls) == 6
    restless = FakeClock()
    values = iter(range(1, 100))
    bench.warm_up(lambda: 2.0 ** next(values), restless)
    assert len(restless.calls) == bench.WARM_UP_CALLS


def test_an_open_verdict_is_measured_longer_within_the_budget() -> None:
    def noisy(seconds: float, seed: int) -> Callable[[], float]:
        return arm(seconds, seed, noise=0.5)

    long = bench.compare(noisy(0.01, 1), noisy(0.01, 2), noisy(0.01, 3), FakeClock(), budget_s=1000)
    assert len(long.before.samples_ms) in (2 * bench.ROUNDS, bench.LONGER * bench.ROUNDS)
    short = bench.compare(noisy(0.01, 1), noisy(0.01, 2), noisy(0.01, 3), FakeClock(), budget_s=0.5)
    assert short.verdict == "inconclusive"
    assert len(short.before.samples_ms) < bench.ROUNDS
    assert "after" in bench.why_open(short.speedup, 20).lower()


@pytest.mark.parametrize(
    ("interval", "band", "verdict"),
    [
        ((1.05, 1.2), (0.98, 1.02), "faster"),
        ((1.3, 1.5), (0.8, 1.25), "faster"),
        ((0.98, 1.01), (0.98, 1.02), "equivalent"),
        ((0.97, 1.3), (0.95, 1.05), "equivalent"),
        ((0.96, 1.3), (0.95, 1.05), "inconclusive"),
        ((0.98, 1.01), (0.85, 1.18), "inconclusive"),
        ((0.8, 0.9), (0.95, 1.05), "slower"),
        ((0.94, 0.96), (0.93, 1.07), "inconclusive"),
    ],
)  # fmt: skip
def test_the_verdict_of_an_interval(
    interval: tuple[float, float], band: tuple[float, float], verdict: bench.Verdict
) -> None:
    speedup = Speedup(1.0, interval, band)
    assert bench.verdict(speedup) == verdict
    assert bench.verdict(speedup, bench.FEWEST_ROUNDS - 1) == "inconclusive"
    assert bench.keeps(verdict, less=True) == (verdict in ("faster", "equivalent"))
    assert bench.keeps(verdict, less=False) == (verdict == "faster")
