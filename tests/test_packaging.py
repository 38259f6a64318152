"""What the package declares is what it is tested with, and its types hold for whoever uses them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINNED = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))


def test_versions_are_declared_only_where_tested() -> None:
    floor = next(d for d in PROJECT["dependencies"] if d.startswith("torch")).removeprefix("torch>=")
    assert PINNED["torch"].startswith(f"{floor}.")
    pythons = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if c.startswith("Programming Language")]
    assert pythons == [PROJECT["requires-python"].removeprefix(">=")]
    assert sys.version_info >= tuple(map(int, pythons[0].split(".")))


def test_every_requirement_has_a_tested_version() -> None:
    wanted = [
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["dev"],
        *PROJECT["optional-dependencies"]["hf"],
    ]
    names = {re.split(r"[>\[]", requirement)[0] for requirement in wanted} - {"fusion-advisor"}
    pinned = {name.lower() for name in PINNED}
    assert {name for name in names if name.lower() not in pinned} == set()


USER = """
from pathlib import Path

import torch
from torch import nn

import fusionadvisor
from fusionadvisor import Report


def unfused(report: Report) -> list[tuple[str, float]]:
    return [(finding.rule, finding.saving.step_us.high) for finding in report.findings if finding.source]


profiled = fusionadvisor.profile("model.py", inputs=["x=float32[8,64]"], batch=4)
recorded: Report = fusionadvisor.analyze(Path("trace.json.gz"))
improved = fusionadvisor.optimize(profiled, ["fuse_modules"], save=Path("out"))
again = fusionadvisor.optimize("model.py", ["auto"], budget_s=60.0)
print(unfused(recorded), [(a.strategy, a.verification and a.verification.verdict) for a in improved.attempts])
if improved.result is not None:
    print(improved.result.median + 1.0, improved.workload and improved.workload.mode)
model: nn.Module = fusionadvisor.apply_recipe(nn.Linear(2, 2), "out/recipe.json", example_inputs=torch.ones(1, 2))
"""
WRONG = """
import fusionadvisor

report = fusionadvisor.profile("model.py", batch="four")
report.findings[0].saving.step_us.hihg
fusionadvisor.apply_recipe("model.py", "out/recipe.json")
"""


@pytest.mark.slow
def test_a_users_script_passes_mypy_strict_against_the_package(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(WRONG)
    plugin = ROOT / "examples" / "plugin" / "fusionadvisor_repeats"
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\nstrict = True\nmypy_path = {ROOT}\nfollow_imports = silent\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(ROOT / ".mypy_cache" / "user"),
         "good.py", "wrong.py", str(plugin)],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line.partition(": error")[0] for line in errors] == ["wrong.py:4", "wrong.py:5", "wrong.py:6"], done.stdout
