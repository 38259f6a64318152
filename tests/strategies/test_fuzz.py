from collections import Counter

from fusionadvisor.strategies.fuse_modules import FuseModules
from tests.strategies.fuzz import check


def test_no_fold_changes_what_a_random_model_computes() -> None:
    tally: Counter[str] = Counter()
    for seed in range(10_000, 10_060):
        changed, refused, wrong = check(FuseModules(), seed)
        assert not wrong, wrong
        tally.update(changed=changed, refused=refused)
    # neither side may be won by doing nothing, or by refusing everything
    assert tally["changed"] > 20
    assert tally["refused"] > 30
