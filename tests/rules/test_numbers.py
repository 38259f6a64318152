"""What a finding's sentences say of time fits the finding's own total, where steps and places differ."""

import re
from dataclasses import replace

import pandas as pd
import pytest

from fusionadvisor.analysis.facts import Facts
from fusionadvisor.report.model import Finding
from fusionadvisor.rules import engine
from fusionadvisor.trace.timeline import Step
from tests.builders import call, timeline
from tests.rules.cases import PAIRS, TOK, Pair, batch_norm, conv, relu

TOTAL = re.compile(r"kernels?, ([\d.]+) µs|takes?,? ([\d.]+) µs")
EACH = re.compile(r"(\d+) kernels?(?: in a row,| of) ([\d.]+) µs")
GEMMS = re.compile(r"(\d+) GEMMs of .*, ([\d.]+) µs each")
UNTIMED = {"FA101", "FA103", "FA109", "FA110", "FA201", "FA202", "FA401", "FA402", "FA403", "FA404", "FA406"}
"""Rules that name no time of a GPU."""


def said_us(finding: Finding) -> list[float]:
    """The time of one place, by each sentence that names one."""
    said = " ".join(finding.evidence)
    totals = [float(a or b) for a, b in TOTAL.findall(said)]
    return totals + [int(n) * float(us) for n, us in (*EACH.findall(said), *GEMMS.findall(said))]


def slower_the_second_time(facts: Facts) -> Facts:
    """The same step again, half as fast and on another stream, so that the two are analysed apart."""
    kernels = facts.timeline.kernels
    ends = int((kernels["start_ns"] + kernels["dur_ns"]).max()) + 1_000_000
    again = kernels.assign(
        step=1, stream=kernels["stream"] + 1, dur_ns=2 * kernels["dur_ns"],
        start_ns=ends + 2 * kernels["start_ns"], launch_ns=ends + 2 * kernels["launch_ns"],
    )  # fmt: skip
    both = pd.concat([kernels, again], ignore_index=True)
    steps = (*facts.timeline.steps, Step(1, "ProfilerStep#1", ends, 5 * ends))
    return replace(facts, timeline=replace(facts.timeline, kernels=both, steps=steps))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p.rule}: {p.name}")
def test_times_said_are_those_of_the_finding_where_steps_differ(pair: Pair) -> None:
    facts = slower_the_second_time(pair.facts())
    assert len({n.step for n in facts.nodes}) in (0, 2)
    for finding in engine.run(facts).findings:
        said = said_us(finding)
        assert said or finding.rule in UNTIMED or not finding.kernel_us
        for us in said:
            assert us * finding.instances == pytest.approx(finding.kernel_us, rel=0.05), finding.evidence


def test_times_said_are_the_mean_of_the_places() -> None:
    """Norms of 37, 11 and 6 µs are 54 together, activations of 30 and 10 are 40."""
    calls = [c for us in (37.0, 11.0, 6.0) for c in (conv(), batch_norm(us))]
    on_cpu = Facts(timeline(calls, gpu=None, stand_ins=True))
    (fold,) = (f for f in engine.run(on_cpu).findings if f.rule == "FA101")
    assert fold.instances == 3
    assert fold.kernel_us == pytest.approx(54.0)
    assert "Estimated as what each norm takes, 18.0 µs on average." in fold.evidence
    calls = [c for us in (30.0, 10.0) for c in (conv(), relu(us=us))]
    (epilogue,) = (f for f in engine.run(Facts(timeline(calls))).findings if f.rule == "FA102")
    assert epilogue.evidence[0].startswith("relu takes 20.0 µs on average after conv1")


def test_what_only_some_steps_have_says_so() -> None:
    calls = [call("aten::mul", TOK, TOK, step=0), conv(), batch_norm(), *(replace(c, step=1) for c in (relu(TOK),))]
    (fold,) = (f for f in engine.run(Facts(timeline(calls))).findings if f.rule == "FA101")
    assert fold.kernel_us == pytest.approx(37.0 / 2)
    assert any(s.startswith("In 1 of 2 steps") for s in fold.evidence)


def test_a_storm_is_where_most_of_its_kernels_are() -> None:
    tiny = {"us": 2.0, "kind": "elementwise"}
    loop = [call("aten::mul", TOK, TOK, module="loop", source=f"m.py:{8 + i % 2}", **tiny) for i in range(21)]
    lead = call("aten::add", TOK, TOK, module="head", source="m.py:3", **tiny)
    (storm,) = (f for f in engine.run(Facts(timeline([lead, *loop]))).findings if f.rule == "FA303")
    assert (storm.module, storm.source and storm.source.line) == ("loop", 8)
    apart = [replace(c, module=f"block{i % 3}") for i, c in enumerate(loop)]
    (storm,) = (f for f in engine.run(Facts(timeline([lead, *apart]))).findings if f.rule == "FA303")
    assert (storm.module, storm.source) == ("", None)
