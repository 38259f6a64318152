"""Time of a step that no op takes."""

import inspect
import time
from dataclasses import replace

from fusionadvisor.capture.outside import busiest_line, outside_ops
from fusionadvisor.report.model import Timing
from tests.builders import T, call, timeline

X = T((64, 64))


def sleeps() -> None:
    time.sleep(0.5)


LINE = f"test_outside.py:{inspect.getsourcelines(sleeps)[1] + 1}"


def test_the_line_that_sleeps_is_named() -> None:
    assert busiest_line(sleeps) == (LINE, 1.0)


def test_a_step_that_mostly_sleeps_says_so() -> None:
    """Two ops of 10 µs in a step of 500 ms: 499.98 ms outside, all of it asleep."""
    line = timeline([call("aten::relu", X, us=10), call("aten::exp", X, us=10)], stand_ins=True)
    (said,) = outside_ops(line, Timing(500.0, (499.0, 501.0)), sleeps)
    assert said.message.startswith("500.0 ms of the step's 500.0 ms (100 %) pass outside PyTorch's ops")
    assert LINE in said.message


def test_ops_that_fill_the_step_leave_nothing_to_say() -> None:
    line = timeline([call("aten::relu", X, us=300_000)], stand_ins=True)
    assert outside_ops(line, Timing(500.0, (499.0, 501.0)), sleeps) == ()
    assert outside_ops(replace(line, stand_ins=False), Timing(9000.0, (1.0, 2.0)), sleeps) == ()
