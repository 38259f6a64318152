"""What a command must not load, seen from a process that ran it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import SHARED

ROOT = Path(__file__).parents[1]


def loaded(*arguments: str) -> tuple[int, set[str]]:
    """Run a command in a new process; return its exit code and the modules it loaded."""
    script = (
        "import sys; from fusionadvisor.cli.app import run\n"
        f"code = run({list(arguments)!r})\n"
        "sys.stdout.flush(); print('\\nLOADED', code, *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    words = done.stdout.rsplit("LOADED", 1)[1].split()
    return int(words[0]), set(words[1:])


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("profile", "--help"), ("list", "rules"), ("list", "strategies")]
)
def test_light_commands_load_neither_torch_nor_pandas(arguments: tuple[str, ...]) -> None:
    code, modules = loaded(*arguments)
    assert code == 0
    assert "typer" in modules
    assert not {"torch", "pandas", "numpy", "msgspec", "jinja2"} & modules
    if "--help" in arguments or "--version" in arguments:
        assert "fusionadvisor.report.model" not in modules  # a third of what is loaded


def test_importing_the_package_loads_nothing_of_it() -> None:
    script = "import sys, fusionadvisor; print(*[m for m in sys.modules if m.startswith('fusionadvisor')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["fusionadvisor"]


@pytest.mark.parametrize("identifier", ["FA101", "fuse_modules"])
def test_explain_loads_neither_torch_nor_pandas(identifier: str) -> None:
    code, modules = loaded("explain", identifier)
    assert code == 0
    assert not {"torch", "pandas", "numpy"} & modules


def test_gpus_are_listed_without_torch() -> None:
    code, modules = loaded("list", "gpus")
    assert code == 0
    assert not {"torch", "pandas"} & modules


@pytest.mark.skipif(SHARED is None, reason="no traces beside this checkout")
def test_analyze_never_loads_torch() -> None:
    code, modules = loaded("analyze", f"{SHARED}/traces/tl_h100_vit_nsfw.json.gz")
    assert code == 0
    assert "pandas" in modules
    assert not {"torch", "jinja2"} & modules
