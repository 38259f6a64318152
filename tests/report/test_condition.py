"""The grammar of limits: what is met, and what is not understood."""

from dataclasses import replace

import pytest

from fusionadvisor.errors import InputError
from fusionadvisor.report.condition import parse
from tests.render.samples import FOLD, PROFILE, TRACE


@pytest.mark.parametrize(
    ("expression", "met"),
    [
        ("FA101", True),
        ("fa201", False),
        ("findings>6", True),  # 3 + 3 + 1 places
        ("findings>7", False),
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
    assert condition.met(PROFILE) is met


def test_a_rule_alone_is_about_findings_worth_acting_on_and_a_count_about_every_place() -> None:
    small = replace(PROFILE, findings=tuple(replace(f, footnote=True) for f in PROFILE.findings))
    assert [c.met(small) for c in parse(["FA101, findings>0, findings.FA101 > 2, findings.fa101>3"])] == [
        False, True, True, False,
    ]  # fmt: skip
    assert parse(["FA101"])[0].findings(PROFILE) == (FOLD,)


def test_what_a_report_does_not_say_cannot_pass() -> None:
    with pytest.raises(InputError, match="'latency_ms>5' cannot be judged: this report has no latency_ms"):
        parse(["latency_ms>5"])[0].met(TRACE)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("findings.FA1O1>0", "Did you mean 'FA101'?"),
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
