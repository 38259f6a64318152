"""The queue replay, against arithmetic done by hand."""

import numpy as np
import pytest

from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.launch import graph_span, replay_ends, replay_span
from fusionadvisor.trace.timeline import Recording
from tests.builders import Call, T, call, timeline

LIGHT = Recording()


def test_replay_waits_for_the_launch_or_for_the_queue() -> None:
    """Launches at 0, 2, 30; durations 10, 10, 5.

    first: starts 0 + 6.4, ends 16.4. Second: max(16.4 + 1.2, 2 + 6.4) = 17.6, ends 27.6.
    Third: max(27.6 + 1.2, 30 + 6.4) = 36.4, ends 41.4. Span 41.4 − 6.4 = 35.0.
    """
    launch, dur = np.array([0.0, 2.0, 30.0]), np.array([10.0, 10.0, 5.0])
    assert replay_ends(launch, dur).tolist() == pytest.approx([16.4, 27.6, 41.4])
    assert replay_span(launch, dur) == pytest.approx(35.0)


def test_a_graph_keeps_only_the_gaps() -> None:
    """10 + 10 + 5 and two gaps of 1.2: 27.4."""
    assert graph_span(np.array([10.0, 10.0, 5.0])) == pytest.approx(27.4)


def test_replay_equals_the_plain_recurrence() -> None:
    rng = np.random.default_rng(0)
    launch, dur = np.sort(rng.uniform(0, 2000, 300)), rng.uniform(1, 12, 300)
    ends, end = [], -1e9
    for at, us in zip(launch, dur, strict=True):
        end = max(end + 1.2, at + 6.4) + us
        ends.append(end)
    assert replay_ends(launch, dur).tolist() == pytest.approx(ends)


def _idle(us: float, every: float, count: int) -> list[Call]:
    x = T((64, 64))
    return [call("aten::relu", x, us=us, gap_us=every - us, launch_us=i * every) for i in range(count)]


def test_light_recording_gives_a_saving() -> None:
    """100 kernels of 2 µs launched every 50 µs.

    replayed span: 99 · 50 + 2 = 4952; as a graph: 100 · 2 + 99 · 1.2 = 318.8; saved 4633.2. Break-even: 200/100 = 2.
    """
    launch = Facts(timeline(_idle(2, 50, 100), recording=LIGHT)).launch
    assert launch.saving_us == pytest.approx(4633.2)
    assert launch.break_even_us == pytest.approx(2.0)
    assert launch.busy_us == pytest.approx(200.0)


@pytest.mark.parametrize("flag", ["stacks", "shapes", "memory", "modules"])
def test_heavy_recording_gives_break_even_only(flag: str) -> None:
    launch = Facts(timeline(_idle(2, 50, 100), recording=Recording(**{flag: True}))).launch
    assert launch.break_even_us == pytest.approx(2.0)
    assert launch.saving_us is None
    assert flag in launch.reason


def test_live_run_compares_latency_with_busy_time() -> None:
    """Latency 1000 µs, busy 200 µs, 100 gaps of 1.2 µs remain in a graph: 1000 − 200 − 120 = 680."""
    tl = timeline(_idle(2, 50, 100), recording=Recording(shapes=True, stacks=True))
    assert Facts(tl, latency_us=1000.0).launch.saving_us == pytest.approx(680.0)


def test_graph_replays_are_not_launch_bound() -> None:
    calls = [call("aten::relu", T((64, 64)), us=2, gap_us=48, graph=1) for _ in range(50)]
    launch = Facts(timeline(calls, recording=LIGHT)).launch
    assert launch.kernels == 0
    assert launch.break_even_us is None


def test_busy_time_is_a_union() -> None:
    """Kernels at 0–10 and, on another stream, 5–15: busy 15 µs, not 20."""
    tl = timeline([call("aten::relu", T((8,)), us=10), call("aten::relu", T((8,)), us=10, gap_us=-5, stream=8)])
    facts = Facts(tl)
    assert facts.busy_us == pytest.approx(15.0)
    assert facts.kernel_us == pytest.approx(20.0)
