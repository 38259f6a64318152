"""What a gate compares exactly: the same for the same code, different for different code."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionadvisor.report import quantities, step
from fusionadvisor.report.model import KernelTable, Report
from fusionadvisor.report.step import Kernel, Place
from fusionadvisor.report.structure import canonical
from tests.render.samples import ALL, PROFILE
from tests.report.steps import K, finding, made, retimed

BLOCK = (
    K("layers.0.proj", "aten::mm", 3, "gemm"), K("layers.0.norm", "aten::pow", 5, group=0),
    K("layers.0.norm", "aten::mean", 5, "reduction", group=0), K("layers.0.norm", "aten::mul", 6, group=0),
    K("layers.0.act", "aten::relu", 7),
)  # fmt: skip
FINDINGS = (finding("FA103", "layers.0.norm", line=5), finding("FA102", "layers.0.act", "layers.0.norm", line=7))


def of(report: Report, name: str) -> float | None:
    return quantities.find(name).of(report)


@given(st.floats(0.1, 10), st.integers(1, 5), st.integers(1, 5))
def test_the_same_code_gives_the_same_bytes(factor: float, steps: int, again: int) -> None:
    first, second = (made(*BLOCK, findings=FINDINGS, steps=count) for count in (steps, again))
    assert canonical(first) == canonical(retimed(second, factor))


@pytest.mark.parametrize("changed", range(len(BLOCK)))
@pytest.mark.parametrize("field", ["module", "op", "kind", "shapes"])
def test_other_code_gives_other_bytes(changed: int, field: str) -> None:
    other: dict[str, Any] = {field: "other"}
    kernels = [replace(k, **other) if i == changed else k for i, k in enumerate(BLOCK)]
    assert canonical(made(*kernels, findings=FINDINGS)) != canonical(made(*BLOCK, findings=FINDINGS))


def test_a_group_that_falls_apart_shows() -> None:
    apart = [replace(k, group=-1) if k.op == "aten::mul" else k for k in BLOCK]
    assert canonical(made(*apart, findings=FINDINGS)) != canonical(made(*BLOCK, findings=FINDINGS))


def test_findings_that_depend_on_times_are_left_out() -> None:
    timed = finding("FA301", "", title="Replay the step as a graph")
    assert canonical(made(*BLOCK, findings=(*FINDINGS, timed))) == canonical(made(*BLOCK, findings=FINDINGS))
    assert of(made(*BLOCK, findings=(timed,)), "findings") == 0
    assert quantities.find("findings.FA301").of(made(*BLOCK, findings=(timed,))) == 1


def test_a_step_is_the_one_most_steps_look_like() -> None:
    report = made(*BLOCK, steps=3)
    assert report.timeline is not None
    table = report.timeline.kernels
    warm = replace(table, op=("aten::copy_", *table.op[1:]))  # the first step does something else
    assert step.step_rows(warm) == tuple(range(5, 10))
    assert step.step_rows(table) == tuple(range(5))


def test_a_step_that_the_capped_table_cuts_is_not_the_typical_one() -> None:
    whole = made(*BLOCK, steps=3)
    assert whole.timeline is not None
    columns = {name: getattr(whole.timeline.kernels, name)[:12] for name in KernelTable.__dataclass_fields__
               if name not in ("total", "bytes")}  # fmt: skip
    cut = replace(whole, timeline=replace(whole.timeline, kernels=KernelTable(total=15, **columns)))
    assert len(step.kernels(cut)) == 5
    assert of(cut, "kernels") == 5


def test_a_table_that_does_not_know_its_steps_is_counted_by_them() -> None:
    assert of(PROFILE, "kernels") == 10  # a hundred in ten steps
    assert of(made(*BLOCK, steps=4), "kernels") == 5


def test_wrappers_change_no_path() -> None:
    wrapped = [replace(k, module=f"_orig_mod.{k.module}") for k in BLOCK]
    assert step.kernels(made(*wrapped)) == step.kernels(made(*BLOCK))
    assert step.kernels(made(*BLOCK))[0] == Kernel("layers.0.proj", "aten::mm", "[8,64]", "gemm")


@pytest.mark.parametrize(
    ("instances", "counted"),
    [(2, {"a": 1, "b": 1}), (4, {"a": 2, "b": 2}), (5, {"a": 2, "b": 2, "": 1}), (1, {"a": 1, "b": 1})],
)
def test_places_share_a_finding_out(instances: int, counted: dict[str, int]) -> None:
    found = step.places([finding("FA101", "a", "b", instances=instances)])
    assert found == {Place("FA101", module): count for module, count in counted.items()}


def test_quantities_of_a_step() -> None:
    report = made(*BLOCK, K("layers.0.attn", "aten::sdpa", kind="attention"), findings=FINDINGS, steps=2, syncs=1)
    values = {q.name: q.of(report) for q in quantities.QUANTITIES}
    expected = {
        "kernels": 6, "launches": 6, "graph_launches": 0, "groups": 1, "unfused_bytes": None, "bytes": None, "syncs": 1,
        "graph_breaks": None, "fused_share": round(1 / 6, 6), "findings": 3, "kernel_us": 60.0, "unfused_us": 30.0,
        "unfused_share": 0.5, "saving_us": 4.0, "latency_ms": None, "peak_memory_bytes": None, "speedup": None,
    }  # fmt: skip
    assert values == expected


@pytest.mark.parametrize("name", list(ALL))
def test_every_sample_has_a_structure(name: str) -> None:
    assert canonical(ALL[name]) == canonical(ALL[name])
