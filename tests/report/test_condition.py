"""The grammar of limits: what is met, and what is not understood."""

from dataclasses import replace

import pytest

from fusionadvisor.errors import InputError
from fusionadvisor.report.condition import parse
from fusionadvisor.report.model import Notice
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


def test_a_rule_alone_is_short_for_its_places() -> None:
    """However little they save: their kernels may be another finding's too, whose the saving then is."""
    small = replace(PROFILE, findings=tuple(replace(f, footnote=True) for f in PROFILE.findings))
    for report in (PROFILE, small):
        assert [c.met(report) for c in parse(["FA102, findings.FA102>0, findings.FA101 > 2, findings.fa101>3"])] == [
            True, True, True, False,
        ]  # fmt: skip
    assert parse(["FA101"])[0].findings(PROFILE) == (FOLD,)


NOTHING_FOUND = replace(PROFILE, findings=(), near_misses=())


@pytest.mark.parametrize("expression", ["FA103", "findings.FA103 > 0", "findings.FA103 < 9"])
def test_a_rule_that_did_not_look_cannot_pass(expression: str) -> None:
    (condition,) = parse([expression])
    with pytest.raises(InputError, match="cannot be judged: FA103 did not look at what this report is of"):
        condition.met(NOTHING_FOUND)
    said = Notice("W10", "Rule FA103 failed and was left out: KeyError: 'oops'.")
    with pytest.raises(InputError, match=r"cannot be judged: Rule FA103 failed and was left out: KeyError: 'oops'\.  "):
        condition.met(replace(NOTHING_FOUND, warnings=(said,)))


@pytest.mark.parametrize("rule", ["FA201", "FA107", "FA101"])
def test_a_rule_that_found_nothing_counts_as_none(rule: str) -> None:
    """It passed, had nothing to look at, or almost matched."""
    report = replace(NOTHING_FOUND, near_misses=PROFILE.near_misses)
    assert [c.met(report) for c in parse([rule, f"findings.{rule} == 0"])] == [False, True]


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
