"""The pictures in the documentation are what the tool says of the reports beside them."""

import re
import sys
from html import unescape
from importlib import import_module
from pathlib import Path

import pytest

from fusionadvisor.render import terminal
from fusionadvisor.report import codec
from fusionadvisor.report.model import Report

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "docs" / "samples"


def report(name: str) -> Report:
    return codec.read(SAMPLES / f"{name}.json")


def test_they_are_drawn_from_their_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    screenshots = import_module("screenshots")
    try:
        assert screenshots.stale() == [], "run python docs/screenshots.py"
    finally:
        del sys.modules["screenshots"]


def test_the_terminal_shows_what_the_report_says_now() -> None:
    shown = (SAMPLES / "profile.svg").read_text(encoding="utf-8")
    rows = re.findall(r"<text[^>]*>(.*?)</text>", shown)
    words = " ".join(unescape(" ".join(rows)).replace("\xa0", " ").split())
    for line in terminal.compose(report("profile"), 100).lines:
        assert all(word in words for word in line.plain.split()), line.plain


def test_the_page_shows_a_step_before_and_after() -> None:
    page = (SAMPLES / "apply.html").read_text(encoding="utf-8")
    assert len(page) < 300_000
    assert report("apply").timeline_after is not None
    for said in (">before</text>", ">after</text>", "cpp_fused_", "Every sample", "Verification"):
        assert said in page


def test_they_name_no_folder_of_whoever_made_them() -> None:
    for name in ("profile", "apply"):
        found = report(name)
        assert found.workload is not None
        assert found.workload.target.startswith("sample_models/")
        assert not re.search(r'"/(?:home|root|Users|tmp|work)', (SAMPLES / f"{name}.json").read_text(encoding="utf-8"))
