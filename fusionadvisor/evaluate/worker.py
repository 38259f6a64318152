"""A job in a process of its own: a crash, a hang or a lack of memory ends that job, never the run.

The child is a fresh interpreter. The job goes in through its stdin as JSON; progress and the result come back through a
pipe of their own, so that what the user's code prints cannot be mistaken for them. The child dies with its parent.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from fusionadvisor.errors import EnvironmentUnfitError, FusionAdvisorError, InputError, StrategyError
from fusionadvisor.evaluate.trial import Done, Job, perform
from fusionadvisor.report.codec import from_dict, to_dict

POLL_S = 0.05
"""How often the child's memory is looked at."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fusionadvisor.evaluate.worker import child
child()
"""
_EXPECTED: tuple[type[FusionAdvisorError], ...] = (InputError, EnvironmentUnfitError, StrategyError)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use. ``memory_bytes`` None stands for 80 % of what is free when it starts."""

    timeout_s: float = 300.0
    memory_bytes: int | None = None


@dataclass(slots=True)
class Ended:
    """How a child ended. ``done`` carries the result, the others the reason in a sentence."""

    how: Literal["done", "crashed", "timed_out"]
    done: Done = field(default_factory=Done)
    reason: str = ""


@dataclass(slots=True)
class _Child:
    process: "subprocess.Popen[bytes]"
    messages: int
    output: IO[bytes]
    stage: str = "starting"
    buffer: bytes = b""
    result: dict[str, Any] | None = None
    error: dict[str, str] | None = None


def run(job: Job, limits: Limits, tell: Callable[[str], None] = lambda _: None) -> Ended:
    """Do a job in a child process.

    Args:
        job: What to do.
        limits: Time and memory it may take.
        tell: Told each stage of the job as it begins.

    Raises:
        InputError, EnvironmentUnfitError: The workload could not be built in the child.
    """
    child = _start(job)
    try:
        ended = _watch(child, limits, tell)
        if ended is None and child.result is None and child.error is None:
            ended = Ended("crashed", reason=_crash(child))
    finally:
        _kill(child)
        os.close(child.messages)
    if child.error is not None:
        kind = next(kind for kind in _EXPECTED if kind.__name__ == child.error["kind"])
        raise kind(child.error["what"], child.error["hint"])
    if ended is not None:
        return ended
    return Ended("done", from_dict(Done, child.result))


def _start(job: Job) -> _Child:
    read_end, write_end = os.pipe()
    # spinning OpenMP threads of one arm would steal the other's cores (measured: identical models 0.4–2.2x apart)
    # compile workers are processes of their own, which would outlive the child
    environment = {"OMP_WAIT_POLICY": "PASSIVE", "TORCHINDUCTOR_COMPILE_THREADS": "1", **os.environ}
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child is ended
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path), str(write_end), str(os.getpid())],
            stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=(write_end,), env=environment,
            start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(write_end)
    child = _Child(process, read_end, output)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(to_dict(job)).encode())
        process.stdin.close()
    return child


def _watch(child: _Child, limits: Limits, tell: Callable[[str], None]) -> Ended | None:
    """Follow the child until its result is here or it has ended; end it where it goes past a limit."""
    deadline = time.monotonic() + limits.timeout_s
    allowed = limits.memory_bytes or int(0.8 * free_memory())
    while True:
        ready, _, _ = select.select([child.messages], [], [], POLL_S)
        if ready:
            data = os.read(child.messages, 1 << 16)
            if not data:
                return None
            _hear(child, data, tell)
            if child.result is not None or child.error is not None:  # what it forked may hold the pipe open
                return None
        elif child.process.poll() is not None:
            return None
        if time.monotonic() > deadline:
            return Ended("timed_out", reason=f"It was still {child.stage} after {limits.timeout_s:g} s and was ended.")
        if used := memory_over(child.process.pid, allowed):
            reason = f"It was {child.stage} and used {used / 1e9:.1f} GB; {allowed / 1e9:.1f} GB are allowed."
            return Ended("crashed", reason=reason)


def _hear(child: _Child, data: bytes, tell: Callable[[str], None]) -> None:
    *lines, child.buffer = (child.buffer + data).split(b"\n")
    for line in lines:
        message = json.loads(line)
        child.result = message.get("done", child.result)
        child.error = message.get("error", child.error)
        if stage := message.get("stage"):
            child.stage = stage
            tell(stage)


def _crash(child: _Child) -> str:
    code = child.process.wait()
    child.output.seek(0)
    said = [line.strip() for line in child.output.read().decode(errors="replace").splitlines() if line.strip()]
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        place = next((line for line in said if line.startswith("File ")), "")
        return f"The process died of {name} while {child.stage}{f' ({place})' if place else ''}."
    return f"The process ended with code {code} while {child.stage}{f': {said[-1]}' if said else ''}."


def _kill(child: _Child) -> None:
    """End the child and whatever it started."""
    started = _descendants(child.process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.process.pid, signal.SIGKILL)
    for pid in started:  # those that have left its group
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    child.process.wait()
    child.output.close()


def memory_over(pid: int, allowed: int) -> int:
    """Bytes of memory that a process and all it started hold, where that is more than is allowed; else 0."""
    tree = (pid, *_descendants(pid))
    used = sum(map(_resident, tree))
    if used > allowed and len(tree) > 1:  # forked processes share most of theirs; to tell takes longer
        used = sum(map(_proportional, tree))
    return used if used > allowed else 0


def _descendants(pid: int) -> list[int]:
    """Processes below one, those whose parent has ended included: they come back to it (see :func:`child`)."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return found + [below for one in found for below in _descendants(one)]


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


def _proportional(pid: int) -> int:
    """Bytes of memory a process holds, what it shares divided among those that do."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def free_memory() -> int:
    """Bytes this machine can still give out."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()


# in the child -------------------------------------------------------------------------------------------------------


def child() -> None:
    """Read a job from stdin, do it, and write what came of it to the pipe named on the command line."""
    import faulthandler

    pipe, parent = int(sys.argv[2]), int(sys.argv[3])
    _die_with(parent)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what its own children leave behind stays below it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()

    def send(message: dict[str, Any]) -> None:
        os.write(pipe, json.dumps(message).encode() + b"\n")

    job: Job = from_dict(Job, json.load(sys.stdin))
    try:
        done = guarded(job, lambda stage: send({"stage": stage}))
    except _EXPECTED as error:
        send({"error": {"kind": type(error).__name__, "what": error.what, "hint": error.hint}})
    else:
        send({"done": to_dict(done)})
    sys.stdout.flush()
    os._exit(0)  # a sticky CUDA error or a user's atexit handler must not turn success into a crash


def guarded(job: Job, tell: Callable[[str], None]) -> Done:
    """Build the program and do the job."""
    from fusionadvisor.workload.program import build

    tell("building the model")
    return perform(job, build(job.workload), tell)


def _die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)
