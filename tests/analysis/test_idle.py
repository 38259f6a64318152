"""Idle time by cause, against a timeline laid out by hand."""

from dataclasses import replace

import pytest

from fusionadvisor.analysis.idle import costs, split
from fusionadvisor.report.model import Idle
from fusionadvisor.trace.timeline import OP_COLUMNS, Step, Timeline
from tests.builders import T, call, table, timeline

X = T((64, 64))


def _laid_out() -> Timeline:
    """Kernels of 10 µs at 0, 30, 56, 90 and 130, a collective beside them.

    10–30: the next launch comes at 25: 20 of launch.
    40–56: the CPU waits from 35 to 42: 16 of sync.
    66–90: a copy to the device from 70 to 80: 10 of data, and 14 of launch, which comes at 85.
    100–130: a collective runs until 120: 20 of communication; launched at 60, the kernel was queued: 10 of other.
    """
    return timeline(
        [
            call("aten::relu", X, launch_us=-6.4),
            call("aten::relu", X, gap_us=20, launch_us=25.0),
            call("aten::relu", X, gap_us=16, launch_us=50.0),
            call("aten::relu", X, gap_us=24, launch_us=85.0),
            call("c10d::allreduce_", X, us=25, gap_us=-5, launch_us=86.0, kind="collective", stream=8),
            call("aten::relu", X, gap_us=10, launch_us=60.0),
        ],
        syncs=[{"start_ns": 35_000, "dur_ns": 7000, "name": "cudaStreamSynchronize"}],
        memory=[
            {"start_ns": 70_000, "dur_ns": 10_000, "device": 0, "name": "Memcpy HtoD (Pageable -> Device)", "step": 0},
        ],
    )


def test_each_gap_has_its_cause() -> None:
    assert split(_laid_out()) == Idle(launch_us=34.0, sync_us=16.0, data_us=10.0, communication_us=20.0, other_us=10.0)


def test_fetching_a_batch_is_waiting_for_data() -> None:
    """The gap of 20 µs from 10 to 30, of which the loader took 12–24: 12 of data, 8 of launch."""
    line = timeline([call("aten::relu", X, launch_us=-6.4), call("aten::relu", X, gap_us=20, launch_us=25.0)])
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    loading = table([{"start_ns": 12_000, "dur_ns": 12_000, "name": name}], OP_COLUMNS)
    assert split(replace(line, ops=loading)) == Idle(launch_us=8.0, data_us=12.0)


def test_a_step_that_is_longer_on_the_cpu_is_idle_for_the_rest() -> None:
    """Two steps of 60 µs on the CPU, each with one kernel of 10 µs: 50 of launch a step."""
    calls = [call("aten::relu", X, launch_us=-6.4), call("aten::relu", X, gap_us=50, launch_us=55.0, step=1)]
    steps = tuple(Step(i, f"ProfilerStep#{i}", 60_000 * i, 60_000 * (i + 1)) for i in range(2))
    found = split(replace(timeline(calls), steps=steps))
    assert found is not None
    assert found.launch_us == pytest.approx(50.0)


def test_a_gap_belongs_to_the_longest_wait_between_its_launches() -> None:
    """Kernels at 0–10 and 30–40, launched at −6.4 and 25; the CPU waited at 1–11 and 12–13: 20 µs after the first."""
    line = timeline(
        [call("aten::relu", X, launch_us=-6.4), call("aten::relu", X, gap_us=20, launch_us=25.0)],
        syncs=[
            {"start_ns": 1000, "dur_ns": 10_000, "name": "cudaMemcpyAsync"},
            {"start_ns": 12_000, "dur_ns": 1000, "name": "cudaStreamSynchronize"},
        ],
    )
    assert costs(line).tolist() == [20_000, 0]


def test_a_kernel_beside_fills_the_gap() -> None:
    """A kernel of no step from 10 to 25 leaves 5 µs of the gap, for which the next, launched at 22, was queued."""
    calls = [
        call("aten::relu", X, launch_us=-6.4),
        call("aten::relu", X, us=15, step=-1, launch_us=1.0),
        call("aten::relu", X, gap_us=5, launch_us=22.0),
    ]
    assert split(timeline(calls)) == Idle(other_us=5.0)


def test_stand_ins_wait_for_nothing() -> None:
    assert split(timeline([call("aten::relu", X)], stand_ins=True)) is None
