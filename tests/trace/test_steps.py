"""Steps: marked, told by module calls or by repetition, overlapping, partial."""

import numpy as np
import pytest

from fusionadvisor.trace.steps import repeating_end, step_of
from fusionadvisor.trace.timeline import Step
from tests.trace.samples import Event, annotation, four, frame, kernel, launch, op, read


def repeats(count: int, names: tuple[str, ...], first: float = 0.0) -> list[Event]:
    events: list[Event] = []
    for i in range(count):
        for j, name in enumerate(names):
            at, number = first + 1000 * i + 100 * j, 100 * i + j + 1
            events += [op(name, at, 50), launch(at + 5, number), kernel(at + 60, 5, number)]
    return events


def test_marked_steps_are_taken_with_overlap_and_gaps() -> None:
    marks = [annotation("ProfilerStep#3", 0, 950), annotation("ProfilerStep#4", 900, 1050)]
    timeline = read([*marks, *repeats(3, ("aten::mm", "aten::relu"))])
    assert timeline.steps_from == "ProfilerStep"
    assert [(step.name, step.start_ns, step.end_ns) for step in timeline.steps] == [
        ("ProfilerStep#3", 0, 950_000),
        ("ProfilerStep#4", 900_000, 1_950_000),
    ]
    assert timeline.kernels["step"].tolist() == [0, 0, 1, 1, -1, -1]


def test_without_marks_the_outermost_module_calls_are_steps() -> None:
    calls = [frame("nn.Module: Net_0", 1000 * i - 10 if i else 0, 500) for i in range(3)]
    layers = [frame("nn.Module: Linear_1", 1000 * i + 1, 300) for i in range(3)]
    timeline = read([*calls, *layers, *repeats(3, ("aten::mm", "aten::relu"), first=5)])
    assert timeline.steps_from == "module calls"
    assert timeline.kernels["step"].tolist() == [0, 0, 1, 1, 2, 2]


def test_without_modules_what_repeats_to_the_end_is_a_step() -> None:
    warm_up = [op("aten::randn", 0, 20), launch(5, 900), kernel(30, 5, 900)]
    timeline = read([*warm_up, *repeats(3, ("aten::mm", "aten::relu"), first=100)])
    assert timeline.steps_from == "repetition"
    assert timeline.kernels["step"].tolist() == [-1, 0, 0, 1, 1, 2, 2]


def test_graph_replays_without_ops_are_repeats() -> None:
    events: list[Event] = []
    for i in range(4):
        events += [launch(100 * i, i + 1, name="cudaGraphLaunch"), kernel(100 * i + 9, 5, i + 1)]
    timeline = read(events)
    assert (timeline.steps_from, len(timeline.steps)) == ("repetition", 4)


def test_what_happens_once_or_twice_is_one_window() -> None:
    timeline = read(repeats(2, ("aten::mm", "aten::relu")))
    assert (timeline.steps_from, len(timeline.steps)) == ("window", 1)
    assert timeline.kernels["step"].tolist() == [0] * 4


def test_a_mark_in_the_oldest_format_is_a_mark() -> None:
    events = [event for event in four() if event["cat"] != "user_annotation"]
    timeline = read([*events, op("ProfilerStep#550", 5000, 400) | {"cat": "Operator"}])
    assert timeline.steps_from == "ProfilerStep"


@pytest.mark.parametrize(
    ("sequence", "found"),
    [
        ([], (0, 0)),
        ([1], (0, 0)),
        ([1, 2, 3], (0, 0)),
        ([1, 2, 1, 2], (0, 0)),
        ([1, 1, 1], (1, 3)),
        ([9, 8, 1, 2, 1, 2, 1, 2], (2, 3)),
        ([1, 1, 2, 1, 1, 2, 1, 1, 2], (3, 3)),
    ],
)
def test_repeating_end(sequence: list[int], found: tuple[int, int]) -> None:
    assert repeating_end(sequence) == found


def test_step_of_takes_the_last_to_begin_that_still_runs() -> None:
    steps = (Step(0, "long", 0, 100), Step(1, "short", 10, 20), Step(2, "late", 50, 60))
    assert step_of(steps, np.array([-1, 5, 15, 30, 55, 90, 101])).tolist() == [-1, 0, 1, 0, 2, 0, -1]
