"""Run with the package installed: ``pip install . && python -m pytest tests``."""

import subprocess
import sys
from pathlib import Path

import pytest

import fusionadvisor

TWICE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.act = nn.ReLU()
        self.tail = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.ReLU())

    def forward(self, x):
        return self.tail(self.act(self.block(x)))

def build_model():
    torch.manual_seed(0)
    return Net()

def example_inputs():
    return torch.randn(256, 64)
"""
ONCE = TWICE.replace("self.act(self.block(x))", "self.block(x)").replace("nn.ReLU(), nn.ReLU())", "nn.ReLU())")
BRANCH = ONCE.replace("(self.block(x))", "(self.act(self.block(x) if x.sum() > 0 else x))")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "net.py"


def test_the_rule_names_the_second_one(file: Path) -> None:
    file.write_text(TWICE)
    report = fusionadvisor.profile(str(file))
    (found,) = [f for f in report.findings if f.rule == "RR101"]
    assert found.modules == ("act", "tail.2")
    assert found.remedies == ("drop_repeats",)


def test_the_rule_is_silent_where_nothing_is_repeated(file: Path) -> None:
    file.write_text(ONCE)
    report = fusionadvisor.profile(str(file))
    assert "RR101" not in {f.rule for f in report.findings}
    assert {p.rule: p.message for p in report.passed}["RR101"] == "no repeated activations"


def test_the_strategy_drops_what_the_code_proves_and_a_recipe_loads_elsewhere(file: Path) -> None:
    file.write_text(TWICE)
    report = fusionadvisor.optimize(file, ["drop_repeats"], save=file.parent / "out")
    (attempt,) = report.attempts
    assert attempt.sites.modules == ("act", "tail.2")
    assert not attempt.sites.refused
    assert attempt.verification is not None
    assert attempt.verification.verdict == "agrees"
    assert attempt.kernels is not None
    assert attempt.kernels.before - attempt.kernels.after == 2
    assert "RR101#1" in attempt.closed
    if report.files:  # where it was measured slower, nothing is saved
        elsewhere(file.parent)


def elsewhere(folder: Path) -> None:
    script = (
        "import torch, net, fusionadvisor\n"
        "model = net.build_model().eval(); x = net.example_inputs()\n"
        "fast = fusionadvisor.apply_recipe(model, 'out/recipe.json', example_inputs=x)\n"
        "assert type(fast.tail[2]).__name__ == 'Identity'\n"
        "torch.testing.assert_close(fast(x), model(x))\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True)


def test_the_strategy_refuses_where_another_path_is_possible(file: Path) -> None:
    file.write_text(BRANCH)
    (attempt,) = fusionadvisor.optimize(file, ["drop_repeats"]).attempts
    assert attempt.outcome == "refused"
    (refused,) = attempt.sites.refused
    assert refused.site == "act"
    assert "net.py:13 (Net.forward)" in refused.reason
