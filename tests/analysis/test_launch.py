"""The queue replay, against arithmetic done by hand."""

import numpy as np
import pytest

from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.launch import Merge, Queue, graph_span, queue, replay_ends, replay_span
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


def _queue(every: float, us: float, count: int = 4, starts: tuple[int, ...] = (0,)) -> Queue:
    return Queue(np.arange(count, dtype=np.float64) * every, np.full(count, us), np.arange(count), np.array(starts))


def test_a_merge_in_a_full_queue_saves_its_kernels_and_a_gap() -> None:
    """Launches at 0, 1, 2, 3; 20 µs each; the second and third become one of half their 40 µs.

    Before, ends at 26.4, 47.6, 68.8, 90.0. After: 26.4, 47.6, 68.8. Saved 21.2: 20 and a gap of 1.2.
    Where nothing of the two remains, ends are 26.4, 47.6: saved 42.4.
    """
    line = _queue(1.0, 20.0)
    for earlier in (False, True):
        assert line.saved([Merge((1, 2), 0.5)], earlier=earlier) == pytest.approx(21.2)
        assert line.saved([Merge((1, 2), 0.0)], earlier=earlier) == pytest.approx(42.4)


def test_where_the_queue_is_empty_only_launches_save() -> None:
    """Launches at 0, 10, 20, 30; 2 µs each; the second and third become one of 2 µs.

    Before, the last is launched at 30, starts at 36.4, ends at 38.4. If the CPU comes no earlier, it still does: 0.
    Without the third launch, which cost the 10 since the second, the last is launched at 20 and ends at 28.4: 10.
    """
    line = _queue(10.0, 2.0)
    assert line.saved([Merge((1, 2), 0.5)], earlier=False) == pytest.approx(0.0)
    assert line.saved([Merge((1, 2), 0.5)], earlier=True) == pytest.approx(10.0)


def test_what_is_saved_before_a_wait_moves_what_follows() -> None:
    """Six kernels of 20 µs launched every µs, the CPU waiting before the fourth: parts of three and three.

    In each part the last two become one of 20 µs: 21.2 saved twice, 42.4.
    """
    line = _queue(1.0, 20.0, 6, (0, 3))
    assert line.saved([Merge((1, 2), 0.5), Merge((4, 5), 0.5)], earlier=True) == pytest.approx(42.4)


def test_one_long_pause_is_no_launch() -> None:
    """Launches at 0, 10, 20, 500, 510; the fourth took 480 since the third, at most the median of 10 falls away.

    The third and fourth become one of 2 µs: the last one, launched at 510, comes at 500.
    """
    line = Queue(np.array([0.0, 10, 20, 500, 510]), np.full(5, 2.0), np.arange(5), np.array([0]))
    assert line.saved([Merge((2, 3), 0.5)], earlier=True) == pytest.approx(10.0)


def test_a_queue_begins_anew_at_a_step_and_after_a_wait() -> None:
    """Four kernels launched at 0, 50, 100, 150, the last two in a second step; the CPU waits at 20."""
    x = T((64, 64))
    calls = [call("aten::relu", x, us=2, gap_us=48, launch_us=50.0 * i, step=i // 2) for i in range(4)]
    line = queue(timeline(calls, recording=LIGHT, syncs=[{"start_ns": 20_000, "dur_ns": 5000, "name": "sync"}]))
    assert line is not None
    assert line.starts.tolist() == [0, 1, 2]
    assert line.launch_us.tolist() == [0.0, 50.0, 100.0, 150.0]
    assert queue(timeline(calls, recording=Recording(stacks=True))) is None


def test_no_more_is_saved_than_the_device_was_idle() -> None:
    """Two kernels of 10 µs side by side in time, launched 100 µs apart: whatever the model says, nothing was idle."""
    calls = [call("aten::relu", T((8,)), us=10, launch_us=0.0), call("aten::relu", T((8,)), us=10, launch_us=100.0)]
    assert Facts(timeline(calls, recording=LIGHT)).launch.saving_us == pytest.approx(0.0)
