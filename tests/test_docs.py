"""Every page: links lead somewhere, commands can be typed, code is Python, and what is marked to run runs.

In a page's source, a comment before a code block says what it is:

- ``<!-- file: NAME -->``: the block is a file in the page's folder
- ``<!-- runs -->``: the block is run there, in the order of the page; ``<!-- runs: 2 -->`` where that is its exit code
- ``<!-- prints -->``: what the block before printed holds these lines; a line ``…`` stands for any number of others
"""

import ast
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from fusionadvisor.catalog import SEARCH, STRATEGIES, entry
from fusionadvisor.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *(ROOT / "examples").rglob("*.md")]
WRITTEN = [page for page in PAGES if page.parent.name not in ("rules", "strategies")]
GROUP = typer.main.get_command(app)


@dataclass(frozen=True)
class Block:
    """A fenced block with its language and the comment before it."""

    language: str
    text: str
    role: str = ""
    argument: str = ""


def blocks(page: Path) -> list[Block]:
    pattern = r"(?:^<!-- (file|runs|prints)(?:: (\S+))? -->\n)?^```(\w*)\n(.*?)^```$"
    found = re.findall(pattern, page.read_text(encoding="utf-8"), re.M | re.S)
    return [Block(language, text, role, argument) for role, argument, language, text in found]


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text) for text in re.findall(r"^#+ (.+)$", prose, re.M)]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("name", names(PAGES))
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", prose):
        if "://" in target:
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), f"{target}#{anchor}"


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in WRITTEN:
        if page.is_relative_to(ROOT / "docs") and page.name != "README.md":
            assert f"({page.relative_to(ROOT / 'docs').as_posix()})" in index


def commands(page: Path) -> list[str]:
    """What a page says to type: lines of shell blocks, and lines that begin with ``$`` elsewhere."""
    lines = []
    for block in blocks(page):
        shell = block.language in ("sh", "bash")
        lines += [line.removeprefix("$ ") for line in block.text.splitlines() if shell or line.startswith("$ ")]
    parts = [part.strip() for line in lines for part in re.split(r"&&|\|", line)]
    return [part for part in parts if part.startswith("fusion-advisor ")]


@pytest.mark.parametrize("name", names(PAGES))
def test_commands_parse_and_name_what_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    inline = re.findall(r"`(fusion-advisor [a-z][^`]*)`", text)
    for command in [*commands(ROOT / name), *(c for c in inline if "…" not in c)]:
        _, *words = shlex.split(command, comments=True)
        if words[0].startswith("-"):
            continue
        assert words[0] in GROUP.commands, command  # type: ignore[attr-defined]
        if len(words) > 1:  # a command may be spoken of by its name
            GROUP.commands[words[0]].make_context(words[0], words[1:])  # type: ignore[attr-defined]
    known = {e.id for e in (*STRATEGIES, SEARCH)}
    for named in re.findall(r"--strategy ([a-z_,]+)", text):
        assert name.startswith("examples/plugin") or name == "docs/extending.md" or set(named.split(",")) <= known
    for rule in set(re.findall(r"\bFA\d{3}\b", text)):
        assert entry(rule).id == rule


@pytest.mark.parametrize("name", names(PAGES))
def test_python_is_python(name: str) -> None:
    for block in blocks(ROOT / name):
        if block.language == "python":
            ast.parse(block.text)


RUN = [page for page in WRITTEN if any(block.role == "runs" for block in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("name", names(RUN))
def test_what_is_marked_to_run_runs(name: str, tmp_path: Path) -> None:
    programs = tmp_path / ".bin"
    programs.mkdir()
    for program, words in {"fusion-advisor": "-m fusionadvisor ", "python": ""}.items():
        (programs / program).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        (programs / program).chmod(0o755)
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    printed = ""
    for block in blocks(ROOT / name):
        if block.role == "file":
            (tmp_path / block.argument).write_text(block.text, encoding="utf-8")
        elif block.role == "runs":
            done = subprocess.run(
                ["bash", "-c", block.text], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
            )
            printed = done.stdout + done.stderr
            assert done.returncode == int(block.argument or 0), printed
        elif block.role == "prints":
            held(block.text, printed)


def held(wanted: str, printed: str) -> None:
    """Assert that consecutive lines were printed, ``…`` for any number of others."""
    parts = [re.escape(part.strip("\n")) for part in re.split(r"^…$", wanted, flags=re.M)]
    assert re.search(r"^" + r"\n(?:.*\n)*?".join(parts) + r"$", printed, re.M), printed


def test_lines_are_held_to_what_was_printed() -> None:
    held("a\n…\nd\n", "x\na\nb\nc\nd\ny\n")
    held("a\nb\n", "a\nb\n")
    for wanted in ("a\nc\n", "b\n…\na\n", "a\nbc\n"):
        with pytest.raises(AssertionError):
            held(wanted, "a\nb\nc\n")


def test_formulas_on_the_page_are_those_of_the_code() -> None:
    from fusionadvisor.analysis import cost, launch
    from fusionadvisor.rules.base import Rule

    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    for words in (
        f"| fastest | max({cost.LAUNCH_FLOOR_US:g}, *B* / ({cost.BEST_FRACTION:g} *BW*)) |",
        f"| likely | √({cost.LIKELY_START_US:g}² + (*B* / ({cost.LIKELY_FRACTION:g} *BW*))²) |",
        f"| slowest | √({cost.SLOW_START_US:g}² + (*B* / ({cost.SLOW_FRACTION:g} *BW*))²); twice that",
        f"fewer than {cost.FEW_ROWS} rows",
        f"start = max(previous end + {launch.GAP_US:g} µs, launch + {launch.LAUNCH_TO_START_US:g} µs)",
        f"{cost.GEMM_START_US:g} µs to start",
        f"less than {Rule.worth_us:g} µs a step or {Rule.worth_share * 100:g} % of it",
    ):
        assert words in page
    assert cost.fused(33_500_000, 3350).low_us == pytest.approx(10 / 0.9)  # µs: 33.5 MB at 0.9 of 3.35 TB/s


def test_what_extending_shows_is_in_the_example() -> None:
    example = ROOT / "examples" / "plugin"
    code = {file.name: file.read_text(encoding="utf-8") for file in example.rglob("*.py")}
    project = (example / "pyproject.toml").read_text(encoding="utf-8")
    for block in blocks(ROOT / "docs" / "extending.md"):
        if block.language == "toml":
            assert block.text in project
        elif block.language == "python" and block.text.startswith("class"):
            home = code["rule.py" if "Rule" in block.text else "strategy.py"]
            for line in block.text.splitlines():
                assert line.strip() in ("…", "") or line.removesuffix(" ...") in home, line
