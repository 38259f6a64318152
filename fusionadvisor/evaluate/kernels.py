"""What one step runs: kernels on a CUDA device, the ops that stand in for them on the CPU."""

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity

from fusionadvisor import sequences, trace
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.summary import summarise
from fusionadvisor.capture import generated
from fusionadvisor.capture.align import align
from fusionadvisor.capture.live import on_one_clock, profiled
from fusionadvisor.flow.record import record
from fusionadvisor.report.model import KernelCount, TimelineSummary, Timing
from fusionadvisor.rules import engine
from fusionadvisor.workload.program import Program


def names(run: Callable[[], object], device: str) -> list[str]:
    """Profile one call after a first one, and name its kernels by the op that launched each, in the order they ran.

    Kernels without an op, as in a replayed graph, go by their own name.
    """
    cuda = device.startswith("cuda")
    run()
    if cuda:  # gpu-only: waits for a CUDA device
        torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    # without shapes nothing tells the conversion of a Python number, which is part of its op, from a copy
    with generated.named(), torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        run()
        if cuda:  # gpu-only: waits for a CUDA device
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        kernels = trace.load(path, stand_ins=True).kernels
    return [str(op) or str(name) for op, name in zip(kernels["op"], kernels["name"], strict=True)]


def difference(before: list[str], after: list[str], original: list[str]) -> KernelCount:
    """Say which went and which came from ``before`` to ``after``, and which of the original's no longer run."""
    left, came = Counter(before), Counter(after)
    counts = tuple(sorted((left - came).items())), tuple(sorted((came - left).items()))
    went = _went(original, after)
    return KernelCount(len(before), len(after), *counts, *((len(original), went) if went is not None else ()))


def _went(original: list[str], after: list[str]) -> tuple[int, ...] | None:
    """The places of the ops that are not in ``after``; None where the two cannot be aligned."""
    a, b = ([name.removesuffix("_") for name in ops] for ops in (original, after))  # in place or not is one op
    found = sequences.align(a, b)
    still = {place for place, _ in found.pairs}
    return tuple(i for i in range(len(a)) if i not in still) if found.whole else None


def timeline(program: Program, model: nn.Module, latency: Timing) -> TimelineSummary:
    """Profile one step of a rewritten model as the original's report is made: linked, grouped, on one clock.

    Args:
        program: Whose step it is.
        model: What runs in place of the program's own.
        latency: Of that step, measured without the profiler.

    Raises:
        EnvironmentUnfitError: The profiler records nothing.
    """
    call = program.call()

    def run() -> object:
        return program.step(call, model)

    flow = record(run, model, call)
    found = on_one_clock(align(profiled(run, program, 1), flow).timeline, latency)
    advice = engine.run(Facts(found, flow, latency_us=latency.median_ms * 1e3))
    return summarise(found, advice.group_of_kernel, advice.bytes_of_kernel)
