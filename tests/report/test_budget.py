"""The gate: what fails, what passes, and that a failure names the place."""

import tomllib
from dataclasses import replace

import pytest

from fusionadvisor.errors import InputError
from fusionadvisor.report import budget, codec
from fusionadvisor.report.budget import check
from fusionadvisor.report.model import Environment, Report, TensorSpec, Workload
from fusionadvisor.report.structure import canonical
from tests.render.samples import ALL
from tests.report.steps import GPU, K, finding, made, retimed
from tests.report.test_diff import EAGER, FUSED, layer, norm


def limits(text: str, report: Report = EAGER) -> list[str]:
    return [limit.text for limit in budget.read(tomllib.loads(text), report)]


def test_a_budget_is_a_table_of_quantities() -> None:
    table = 'kernels = 160\nfused_share = 0.4\nfindings.FA101 = 0\nfail-on = ["syncs > 0", "FA103"]'
    assert limits(table) == ["kernels > 160", "fused_share < 0.4", "findings.FA101 > 0", "syncs > 0", "FA103"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("kernel = 3", "Did you mean 'kernels'?"),
        ("findings.FA1O1 = 3", "Did you mean 'FA101'?"),
        ('kernels = "many"', "kernels = 'many' is no number.  Write: kernels = 12"),
        ("kernels = true", "is no number"),
        ("kernels = nan", "is no number"),
        ("fail-on = 3", "is no list of conditions"),
        ('fail-on = ["syncs"]', "[tool.fusion-advisor.budget] fail-on 'syncs' has no limit"),
    ],
)
def test_a_budget_that_is_not_understood(table: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        limits(table)
    assert said in str(caught.value)


def test_another_packages_rule_may_have_a_budget_where_the_report_knows_it() -> None:
    theirs = made(*norm(0), findings=(finding("XY1", "layers.0.norm"),))
    (limit,) = budget.read({"findings": {"XY1": 0}}, theirs)
    assert limit.met(theirs)
    with pytest.raises(InputError):
        budget.read({"findings": {"XY1": 0}}, EAGER)


def test_limits_alone() -> None:
    held = check(EAGER, budget.read({"kernels": 10, "findings.FA103": 2}))
    assert (held.breaches, held.compared) == ((), ("kernels", "findings.FA103"))
    (kernels, rule) = check(EAGER, budget.read({"kernels": 9, "findings.FA103": 1})).breaches
    assert (kernels.what, kernels.limit, kernels.found, kernels.origin) == ("kernels", "at most 9", "10", "budget")
    assert [p.module for p in rule.places] == ["layers.0.norm, layers.1.norm"]


def test_the_same_step_passes_whatever_the_clock_says() -> None:
    found = check(retimed(EAGER, 5.0), baseline=EAGER)
    assert found.breaches == ()
    assert found.same


def test_a_broken_fusion_fails_and_is_named() -> None:
    found = check(EAGER, baseline=FUSED)
    assert not found.same
    assert {b.what for b in found.breaches} == {"kernels", "launches", "groups", "findings.FA103"}
    rule = next(b for b in found.breaches if b.what == "findings.FA103")
    assert (rule.limit, rule.found) == ("at most 0", "2")
    assert [(p.module, p.source and p.source.line) for p in rule.places] == [
        ("layers.0.norm", 17),
        ("layers.1.norm", 17),
    ]
    kernels = next(b for b in found.breaches if b.what == "kernels")
    assert kernels.places[0].module == "layers.0.norm, layers.1.norm"
    assert kernels.places[0].source is not None
    assert kernels.places[0].source.line == 17


def test_what_improved_fails_nothing_and_is_said() -> None:
    found = check(FUSED, baseline=EAGER)
    assert found.breaches == ()
    assert "kernels 10 → 4" in found.better
    assert "findings.FA103 2 → 0" in found.better


def test_fewer_places_are_no_better_where_nothing_was_fused() -> None:
    add, last = K("block", "aten::add", 5), K("block.norm", "aten::native_layer_norm", 6, "norm")
    before = made(add, last, findings=(finding("FA104", "block.norm", line=6),))
    found = check(made(add, K("block", "aten::clamp", 5), last), baseline=before)
    assert found.better == ()


def test_one_fusion_lost_and_another_gained_does_not_even_out() -> None:
    fused = K("layers.0.norm", "aten::_fused_rms_norm", 21, "norm")
    first = made(*layer(0, *norm(0)), *layer(1, replace(fused, module="layers.1.norm")),
                 findings=(finding("FA103", "layers.0.norm", line=17),))  # fmt: skip
    second = made(*layer(0, fused), *layer(1, *norm(1)), findings=(finding("FA103", "layers.1.norm", line=17),))
    found = check(second, baseline=first)
    (broken,) = [b for b in found.breaches if "FA103" in b.what]
    assert (broken.what, broken.limit, broken.found) == ("FA103 at layers.1.norm", "none there", "unfused")
    assert broken.places[0].source is not None
    assert broken.places[0].source.line == 17


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("syncs", made(*norm(0)), made(*norm(0), syncs=1)),
        ("unfused_bytes", made(*norm(0), unfused_bytes=100), made(*norm(0), unfused_bytes=101)),
        ("fused_share", made(K("a", "t", kind="fused")), made(K("a", "t"))),
    ],
)
def test_each_exact_figure_fails_alone(name: str, before: Report, after: Report) -> None:
    assert [b.what for b in check(after, baseline=before).breaches] == [name]
    assert check(before, baseline=after).breaches == ()


