"""Of every recorded trace at hand, what the report says must fit together."""

import re
from pathlib import Path

import pytest

from fusionadvisor import advisor
from fusionadvisor.errors import InputError
from fusionadvisor.render import verdict
from fusionadvisor.render.terminal import compose
from fusionadvisor.report.model import Report
from tests.shared import SHARED

DATA = Path(__file__).parents[1] / "data" / "traces"
TRACES = sorted((SHARED / "traces" if SHARED else DATA).glob("*.json.gz"))
ROUNDED = 1 + 1e-6


def analysed(path: Path) -> Report:
    try:
        return advisor.analyze(path)
    except InputError as error:
        pytest.skip(error.what)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.partition(".")[0])
def test_what_a_report_says_fits_together(path: Path) -> None:
    report = analysed(path)
    line, launch = report.timeline, report.fusion.launch_bound
    assert line is not None
    whole = line.step_us * ROUNDED
    used = [d for d in line.devices if d.kernels]
    streams = max((d.streams for d in used), default=0) * len(used)
    overlap = 1.2  # kernels of one stream may overlap by programmatic launch
    assert line.step_kernel_us <= streams * whole * overlap
    assert line.busy_us <= whole
    assert sum(kind.step_gpu_us for kind in line.by_kind) == pytest.approx(line.step_kernel_us)
    assert sum(f.saving.gpu_us.high for f in report.findings) <= line.busy_us * max(1, len(used)) * ROUNDED
    assert sum(f.saving.step_us.high for f in report.findings) <= whole
    assert verdict.could_save(report) <= whole
    if launch.idle_share is not None and used:
        assert launch.idle_share == pytest.approx(1 - line.busy_us / line.step_us, abs=1e-9)
    if launch.idle is not None:
        idle = launch.idle.launch_us + launch.idle.sync_us + launch.idle.other_us
        assert idle <= whole
        assert idle + launch.idle.data_us + launch.idle.communication_us <= whole + line.busy_us


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.partition(".")[0])
def test_no_two_lines_contradict_each_other(path: Path) -> None:
    report = analysed(path)
    text = " ".join(" ".join(str(line) for line in compose(report, 110).lines).split())
    said = [int(n) for n in re.findall(r"GPU is idle for (\d+) %", text)]
    for busy in map(int, re.findall(r"GPU busy (\d+) %", text)):
        assert all(abs(busy + idle - 100) <= 1 for idle in said), text
    assert all(int(n) <= 100 for n in re.findall(r"Up to (\d+) %", text))
    if report.fusion.graphed_share > 0.5:
        assert "Replay the step as a graph" not in text
    if report.fusion.not_examined:
        assert verdict.of_findings(report).startswith("Not examined: ")
        assert all(passed.rule.startswith("FA3") for passed in report.passed)


def test_a_step_replayed_from_graphs_is_not_examined() -> None:
    """A step of 1.05 ms on the CPU that holds 1.69 ms of kernels, 99 % of them replayed."""
    report = advisor.analyze(DATA / "ao_a100_vit_bf16_graph.json.gz")
    assert verdict.of_findings(report).startswith("Not examined: 99 % of kernel time is replayed from graphs")
    assert report.timeline is not None
    assert report.timeline.step_us >= 1687
    assert all("not examined" in s.reason for s in report.not_applicable if s.rule == "FA103")
