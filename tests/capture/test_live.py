"""A live profile: what it records, how it is linked to the data flow, and the latency beside it."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from fusionadvisor import sequences
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.summary import summarise
from fusionadvisor.capture import live as capture_live
from fusionadvisor.capture.align import align
from fusionadvisor.capture.live import Captured, capture, on_one_clock, own_waits
from fusionadvisor.errors import EnvironmentUnfitError
from fusionadvisor.report.model import Timing
from fusionadvisor.rules.engine import run
from fusionadvisor.trace import load
from fusionadvisor.trace.timeline import KERNEL_COLUMNS, Timeline
from fusionadvisor.units import time_us
from fusionadvisor.workload.program import live
from tests.builders import T, call, timeline
from tests.trace.samples import Event, annotation, kernel, launch, op, read

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="these run where CPU ops stand in for kernels")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_live, "LATENCY_SECONDS", 0.05)


def captured(**options: Any) -> Captured:
    return capture(live(Block(), torch.randn(2, 3, 16, 16)), **options)


def step_of(result: Captured, step: int = 0) -> pd.DataFrame:
    kernels = result.timeline.kernels
    return kernels[kernels["step"] == step]


def test_every_kernel_is_linked_to_its_recorded_op_module_and_line() -> None:
    result = captured(steps=3)
    kernels = result.timeline.kernels
    assert (result.timeline.basis, result.timeline.stand_ins) == ("measured", True)
    assert len(result.timeline.steps) == 3
    assert len(kernels) == 15
    for step in range(3):
        rows = step_of(result, step)
        assert list(rows["module"]) == ["conv", "bn", "", "", "fc"]
        names = [result.flow.ops[i].name for i in rows["flow_op"]]
        assert names == ["aten::convolution", "aten::native_batch_norm", "aten::relu", "aten::mean", "aten::addmm"]
    lines = sorted({str(source).rpartition(":")[2] for source in kernels["source"]})
    first = Block.forward.__code__.co_firstlineno
    assert lines == [str(first + 1), str(first + 2)]
    assert all("test_live.py" in str(source) for source in kernels["source"])
    assert set(kernels["phase"]) == {"forward"}
    assert "W21" not in [w.code for w in result.warnings]


def test_the_kernel_table_keeps_its_columns_and_types() -> None:
    result = captured(steps=1)
    kernels = result.timeline.kernels
    assert {name: str(kernels[name].dtype) for name in KERNEL_COLUMNS} == KERNEL_COLUMNS


def test_the_latency_is_measured_without_the_profiler() -> None:
    result = captured(steps=1)
    assert result.latency is not None
    low, high = result.latency.ci95_ms
    assert capture_live.FEWEST_SAMPLES <= len(result.latency.samples_ms) <= capture_live.MOST_SAMPLES
    assert min(result.latency.samples_ms) <= low <= result.latency.median_ms <= high <= max(result.latency.samples_ms)
    assert not torch._C._autograd._profiler_enabled()


def test_capturing_inference_changes_nothing() -> None:
    program = live(Block(), torch.randn(2, 3, 16, 16))
    before = {name: value.clone() for name, value in program.model.state_dict().items()}
    capture(program, steps=2)
    for name, value in program.model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not program.model.training


def test_training_phases_are_told_apart() -> None:
    program = live(Block(), torch.randn(2, 3, 16, 16), mode="training")
    result = capture(program, steps=2)
    rows = step_of(result, 1)
    assert list(dict.fromkeys(rows["phase"])) == ["forward", "backward", "optimizer"]
    backward = rows[(rows["phase"] == "backward") & (rows["module"] == "conv")]
    assert "aten::convolution_backward" in set(backward["op"])
    assert (rows["flow_op"] >= 0).all()


def test_a_step_that_runs_other_ops_is_left_unlinked_and_counted() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            x = x.exp()
            if self.calls > 4:  # three to warm up, one to record
                x = x.sin()
            return x.neg()

    result = capture(live(Moody(), torch.randn(4)), steps=2)
    rows = step_of(result)
    by_op = dict(zip(rows["op"].astype(str), rows["flow_op"], strict=True))
    assert by_op["aten::sin"] == -1
    assert result.flow.ops[by_op["aten::neg"]].name == "aten::neg"
    (warning,) = [w for w in result.warnings if w.code == "W21"]
    assert warning.message.startswith("2 of 6 kernels")


@pytest.mark.parametrize(
    ("theirs", "ours", "pairs"),
    [
        ("abc", "abc", [(0, 0), (1, 1), (2, 2)]),
        ("abxc", "abc", [(0, 0), (1, 1), (3, 2)]),
        ("ac", "abc", [(0, 0), (1, 2)]),
        ("xaby", "ab", [(1, 0), (2, 1)]),
        ("", "abc", []),
        ("aa", "aaa", [(0, 0), (1, 1)]),
    ],
)
def test_matching_in_order(theirs: str, ours: str, pairs: list[tuple[int, int]]) -> None:
    assert list(sequences.align(theirs, ours).pairs) == pairs


def test_aligning_is_stable() -> None:
    result = captured(steps=1)
    again = align(result.timeline, result.flow)
    pd.testing.assert_frame_equal(again.timeline.kernels, result.timeline.kernels)
    assert (again.unlinked, again.kernels) == (0, 5)


@pytest.mark.parametrize(
    ("lose", "said"),
    [
        (lambda t: replace(t, kernels=t.kernels[:0]), "recorded no work"),
        (lambda t: replace(t, steps=t.steps[:1]), "1 of 3 steps"),
    ],
)
def test_a_profile_that_lost_something_is_the_environments_fault(
    lose: Callable[[Timeline], Timeline], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_live, "load", lambda path, *, stand_ins: lose(load(path, stand_ins=stand_ins)))
    with pytest.raises(EnvironmentUnfitError, match=said):
        captured(steps=3)


def test_profiling_does_not_load_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from fusionadvisor.capture.live import capture\n"
        "from fusionadvisor.workload.program import live\n"
        "capture(live(torch.nn.Linear(3, 3), torch.randn(2, 3)), steps=1)\n"
        "assert 'torch._inductor' not in sys.modules and 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr) == (0, "")


def test_gradients_added_in_place_outside_the_recording_are_the_same_op() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.fc(x)
            return (y.sin() + y.cos() + y.exp())[:, torch.tensor([0, 2, 2])]  # type: ignore[no-any-return]

    result = capture(live(Twice(), torch.randn(3, 4), mode="training"), steps=2)
    rows = step_of(result)
    assert "aten::add_" in set(rows["op"])
    assert "aten::_index_put_impl_" in set(rows["op"])
    assert (rows["flow_op"] >= 0).all()


def test_dropout_in_evaluation_is_no_kernel_and_written_out_attention_is_several() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1)
            return self.dropout(x)  # type: ignore[no-any-return]

    rows = step_of(capture(live(Attends(), torch.randn(1, 2, 8, 4)), steps=1))
    assert (rows["flow_op"] >= 0).all()
    assert not {"aten::dropout", "aten::_scaled_dot_product_attention_math"} & set(rows["op"])
    assert {"aten::bmm", "aten::_softmax"} <= set(rows["op"])


def test_views_that_other_names_make_do_not_break_the_order() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(4, 4, batch_first=True)  # transposes in place, splits without saying so
            self.fc = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.fc(self.gru(x)[0][0])
            return out @ out.T  # type: ignore[no-any-return]  # a view under a name of its own

    result = capture(live(Recurrent(), torch.randn(1, 300, 4)), steps=1)
    rows = step_of(result)
    assert len(rows) > 2000
    assert (rows["flow_op"] >= 0).all()
    assert not result.warnings or "not linked" not in result.warnings[0].message


def test_an_op_that_is_recorded_taken_apart_keeps_its_module_and_line() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(8)
            self.fc = nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.norm(x))  # type: ignore[no-any-return]

    result = capture(live(Normed(), torch.randn(2, 8)), steps=2)
    rows = step_of(result, 1)
    (norm,) = rows[rows["op"] == "aten::_fused_rms_norm"].itertuples()
    assert norm.module == "norm"
    assert Path(str(norm.source).rpartition(":")[0]).name == Path(__file__).name
    assert norm.flow_op == -1  # which of its parts' values flow on is not told
    assert not result.warnings or "not linked" not in result.warnings[0].message


def test_ops_that_take_longer_than_the_unprofiled_step_are_scaled_to_it() -> None:
    result = captured(steps=2)
    recorded = result.timeline.kernels["dur_ns"] / result.timeline.time_scale
    timeline = replace(result.timeline, kernels=result.timeline.kernels.assign(dur_ns=recorded.astype("int64")))
    step_us = float(recorded.sum()) / 2 / 1e3
    half = Timing(step_us / 2 / 1e3, (0.0, 1.0))
    scaled = on_one_clock(replace(timeline, time_scale=1.0), half)
    assert scaled.time_scale == pytest.approx(0.5, rel=1e-3)
    advice = run(Facts(scaled, result.flow, latency_us=step_us / 2))
    summary = summarise(scaled, advice.group_of_kernel)
    assert sum(kind.gpu_us for kind in summary.by_kind) / 2 == pytest.approx(step_us / 2, rel=1e-2)
    assert advice.fusion.unfused_us <= step_us / 2 * 1.01
    assert advice.findings
    for finding in advice.findings:
        assert finding.share == pytest.approx(finding.kernel_us / (step_us / 2), abs=1e-2)


def test_the_bound_of_a_folded_norm_is_what_the_norm_takes() -> None:
    result = captured(steps=1)
    findings = run(Facts(result.timeline, result.flow)).findings
    (fold,) = (f for f in findings if f.rule == "FA101")
    assert f"Estimated as what the norm takes, {time_us(fold.kernel_us)}." in fold.evidence


def test_ops_that_fit_into_the_step_and_kernels_of_a_gpu_keep_their_times() -> None:
    timeline = replace(captured(steps=1).timeline, time_scale=1.0)
    longer = Timing(float(timeline.kernels["dur_ns"].sum()) / 1e6 + 1.0, (0.0, 1.0))
    assert on_one_clock(timeline, longer) is timeline
    assert on_one_clock(timeline, None) is timeline
    on_gpu = replace(timeline, stand_ins=False)
    assert on_one_clock(on_gpu, Timing(1e-6, (0.0, 1.0))) is on_gpu


def test_one_slow_step_does_not_set_an_ops_time() -> None:
    """An op of 10, 900 and 12 µs in three equal steps takes 12; so do all, and a mean would say 307."""
    x = T((64, 64))
    line = timeline([call("aten::relu", x, us=us, step=i) for i, us in enumerate((10, 900, 12))], stand_ins=True)
    steady = on_one_clock(line, Timing(5.0, (5.0, 5.0)))
    assert steady.kernels["dur_ns"].tolist() == [12_000, 12_000, 12_000]


def test_the_waits_of_the_recording_are_told_from_the_programs() -> None:
    def step(index: int, begin: float, *waits: str) -> list[Event]:
        calls = [launch(begin + 20 + 10 * i, 10 * index + i + 50, name=name) for i, name in enumerate(waits)]
        return [annotation(f"ProfilerStep#{index}", begin, 90), op("aten::add", begin + 1, 5), *calls]

    timeline = read(
        [
            *step(0, 100, "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaDeviceSynchronize"),
            *step(1, 200, "cudaDeviceSynchronize"),
            launch(103, 1),
            kernel(105, 5, 1),
            launch(203, 2),
            kernel(205, 5, 2),
            launch(310, 98, name="cudaDeviceSynchronize"),
            launch(320, 99, name="cudaDeviceSynchronize"),
        ]
    )
    assert len(timeline.syncs) == 6
    assert own_waits(timeline, ends_steps=True) == 4  # two steps' ends, two after them
    assert own_waits(timeline, ends_steps=False) == 2
