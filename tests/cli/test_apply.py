"""``fusion-advisor apply``: what only this command takes."""

from dataclasses import replace
from pathlib import Path

import pytest

from fusionadvisor.cli.apply import _lost
from fusionadvisor.report.model import LOST, Notice, Report, Tool
from tests.cli.conftest import Cli

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.fc(x))


def example_inputs():
    return torch.randn(4, 8)
"""
WRONG = """
import torch


def forget_the_activation(graph):
    for node in list(graph.graph.nodes):
        if node.target is torch.relu:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()
"""


def test_a_wrong_pass_of_the_users_is_found_out(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "passes.py").write_text(WRONG)
    ran = cli("apply", "model.py", "--strategy", "fx", "--pass", "passes.py:forget_the_activation")
    assert ran.code == 4
    assert "Nothing was changed" in ran.out
    assert "differs by up to" in ran.err


def test_a_pass_belongs_to_fx(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    ran = cli("apply", "model.py", "--strategy", "fuse_modules", "--pass", "passes.py:forget_the_activation")
    assert ran.code == 2
    assert "Add --strategy fx." in ran.err


def test_a_folder_of_the_users_is_refused_before_any_work(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for strategy in ("fuse_modules", "auto"):
        ran = cli("apply", "missing.py", "--strategy", strategy, "--save", "mine")  # the model is not even looked for
        assert (ran.code, ran.out) == (2, "")
        assert "mine holds notes.txt and no recipe, and is not written to.  Name a new or empty folder." in ran.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_recipe_that_was_lost_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    lost = Notice(LOST, "The recipe did not hold in a fresh process and was not kept: it died.")
    report = Report(Tool("fusion-advisor", "0"), "", "apply", warnings=(Notice("W1", "other"),))
    assert _lost(report) == 0
    assert _lost(replace(report, warnings=(*report.warnings, lost))) == 4
    assert "The recipe did not hold in a fresh process and was not kept: it died." in capsys.readouterr().err
