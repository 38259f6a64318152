"""What is written beside a recipe, and what is said of what cannot be."""

from pathlib import Path

from fusionadvisor.evaluate import trial
from fusionadvisor.evaluate.trial import Job
from fusionadvisor.recipe import FILE, Step
from fusionadvisor.workload.program import build
from fusionadvisor.workload.resolve import resolve

BRANCHES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.conv(x)) SCALED

def build_model():
    return Net()

def example_inputs():
    return torch.randn(2, 3, 8, 8)
"""


def saved(folder: Path, scaled: str) -> trial.Done:
    target = folder / "net.py"
    target.write_text(BRANCHES.replace("SCALED", scaled))
    workload = resolve(str(target), device="cpu")
    program = build(workload)
    tried = trial.perform(Job(workload, step=Step("fuse_modules"), budget_s=0), program, lambda _: None)
    assert tried.step is not None
    return trial.perform(Job(workload, kept=(tried.step,), save=str(folder / "out")), program, lambda _: None)


def test_why_there_is_no_exported_program_is_said(tmp_path: Path) -> None:
    done = saved(tmp_path, "* (2 if x.mean().item() > 0 else 3)")
    assert done.missing.startswith("There is no model.pt2: torch.export cannot capture the model (")
    assert "data-dependent" in done.missing
    assert "\n" not in done.missing
    assert {Path(name).name for name in done.files} >= {FILE, "weights.pt"}
    assert not (tmp_path / "out" / "model.pt2").exists()


def test_nothing_is_missing_of_a_model_that_can_be_exported(tmp_path: Path) -> None:
    done = saved(tmp_path, "")
    assert done.missing == ""
    assert (tmp_path / "out" / "model.pt2").exists()
