"""The program on a CUDA device, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_models"

DIES_IN_A_CAPTURE = """
import os, signal
import torch
from torch import nn

class Dies(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        if torch.cuda.is_current_stream_capturing():
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.linear(x).relu()

def build_model():
    return Dies()

def example_inputs():
    return torch.randn(4, 8)
"""

WAITS = """
import torch
from torch import nn

class Waits(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x) * x.max().item()

def build_model():
    return Waits()

def example_inputs():
    return torch.randn(4, 8)
"""


SMALLER = {"transformer_block": ["--input", "hidden_states=float32[2,64,512]"]}
"""Inputs where the sample's own take long on the fake device, which computes on the CPU."""


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the report (empty where none was written), and standard error."""
    out = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "fusionadvisor", *arguments, "--json", str(out)],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "fake CUDA device: cannot" not in done.stderr
    return done.returncode, json.loads(out.read_text()) if out.exists() else {}, done.stderr


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("name", ["simple_mlp", "residual_block", "transformer_block", "multi_conv"])
def test_profile_records_kernels(tmp_path: Path, name: str) -> None:
    code, report, said = run(tmp_path, "profile", str(SAMPLES / f"{name}.py"), *SMALLER.get(name, []))
    assert code == 0, said
    assert report["environment"]["gpu"]
    timeline = report["timeline"]
    assert (timeline["basis"], timeline["stand_ins"]) == ("measured", False)
    [device] = timeline["devices"]
    assert device["kernels"] > 0
    assert 0 < device["busy_us"] <= device["span_us"]
    assert timeline["linked_share"] > 0.95
    assert report["latency"]["median_ms"] > 0


def test_profile_of_a_training_step(tmp_path: Path) -> None:
    code, report, said = run(tmp_path, "profile", str(SAMPLES / "train_step.py"), "--train")
    assert code == 0, said
    assert report["timeline"]["devices"][0]["kernels"] > 0


@pytest.mark.parametrize(
    ("name", "train"),
    [("simple_mlp", False), ("residual_block", False), ("transformer_block", False), ("train_step", True)],
)
def test_apply_cudagraph_verifies_and_measures(tmp_path: Path, name: str, train: bool) -> None:
    mode = ["--train"] if train else SMALLER.get(name, [])
    code, report, said = run(tmp_path, "apply", str(SAMPLES / f"{name}.py"), "--strategy", "cudagraph", *mode)
    assert code == 0, said
    [attempt] = report["attempts"]
    assert attempt["outcome"] in ("faster", "same", "slower"), attempt["reason"]
    assert attempt["sites"]["applied"] == 1
    assert (attempt["verification"]["verdict"], attempt["verification"]["device"][:4]) == ("agrees", "cuda")
    assert attempt["before"]["median_ms"] > 0
    assert attempt["after"]["median_ms"] > 0


@pytest.mark.silicon("it measures speed")
def test_a_launch_bound_model_gets_faster(tmp_path: Path) -> None:
    code, report, said = run(tmp_path, "apply", str(SAMPLES / "simple_mlp.py"), "--strategy", "cudagraph")
    assert code == 0, said
    assert (report["attempts"][0]["outcome"], report["attempts"][0]["kept"]) == ("faster", True)


def test_a_wait_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    code, report, said = run(tmp_path, "apply", "waits.py", "--strategy", "cudagraph")
    assert code == 4
    assert report["attempts"][0]["outcome"] == "refused"
    assert "waits.py:11 reads a value back to the CPU" in said


def test_a_crash_in_the_capture_ends_the_attempt_and_not_the_program(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(DIES_IN_A_CAPTURE)
    code, report, said = run(tmp_path, "apply", "dies.py", "--strategy", "cudagraph,fuse_modules")
    assert code == 4
    outcomes = {a["strategy"]: a["outcome"] for a in report["attempts"]}
    assert outcomes["cudagraph"] == "crashed"
    assert set(outcomes) == {"cudagraph", "fuse_modules"}
    assert "cudagraph" in said


def test_the_doctor_finds_the_gpu_fit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fusionadvisor", "doctor"],
        env=_environment(), capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    assert "no  " not in done.stdout, done.stdout
    assert "recorded (CUPTI works)" in done.stdout


@pytest.mark.parametrize(("source", "waits"), [("simple_mlp.py", 0), ("waits.py", 1)])
def test_the_programs_own_wait_is_no_sync_of_the_step(tmp_path: Path, source: str, waits: int) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    (tmp_path / "simple_mlp.py").write_text((SAMPLES / "simple_mlp.py").read_text())
    code, report, said = run(tmp_path, "profile", source, "--fail-on", "syncs>0")
    assert code == min(waits, 1), said
    assert report["fusion"]["syncs"] == waits


def test_outputs_of_compiled_graphs_outlive_the_next_call(tmp_path: Path) -> None:
    options = ["--strategy", "compile", "--set", "compile.mode=reduce-overhead"]
    code, report, said = run(tmp_path, "apply", str(SAMPLES / "simple_mlp.py"), *options)
    assert code == 0, said
    [attempt] = report["attempts"]
    assert attempt["verification"]["verdict"] == "agrees", attempt["reason"]
