from collections import Counter

import pytest

from fusionadvisor.strategies.base import Strategy
from fusionadvisor.strategies.fuse_modules import FuseModules
from fusionadvisor.strategies.inplace import InPlace
from tests.strategies.fuzz import check


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
