from collections import Counter

import pytest

from fusionadvisor.strategies.base import Strategy
from fusionadvisor.strategies.fuse_modules import FuseModules
from fusionadvisor.strategies.fx import FxPasses
from fusionadvisor.strategies.horizontal import Horizontal
from fusionadvisor.strategies.inplace import InPlace
from fusionadvisor.strategies.sdpa import Sdpa
from tests.strategies import fuzz_branches, fuzz_captured, fuzz_merging
from tests.strategies.fuzz import Build, check


@pytest.mark.parametrize(("kind", "least"), [(FuseModules, 20), (InPlace, 5)])
def test_no_rewrite_changes_what_a_random_model_computes(kind: type[Strategy], least: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(10_000, 10_050):
        changed, refused, wrong = check(kind(), seed)
        assert not wrong, wrong
        tally.update(changed=changed, refused=refused)
    # neither side may be won by doing nothing, or by refusing everything
    assert tally["changed"] >= least
    assert tally["refused"] >= least


@pytest.mark.parametrize(
    ("kind", "build", "least"),
    [
        (Horizontal, fuzz_merging.merging, 5),
        (Horizontal, fuzz_merging.summing, 5),
        (Horizontal, fuzz_merging.batching, 5),
        (Sdpa, fuzz_merging.attending, 3),
    ],
)
def test_no_merge_changes_what_a_random_model_computes(kind: type[Strategy], build: Build, least: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(10_000, 10_035):
        changed, refused, wrong = check(kind(), seed, build, fuzz_merging.SHAPE)
        assert not wrong, wrong
        tally.update(changed=changed, refused=refused)
    assert tally["changed"] >= least
    assert tally["refused"] >= least


def test_no_rewrite_changes_a_path_that_was_not_recorded() -> None:
    tally: Counter[str] = Counter()
    for seed in range(10_000, 10_025):
        one, wrong = fuzz_branches.check(seed)
        assert not wrong, wrong[0]
        tally.update(one)
    assert tally["together sites"] >= 10
    assert tally["together refusals"] >= 30


@pytest.mark.parametrize(("kind", "least"), [(FxPasses, 8), (Sdpa, 8)])
def test_no_captured_forward_is_wrong_on_another_path(kind: type[Strategy], least: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(10_000, 10_020):
        changed, refused, wrong = fuzz_captured.check(kind(), seed)
        assert not wrong, wrong
        tally.update(changed=changed, refused=refused)
    assert tally["changed"] >= least
    assert tally["refused"] >= 3
