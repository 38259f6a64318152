"""Completion: what the shells are given, by their own protocol, and in the shells themselves where they are here."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from fusionadvisor import strategies
from fusionadvisor.capture.predicted import gpus
from fusionadvisor.catalog import RULES, STRATEGIES, parameters
from fusionadvisor.cli import completion
from tests.cli.conftest import Cli

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the command on its path."""
    program = tmp_path / "bin" / "fusion-advisor"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fusionadvisor "$@"\n')
    program.chmod(0o755)
    return tmp_path


def sh(home: Path, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "HOME": str(home), "PYTHONPATH": str(ROOT), "TERM": "dumb", **extra}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=home)


def offered(home: Path, line: str) -> list[str]:
    """What bash is given for a line whose last word is being typed."""
    words = line.split(" ")
    done = sh(
        home,
        "fusion-advisor",
        _FUSION_ADVISOR_COMPLETE="complete_bash",
        COMP_WORDS=line,
        COMP_CWORD=str(len(words) - 1),
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_the_parameters_read_from_the_source_are_those_the_strategies_take() -> None:
    for entry in STRATEGIES:
        kind: type = type(strategies.get(entry.id))
        taken = fields(kind) if is_dataclass(kind) else ()
        assert parameters(entry.id) == tuple(field.name for field in taken), entry.id


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fusion-advisor pro", ["profile"]),
        ("fusion-advisor list ", ["rules", "strategies", "gpus"]),
        ("fusion-advisor explain fa40", ["fa401", "fa402", "fa403", "fa404", "fa405", "fa406"]),
        ("fusion-advisor apply --strategy fu", ["fuse_modules"]),
        ("fusion-advisor apply --set fx", ["fx.passes="]),
        ("fusion-advisor profile model.py --gpu h", ["h100-sxm", "h100-pcie", "h200"]),
        ("fusion-advisor profile model.py --mark", ["--markdown"]),
        ("fusion-advisor profile model.py --fail-on unfused_s", ["unfused_share>"]),
    ],
)
def test_bash_is_offered(home: Path, line: str, words: list[str]) -> None:
    (home / "pyproject.toml").write_text("[tool.fusion-advisor]\nnonsense = 1\n")  # no reason to be silent
    assert offered(home, line) == words


def test_offers_name_everything_there_is() -> None:
    assert {e.id for e in STRATEGIES} | {"auto"} == {word for word, _ in completion.strategies("")}
    assert {e.id for e in (*RULES, *STRATEGIES)} | {"auto"} == {word for word, _ in completion.ids("")}
    assert [gpus.named(word).name for word, _ in completion.gpus("") if word != "none"] == list(gpus.predictable())
    assert completion.devices("c") == [("cuda", ""), ("cpu", "")]
    assert completion.dtypes("b") == [("bf16", "")]


def test_after_a_comma_the_next_strategy_is_offered() -> None:
    words = [word for word, _ in completion.strategies("fuse_modules,f")]
    assert words == ["fuse_modules,fx"]
    assert not any("auto" in word for word, _ in completion.strategies("fx,"))


def test_offering_loads_neither_torch_nor_pandas() -> None:
    script = (
        "import sys; from fusionadvisor.cli import app, completion as c\n"
        "for offer in (c.strategies, c.ids, c.gpus, c.limits, c.topics, c.devices, c.dtypes): assert offer('')\n"
        "print(sorted({'torch', 'pandas', 'numpy', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_own_protocols(home: Path, shell: str) -> None:
    line = "fusion-advisor explain cudag"
    extra = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    if shell == "bash":
        extra = {"COMP_WORDS": line, "COMP_CWORD": "2"}
    done = sh(home, "fusion-advisor", _FUSION_ADVISOR_COMPLETE=f"complete_{shell}", **extra)
    assert done.returncode == 0
    wanted = {
        "bash": "cudagraph",
        "zsh": '_arguments \'*: :(("cudagraph":"Capture the step once, replay it"))\'',
        "fish": "cudagraph\tCapture the step once, replay it",
    }
    assert done.stdout.strip() == wanted[shell]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_it_installs_into_the_shell_it_is_called_from(home: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    shown = sh(home, shell, "-c", "fusion-advisor --show-completion; true")
    assert f"complete_{shell}" in shown.stdout
    done = sh(home, shell, "-c", "fusion-advisor --install-completion; true")
    place = re.search(r"installed in (\S+)", done.stdout)
    assert place, done.stderr
    written = Path(place[1]).read_text()
    assert f"complete_{shell}" in written
    assert Path(place[1]).is_relative_to(home)
    if shell == "bash":
        words = "COMP_WORDS=(fusion-advisor list g); COMP_CWORD=2; _fusion_advisor_completion fusion-advisor"
        assert sh(home, "bash", "-c", f"source {place[1]}; {words}; echo ${{COMPREPLY[@]}}").stdout == "gpus\n"
    if shell == "fish":
        assert "gpus" in sh(home, "fish", "-c", "complete -C 'fusion-advisor list g'").stdout


def test_without_a_known_shell_it_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: None)
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: None)
    ran = cli("--show-completion")
    assert ran.code == 3
    assert ran.err.endswith("error: The shell could not be recognised.  Start it from bash, zsh or fish.\n")
