"""Predict what a model launches on a GPU that is not here: its kernels, copies and syncs, as an ordinary timeline.

The structure (which kernels, in which order, for which module, and how many bytes) follows from the model and from
rules about ATen; times are ranges from constants measured on one GPU. Nothing is computed and no weights are needed.
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusionadvisor.capture.predicted.gpus import DEFAULT, Silicon, named, predictable
from fusionadvisor.errors import FusionAdvisorError, InputError
from fusionadvisor.report.model import Mode, Notice, Range, TensorSpec, Workload, spelled

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from fusionadvisor.capture.predicted.stream import Factory, Stream
    from fusionadvisor.flow.graph import FlowGraph
    from fusionadvisor.trace.timeline import Timeline

TIMEOUT_S = 600.0
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from fusionadvisor.capture.predict import child; child()"
)

__all__ = ["DEFAULT", "Predicted", "child", "predict", "predict_model", "predictable"]


@dataclass(frozen=True)
class Predicted:
    """A predicted step.

    Args:
        timeline: Its ``basis`` is ``predicted``; one step.
        flow: The recording it rests on, on ``cuda:0``.
        warnings: What was assumed and what is not in the rules.
        inputs: What the model was called with.
        kernel_us: Sum of the kernels' times, as a range.
        uncalibrated_share: Share of that time that rests on constants which were not measured for it.
        workload: What was run, with everything found out filled in; None for functions.
    """

    timeline: "Timeline"
    flow: "FlowGraph"
    warnings: tuple[Notice, ...]
    inputs: tuple[TensorSpec, ...]
    kernel_us: Range
    uncalibrated_share: float
    workload: Workload | None = None


def predict(workload: Workload, gpu: str = DEFAULT, *, as_here: bool = False) -> Predicted:
    """Predict one step of a workload.

    Args:
        workload: As asked for, or as resolved; its device is not asked for.
        gpu: A name of the device table, ``h100``, in any case.
        as_here: Where the code asks for a GPU, to choose its inputs say, it is told of those that are here: the
            prediction is for what runs on this machine.

    Raises:
        InputError: The GPU is not known, no GPU has the memory, or the model runs neither on a stand-in for it nor on
            the CPU.
    """
    if workload.entry_kind == "live":
        raise InputError("A live model cannot be predicted.", "Pass a function that builds it to predict_model.")
    return assembled(workload, _in_child(workload, named(gpu), as_here=as_here), named(gpu))


def predict_model(
    build: "Callable[[], nn.Module]",
    inputs: Callable[[], Any],
    gpu: str = DEFAULT,
    *,
    mode: Mode = "inference",
    step: Callable[..., Any] | None = None,
    optimizer: "Callable[[nn.Module], Optimizer] | None" = None,
) -> Predicted:
    """Predict one step of a model that functions build. It gets no memory for weights: any size fits.

    Args:
        build: Returns the module. All functions must be importable by name: they are called in another process.
        inputs: Returns what the model is called with: a tensor, a tuple, or a dict of keyword arguments.
        gpu: A name of the device table.
        mode: ``training`` predicts forward, backward and optimizer.
        step: For training, ``step(model, optimizer, batch)``; None takes the model's own loss.
        optimizer: For training, makes the optimizer of a model.

    Raises:
        InputError: See :func:`predict`; also for a function that no other process can import.
    """
    from fusionadvisor.capture.predicted.stream import Factory

    source = Factory(build, inputs, mode, step, optimizer)
    return assembled(source, _in_child(source, named(gpu)), named(gpu))


def assembled(source: "Workload | Factory", found: "Stream", gpu: Silicon) -> Predicted:
    """Put a stream on a time line and say what is to be known of it."""
    from fusionadvisor.capture.predicted.assemble import Assembly

    assembly = Assembly(found, gpu)
    timeline = assembly.timeline("prediction", {"torch": found.torch})
    times = assembly.times
    likely = sum(t.likely_us for t in times)
    uncalibrated = sum(t.likely_us for t in times if not t.calibrated)
    return Predicted(
        timeline=timeline,
        flow=found.flow,
        warnings=tuple(_warnings(source, found, gpu, uncalibrated / likely if likely else 0.0)),
        inputs=found.inputs,
        kernel_us=Range(sum(t.low_us for t in times), likely, sum(t.high_us for t in times)),
        uncalibrated_share=uncalibrated / likely if likely else 0.0,
        workload=found.workload,
    )


def _warnings(source: "Workload | Factory", found: "Stream", gpu: Silicon, uncalibrated: float) -> list[Notice]:
    said: list[str] = []
    if found.fallback:
        said.append(
            f"The model does not run on a stand-in for {gpu.name} ({found.fallback}): the kernels follow from "
            "its ops on the CPU, where fused attention and some norms are other ops."
        )
    if isinstance(source, Workload) and source.model is not None and spelled(found.inputs) != spelled(source.inputs):
        said.append(f"The file gives other inputs where there is a GPU: predicted for {spelled(found.inputs)}.")
    if found.stand_ins:
        many = ", ".join(f"{name} × {count}" for name, count in sorted(found.stand_ins.items()))
        said.append(f"Values that depend on weights or activations were assumed where the model reads them ({many}): "
                    "sizes and branches that follow from them may differ.")  # fmt: skip
    if found.unknown:
        many = ", ".join(f"{name} × {count}" for name, count in sorted(found.unknown.items()))
        said.append(f"Ops without a rule count as one kernel each: {many}.")
    if uncalibrated > 0.005:
        said.append(
            f"{100 * uncalibrated:.0f} % of the predicted time is not calibrated (convolutions, attention, softmax, "
            "float32 products, GPUs other than the H100 SXM): rely on kernels, groups and bytes there."
        )
    return [Notice("W40", sentence) for sentence in said]


# -- the child --------------------------------------------------------------------------------------------------


def _in_child(source: "Workload | Factory", gpu: Silicon, *, as_here: bool = False) -> "Stream":
    """Run in a fresh interpreter: the fake device cannot be undone, and changes what torch says of accelerators.

    Torch aborts the process in a few places where a fake tensor has no memory; a second process then takes the CPU.
    """
    found = _attempt(source, gpu, "", as_here)
    if isinstance(found, str):
        found = _attempt(source, gpu, found, as_here)
    if isinstance(found, str):
        raise InputError(f"The prediction failed: {found}.", "Check that the model runs here on the CPU.")
    return found


def _attempt(source: "Workload | Factory", gpu: Silicon, crashed: str, as_here: bool) -> "Stream | str":
    """What a child found, or how it died."""
    try:
        job = pickle.dumps(((source, gpu, crashed), {"as_here": as_here}))
    except (pickle.PicklingError, AttributeError) as error:
        raise InputError(
            f"The model cannot be predicted: {error}.", "Pass functions defined at the top of a module."
        ) from error
    if b"__main__" in job:
        raise InputError(
            "The functions given are defined in the running script, which no other process can import.",
            "Move them to a module of their own.",
        )
    with tempfile.TemporaryDirectory(prefix="fusion-advisor-") as folder:
        answer = Path(folder) / "stream"
        try:
            ended = subprocess.run(
                [sys.executable, "-c", _START, str(answer), json.dumps(sys.path)], input=job, check=False,
                env={"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", **os.environ}, timeout=TIMEOUT_S,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise InputError(
                f"The prediction took more than {TIMEOUT_S:.0f} s and was ended.",
                "Use a smaller batch or shorter sequences.",
            ) from error
        if not answer.exists():
            lines = ended.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            return f"the process ended with code {ended.returncode}: {lines[-1]}"
        result = pickle.loads(answer.read_bytes())
    if isinstance(result, FusionAdvisorError):
        raise result
    return result  # type: ignore[no-any-return]


def child() -> None:
    """Read a job from stdin, do it, write the result to the path named on the command line."""
    from fusionadvisor.capture.predicted.stream import stream

    result: object
    try:
        arguments, options = pickle.load(sys.stdin.buffer)
        result = stream(*arguments, **options)
    except FusionAdvisorError as error:
        result = error
    path = Path(sys.argv[1])
    partial = path.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(result))
    partial.rename(path)
    os._exit(0)  # a user's exit handlers have nothing to do here
