"""The overlay trace: slices of a track nest, every kernel is there, names stay text."""

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionadvisor.render.perfetto import FINDINGS, GROUPS, LANES, MARK, STREAMS, compose
from fusionadvisor.report.model import Report
from tests.render.samples import ALL, PROFILE
from tests.render.test_terminal import HOSTILE
from tests.report.steps import K, finding, made

Event = dict[str, Any]


def events(report: Report) -> list[Event]:
    text = compose(report)
    assert text.startswith(MARK)
    assert text.isascii()
    found: list[Event] = json.loads(text)["traceEvents"]
    return found


def tracks(found: list[Event]) -> dict[tuple[int, int], list[Event]]:
    by_track: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in found:
        if event["ph"] == "X":
            by_track[event["pid"], event["tid"]].append(event)
    return by_track


def assert_nested(found: list[Event]) -> None:
    """Slices of one track are disjoint or one holds the other, to the ns."""
    for slices in tracks(found).values():
        edges = sorted((round(e["ts"] * 1e3), -round(e["dur"] * 1e3)) for e in slices)
        open_: list[int] = []
        for start, minus in edges:
            while open_ and open_[-1] <= start:
                open_.pop()
            assert not open_ or start - minus <= open_[-1]
            open_.append(start - minus)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e5), st.integers(0, 2), st.integers(-1, 3), st.integers(0, 1)),
        max_size=40,
    )
)
def test_slices_nest_whatever_overlaps(rows: list[tuple[float, float, int, int, int]]) -> None:
    report = made(*(K("m", "op", group=group, stream=stream) for _, _, stream, group, _ in rows))
    assert report.timeline is not None
    table = replace(
        report.timeline.kernels, start_us=tuple(r[0] for r in rows), dur_us=tuple(r[1] for r in rows),
        device=tuple(r[4] for r in rows),
    )  # fmt: skip
    found = events(
        replace(
            report,
            timeline=replace(report.timeline, kernels=table),
            findings=(replace(finding("FA103", "m"), kernels=tuple(range(0, len(rows), 2))),),
        )
    )
    assert_nested(found)
    kernels = [e for e in found if e["ph"] == "X" and e["tid"] >= STREAMS]
    assert sorted(e["args"]["index"] for e in kernels) == list(range(len(rows)))
    for event in kernels:
        row = event["args"]["index"]
        assert (event["pid"], event["ts"]) == (table.device[row], pytest.approx(table.start_us[row], abs=6e-4))


def test_groups_and_findings_lie_over_their_kernels() -> None:
    report = made(K("a", "aten::mm", kind="gemm"), K("a", "aten::mul", group=0), K("a", "aten::add", group=0))
    found = events(replace(report, findings=(replace(finding("FA103", "a"), kernels=(1, 2)),)))
    (group,) = tracks(found)[0, GROUPS]
    (over,) = tracks(found)[0, FINDINGS]
    assert (group["name"], group["ts"], group["dur"]) == ("aten::mul aten::add", 12.0, 22.0)
    assert (over["name"], over["ts"], over["dur"]) == ("FA103 Fuse it", 12.0, 22.0)
    assert over["args"]["remedies"] == "compile"
    names = {(e["tid"], e["args"]["name"]) for e in found if e["name"] == "thread_name"}
    assert names == {(0, "steps"), (GROUPS, "groups that could be one kernel"), (FINDINGS, "findings"),
                     (STREAMS, "stream 7")}  # fmt: skip


def test_a_finding_is_shown_over_each_of_its_places() -> None:
    report = made(*(K("a", "aten::mul", group=0), K("a", "aten::mm", kind="gemm")) * 3)
    found = events(replace(report, findings=(replace(finding("FA103", "a"), kernels=(0, 2, 4)),)))
    assert [e["ts"] for e in tracks(found)[0, FINDINGS]] == [0.0, 24.0, 48.0]


def test_kernels_that_overlap_on_one_stream_get_a_track_of_their_own() -> None:
    report = made(K("a", "x"), K("a", "y"))
    assert report.timeline is not None
    overlapping = replace(report.timeline.kernels, start_us=(0.0, 9.0))
    found = events(replace(report, timeline=replace(report.timeline, kernels=overlapping)))
    assert {tid for _, tid in tracks(found) if tid >= STREAMS} == {STREAMS, STREAMS + 1}
    assert LANES > 1


@pytest.mark.parametrize("name", list(ALL))
def test_every_sample(name: str) -> None:
    assert_nested(events(ALL[name]))


def test_hostile_names_stay_text() -> None:
    report = made(K(HOSTILE, HOSTILE, name=f"</script>{HOSTILE}", group=0), K("a", "b", group=0))
    found = events(replace(report, source=HOSTILE, findings=(replace(finding(HOSTILE, HOSTILE), kernels=(0,)),)))
    said = [e["name"] for e in found] + [str(v) for e in found for v in e["args"].values()]
    assert not {"\x1b", "\u202e", "\u2028", "\x00", "\r", "\n"} & set("".join(said))


def test_times_keep_their_ns() -> None:
    assert PROFILE.timeline is not None
    table = replace(PROFILE.timeline.kernels, start_us=(123456789.001, 123456830.002), dur_us=(41.001, 0.001))
    found = events(replace(PROFILE, timeline=replace(PROFILE.timeline, kernels=table)))
    kernels = [e for e in found if e["ph"] == "X" and e["tid"] >= STREAMS]
    assert [(e["ts"], e["dur"]) for e in kernels] == [(123456789.001, 41.001), (123456830.002, 0.001)]
