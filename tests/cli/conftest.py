"""Running the command line in this process, in a folder of its own, on stations that answer at once."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fusionadvisor.cli.app import run
from fusionadvisor.report.model import Report


@dataclass(frozen=True)
class Ran:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ran]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str) -> Ran:
        capfd.readouterr()
        code = run(arguments)
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return call


@dataclass
class Advisor:
    """What the next commands will be answered, and what they asked."""

    report: Report
    asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def advisor(monkeypatch: pytest.MonkeyPatch) -> Advisor:
    """Answer profile, analyze and optimize with a report made by hand."""
    from tests.render.samples import CPU_PROFILE

    answers = Advisor(CPU_PROFILE, [])
    module = ModuleType("fusionadvisor.advisor")

    def answer(name: str) -> Callable[..., Report]:
        def call(*args: Any, **kwargs: Any) -> Report:
            print("what the user's own code prints")  # noqa: T201
            answers.asked.append((name, args, kwargs))
            return answers.report

        return call

    for name in ("profile", "analyze", "optimize"):
        setattr(module, name, answer(name))
    monkeypatch.setitem(sys.modules, "fusionadvisor.advisor", module)
    import fusionadvisor

    monkeypatch.setattr(fusionadvisor, "advisor", module, raising=False)
    return answers
