"""Ctrl-C, with a real SIGINT to a real process: what was measured is reported, exit 130; a second one ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
import torch

from fusionadvisor.report import codec, schema
from fusionadvisor.report.model import INTERRUPTED, Report

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="these run where CPU ops stand in for kernels")

ROOT = Path(__file__).parents[2]

MODEL = """
import pathlib, time
import torch
from torch import nn

calls = 0

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        global calls
        calls += 1
        pathlib.Path("calls").write_text(str(calls))
        time.sleep({sleep})
        return torch.relu(self.layer(x))

def build_model():
    return Slow()

def example_inputs():
    return torch.randn(4, 8)
"""
SCRIPT = (
    MODEL.format(sleep=0.05)
    + """
model = Slow()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
    while True:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
{after}
"""
)
PLAIN = SCRIPT.format(before="if True:", after="")
STUBBORN = SCRIPT.format(before="while True:\n  try:", after="  except KeyboardInterrupt:\n    pass")


class Running:
    """A command, and the number of times that its model was called so far."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "FUSION_ADVISOR_GPU": "none"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fusionadvisor", *words], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def press(self, calls: int) -> None:
        """Press Ctrl-C once the model was called so often."""
        until = time.monotonic() + 120
        while self.process.poll() is None and time.monotonic() < until:
            try:
                if int((self.folder / "calls").read_text() or 0) >= calls:
                    break
            except FileNotFoundError:
                pass
            time.sleep(0.01)
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err


def valid(text: str) -> Report:
    check: Any = fastjsonschema.compile(json.loads(schema.FILE.read_bytes()))
    check(json.loads(text))
    return codec.from_json(text)


def said(report: Report) -> str:
    return next(warning.message for warning in report.warnings if warning.code == INTERRUPTED)


def test_a_profile_reports_the_steps_and_samples_it_has(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(MODEL.format(sleep=0.5))
    running = Running(tmp_path, "profile", "slow.py", "--json", "r.json", "--steps", "3", "--fail-on", "kernels>0")
    # one call to see that it runs, 3 to warm up, one recorded, one and three profiled; then it is timed
    running.press(calls=9 + 2)
    code, out, err = running.end()
    assert code == 130
    assert err.splitlines()[-1] == "interrupted"
    assert "--fail-on" not in err  # of half a run nothing is held
    report = valid((tmp_path / "r.json").read_text())
    assert report.interrupted
    assert report.timeline is not None
    assert report.timeline.steps == 3
    assert report.latency is not None
    assert 1 <= len(report.latency.samples_ms) < 6
    assert said(report).startswith("Interrupted: 3 of 3 steps profiled, and the step was timed ")
    assert said(report) in " ".join(out.split())


def test_a_profile_cut_off_in_a_step_reports_the_whole_ones(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(MODEL.format(sleep=0.3))
    running = Running(tmp_path, "profile", "slow.py", "--format", "json", "--steps", "50")
    running.press(calls=6 + 3)
    code, out, _ = running.end()
    assert code == 130
    report = valid(out)
    assert report.timeline is not None
    assert 1 <= report.timeline.steps < 20
    table = report.timeline.kernels
    assert set(table.step) <= {-1, *range(report.timeline.steps)}
    assert report.latency is None
    assert said(report) == (
        f"Interrupted: {report.timeline.steps} of 50 steps profiled, and the step was not timed by itself."
    )


def test_before_anything_was_measured_there_is_no_report(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(MODEL.format(sleep=0.3))
    running = Running(tmp_path, "profile", "slow.py", "--json", "r.json")
    running.press(calls=1)
    assert running.end() == (130, "", "interrupted\n")
    assert not (tmp_path / "r.json").exists()


def test_of_several_batch_sizes_those_that_ran_are_reported(tmp_path: Path) -> None:
    model = MODEL.format(sleep="0.02 if len(x) < 8 else 0.5").replace("calls += 1", "calls += len(x) > 8")
    (tmp_path / "slow.py").write_text(model)
    running = Running(tmp_path, "profile", "slow.py", "--batch", "2,9,10", "--steps", "1", "--json", "r.json")
    running.press(calls=1)  # of the second size
    code, out, _ = running.end()
    assert code == 130
    report = valid((tmp_path / "r.json").read_text())
    assert report.interrupted
    assert report.variants == ()
    assert said(report) == "Interrupted: 2 of 3 workloads were not run."
    assert "Slow · x[2,8]" in out


def test_apply_reports_the_profile_where_no_strategy_was_tried(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(MODEL.format(sleep=0.1))
    running = Running(tmp_path, "apply", "slow.py", "--strategy", "inplace", "--json", "r.json")
    running.press(calls=15)
    code, _, err = running.end()
    assert code == 130, err
    report = valid((tmp_path / "r.json").read_text())
    assert (report.command, report.attempts, report.interrupted) == ("apply", (), True)
    assert any("no strategy was tried" in warning.message for warning in report.warnings)


def test_a_script_is_reported_as_far_as_it_was_profiled(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    running = Running(tmp_path, "run", "train.py", "--steps", "1000", "--json", "r.json")
    running.press(calls=12)
    code, _, err = running.end()
    assert code == 130
    assert err.splitlines()[-1] == "interrupted"
    report = valid((tmp_path / "r.json").read_text())
    assert report.timeline is not None
    assert 5 <= report.timeline.steps < 100
    assert f"{report.timeline.steps} of 1000 profiled" in said(report)


def test_a_script_ended_before_its_first_profiled_step_gives_no_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    running = Running(tmp_path, "run", "train.py", "--skip", "100000", "--json", "r.json")
    running.press(calls=5)
    assert running.end() == (130, "", "interrupted\n")


def test_a_second_one_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STUBBORN)
    running = Running(tmp_path, "run", "train.py", "--skip", "2", "--steps", "2")
    running.press(calls=10)
    time.sleep(0.5)
    assert running.process.poll() is None  # the script goes on, as it would by itself
    running.press(calls=0)
    code, out, _ = running.end()
    assert code == -signal.SIGINT  # which a shell shows as 130
    assert out == ""
