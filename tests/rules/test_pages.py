"""The rules' pages on the web are those in their docstrings, and their code is Python."""

import ast
import re
import runpy
from pathlib import Path

import pytest

from fusionadvisor import catalog

ROOT = Path(__file__).parents[2]
PAGES = runpy.run_path(str(ROOT / "docs" / "pages.py"))


def test_pages_are_not_stale() -> None:
    assert PAGES["stale"]() == [], "run python docs/pages.py"


def test_a_changed_docstring_makes_its_page_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "page", lambda identifier: f"Title.\n\n{identifier}")
    assert "rules/FA101.md" in PAGES["stale"]()


def test_the_index_names_every_rule() -> None:
    for entry in catalog.RULES:
        assert f"[{entry.id}]({entry.id}.md)" in PAGES["index"]()


@pytest.mark.parametrize("entry", catalog.RULES, ids=lambda e: e.id)
def test_examples_are_python(entry: catalog.Entry) -> None:
    for code in re.findall(r"```python\n(.*?)```", catalog.page(entry.id), re.S):
        ast.parse(code)
    assert catalog.page(entry.id).splitlines()[0].rstrip(".") == entry.title


@pytest.mark.parametrize("entry", catalog.RULES, ids=lambda e: e.id)
def test_remedies_are_strategies(entry: catalog.Entry) -> None:
    assert set(entry.remedies) <= {s.id for s in catalog.STRATEGIES}
