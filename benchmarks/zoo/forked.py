"""Jobs in forked processes: isolated as the tool's own children are, without importing torch and transformers again.

The process that forks imports and never computes, so that no thread and no lock of torch exists when it does.
"""

import contextlib
import os
import pickle
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from fusionadvisor.errors import EnvironmentUnfitError, InputError
from fusionadvisor.evaluate import bench, worker
from fusionadvisor.evaluate.trial import Job
from fusionadvisor.evaluate.worker import Ended, Limits

LEAST_S = 240.0
"""A job is never ended sooner: what it waits for is the machine, which others use."""


def prepare() -> None:
    """Import what the jobs need, and have them leave this machine's cores to each other."""
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TORCHINDUCTOR_COMPILE_THREADS="1")
    import torch
    import torch._dynamo
    import torch._inductor.compile_fx
    import torch.profiler
    import transformers

    import fusionadvisor.advisor
    import fusionadvisor.capture.live
    import fusionadvisor.capture.predicted.stream
    import fusionadvisor.rules.engine  # noqa: F401

    torch.set_num_threads(1)
    # one thread computes, and others want the cores: its own time is what can be told apart from theirs
    bench.CpuClock.seconds = _own_seconds  # type: ignore[method-assign]
    transformers.logging.set_verbosity_error()


def _own_seconds(clock: bench.CpuClock, run: Callable[[], object], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        run()
    return time.process_time() - start


@dataclass(frozen=True)
class Failed:
    """How a forked function ended that returned nothing: an error the tool means to show, or a crash of it."""

    meant: bool
    what: str
    trace: str = ""
    timed_out: bool = False


def call(function: Callable[[], Any], timeout_s: float, tell: Callable[[str], None] = lambda _: None) -> Any:
    """What a function returns in a forked process, or :class:`Failed`. Its stages go to ``tell``."""
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _child(function, write_end)
    os.close(write_end)
    try:
        data = _read(read_end, time.monotonic() + timeout_s)
    finally:
        os.close(read_end)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if data is None:
        return Failed(False, f"still running after {timeout_s:g} s", timed_out=True)
    if not data:
        return Failed(False, f"the process ended with status {status}")
    return pickle.loads(data)


def _child(function: Callable[[], Any], pipe: int) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # kineto's and the compiler's chatter
    worker._die_with(os.getppid())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer = function()
    except (InputError, EnvironmentUnfitError) as error:
        answer = Failed(True, f"{error.what} {error.hint}".strip())
    except BaseException as error:  # noqa: BLE001 - what the benchmark is there to find
        answer = Failed(False, f"{type(error).__name__}: {error}", traceback.format_exc())
    data = pickle.dumps(answer)
    while data:
        data = data[os.write(pipe, data) :]
    os._exit(0)


def _read(pipe: int, deadline: float) -> bytes | None:
    """Everything up to the end of the pipe; None where the deadline comes first."""
    parts: list[bytes] = []
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            break
        part = os.read(pipe, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return None


def cpu_seconds() -> float:
    """What the processes forked so far have taken, compilers included."""
    spent = os.times()
    return spent.children_user + spent.children_system


@contextmanager
def workers() -> Iterator[None]:
    """The tool's child processes are forked from this one within."""
    with mock.patch.object(worker, "run", _run):
        yield


def _run(job: Job, limits: Limits, tell: Callable[[str], None] = lambda _: None) -> Ended:
    tell("working")
    answer = call(lambda: worker.guarded(job, lambda _: None), max(limits.timeout_s, LEAST_S))
    if not isinstance(answer, Failed):
        return Ended("done", answer)
    if answer.meant:
        raise InputError(answer.what)
    return Ended("timed_out" if answer.timed_out else "crashed", reason=f"{answer.what} {answer.trace}".strip())
