"""Run a workload under the profiler, record its data flow, and measure its latency apart from both."""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.autograd.profiler import record_function

from fusionadvisor.analysis.repeats import repeats
from fusionadvisor.capture import generated
from fusionadvisor.capture.align import align
from fusionadvisor.capture.outside import outside_ops
from fusionadvisor.capture.profiler import Profiler
from fusionadvisor.errors import EnvironmentUnfitError
from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.flow.record import record
from fusionadvisor.interrupts import held
from fusionadvisor.medians import median_ci
from fusionadvisor.report.model import INTERRUPTED, Notice, Timing
from fusionadvisor.trace import load
from fusionadvisor.trace.timeline import Timeline
from fusionadvisor.units import plural
from fusionadvisor.workload.program import Program
from fusionadvisor.workload.usercode import hooked

PROFILE_SECONDS = 2.0
LATENCY_SECONDS = 3.0
MOST_STEPS = 5
MOST_SAMPLES = 200
FEWEST_SAMPLES = 5
WARM_UP = 3


@dataclass(frozen=True)
class Captured:
    """What one workload did: its timeline linked to its data flow, its unprofiled latency, and what to know of both.

    ``hooked`` says which modules had hooks when it ran. ``latency`` is None where Ctrl-C came before it was measured.
    """

    timeline: Timeline
    flow: FlowGraph
    latency: Timing | None
    warnings: tuple[Notice, ...] = ()
    hooked: Mapping[str, str] = field(default_factory=dict)


def capture(program: Program, *, steps: int | None = None) -> Captured:
    """Record, profile and time a program. Once a step is profiled, Ctrl-C ends the measuring, and a warning says so.

    Args:
        program: Ready to run; a training program is trained by it.
        steps: Steps to profile; None profiles up to 5, fewer where a step is long.

    Raises:
        EnvironmentUnfitError: The profiler records nothing here.
        InputError: The model raises.
        KeyboardInterrupt: Before the first step was profiled.
    """
    call = program.call()

    def run() -> Any:
        return program.step(call)

    step_s = _warm_up(run, program)
    flow = record(run, program.model, call)
    wanted = steps or max(1, min(MOST_STEPS, int(PROFILE_SECONDS / step_s)))
    recorded = profiled(run, program, wanted)
    samples: list[float] = []
    whole = len(recorded.steps) == wanted and _sample(run, program, samples)
    with held() as pressed:
        latency = _timing(samples, program) if samples else None
        aligned = align(recorded, flow)
        timeline = on_one_clock(aligned.timeline, latency)
        said = [*unlinked(aligned.unlinked, aligned.kernels), *_noise(program)]
    if whole and not pressed:
        said += outside_ops(timeline, latency, run)
    else:
        said.append(_cut_short(len(recorded.steps), wanted, len(samples)))
    return Captured(timeline, flow, latency, tuple(said), hooked(program.model))


def _warm_up(run: Callable[[], object], program: Program) -> float:
    """Run until caches, allocators and lazy state are settled; return the last call's seconds."""
    took = 0.0
    for _ in range(WARM_UP):
        took = _timed(run, program)
    return took


def _timed(run: Callable[[], object], program: Program) -> float:
    """Seconds of one call, with the device idle before and after."""
    _synchronize(program)
    start = time.perf_counter()
    run()
    _synchronize(program)
    return time.perf_counter() - start


def _synchronize(program: Program) -> None:
    if torch.device(program.workload.device).type == "cuda":  # gpu-only: waits for a CUDA device
        torch.cuda.synchronize(program.workload.device)


def profiled(run: Callable[[], object], program: Program, steps: int) -> Timeline:
    """Return what the profiler recorded of some steps; CPU ops stand in for kernels where there is no GPU.

    Returns:
        The steps; fewer where Ctrl-C ended them.

    Raises:
        EnvironmentUnfitError: It recorded nothing, or not all.
        KeyboardInterrupt: During the first step.
    """
    on_cuda = torch.device(program.workload.device).type == "cuda"
    with tempfile.TemporaryDirectory(prefix="fusion-advisor-") as folder:
        path = Path(folder) / "profile.json"
        _steps(run, program, Profiler(on_cuda=on_cuda), 1)  # the first recording pays for setting the profiler up
        profiler = Profiler(on_cuda=on_cuda)
        with generated.named():
            done = _steps(run, program, profiler, steps)
        with held():  # how many steps there are tells that it was pressed
            profiler.export(path)
            timeline = first_steps(load(path, stand_ins=True), done)
    check_recorded(timeline, done, on_cuda)
    return replace(timeline, basis="measured", name="", own_waits=own_waits(timeline, ends_steps=True))


def own_waits(timeline: Timeline, *, ends_steps: bool) -> int:
    """How many waits in a recording are this program's: those after the last step, and the one that ends a step."""
    syncs = timeline.syncs
    if not timeline.steps:
        return 0
    after = syncs["start_ns"] >= timeline.steps[-1].end_ns
    if not ends_steps:
        return int(after.sum())
    ends = syncs[(syncs["step"] >= 0) & (syncs["op_id"] < 0) & (syncs["name"].astype(str) == "cudaDeviceSynchronize")]
    return int(((syncs["step"] < 0) | after).sum()) + ends.loc[~after, "step"].nunique()


