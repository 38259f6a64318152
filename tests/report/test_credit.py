"""Which findings an attempt closed, on steps written out by hand."""

from dataclasses import replace

from fusionadvisor.report.credit import credited
from fusionadvisor.report.model import Attempt, Finding, KernelCount, KernelTable, Range, Saving, Sites, Speedup, Timing

NOTHING = Saving(Range(0, None, 0), Range(0, None, 0))
OPS = [("conv", "conv"), ("bn", "norm"), ("add", "elementwise"), ("relu", "elementwise")] * 2
TABLE = KernelTable(
    total=16, index=tuple(range(16)), op=tuple(op for op, _ in OPS * 2), kind=tuple(kind for _, kind in OPS * 2),
    step=(0,) * 8 + (1,) * 8,
)  # fmt: skip
"""Two steps of two blocks: conv, bn, add, relu."""


def found(rule: str, *rows: int, instances: int = 2, remedies: tuple[str, ...] = (), at: str = "b") -> Finding:
    kernels = tuple(row + 8 * step for row in rows for step in (0, 1))
    return Finding(rule, rule, rule, at, NOTHING, modules=(at,), instances=instances, kernels=kernels,
                   remedies=remedies)  # fmt: skip


FOLD = found("FA101", 0, 1, 4, 5, remedies=("fuse_modules",))
EPILOGUE = found("FA102", 0, 3, 4, 7, remedies=("compile",))
CHAIN = found("FA103", 2, 3, 6, 7, remedies=("torchscript", "compile"))
IN_PLACE = found("FA401", 3, 7, remedies=("inplace",))
ALL = (FOLD, EPILOGUE, CHAIN, IN_PLACE)


def tried(strategy: str, after: int, *, before: int = 8, on: tuple[str, ...] = (), modules: tuple[str, ...] = (),
          added: dict[str, int] | None = None, **gone: int) -> Attempt:  # fmt: skip
    counts = KernelCount(before, after, tuple(gone.items()), tuple((added or {}).items()))
    return Attempt(strategy, "faster", True, kernels=counts, sites=Sites(1, 1, modules=modules), on=on)


def closed(*attempts: Attempt, findings: tuple[Finding, ...] = ALL) -> list[tuple[str, ...]]:
    return [made.closed for made in credited(attempts, findings, TABLE)]


def test_a_norm_that_torchscript_folds_is_closed_and_the_chain_it_leaves_is_not() -> None:
    (made,) = credited([tried("torchscript", 6, bn=2)], ALL, TABLE)
    assert made.closed == ("FA101",)
    assert made.findings == ("FA103",)


def test_half_of_the_places_close_nothing_until_another_attempt_brings_the_rest() -> None:
    first = tried("fuse_modules", 7, bn=1)
    second = tried("torchscript", 6, before=7, bn=1, on=("fuse_modules",))
    assert closed(first, second) == [(), ("FA101",)]
    assert closed(first, replace(second, on=())) == [(), ()]


def test_a_place_becomes_one_kernel_whatever_it_is_called() -> None:
    assert closed(tried("compile", 6, added={"fused": 2}, add=2, relu=2)) == [("FA102", "FA103")]


def test_ops_under_new_names_close_nothing() -> None:
    assert closed(tried("cudagraph", 8, added={"bn_kernel": 2, "conv_kernel": 2}, bn=2, conv=2)) == [()]
    fold = tried("fuse_modules", 6, added={"relu_": 2}, bn=2, relu=2)
    assert closed(fold) == [("FA101",)]


def test_what_is_not_about_kernels_too_many_is_closed_by_its_remedy() -> None:
    assert closed(tried("inplace", 8, added={"relu_": 2}, relu=2)) == [("FA401",)]


def test_ops_that_went_elsewhere_close_nothing() -> None:
    assert closed(tried("other", 6, modules=("a.bn",), bn=2)) == [()]
    assert closed(tried("other", 6, modules=("b.bn",), bn=2)) == [("FA101",)]


def test_each_op_that_went_counts_once() -> None:
    twin = found("FA1", 0, 1, instances=1), found("FA2", 4, 5, instances=1, remedies=("fuse_modules",))
    assert closed(tried("fuse_modules", 7, bn=1), findings=twin) == [("FA2",)]


def test_a_kernel_that_two_findings_share_is_gone_for_both() -> None:
    pair = found("FA101", 0, 1, instances=1), found("FA103", 1, 2, instances=1)
    assert closed(tried("fuse_modules", 7, bn=1), findings=pair) == [("FA101", "FA103")]


def test_each_finding_is_credited_with_its_bound_what_was_measured_and_what_went() -> None:
    bound = Range(100.0, None, 300.0)
    fold = replace(FOLD, saving=Saving(bound, bound))
    attempt = replace(
        tried("fuse_modules", 7, bn=1), before=Timing(2.0, (2, 2)), speedup=Speedup(1.25, (1.0, 2.0), (1, 1))
    )
    (made,) = credited([attempt], (fold, CHAIN), TABLE)
    (credit,) = made.credits
    assert (credit.finding, credit.bound_us, credit.shared) == ("FA101", bound, 1)
    assert (credit.kernels, credit.gone, credit.closed) == (2, 1, False)
    assert credit.measured_us is not None
    assert round(credit.measured_us) == 400  # 2000 - 2000 / 1.25
    assert credit.ci95_us == (0.0, 1000.0)
    untimed, torch_script = credited(
        [tried("fuse_modules", 6, bn=2), tried("torchscript", 6, bn=2)], (fold, CHAIN), TABLE
    )
    assert (untimed.credits[0].closed, untimed.credits[0].gone, untimed.credits[0].measured_us) == (True, 2, None)
    assert [(c.finding, c.closed, c.shared) for c in torch_script.credits] == [("FA101", True, 2), ("FA103", False, 2)]


def placed(strategy: str, after: int, *went: int, on: tuple[str, ...] = (), before: int = 8) -> Attempt:
    """An attempt of which is known which places of the step's eight ops went."""
    attempt = tried(strategy, after, before=before, on=on)
    assert attempt.kernels is not None
    return replace(attempt, kernels=replace(attempt.kernels, original=8, went=went))


def test_places_tell_which_of_equal_ops_went() -> None:
    """Two additions went, and they are of the second block; the first block's still run."""
    pair = found("FA1", 2, 3, instances=1), found("FA2", 6, 7, instances=1)
    assert closed(placed("fx", 6, 6, 7), findings=pair) == [("FA2",)]


def test_places_count_for_what_comes_on_top() -> None:
    first, second = placed("fuse_modules", 7, 1), placed("torchscript", 6, 1, 5, before=7, on=("fuse_modules",))
    assert closed(first, second) == [(), ("FA101",)]


def test_kernels_that_only_changed_their_names_close_nothing_though_they_went() -> None:
    assert closed(placed("cudagraph", 8, *range(8))) == [()]
    assert closed(placed("compile", 6, 2, 3, 6, 7)) == [("FA102", "FA103")]


def test_places_of_another_step_than_the_profiled_one_are_not_believed() -> None:
    attempt = placed("torchscript", 6, 2, 6)
    assert attempt.kernels is not None
    other = replace(attempt, kernels=replace(attempt.kernels, original=9, gone=(("bn", 2),)))
    assert closed(other) == [("FA101",)]
