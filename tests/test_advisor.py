"""The stations in one line: a target or a trace in, a whole report out."""

from pathlib import Path

import pytest

from fusionadvisor import advisor
from fusionadvisor.render.terminal import compose
from fusionadvisor.report.codec import from_json, to_json
from fusionadvisor.report.model import Report
from tests.shared import SHARED

SAMPLES = Path(__file__).parent.parent / "sample_models"
ALL_SAMPLES = sorted(path.name for path in SAMPLES.glob("*.py"))


def test_a_residual_block_shows_both_foldable_norms_with_their_lines() -> None:
    report = advisor.profile(str(SAMPLES / "residual_block.py"), device="cpu")
    source = (SAMPLES / "residual_block.py").read_text().splitlines()
    found = [f for f in report.findings if f.rule == "FA101"]
    assert {module for f in found for module in f.modules} == {"bn1", "bn2"}
    for finding in found:
        assert finding.source is not None
        assert Path(finding.source.file).name == "residual_block.py"
        assert "self.bn" in source[finding.source.line - 1]
        assert "fuse_modules" in finding.remedies


@pytest.mark.parametrize("name", ALL_SAMPLES)
def test_every_sample_profiles_and_its_report_survives_json(name: str) -> None:
    report = advisor.profile(str(SAMPLES / name), device="cpu", steps=1, train=name == "train_step.py")
    assert report.timeline is not None
    assert report.timeline.stand_ins
    assert report.timeline.basis == "measured"
    assert report.timeline.kernels.total >= 3
    assert report.latency is not None
    assert report.latency.median_ms > 0
    assert from_json(to_json(report)) == report


@pytest.mark.skipif(SHARED is None, reason="the shared traces are not here")
def test_a_recorded_trace_gives_its_counted_figures() -> None:
    assert SHARED is not None
    report = advisor.analyze(SHARED / "traces" / "tl_h100_vit_nsfw.json.gz")
    assert report.timeline is not None
    (device,) = report.timeline.devices
    assert device.kernels == 154
    assert device.busy_us == pytest.approx(1225.3, abs=0.1)
    assert report.environment.gpu == "NVIDIA H100 80GB HBM3"
    assert report.fusion.launch_bound.break_even_us == pytest.approx(7.95, abs=0.01)
    launch = next(f for f in report.findings if f.rule == "FA301")
    assert launch.saving.step_us.likely is None
    assert report.fusion.launch_bound.share is None


def test_a_cpu_profile_shows_the_step_predicted_for_a_gpu_beside_it() -> None:
    report = advisor.profile(str(SAMPLES / "linear_relu.py"), device="cpu", steps=1, beside="h100")
    assert report.timeline is not None
    assert report.timeline.basis == "measured"
    assert report.predicted is not None
    assert (report.predicted.gpu, report.predicted.kernels, report.predicted.syncs) == ("NVIDIA H100 SXM", 6, 0)
    assert report.predicted.kernel_us.low <= report.predicted.kernel_us.high
    said = [line for line in _text(report) if line.startswith("Predicted")]
    assert "6 kernels" in said[0]


def test_a_prediction_beside_a_run_is_for_the_inputs_that_ran_and_counts_as_alone() -> None:
    """The block's file gives 64 images where there is a GPU, and 4 elsewhere."""
    beside = advisor.profile(str(SAMPLES / "residual_block.py"), device="cpu", steps=1, beside="h100")
    assert beside.workload is not None
    assert beside.workload.inputs[0].shape[0] == 4
    alone = advisor.profile(str(SAMPLES / "residual_block.py"), gpu="h100", batch=4)
    assert beside.predicted == alone.predicted
    assert alone.predicted is not None
    assert alone.timeline is not None
    assert alone.predicted.bytes == sum(moved for moved in alone.timeline.kernels.bytes if moved > 0)
    own = advisor.profile(str(SAMPLES / "residual_block.py"), gpu="h100")
    assert own.workload is not None
    assert own.workload.inputs[0].shape[0] == 64


@pytest.mark.skipif(SHARED is None, reason="the shared traces are not here")
def test_the_ranks_of_a_job_are_summed_up_and_the_late_one_reported(tmp_path: Path) -> None:
    assert SHARED is not None
    for rank in (0, 3):
        name = f"astra_a100_megatron_tp8_r{rank}.json.gz"
        (tmp_path / name).symlink_to(SHARED / "traces" / name)
    report = advisor.analyze(tmp_path)
    assert report.timeline is not None
    by_rank = {rank.rank: rank for rank in report.ranks}
    assert set(by_rank) == {0, 3}
    late = next(rank for rank in report.ranks if rank.straggler)
    assert report.timeline.rank == late.rank
    assert late.collective_us == min(rank.collective_us for rank in report.ranks)
    other = by_rank[3 - late.rank]
    assert other.waiting_us == pytest.approx(other.collective_us - late.collective_us)
    assert any("2 ranks were read" in warning.message for warning in report.warnings)
    assert any("the others wait for it" in line for line in _text(report))


def _text(report: Report) -> list[str]:
    return [line.plain for line in compose(report, 100).lines]


def test_every_step_moves_the_same_bytes_counted_by_hand() -> None:
    """The block's ops on 4×64×56×56 floats (3.2 MB each way).

    A convolution reads the input and 64×64×3×3 weights and writes as much as it read of the input; a batch norm and a
    ReLU read and write the activation; the addition reads two.
    """
    report = advisor.profile(str(SAMPLES / "residual_block.py"), device="cpu", steps=3)
    assert report.timeline is not None
    table = report.timeline.kernels
    activation, weights = 4 * 64 * 56 * 56 * 4, 64 * 64 * 3 * 3 * 4
    wanted = 2 * (2 * activation + weights) + 2 * 2 * activation + 2 * 2 * activation + 3 * activation
    for step in range(3):
        moved = sum(b for b, s in zip(table.bytes, table.step, strict=True) if s == step and b > 0)
        assert moved == pytest.approx(wanted, rel=0.001)  # the batch norms' statistics and biases besides


def test_several_batch_sizes_are_variants_of_one_report() -> None:
    report = advisor.profile(SAMPLES / "linear_relu.py", device="cpu", steps=1, batch=[2, 5])
    (other,) = report.variants
    for one, batch in ((report, 2), (other, 5)):
        assert one.workload is not None
        assert one.workload.batch == batch
        assert one.workload.inputs[0].shape[0] == batch
        assert one.latency is not None
        assert one.timeline is not None
        table = one.timeline.kernels
        shapes = [shape for shape, op in zip(table.shapes, table.op, strict=True) if "addmm" in op]
        assert shapes
        assert all(f" [{batch}," in shape for shape in shapes)
    assert other.variants == ()
    assert from_json(to_json(report)) == report


def test_several_batch_sizes_are_predicted_as_each_alone() -> None:
    both = advisor.profile(SAMPLES / "linear_relu.py", gpu="h100", batch=[2, 64])
    alone = advisor.profile(SAMPLES / "linear_relu.py", gpu="h100", batch=64)
    (second,) = both.variants
    assert second.timeline == alone.timeline
    assert second.findings == alone.findings
    assert both.timeline != alone.timeline