def _steps(run: Callable[[], object], program: Program, profiler: Profiler, steps: int) -> int:
    """Run steps under the profiler; return how many ended before Ctrl-C, which is raised where none did."""
    profiler.start()
    done = 0
    try:
        for step in range(steps):
            with record_function(f"ProfilerStep#{step}"):
                run()
                _synchronize(program)
            done += 1
    except KeyboardInterrupt:
        if not done:
            raise
    finally:
        profiler.stop()
    return done


def first_steps(timeline: Timeline, count: int) -> Timeline:
    """Without the step that was cut off: the profiler ends its range all the same."""
    if len(timeline.steps) <= count:
        return timeline
    steps = timeline.kernels["step"].where(timeline.kernels["step"] < count, -1)
    return replace(timeline, steps=timeline.steps[:count], kernels=timeline.kernels.assign(step=steps))


def check_recorded(timeline: Timeline, steps: int, on_cuda: bool) -> None:
    """Make sure that a profile holds what was run.

    Raises:
        EnvironmentUnfitError: It holds nothing, no kernels where there is a GPU, or fewer steps.
    """
    if on_cuda and timeline.stand_ins:
        raise EnvironmentUnfitError(
            "The profiler recorded no GPU kernels: it has no access to the GPU's performance counters (CUPTI).",
            "Run `fusion-advisor doctor`; close other profilers, or allow counters for all users in the driver.",
        )
    if not len(timeline.kernels):
        raise EnvironmentUnfitError("The profiler recorded no work.", "Run `fusion-advisor doctor`.")
    if len(timeline.steps) != steps:
        raise EnvironmentUnfitError(
            f"The profiler recorded {len(timeline.steps)} of {steps} steps.", "Try again with fewer --steps."
        )


def _sample(run: Callable[[], object], program: Program, taken: list[float]) -> bool:
    """Time single calls in ms, each alone on the device and without a profiler; False where Ctrl-C ended it.

    Takes up to 200 samples in about three seconds, at least five.
    """
    if torch.device(program.workload.device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(program.workload.device)
    until = time.perf_counter() + LATENCY_SECONDS
    try:
        while len(taken) < FEWEST_SAMPLES or (len(taken) < MOST_SAMPLES and time.perf_counter() < until):
            taken.append(1e3 * _timed(run, program))
    except KeyboardInterrupt:
        return False
    return True


def _timing(taken: list[float], program: Program) -> Timing:
    """The median with its interval, and peak memory where the device tells it."""
    on_cuda = torch.device(program.workload.device).type == "cuda"
    middle, low, high = median_ci(taken)
    peak = torch.cuda.max_memory_allocated(program.workload.device) if on_cuda else None
    return Timing(middle, (low, high), tuple(taken), peak)


def _cut_short(steps: int, wanted: int, samples: int) -> Notice:
    timed = f"the step was timed {plural(samples, 'time')}" if samples else "the step was not timed by itself"
    return Notice(INTERRUPTED, f"Interrupted: {steps} of {plural(wanted, 'step')} profiled, and {timed}.")


def on_one_clock(timeline: Timeline, latency: Timing | None) -> Timeline:
    """Shorten stand-ins that take longer together than the unprofiled step, so that parts and whole agree.

    The profiler's own work is inside each CPU op's recorded time; a GPU's kernels are timed by the GPU.
    """
    if not timeline.stand_ins or latency is None or not timeline.steps:
        return timeline
    timeline = _steadied(timeline)
    recorded_ns = int(timeline.kernels["dur_ns"].sum()) / len(timeline.steps)
    if recorded_ns <= latency.median_ms * 1e6:
        return timeline
    scale = latency.median_ms * 1e6 / recorded_ns
    shorter = (timeline.kernels["dur_ns"] * scale).round().astype("int64")
    return replace(timeline, kernels=timeline.kernels.assign(dur_ns=shorter), time_scale=scale)


def _steadied(timeline: Timeline) -> Timeline:
    """Give each op its median over equal steps: one that was interrupted once must not set what its step could save."""
    if len(timeline.steps) < 3:  # no median to speak of
        return timeline
    durations = timeline.kernels["dur_ns"].to_numpy().copy()
    for table in repeats(timeline.kernels, timeline.ops):
        durations[table] = np.median(durations[table], axis=0).astype("int64")
    return replace(timeline, kernels=timeline.kernels.assign(dur_ns=durations))


def unlinked(count: int, kernels: int) -> tuple[Notice, ...]:
    """Say how many kernels could not be linked to the model, if any."""
    if not count:
        return ()
    return (
        Notice(
            "W21",
            f"{count} of {kernels} kernels are not linked to the model: their ops could not be matched in order with "
            "those of the step whose data flow was recorded. Their modules and lines are not known, and no finding "
            "that rests on data flow covers them.",
        ),
    )


def _noise(program: Program) -> tuple[Notice, ...]:
    """On shared CPU cores OpenMP threads that spin while waiting make latencies vary several times."""
    on_cpu = torch.device(program.workload.device).type == "cpu"
    if not on_cpu or torch.get_num_threads() == 1 or os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":
        return ()
    return (
        Notice(
            "W22",
            f"CPU latency was taken with {torch.get_num_threads()} threads that spin while they wait; set "
            "OMP_WAIT_POLICY=PASSIVE for steadier figures on shared cores.",
        ),
    )
