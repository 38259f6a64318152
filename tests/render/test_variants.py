"""Several workloads side by side: what tells them apart, the time a sample, and which of them is launch-bound."""

from dataclasses import replace
from typing import Any

import pytest

from fusionadvisor.errors import GateError
from fusionadvisor.render import html, markdown, variants
from fusionadvisor.report import condition
from fusionadvisor.report.model import Prediction, Range, Report, TensorSpec, Workload
from tests.render.samples import BATCHES, CPU_PROFILE, GENERATE, PREDICTED, PROFILE


def test_a_batch_table_by_hand() -> None:
    titles = tuple(column.title for column in variants.table(BATCHES).columns)
    assert titles == ("", "step", "kernels", "per sample", "launch-bound", "top finding")
    assert [row.cells for row in variants.table(BATCHES).rows] == [
        ("batch 1", "64.0 µs", "10", "64.0 µs", "yes, 62 % idle", "FA301 Replay the step as a graph"),
        ("batch 8", "80.0 µs", "10", "10.0 µs", "no", "FA101 Fold batch norm into its convolution ×3"),
        ("batch 64", "480.0 µs", "10", "7.5 µs", "no", "none"),
    ]
    assert variants.best(BATCHES) == "Batch 64 takes the least time per sample: 8.53× faster than batch 1"


def test_phases_of_generation_are_told_by_name_and_tokens() -> None:
    assert variants.names(GENERATE) == ["prefill", "decode"]
    prefill, decode = (row.cells for row in variants.table(GENERATE).rows)
    assert (prefill[1], decode[1]) == ("541.8 µs", "541.8 µs")
    assert (prefill[3], decode[3]) == ("2.1 µs", "270.9 µs")  # of 256 and of 2 tokens
    assert variants.table(GENERATE).columns[3].title == "per token"
    assert variants.best(GENERATE) == ""
    both = replace(GENERATE, variants=(*GENERATE.variants, replace(GENERATE, workload=work(GENERATE, batch=4))))
    assert variants.names(both) == ["prefill, batch as given", "decode, batch as given", "prefill, batch 4"]


def work(report: Report, **changes: Any) -> Workload:
    assert report.workload is not None
    return replace(report.workload, **changes)


def test_what_no_recording_tells_is_given_as_a_break_even() -> None:
    # a prediction knows how long kernels are, not how fast a CPU launches
    told = replace(PREDICTED.fusion.launch_bound, share=None)
    unseen = replace(PREDICTED, fusion=replace(PREDICTED.fusion, launch_bound=told))
    assert variants.launch_bound(unseen) == "above 7.9 µs"
    on_cpu = replace(CPU_PROFILE, fusion=replace(CPU_PROFILE.fusion, launch_bound=replace(told, break_even_us=None)))
    assert variants.launch_bound(on_cpu) == "unknown"
    beside = Prediction("NVIDIA H100 SXM", 40, 2, 10, 1, 0, Range(80, 100, 120), 0.1)
    with_gpu = replace(on_cpu, predicted=beside)
    assert variants.launch_bound(with_gpu) == "above 2.5 µs"  # 100 µs of 40 kernels
    assert variants.notes(with_gpu) == [
        "Launch-bound on the NVIDIA H100 SXM if the CPU takes longer than this to launch one kernel."
    ]


def test_a_warning_of_one_workload_names_it() -> None:
    assert variants.warnings(BATCHES) == [
        "batch 64: Two threads share this machine with other work: intervals are wide."
    ]
    assert variants.warnings(replace(GENERATE)) == [w.message for w in PREDICTED.warnings]
    assert variants.warnings(CPU_PROFILE) == [w.message for w in CPU_PROFILE.warnings]


def test_a_gate_holds_for_every_workload_and_names_the_one_it_fails() -> None:
    from fusionadvisor.cli import gate

    gate.hold(condition.parse(["kernels>10"]), BATCHES)
    with pytest.raises(GateError, match=r"--fail-on: batch 8: findings\.FA101"):
        gate.hold(condition.parse(["FA101"]), BATCHES)
    with pytest.raises(GateError, match=r"--fail-on: findings\.FA101"):
        gate.hold(condition.parse(["FA101"]), PROFILE)


def test_inputs_without_a_dimension_are_one_sample() -> None:
    scalar = TensorSpec("t", (), "float32")
    assert variants.samples(replace(PROFILE, workload=work(PROFILE, inputs=(scalar,)))) == 1
    assert variants.samples(replace(PROFILE, workload=None)) == 1


def test_pages_and_markdown_hold_the_table() -> None:
    page, text = html.compose(BATCHES), markdown.compose(BATCHES)
    assert "Side by side" in page
    for cell in ("batch 64", "480.0 µs", "7.5 µs", "yes, 62 % idle"):
        assert f"<td>{cell}</td>" in page or f'<td class="num">{cell}</td>' in page
        assert f"| {cell} |" in text
    assert "Side by side" not in html.compose(PROFILE)
