"""Is the candidate faster than the baseline? Paired, in random balanced order, against an A/A control.

Three arms take turns: the baseline, a second copy of the baseline, and the candidate. The two copies do the same work,
so what they differ by is what this machine makes of nothing. A difference counts only where its interval lies outside
that band, and no difference only where the interval stays above :data:`NOT_SLOWER` and the band is narrow.
"""

import gc
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fusionadvisor.medians import median_ci
from fusionadvisor.report.model import Speedup, Timing

ROUNDS = 96
"""Samples of each arm where time allows; a multiple of six, so that every order of the arms occurs as often."""
FEWEST_ROUNDS = 12
SHORTEST_SAMPLE_S = 1e-3
"""A sample repeats a shorter call up to this, far above the clock's resolution and a thread's wake-up."""
QUEUED = 8
"""Calls in a queue for each that is counted: enough that the wait at its end weighs little."""
STEADY = 0.05
"""Warm-up ends when three calls in a row agree this well, or after :data:`WARM_UP_CALLS`."""
WARM_UP_CALLS = 20

NOT_SLOWER = 0.97
"""Low end of the interval from which on a candidate counts as no slower: a loss that a doubling of rounds could not
tell from none on a shared machine."""
WIDEST_BAND = 1.1
"""Of two copies of the same code; beyond it a machine is too noisy to call two arms equivalent."""
LONGER = 4
"""Times the rounds that are taken at the most where the verdict is still open and the budget allows."""

Verdict = Literal["faster", "equivalent", "slower", "inconclusive"]
Run = Callable[[], object]


class Clock(Protocol):
    """Times calls; the tests bring one that needs no time."""

    def seconds(self, run: Run, calls: int) -> float:
        """Seconds that ``calls`` calls of ``run`` took together, the device's work included."""

    def now(self) -> float:
        """Seconds since some moment."""


class CpuClock:
    """Wall time."""

    def seconds(self, run: Run, calls: int) -> float:
        """See :class:`Clock`."""
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return time.perf_counter() - start

    def now(self) -> float:
        """See :class:`Clock`."""
        return time.perf_counter()


class CudaClock(CpuClock):  # gpu-only: waits for a CUDA device
    """Wall time with the device idle before and after each call: the latency a caller waits for."""

    def seconds(self, run: Run, calls: int) -> float:
        """See :class:`Clock`."""
        import torch

        total = 0.0
        for _ in range(calls):
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            torch.cuda.synchronize()
            total += time.perf_counter() - start
        return total


class QueuedCudaClock(CpuClock):  # gpu-only: waits for a CUDA device
    """Wall time of many calls in a queue, the device waited for only at the end: what a busy server sees."""

    def seconds(self, run: Run, calls: int) -> float:
        """See :class:`Clock`."""
        import torch

        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls * QUEUED):
            run()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / QUEUED


