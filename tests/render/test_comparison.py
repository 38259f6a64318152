"""A comparison and a gate in words: snapshots at two widths, and what must hold at any."""

import io
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from fusionadvisor.render import comparison, gate
from fusionadvisor.render.text import Sheet
from fusionadvisor.report import budget, diff
from fusionadvisor.report.budget import Check
from fusionadvisor.report.diff import Comparison
from tests.render.test_terminal import HOSTILE, SNAPSHOTS
from tests.report.steps import GPU, K, finding, made
from tests.report.test_diff import A100, EAGER, FUSED, fused, layer, norm

TIMED = replace(FUSED, latency=made(*norm(0), latency=(0.9, 1.0, 1.1)).latency)
SLOWER = replace(
    EAGER, latency=made(*norm(0), latency=(2.2, 2.5, 2.8)).latency, environment=replace(GPU, torch="2.14.0")
)
LIMITS = budget.read({"kernels": 9, "findings": {"FA103": 1}})

COMPARISONS = {
    "compare_broken": diff.compare(TIMED, SLOWER),
    "compare_gained": diff.compare(EAGER, FUSED),
    "compare_same": diff.compare(EAGER, EAGER),
    "compare_gpus": diff.compare(EAGER, replace(FUSED, environment=A100)),
    "compare_ranks": diff.compare(replace(made(*norm(0), rank=0)), made(*norm(0), K("", "nccl", 0), rank=1)),
}
CHECKS = {
    "check_broken": budget.check(SLOWER, LIMITS, TIMED),
    "check_passed": budget.check(EAGER, (), EAGER),
    "check_better": budget.check(FUSED, (), EAGER),
    "check_budget": budget.check(EAGER, LIMITS),
}


def sheet(name: str, width: int, *, ascii_only: bool = False) -> Sheet:
    if name in CHECKS:
        return gate.compose(CHECKS[name], width, ascii_only=ascii_only)
    return comparison.compose(COMPARISONS[name], width, ascii_only=ascii_only)


def text(name: str, width: int = 100, *, ascii_only: bool = False) -> str:
    return "".join(f"{line.plain}\n" for line in sheet(name, width, ascii_only=ascii_only).lines)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", [*COMPARISONS, *CHECKS])
def test_snapshot(name: str, width: int) -> None:
    file: Path = SNAPSHOTS / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(text(name, width), encoding="utf-8")
    assert text(name, width) == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [60, 80, 110])
@pytest.mark.parametrize("name", [*COMPARISONS, *CHECKS])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    for line in sheet(name, width).lines:
        assert cell_len(line.plain) <= width, line.plain
    plain = text(name, width, ascii_only=True)
    assert plain.isascii()
    assert "?" not in plain


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("compare_gained", "2 fusions gained; kernels 10 → 4"),
        ("compare_broken", "2 fusions lost; kernels 4 → 10"),
        ("compare_same", "The same kernels ran: kernels 10 unchanged"),
        ("compare_ranks", "Ranks 0 and 1 of what looks like one job"),
        ("check_broken", "Failed: 7 limits violated"),
        ("check_passed", "Passed: the step has the baseline's kernels, in the same order"),
    ],
)
def test_the_verdict_comes_first(name: str, verdict: str) -> None:
    plain = " ".join(text(name, 110).split())
    assert verdict in plain
    shown = (gate.markdown(CHECKS[name]) if name in CHECKS else comparison.markdown(COMPARISONS[name])).split("\n\n")[1]
    assert verdict in re.sub(r"\\(.)", r"\1", shown)


def test_a_broken_fusion_names_module_and_line() -> None:
    assert re.search(r"layers\.0\.norm, layers\.1\.norm +block\.py:17", text("check_broken"))
    assert "torch: 2.13.0 → 2.14.0." in text("check_broken")
    assert "`layers.0.norm, layers.1.norm` `block.py:17`" in gate.markdown(CHECKS["check_broken"])


def hostile() -> tuple[Comparison, Check]:
    name = f"{HOSTILE}|`<script>alert(1)</script>[x](http://evil)"
    after = made(
        *layer(0, *norm(0)), K(name, name, group=7), K(name, "b", group=7), environment=replace(A100, torch=name),
        findings=(finding("FA103", name, title=name),),
    )  # fmt: skip
    before = replace(made(*layer(0, fused(0))), source=name)
    return diff.compare(before, after), budget.check(after, (), before)


def test_hostile_names_are_inert_in_the_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100)
    compared, checked = hostile()
    comparison.render(compared, console)
    gate.render(checked, console)
    assert not {"\x1b", "\u202e", "\u2028", "\x00", "\r", "\x07"} & set(out.getvalue())
    assert "[bold]x[/bold]" in out.getvalue()


def test_hostile_names_are_inert_in_markdown() -> None:
    compared, checked = hostile()
    for shown in (comparison.markdown(compared), gate.markdown(checked)):
        assert not {"\x1b", "\u202e", "\u2028", "\x00", "\r"} & set(shown)
        outside_code = re.sub(r"(?<!\\)`[^`]*`", "", shown)
        assert not re.search(r"(?<!\\)<(?!br>|!--)", outside_code)
        assert not re.search(r"(?<!\\)\](?!\()?\(http", outside_code)
        for block in shown.split("\n\n"):
            rows = [len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines() if line.startswith("|")]
            assert len(set(rows)) <= 1, block
