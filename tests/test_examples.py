"""The CI example does what it says: its own commands are taken from it and run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fastjsonschema

from fusionadvisor.report import schema

ROOT = Path(__file__).parents[1]


def commands(workflow: str) -> dict[str, str]:
    """Return the shell commands of each named step."""
    found = {}
    for step in re.split(r"^ {6}- ", workflow, flags=re.MULTILINE)[1:]:
        name = re.match(r"name: (.+)", step)
        block = re.search(r"^ {8}run: \|\n((?: {10}.*\n?)+)", step, flags=re.MULTILINE)
        if name and block:
            found[name[1]] = re.sub(r"^ {10}", "", block[1], flags=re.MULTILINE)
    return found


def test_github_job_exports_a_report(tmp_path: Path) -> None:
    steps = commands((ROOT / "examples" / "ci" / "github.yml").read_text(encoding="utf-8"))
    assert list(steps) == ["Install", "Profile"]
    shutil.copytree(ROOT / "sample_models", tmp_path / "sample_models")
    program = tmp_path / "bin" / "fusion-advisor"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fusionadvisor "$@"\n')
    program.chmod(0o755)
    summary = tmp_path / "summary.md"
    summary.touch()
    env = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    subprocess.run(["bash", "-e", "-c", steps["Profile"]], cwd=tmp_path, env=env, check=True, stdin=subprocess.DEVNULL)
    report = json.loads((tmp_path / "fusion-report.json").read_text(encoding="utf-8"))
    fastjsonschema.compile(schema.generate())(report)
    folds = [f for f in report["findings"] if f["rule"] == "FA101"]
    assert [f["modules"] for f in folds] == [["bn1", "bn2"]]
    assert folds[0]["source"]["line"] == 18
    assert "Fold batch norm" in summary.read_text(encoding="utf-8")