def clock(device: str, *, queued: bool = False) -> Clock:
    """The clock for a device. The CPU has no queue: there a call's latency is its share of the throughput, too."""
    if not device.startswith("cuda"):
        return CpuClock()
    return QueuedCudaClock() if queued else CudaClock()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms measured against each other."""

    before: Timing
    after: Timing
    speedup: Speedup
    verdict: Verdict


def compare(
    baseline: Run, control: Run, candidate: Run, clock: Clock, *, budget_s: float = 20.0, rounds: int = ROUNDS,
    seed: int = 0,
) -> Comparison:  # fmt: skip
    """Measure three arms in turns.

    Args:
        baseline: One call of what there was before.
        control: The same of a copy of it, elsewhere in memory.
        candidate: One call of what is to be judged.
        clock: What times them.
        budget_s: Rounds stop after this, though never before :data:`FEWEST_ROUNDS`.
        rounds: Samples of each arm where time allows; twice and four times as many while the verdict is open.
        seed: Of the order of the arms.
    """
    arms = (baseline, control, candidate)
    for arm in arms:
        warm_up(arm, clock)
    calls = max(1, round(SHORTEST_SAMPLE_S / max(min(clock.seconds(arm, 1) for arm in arms), 1e-9)))
    samples: tuple[list[float], ...] = ([], [], [])
    most = LONGER * rounds
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = clock.now()
        for order in _orders(seed):
            for index in order:
                samples[index].append(clock.seconds(arms[index], calls) / calls)
            taken = len(samples[0])
            if taken >= FEWEST_ROUNDS and clock.now() - start > budget_s:
                break
            if taken >= rounds:
                if rounds >= most or judge(*samples).verdict != "inconclusive":
                    break
                rounds *= 2
    finally:
        if collecting:
            gc.enable()
    return judge(*samples)


def warm_up(run: Run, clock: Clock) -> None:
    """Call until three calls in a row take the same time."""
    last: list[float] = []
    for _ in range(WARM_UP_CALLS):
        last = [*last[-2:], clock.seconds(run, 1)]
        if len(last) == 3 and max(last) - min(last) <= STEADY * sorted(last)[1]:
            return


def judge(baseline_s: list[float], control_s: list[float], candidate_s: list[float]) -> Comparison:
    """Draw the verdict from samples in seconds a call; sample *i* of each arm was taken in round *i*."""
    speedup, verdict = ratio(baseline_s, control_s, candidate_s)
    return Comparison(timing(baseline_s), timing(candidate_s), speedup, verdict)


def ratio(
    baseline_s: Sequence[float], control_s: Sequence[float], candidate_s: Sequence[float]
) -> tuple[Speedup, Verdict]:
    """Compare the arms round by round, so that what slows a whole round cancels."""
    middle, low, high = median_ci([a / b for a, b in zip(baseline_s, candidate_s, strict=True)])
    _, least, most = median_ci([a / b for a, b in zip(baseline_s, control_s, strict=True)])
    # which copy came off better is chance, so the band is as wide on the other side of 1
    band = min(least, 1 / most), max(most, 1 / least)
    speedup = Speedup(middle, (low, high), band)
    return speedup, verdict(speedup, len(baseline_s))


def verdict(speedup: Speedup, rounds: int = FEWEST_ROUNDS) -> Verdict:
    """What an interval says beside the band of two equal copies."""
    (low, high), (least, most) = speedup.ci95, speedup.aa_band
    if rounds < FEWEST_ROUNDS:
        return "inconclusive"
    if low > most:
        return "faster"
    if high < least:
        return "slower"
    return "equivalent" if low >= NOT_SLOWER and most <= WIDEST_BAND and least >= 1 / WIDEST_BAND else "inconclusive"


def keeps(verdict: Verdict, less: bool) -> bool:
    """Whether a candidate is worth keeping: it is faster, or no slower and does less."""
    return verdict == "faster" or (verdict == "equivalent" and less)


def why_open(speedup: Speedup, rounds: int) -> str:
    """Say in a sentence why a verdict is inconclusive."""
    (low, _), (least, most) = speedup.ci95, speedup.aa_band
    if most > WIDEST_BAND or least < 1 / WIDEST_BAND:
        return f"Two copies of the same code differ by {least:.2f}–{most:.2f} after {rounds} rounds: too much to tell."
    return f"After {rounds} rounds it may still be slower: the interval begins at {low:.2f}, {NOT_SLOWER:g} is needed."


def timing(samples_s: list[float]) -> Timing:
    """Summarise one arm's samples, seconds a call."""
    samples_ms = tuple(1e3 * sample for sample in samples_s)
    median, low, high = median_ci(samples_ms)
    return Timing(median, (low, high), samples_ms)


def _orders(seed: int) -> Iterator[tuple[int, ...]]:
    """Orders of the three arms for ever: all six, shuffled, again and again."""
    draw = random.Random(seed)
    while True:
        yield from draw.sample(list(itertools.permutations(range(3))), 6)
