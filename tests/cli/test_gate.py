"""``--fail-on``: which conditions hold, and what they say."""

from dataclasses import replace

import pytest

from fusionadvisor.cli.gate import parse
from fusionadvisor.errors import InputError
from fusionadvisor.report.model import Fusion
from tests.cli.conftest import Advisor, Cli
from tests.render.samples import CPU_PROFILE, PROFILE


@pytest.mark.parametrize(
    ("expression", "met"),
    [
        ("FA101", True),
        ("fa201", False),
        ("findings>2", True),
        ("findings>3", False),
        ("kernels>10", False),  # ten a step, a hundred recorded
        ("kernels >= 10", True),
        ("unfused_share > 36%", True),  # 165 of 458 µs
        ("unfused_share>0.361", False),
        ("unfused_us>164", True),  # a step, as the report has it
        ("unfused_us>165", False),
        ("saving_us>184", True),
        ("saving_us>185", False),
        ("syncs != 0", False),
        ("latency_ms < 1e-1", False),
        ("latency_ms < 1", True),
    ],
)
def test_conditions(expression: str, met: bool) -> None:
    (condition,) = parse([expression])
    assert bool(condition.met(PROFILE)) is met


def test_a_rule_says_where_it_spoke() -> None:
    assert parse(["FA101"])[0].met(PROFILE) == "FA101 was found: bn1, bn2, bn3 block.py:31"


def test_footnotes_fail_nothing() -> None:
    small = replace(PROFILE, findings=tuple(replace(f, footnote=True) for f in PROFILE.findings))
    assert [c.met(small) for c in parse(["FA101, findings>0"])] == ["", ""]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("kernel>3", "Did you mean 'kernels'?"),
        ("kernels", "has no limit"),
        ("FA1O1", "Did you mean 'FA101'?"),
        ("kernels>many", "is not understood"),
        ("kernels>1.2.3", "is no number"),
        (">3", "is not understood"),
    ],
)
def test_what_is_not_understood(expression: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse([expression])
    assert said in str(caught.value)


def test_the_report_is_written_before_the_gate_falls(cli: Cli, advisor: Advisor) -> None:
    ran = cli("profile", "x.py", "--fail-on", "FA101", "--fail-on", "syncs>0", "--json", "r.json")
    assert ran.code == 1
    assert "Saved     r.json" in ran.out
    assert ran.err.endswith("error: --fail-on: FA101 was found: bn1, bn2, bn3 block.py:31.\n")
    advisor.report = replace(CPU_PROFILE, findings=(), fusion=Fusion())
    assert cli("profile", "x.py", "--fail-on", "FA101,syncs>0").code == 0


def test_a_bad_condition_is_found_before_any_work(cli: Cli, advisor: Advisor) -> None:
    assert cli("analyze", "x.json", "--fail-on", "kernel>3").code == 2
    assert advisor.asked == []
