"""The recorded intervals of the zoo, judged by the rule of today."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.zoo.table import judged
from fusionadvisor.evaluate.bench import NOT_SLOWER

ROWS = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "zoo.json").read_text())


@pytest.fixture(scope="module")
def measured() -> list[dict[str, Any]]:
    attempts = [made for row in ROWS for made in judged(row)["strategies"].values()]
    return [made for made in attempts if made.get("speedup")]


def test_nothing_is_kept_whose_interval_reaches_below_what_counts_as_no_slower(measured: list[dict[str, Any]]) -> None:
    assert len(measured) > 250
    kept = [made for made in measured if made["kept"]]
    assert len(kept) > 80
    assert all(made["speedup"][1] >= NOT_SLOWER for made in kept)
    assert {made["outcome"] for made in kept} == {"faster", "equivalent"}


def test_whole_intervals_below_one_are_seen(measured: list[dict[str, Any]]) -> None:
    below = [made for made in measured if made["speedup"][2] < 1]
    assert len(below) > 10
    assert not any(made["kept"] and made["outcome"] == "faster" for made in below)
    assert Counter(made["outcome"] for made in below)["slower"] == 8


def test_the_committed_verdicts_are_those_of_the_rule() -> None:
    assert [judged(row) for row in ROWS] == ROWS
