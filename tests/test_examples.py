"""The CI example does what it says: its own commands are taken from it and run, and its gate fails what it should."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fastjsonschema
import pytest

from fusionadvisor.report import codec, schema
from fusionadvisor.report.structure import canonical

ROOT = Path(__file__).parents[1]
WORKFLOW = (ROOT / "examples" / "ci" / "github.yml").read_text(encoding="utf-8")
FUSED = "        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)\n"

Step = Callable[[str], subprocess.CompletedProcess[str]]


def commands(workflow: str) -> dict[str, str]:
    """Return the shell commands of each named step."""
    found = {}
    for step in re.split(r"^ {6}- ", workflow, flags=re.MULTILINE)[1:]:
        name = re.match(r"name: (.+)", step)
        block = re.search(r"^ {8}run: \|\n((?: {10}.*\n?)+)", step, flags=re.MULTILINE)
        if name and block:
            found[name[1]] = re.sub(r"^ {10}", "", block[1], flags=re.MULTILINE)
    return found


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Step:
    """Run a step of the workflow, or a command, in a checkout whose model is ``model.py``."""
    (tmp_path / ".git").mkdir()
    program = tmp_path / ".bin" / "fusion-advisor"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fusionadvisor "$@"\n')
    program.chmod(0o755)
    (tmp_path / "summary.md").touch()
    env = {
        **os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "MODEL": "model.py",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }  # fmt: skip

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-e", "-c", commands(WORKFLOW).get(name, name)]
        return subprocess.run(
            command, cwd=tmp_path, env=env, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )

    return run


def test_github_job_exports_a_report(step: Step, tmp_path: Path) -> None:
    assert list(commands(WORKFLOW)) == ["Install", "Profile", "Check"]
    (tmp_path / "model.py").write_text((ROOT / "sample_models" / "residual_block.py").read_text())
    done = step("Profile")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "fusion-report.json").read_text(encoding="utf-8"))
    fastjsonschema.compile(schema.generate())(report)
    folds = [f for f in report["findings"] if f["rule"] == "FA101"]
    assert [f["modules"] for f in folds] == [["bn1", "bn2"]]
    assert folds[0]["source"]["line"] == 18
    assert "Fold batch norm" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    results = json.loads((tmp_path / "fusion.sarif").read_text())["runs"][0]["results"]
    place = next(r for r in results if r["ruleId"] == "FA101")["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "model.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 18}


@pytest.mark.slow
def test_the_gate_passes_an_innocent_change_and_fails_a_split_norm(step: Step, tmp_path: Path) -> None:
    split = (ROOT / "sample_models" / "transformer_block.py").read_text()
    written_out = "".join(split.splitlines(keepends=True)[16:18])
    assert "rsqrt" in written_out
    fused = split.replace(written_out, FUSED)
    report = tmp_path / "fusion-report.json"

    (tmp_path / "model.py").write_text(fused)
    assert step("Profile").returncode == 0
    first = codec.read(report)
    made = step("fusion-advisor check fusion-report.json --baseline fusion-baseline.json --update-baseline")
    assert made.returncode == 0, made.stderr
    assert canonical(codec.read(tmp_path / "fusion-baseline.json")) == canonical(first)

    innocent = "# A comment moves every line.\n\n" + fused.replace("rotate_half(", "half_turned(")
    (tmp_path / "model.py").write_text(innocent)
    assert step("Profile").returncode == 0
    passed = step("Check")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert "Passed: the step has the baseline's kernels, in the same order" in passed.stdout
    assert canonical(codec.read(report)) == canonical(first)

    (tmp_path / "model.py").write_text(split)
    assert step("Profile").returncode == 0
    failed = step("Check")
    assert failed.returncode == 1
    assert failed.stderr.startswith(
        "error: kernels: 42, must be at most 32: attention_norm model.py:17; mlp_norm model.py:17"
    )
    assert re.search(r"attention_norm +model\.py:1[78]", failed.stdout)
    assert "aten::rsqrt" in failed.stdout
    assert "limits violated" in (tmp_path / "summary.md").read_text(encoding="utf-8")
