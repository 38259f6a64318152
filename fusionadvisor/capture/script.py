"""Run an unmodified script and watch some of its steps: record one, profile the next few, time the others."""

import builtins
import os
import sys
import tempfile
import threading
import time
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.optim.optimizer import register_optimizer_step_post_hook

from fusionadvisor.capture.align import align
from fusionadvisor.capture.live import check_recorded, first_steps, on_one_clock, own_waits, unlinked
from fusionadvisor.capture.profiler import Profiler
from fusionadvisor.errors import InputError
from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.flow.record import Recording
from fusionadvisor.interrupts import held
from fusionadvisor.medians import median_ci
from fusionadvisor.report.model import INTERRUPTED, Mode, Notice, Timing, Workload
from fusionadvisor.trace import load
from fusionadvisor.trace.timeline import Timeline
from fusionadvisor.workload.usercode import shown, user_code

_UNDECIDED_CALLS = 32
"""Training calls of a model without an optimizer step, after which its calls are taken for the steps."""

_FEWEST_TIMED = 3


@dataclass(frozen=True)
class Watched:
    """What a script did: the timeline of its profiled steps, their data flow, and the time of its unprofiled steps."""

    timeline: Timeline
    flow: FlowGraph | None
    latency: Timing | None
    workload: Workload
    exit_code: int
    warnings: tuple[Notice, ...] = ()


class _Stop(BaseException):
    """Ends the script once enough was seen; no ``except Exception`` of the script's catches it."""


def watch_script(
    script: Path, arguments: Sequence[str] = (), *, skip: int = 3, steps: int = 5, stop: bool = False,
    trace: Path | None = None,
) -> Watched:  # fmt: skip
    """Run a script as ``python SCRIPT ARGUMENTS`` would, in this process, and profile some of its steps.

    A step ends with each ``step()`` of the first optimizer, or where nothing is trained with each call of the first
    model.

    Args:
        script: The file.
        arguments: Its ``sys.argv`` after its name.
        skip: Steps left alone at the beginning; the last of them is recorded.
        steps: Steps to profile after them.
        stop: End the script then.
        trace: Where to keep the profiler's own trace, gzip if the name ends so; ``{rank}`` is filled in.

    Raises:
        InputError: The script does not exist, raises or exits before the first profiled step, or calls no model.
        EnvironmentUnfitError: The profiler records nothing here.
        KeyboardInterrupt: Ctrl-C came before the first profiled step ended; later it ends the script, and a warning
            says so.
    """
    if not script.is_file():
        raise InputError(
            f"{shown(script)} {'is a directory' if script.is_dir() else 'does not exist'}.", "Check the path."
        )
    with tempfile.TemporaryDirectory(prefix="fusion-advisor-") as folder:
        watch = _Watch(skip, steps, stop, Path(folder) / "profile.json")
        code = _run(script, arguments, watch)
        watch.check(script)
        with held() as pressed:
            timeline = watch.timeline()
            if trace is not None:
                watch.keep_trace(trace)
            said: tuple[Notice, ...] = ()
            if watch.flow is not None:
                aligned = align(timeline, watch.flow)
                timeline, said = aligned.timeline, unlinked(aligned.unlinked, aligned.kernels)
    if watch.interrupted or pressed:
        said = (*said, Notice(INTERRUPTED, watch.ended()))
    workload = Workload(
        target=str(script.resolve()), entry_kind="script", model=watch.model_name, mode=watch.mode,
        device="cuda" if torch.cuda.is_available() else "cpu", assumed=watch.assumed(),
    )  # fmt: skip
    latency = watch.latency()
    return Watched(on_one_clock(timeline, latency), watch.flow, latency, workload, code, said)


def _run(script: Path, arguments: Sequence[str], watch: "_Watch") -> int:
    """The script's exit code; what it raises becomes an error only if it had not been profiled yet."""
    before = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path[0:1] = [str(script.resolve().parent)]
    try:
        with watch.watching():
            try:
                with user_code(f"{shown(script)} failed"):
                    _execute(script.resolve())
            except _Stop:
                return 0
            except InputError as failure:
                return _ended(failure, script, watch)
        return 0
    except KeyboardInterrupt:
        if not watch.profiled:
            raise
        return 0
    finally:
        sys.argv, sys.path[:] = before


