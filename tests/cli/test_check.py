"""``check``: exit codes, the baseline's life, and where a budget is found."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fusionadvisor.render.markdown import MARK
from fusionadvisor.report import codec
from fusionadvisor.report.model import Report
from fusionadvisor.report.structure import canonical
from tests.cli.conftest import Cli
from tests.report.steps import GPU, retimed
from tests.report.test_diff import EAGER, FUSED


def keep(name: str, report: Report) -> str:
    Path(name).write_text(codec.to_json(report))
    return name


def test_a_broken_fusion_exits_1_naming_module_and_line(cli: Cli) -> None:
    keep("base.json", FUSED)
    ran = cli("check", keep("r.json", EAGER), "--baseline", "base.json")
    assert ran.code == 1
    assert "layers.0.norm, layers.1.norm  block.py:17" in ran.out
    assert ran.err.startswith("error: kernels: 10, must be at most 4: layers.0.norm, layers.1.norm block.py:17; ")
    assert ran.err.count("\n") == 1


def test_the_same_step_exits_0(cli: Cli) -> None:
    keep("base.json", EAGER)
    ran = cli("check", keep("r.json", retimed(EAGER, 2.0)), "--baseline", "base.json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Passed: the step has the baseline's kernels, in the same order\n")


def test_a_baseline_is_made_kept_and_replaced(cli: Cli, tmp_path: Path) -> None:
    arguments = ("check", keep("r.json", EAGER), "--baseline", "base.json")
    assert "does not exist.  Add --update-baseline to create it." in cli(*arguments).err
    made = cli(*arguments, "--update-baseline")
    assert (made.code, "base.json is now the baseline." in made.out) == (0, True)
    first = (tmp_path / "base.json").read_text()
    assert canonical(codec.from_json(first)) == canonical(EAGER)

    keep("r.json", retimed(EAGER, 3.0))
    again = cli(*arguments, "--update-baseline")
    assert "base.json is up to date and was not changed." in " ".join(again.out.split())
    assert (tmp_path / "base.json").read_text() == first

    keep("r.json", FUSED)
    assert cli(*arguments, "--update-baseline").code == 0
    assert canonical(codec.read(tmp_path / "base.json")) == canonical(FUSED)
    keep("r.json", EAGER)
    worse = cli(*arguments, "--update-baseline")
    assert (worse.code, "kernels: at most 4 → 10." in worse.out) == (0, True)  # told, and taken all the same
    assert cli(*arguments).code == 0


def test_other_versions_are_said_and_taken_into_the_baseline(cli: Cli, tmp_path: Path) -> None:
    keep("base.json", EAGER)
    keep("r.json", replace(EAGER, environment=replace(GPU, torch="2.14.0")))
    ran = cli("check", "r.json", "--baseline", "base.json")
    assert (ran.code, "torch: 2.13.0 → 2.14.0." in ran.out) == (0, True)
    cli("check", "r.json", "--baseline", "base.json", "--update-baseline")
    assert codec.read(tmp_path / "base.json").environment.torch == "2.14.0"


def test_somebody_elses_file_becomes_no_baseline(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"name": "mine"}')
    ran = cli("check", keep("r.json", EAGER), "--baseline", "package.json", "--update-baseline")
    assert ran.code == 2
    assert json.loads((tmp_path / "package.json").read_text()) == {"name": "mine"}


def test_the_budget_is_found_upwards(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.fusion-advisor.budget]\nkernels = 9\nfindings.FA103 = 2\n")
    inner = tmp_path / "packages" / "model"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[project]\nname = 'inner'\n")  # says nothing to this tool
    monkeypatch.chdir(inner)
    ran = cli("check", keep("r.json", EAGER))
    assert ran.code == 1
    assert ran.err == "error: kernels: 10, must be at most 9.\n"
    assert cli("check", keep("r.json", FUSED)).code == 0


def test_updating_a_baseline_does_not_lift_the_budget(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.fusion-advisor.budget]\nkernels = 9\n")
    assert cli("check", keep("r.json", EAGER), "--baseline", "base.json", "--update-baseline").code == 1
    assert (tmp_path / "base.json").exists()


def test_fail_on_needs_no_project(cli: Cli) -> None:
    keep("r.json", EAGER)
    assert cli("check", "r.json", "--fail-on", "kernels > 10").code == 0
    assert cli("check", "r.json", "--fail-on", "kernels > 9").code == 1


@pytest.mark.parametrize(
    ("arguments", "project", "said"),
    [
        ((), "", "There is nothing to check against."),
        (("--update-baseline",), "", "needs a file to update"),
        ((), "[tool.fusion-advisor]\nbudget = 3\n", "budget is not a table"),
        ((), "[tool.fusion-advisor.budget]\nkernel = 3\n", "Did you mean 'kernels'?"),
        ((), "[tool.fusion-advisor.budget\n", "pyproject.toml cannot be read"),
        (("--fail-on", "latency_ms > 3"), "", "cannot be judged: this report has no latency_ms"),
        (("--tolerance", "-1"), "", "--tolerance"),
    ],
)
def test_usage_errors(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], project: str, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text(project)
    ran = cli("check", keep("r.json", EAGER), *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_forms(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# Before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    keep("base.json", FUSED)
    keep("r.json", EAGER)
    ran = cli("check", "r.json", "--baseline", "base.json", "--format", "json", "--markdown", str(summary))
    assert ran.code == 1
    assert json.loads(ran.out)["breaches"][0]["what"] == "kernels"
    assert summary.read_text().startswith(f"# Before\n{MARK}")
    assert cli("check", "r.json", "--baseline", "base.json", "--format", "markdown").out.startswith(f"{MARK}\n\n### ❌")
