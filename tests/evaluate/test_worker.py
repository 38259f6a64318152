"""Whatever a strategy does, the run goes on, the report is whole, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fusionadvisor.errors import InputError
from fusionadvisor.evaluate import worker
from fusionadvisor.evaluate.search import attempt
from fusionadvisor.evaluate.trial import Job
from fusionadvisor.evaluate.worker import Limits
from fusionadvisor.recipe import Step
from fusionadvisor.report.model import Attempt, Workload
from fusionadvisor.workload.resolve import resolve

pytestmark = pytest.mark.usefixtures("plugged")
ROOT = Path(__file__).parents[2]


def tried(target: str, name: str, **more: object) -> Attempt:
    outcome = attempt(resolve(target), [name], budget_s=1, **more)  # type: ignore[arg-type]
    assert len(outcome.attempts) == 1
    return outcome.attempts[0]


def test_a_crash_is_told_with_its_signal_stage_and_place(tiny: str) -> None:
    made = tried(tiny, "segfaults")
    assert made.outcome == "crashed"
    assert "SIGSEGV while rewriting" in made.reason
    assert "ctypes" in made.reason


def test_a_hang_is_ended_at_its_limit_with_all_it_started(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"
    monkeypatch.setenv("PLUGIN_PID_FILE", str(pid_file))
    made = tried(tiny, "spawns", timeout_s=15)
    assert made.outcome == "timed_out"
    assert "rewriting after 15 s" in made.reason
    assert gone(int(pid_file.read_text()))


def test_memory_is_limited(tiny: str) -> None:
    made = tried(tiny, "eats", memory_bytes=1_500_000_000)
    assert made.outcome == "crashed"
    assert "1.5 GB are allowed" in made.reason


def test_the_memory_of_all_it_started_counts(tiny: str) -> None:
    made = tried(tiny, "eats_apart", memory_bytes=1_500_000_000)
    assert made.outcome == "crashed"
    assert "1.5 GB are allowed" in made.reason


def test_a_finished_attempt_is_not_lost_to_a_process_that_lives_on(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"
    monkeypatch.setenv("PLUGIN_PID_FILE", str(pid_file))
    made = tried(tiny, "leaves_helper", timeout_s=120)
    assert made.outcome in ("faster", "equivalent", "slower", "inconclusive")
    assert gone(int(pid_file.read_text()))


def test_nan_is_a_divergence(tiny: str) -> None:
    made = tried(tiny, "returns_nan")
    assert made.outcome == "diverged"
    assert "NaN" in made.reason
    assert made.speedup is None
    assert not made.kept


def test_exceptions_and_exits_are_crashes_in_words(tiny: str) -> None:
    made = tried(tiny, "raises")
    assert (made.outcome, made.reason) == ("crashed", "LookupError while rewriting: no such kernel")
    made = tried(tiny, "exits")
    assert made.outcome == "crashed"
    assert "code 7 while planning: about to leave" in made.reason


def test_a_strategy_that_writes_into_the_original_diverges(tiny: str) -> None:
    assert tried(tiny, "changes_original").outcome == "diverged"


def test_one_that_goes_wrong_does_not_stop_the_others(tiny: str) -> None:
    outcome = attempt(resolve(tiny), ["raises", "fuse_modules"], budget_s=1)
    assert [made.strategy for made in outcome.attempts] == ["fuse_modules", "raises"]
    assert [made.outcome for made in outcome.attempts][1] == "crashed"
    assert outcome.attempts[0].kernels is not None
    assert outcome.attempts[0].kernels.gone == (("aten::native_batch_norm", 1),)
    assert outcome.warnings[0].code == "W-order"


def test_what_the_user_got_wrong_is_raised_in_the_parent(tiny: str) -> None:
    workload = replace(resolve(tiny), target=str(Path(tiny).with_name("missing.py")))
    with pytest.raises(InputError, match=r"missing\.py"):
        worker.run(Job(workload, step=Step("whole")), Limits())


def test_progress_names_the_stages(tiny: str) -> None:
    heard: list[str] = []
    attempt(resolve(tiny), ["whole"], budget_s=1, progress=heard.append)
    assert heard[0] == "whole: building the model"
    assert heard[-1] == "whole: measuring"


PARENT = """
import sys
from fusionadvisor.evaluate.search import attempt
from fusionadvisor.report.codec import from_dict
from fusionadvisor.report.model import Workload
import json
attempt(from_dict(Workload, json.loads(sys.argv[1])), ["sleeps"], progress=lambda s: print(s, flush=True))
"""


def test_the_child_dies_with_a_killed_parent(tiny: str) -> None:
    workload = resolve(tiny)
    path = os.pathsep.join([str(ROOT), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, json.dumps(as_plain(workload))],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert parent.stdout is not None
    with parent.stdout:
        for line in parent.stdout:
            if "rewriting" in line:
                break
        children = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
        assert children
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert all(gone(pid) for pid in children)


def as_plain(workload: Workload) -> object:
    from fusionadvisor.report.codec import to_dict

    return to_dict(workload)


def gone(pid: int, within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False