def _execute(script: Path) -> None:
    """Run a file as ``__main__``; runpy's own way would change ``sys.argv[0]``."""
    main = ModuleType("__main__")
    main.__file__ = str(script)
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    before = sys.modules["__main__"]
    sys.modules["__main__"] = main
    try:
        with tokenize.open(script) as source:
            code = compile(source.read(), str(script), "exec")
        exec(code, vars(main))
    finally:
        sys.modules["__main__"] = before


def _ended(failure: InputError, script: Path, watch: "_Watch") -> int:
    cause = failure.__cause__
    if isinstance(cause, SystemExit):
        code = cause.code if isinstance(cause.code, int) else int(cause.code is not None)
        if not watch.profiled and code:
            raise InputError(
                f"{shown(script)} ended with exit code {code} after {watch.done} steps.",
                "Check its arguments, after --.",
            ) from cause
        return code
    if not watch.profiled:
        raise failure
    sys.stderr.write(f"{failure.what}\n")
    return 1


class _Watch:
    """Counts a script's steps and does at each boundary what is due."""

    def __init__(self, skip: int, steps: int, stop: bool, path: Path) -> None:
        self._skip, self._steps, self._stop, self._path = skip, steps, stop, path
        self._thread = threading.get_ident()
        self._depth = 0
        self._roots: dict[int, nn.Module] = {}
        self._by: str | None = None
        self._optimizer: object = None
        self._training_calls = 0
        self._step = 0
        self._started: float | None = None
        self._seconds: list[float] = []
        self._recording: Recording | None = None
        self._profiler: Profiler | None = None
        self._range: Any = None
        self._complete = 0
        self.flow: FlowGraph | None = None
        self.profiled = False
        self.interrupted = False

    @property
    def done(self) -> int:
        """Steps that ended."""
        return self._step

    @property
    def model_name(self) -> str | None:
        """Class of the first model called."""
        return next((type(root).__name__ for root in self._roots.values()), None)

    @property
    def mode(self) -> Mode:
        """Whether it trains."""
        return "training" if self._by == "optimizer" or self._training_calls else "inference"

    def assumed(self) -> tuple[str, ...]:
        """How steps were told."""
        by = "step() of the first optimizer" if self._by == "optimizer" else f"call of {self.model_name}"
        return (f"a step is one {by}", f"{self._skip} steps skipped, {self._complete} profiled")

    # -- what happens -------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        original = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0 and threading.get_ident() == self._thread:
                self._called(module)
            self._depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._depth -= 1

        nn.Module.__call__ = call  # type: ignore[method-assign]
        handle = register_optimizer_step_post_hook(lambda optimizer, *_: self._stepped(optimizer))
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        finally:
            handle.remove()
            self._finish()
            nn.Module.__call__ = original  # type: ignore[method-assign]

    def _called(self, module: nn.Module) -> None:
        if id(module) not in self._roots and next(module.parameters(), None) is not None:
            self._roots[id(module)] = module
        if module is not next(iter(self._roots.values()), None) or self._by == "optimizer":
            return
        trains = torch.is_grad_enabled() and module.training
        self._training_calls += trains
        if trains and self._by == "call" and self._training_calls == 1:
            self._start_over()  # what was called before was a check ahead of the training
        if not trains or self._training_calls > _UNDECIDED_CALLS:
            self._by = "call"
        if self._by == "call":
            self._boundary(first=self._started is None)

    def _stepped(self, optimizer: object) -> None:
        if self._by != "optimizer" and self._profiler is None and not self.profiled:
            self._start_over()
            self._by, self._optimizer = "optimizer", optimizer
        if self._by == "optimizer" and optimizer is self._optimizer:
            self._boundary(first=False)

    def _start_over(self) -> None:
        """Forget the steps counted so far, unless some are being profiled: they were of another kind."""
        if self._profiler is not None or self.profiled:
            return
        if self._recording is not None:
            self._recording.stop()
            self._recording = None
        self._by, self._started, self._step = None, None, 0
        self._seconds.clear()

    def _boundary(self, *, first: bool) -> None:
        """A step ends here, unless it is the first call, and the next begins."""
        now = time.perf_counter()
        if not first:
            self._step += 1
            quiet = self._recording is None and self._profiler is None
            if self._started is not None and quiet and self._step > 1:
                self._seconds.append(now - self._started)
        if self._recording is not None:
            self.flow, self._recording = self._recording.stop(), None
        if self._range is not None:
            self._close_range()
        if not self.profiled:
            self._begin(self._step)
        self._started = time.perf_counter()

    def _begin(self, step: int) -> None:
        if step == self._skip - 1 and self._roots:
            self._recording = Recording(self._root())
            self._recording.start()
        elif self._skip <= step < self._skip + self._steps:
            if self._profiler is None:
                self._start_profiler()
            self._range = record_function(f"ProfilerStep#{step}")
            self._range.__enter__()
        elif step >= self._skip + self._steps:
            self._stop_profiler()
            if self._stop:
                raise _Stop

    def _root(self) -> nn.Module:
        """The model; of several, a holder that gives each its class name as a path."""
        if len(self._roots) == 1:
            return next(iter(self._roots.values()))
        holder = nn.Module()
        for root in self._roots.values():
            name, number = type(root).__name__, 1
            while name in holder._modules:
                number += 1
                name = f"{type(root).__name__}{number}"
            holder._modules[name] = root
        return holder

    def _start_profiler(self) -> None:
        self._profiler = Profiler(on_cuda=torch.cuda.is_available())
        self._profiler.start()

    def _close_range(self) -> None:
        self._range.__exit__(None, None, None)
        self._range = None
        self._complete += 1

    def _stop_profiler(self) -> None:
        assert self._profiler is not None
        self._profiler.stop()
        self._profiler.export(self._path)
        self._profiler = None
        self.profiled = True

    def _finish(self) -> None:
        """The script has ended, perhaps in the middle of a step."""
        if self._recording is not None:
            self._recording.stop()
        if self._range is not None:
            # the last call's step ends with the script; a training step is cut off
            whole = self._by == "call" and not self.interrupted
            self._close_range()
            self._complete -= not whole
        if self._profiler is not None and self._complete:
            self._stop_profiler()
        elif self._profiler is not None:
            self._profiler.stop()

    # -- what came of it ----------------------------------------------------------------------------------------

    def check(self, script: Path) -> None:
        """Make sure that something was profiled.

        Raises:
            InputError: No model was called, or the script ended before the first profiled step did.
        """
        if not self._roots:
            raise InputError(f"{shown(script)} never called a model.", "Check its arguments, after --.")
        if not self.profiled:
            raise InputError(
                f"{shown(script)} ended after {self._step} steps, and the first {self._skip} are not profiled.",
                "Let it run longer, or skip fewer with --skip.",
            )

    def ended(self) -> str:
        """What Ctrl-C left of the script."""
        return f"Interrupted: the script ended after {self.done} steps, {self._complete} of {self._steps} profiled."

    def timeline(self) -> Timeline:
        """The profiled steps."""
        timeline = first_steps(load(self._path, stand_ins=True), self._complete)
        check_recorded(timeline, self._complete, torch.cuda.is_available())
        waits = own_waits(timeline, ends_steps=False)
        return replace(timeline, basis="measured", name="", rank=_rank(), own_waits=waits)

    def keep_trace(self, path: Path) -> None:
        """Copy the profiler's trace to where the user wants it."""
        import gzip

        target = Path(str(path).replace("{rank}", str(_rank() or 0)))
        target.parent.mkdir(parents=True, exist_ok=True)
        content = self._path.read_bytes()
        target.write_bytes(gzip.compress(content) if target.suffix == ".gz" else content)

    def latency(self) -> Timing | None:
        """Time of the steps that were neither recorded nor profiled, from one boundary to the next, but the first.

        None where they are too few to say anything.
        """
        if len(self._seconds) < _FEWEST_TIMED:
            return None
        taken = [1e3 * seconds for seconds in self._seconds]
        middle, low, high = median_ci(taken)
        return Timing(middle, (low, high), tuple(taken))


def _rank() -> int | None:
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else None