def test_a_figure_known_on_one_side_only_is_said() -> None:
    found = check(made(*norm(0)), baseline=made(*norm(0), unfused_bytes=100))
    assert found.breaches == ()
    assert "unfused_bytes is known before only; not compared." in found.notes


def test_a_rule_that_looked_at_one_side_only_is_said() -> None:
    """One that failed found nothing, which is neither better nor, in a baseline, proof that a place was fused."""
    looked = made(*layer(0, *norm(0)), findings=(finding("XY1", "layers.0.norm"),))
    failed = replace(looked, findings=())
    for report, baseline, side in ((failed, looked, "before"), (looked, failed, "after")):
        found = check(report, baseline=baseline)
        assert (found.breaches, [b for b in found.better if "XY1" in b]) == ((), [])
        assert f"findings.XY1 is known {side} only; not compared." in found.notes


def test_other_versions_are_said_and_fail_nothing_themselves() -> None:
    found = check(replace(EAGER, environment=replace(GPU, torch="2.14.0")), baseline=EAGER)
    assert found.breaches == ()
    assert found.notes[0] == "torch: 2.13.0 → 2.14.0."


@pytest.mark.parametrize(
    ("latency", "tolerance", "fails"),
    [
        ((1.04, 1.05, 1.06), 0.05, False),  # slower, but within the tolerance
        ((1.20, 1.25, 1.30), 0.05, True),
        ((1.20, 1.25, 1.30), 0.25, False),
        ((0.90, 1.25, 1.60), 0.05, False),  # no proven difference
    ],
)
def test_time_fails_only_beyond_interval_and_tolerance(
    latency: tuple[float, float, float], tolerance: float, fails: bool
) -> None:
    before = made(*norm(0), latency=(0.99, 1.0, 1.01))
    found = check(made(*norm(0), latency=latency), baseline=before, tolerance=tolerance)
    assert [b.what for b in found.breaches] == (["latency (µs)"] if fails else [])


def test_a_baseline_of_another_model_is_said() -> None:
    one, other = (replace(EAGER, workload=Workload(f"/a/{name}.py", "build_model", model="Net")) for name in "bc")
    note = "The baseline is of another target: b.py:build_model → c.py:build_model."
    assert note in check(other, baseline=one).notes
    moved = replace(one, workload=Workload("/elsewhere/b.py", "build_model", model="Net"))
    assert check(moved, baseline=one).notes == check(one, baseline=one).notes


def test_an_interval_without_width_is_left_out() -> None:
    """Predicted times are exact numbers."""
    before, after = (made(*norm(0), replace(K("a", "t"), us=us), basis="predicted") for us in (10.0, 30.0))
    (breach,) = check(after, baseline=before).breaches
    assert breach.found == "70, +40 %"


def test_other_inputs_fail() -> None:
    before, after = (Workload("b.py", inputs=(TensorSpec("x", (n,), "float32"),)) for n in (8, 4))
    (breach,) = check(replace(EAGER, workload=after), baseline=replace(EAGER, workload=before)).breaches
    assert (breach.what, breach.limit, breach.found) == ("Inputs", "[8] float32 contiguous", "[4] float32 contiguous")


def test_a_gpu_is_not_held_against_a_cpu() -> None:
    with pytest.raises(InputError, match="one lists the ops of a CPU run"):
        check(made(*norm(0), stand_ins=True, environment=Environment()), baseline=EAGER)


@pytest.mark.parametrize("report", [made(*norm(0), *norm(1), steps=4, latency=(1, 2, 3)), *ALL.values()])
def test_a_baseline_is_small_and_says_the_same(report: Report) -> None:
    kept = codec.from_json(codec.to_json(budget.baseline(report)))
    assert canonical(kept) == canonical(report)
    assert check(report, baseline=kept).breaches == ()
    if report.timeline and report.timeline.kernels.step:
        assert kept.timeline is not None
        assert len(kept.timeline.kernels.op) == 8
