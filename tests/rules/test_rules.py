"""Every rule fires on its minimal cases, stays silent on their fused twins, and has a page."""

import pytest

from fusionadvisor import catalog
from fusionadvisor.report.model import Finding
from fusionadvisor.rules import engine
from tests.rules.cases import PAIRS, Pair

SECTIONS = ("## What it does", "## Why it costs", "## Example", "## Use instead", "## When not to")


def found(pair: Pair, *, twin: bool = False) -> list[Finding]:
    advice = engine.run(pair.facts(twin=twin))
    assert advice.warnings == ()
    return [f for f in advice.findings if f.rule == pair.rule]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p.rule}: {p.name}")
def test_fires_on_the_minimal_case(pair: Pair) -> None:
    (finding,) = found(pair)
    assert finding.instances == pair.instances
    assert finding.evidence
    if pair.modules:
        assert finding.modules == pair.modules


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p.rule}: {p.name}")
def test_silent_on_the_fused_twin(pair: Pair) -> None:
    assert found(pair, twin=True) == []


@pytest.mark.parametrize("entry", catalog.RULES, ids=lambda e: e.id)
def test_every_rule_has_a_page_and_both_cases(entry: catalog.Entry) -> None:
    page = catalog.page(entry.id)
    positions = [page.find(section) for section in SECTIONS]
    assert -1 not in positions
    assert positions == sorted(positions)
    assert any(pair.rule == entry.id for pair in PAIRS)
    assert entry.passed


@pytest.mark.parametrize("entry", catalog.RULES, ids=lambda e: e.id)
def test_ids_agree(entry: catalog.Entry) -> None:
    assert entry.id in {rule.id for rule in engine.rules()}
