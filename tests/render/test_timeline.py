"""Kernels along time: every kernel to scale, both arms on one axis, groups bracketed, many kernels as columns."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fusionadvisor.render import timeline
from fusionadvisor.render.charts import ticks
from fusionadvisor.render.timeline import COLUMNS, arm, draw
from fusionadvisor.report.model import KernelTable, TimelineSummary
from tests.report.steps import finding


def line(
    starts: Sequence[float], durs: Sequence[float], *, group: Sequence[int] = (), step: Sequence[int] = (),
    stream: Sequence[int] = (), scale: float = 1.0, stand_ins: bool = False,
) -> TimelineSummary:  # fmt: skip
    count = len(starts)
    table = KernelTable(
        total=count, index=tuple(range(count)), name=("k",) * count, kind=("gemm",) * count,
        op=("op",) * count, module=("m",) * count, source=("",) * count, device=(0,) * count,
        stream=tuple(stream) or (7,) * count, start_us=tuple(starts), dur_us=tuple(durs),
        group=tuple(group) or (-1,) * count, step=tuple(step),
    )  # fmt: skip
    return TimelineSummary("measured", stand_ins=stand_ins, time_scale=scale, kernels=table)


def drawn(*lines: TimelineSummary, lengths: Sequence[float | None] = (None, None)) -> str:
    names = ("",) if len(lines) == 1 else ("before", "after")
    arms = [arm(one, name, length) for one, name, length in zip(lines, names, lengths, strict=False)]
    return draw([one for one in arms if one])


def bars(picture: str) -> list[tuple[float, float]]:
    found = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="26" class="k ', picture)
    return [(float(x), float(width)) for x, width in found]


EVERY_TEN = line([0, 10, 20, 30], [5, 5, 5, 5], group=[-1, 0, 0, -1])


def test_each_kernel_is_drawn_to_scale_and_groups_are_bracketed() -> None:
    picture = drawn(EVERY_TEN)
    # 35 µs on a thousand units: kernels at 0, 10, 20, 30 µs, each 5 µs
    assert [(round(x), round(w)) for x, w in bars(picture)] == [(0, 143), (286, 143), (571, 143), (857, 143)]
    (bracket,) = re.findall(r'class="bracket" d="M([\d.]+) [\d.]+v-5H([\d.]+)v5"', picture)
    assert [round(float(x)) for x in bracket] == [286, 714]


def test_before_and_after_share_one_axis() -> None:
    picture = drawn(EVERY_TEN, line([100, 105], [5, 5]))
    assert [(round(x), round(w)) for x, w in bars(picture)[4:]] == [(0, 143), (143, 143)]  # 5 of 35 µs each
    assert [said in picture for said in (">before<", ">35.0 µs · 4 kernels<", ">after<", ">10.0 µs · 2 kernels<")] == [
        True
    ] * 4


def test_gaps_are_drawn_so_that_the_step_takes_its_measured_time() -> None:
    # 20 µs of kernels and 15 µs of gaps, of which the profiler made 10: 1 to 3
    assert [(round(x), round(w)) for x, w in bars(drawn(EVERY_TEN, lengths=[25]))] == [
        (0, 200), (267, 200), (533, 200), (800, 200),
    ]  # fmt: skip
    # gaps are never drawn longer than recorded: what a longer step has besides comes after its last kernel
    assert [(round(x), round(w)) for x, w in bars(drawn(EVERY_TEN, lengths=[50]))][-1] == (600, 100)


def test_shortened_ops_of_a_cpu_stand_end_to_end() -> None:
    # recorded as 10, 10 and 20 µs with gaps, shown as half of that: the step takes 20 µs, and its ops all of it
    picture = drawn(line([0, 15, 35], [5, 5, 10], scale=0.5, stand_ins=True), lengths=[20])
    assert [(round(x), round(w)) for x, w in bars(picture)] == [(0, 250), (250, 250), (500, 500)]


def test_kernels_that_overlap_keep_doing_so() -> None:
    picture = drawn(line([0, 5, 30], [10, 10, 10], stream=[7, 20, 7]), lengths=[25])
    starts = sorted(round(x) for x, _ in bars(picture))
    assert starts == [96, 96 + round(904 * 5 / 25), 96 + round(904 * 15 / 25)]
    assert ">stream 20<" in picture


def test_one_step_of_several_is_drawn() -> None:
    assert len(bars(drawn(line([0, 10, 20, 30, 40, 50], [5] * 6, step=[0, 0, 1, 1, 2, 2])))) == 2


def test_a_step_drawn_beside_a_slower_one_is_stretched() -> None:
    stretched = arm(EVERY_TEN, "before", 35, stretch=2.0)
    assert stretched is not None
    assert stretched.length_us == 70
    assert [bar.start for bar in stretched.lanes[0].bars] == [0, 20, 40, 60]


def test_rules_are_written_over_the_groups_they_found() -> None:
    found = [replace(finding(rule, "m"), kernels=(1, 2)) for rule in ("FA103", "FA101")]
    one = arm(EVERY_TEN, findings=found)
    assert one is not None
    assert ">FA101, FA103<" in draw([one])


def test_many_kernels_are_drawn_as_columns_and_small_groups_as_one() -> None:
    count = 20_000
    picture = drawn(line([10.0 * i for i in range(count)], [5.0] * count, group=[i // 2 for i in range(count)]))
    assert 0 < picture.count('class="k ') <= COLUMNS
    assert 0 < picture.count('class="bracket"') < COLUMNS
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" class="k ', picture)]
    assert heights == pytest.approx([13] * len(heights), abs=1e-3)  # half of every column is busy


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0, 35, ["0 µs", "10 µs", "20 µs", "30 µs"]),
        (0, 462, ["0 µs", "100 µs", "200 µs", "300 µs", "400 µs"]),
        (11_000, 12_400, ["11.0 ms", "11.5 ms", "12.0 ms"]),
        (3.2, 3.25, ["3.20 µs", "3.21 µs", "3.22 µs", "3.23 µs", "3.24 µs", "3.25 µs"]),
        (0, 12e6, ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s", "12 s"]),
    ],
)
def test_the_axis_has_round_times(low: float, high: float, said: list[str]) -> None:
    assert [words for _, words in ticks(low, high)] == said


def test_data_for_the_script_says_the_same() -> None:
    one = arm(EVERY_TEN)
    assert one is not None
    (lane,) = json.loads(timeline.data([one]))["arms"][0]["lanes"]
    assert (lane["start"], lane["dur"], lane["group"]) == ([0, 10000, 10000, 10000], [5000] * 4, [-1, 0, 0, -1])


def test_nothing_to_draw_draws_nothing() -> None:
    assert arm(TimelineSummary("recorded")) is None
    assert arm(None) is None
    assert draw([]) == ""
