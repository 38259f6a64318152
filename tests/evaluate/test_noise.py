"""The verdict on recorded noise: three copies of a small convolutional model in turns, on an overbooked machine.

``noise.json`` holds the time of each call in µs, 1200 rounds of three arms (torch 2.13, two cores, passive waiting).
"""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from fusionadvisor.evaluate import bench

ARMS: list[list[float]] = json.loads(Path(__file__).with_name("noise.json").read_text())
SESSIONS = 2000


def verdicts(gain: float) -> Counter[str]:
    """Sessions of the default length: consecutive rounds, so that noise keeps its drift; who is who is drawn anew."""
    found: Counter[str] = Counter()
    for seed in range(SESSIONS):
        draw = random.Random(seed)
        start = draw.randrange(len(ARMS[0]) - bench.ROUNDS)
        rounds = [draw.sample([arm[i] for arm in ARMS], 3) for i in range(start, start + bench.ROUNDS)]
        before, control, after = zip(*rounds, strict=True)
        _, verdict = bench.ratio(before, control, [gain * sample for sample in after])
        found[verdict] += 1
    return found


@pytest.mark.slow
def test_nothing_is_never_called_faster() -> None:
    found = verdicts(1.0)
    assert found["faster"] == 0
    assert found["slower"] == 0
    assert found["equivalent"] >= 0.7 * SESSIONS


@pytest.mark.slow
def test_ten_percent_is_mostly_found() -> None:
    found = verdicts(0.9)
    assert found["faster"] >= 0.9 * SESSIONS
    assert found["slower"] == 0


@pytest.mark.slow
def test_ten_percent_slower_is_never_equivalent() -> None:
    found = verdicts(1.1)
    assert found["faster"] == found["equivalent"] == 0


def test_the_noise_is_noise() -> None:
    assert all(max(arm) > 10 * min(arm) for arm in ARMS)
