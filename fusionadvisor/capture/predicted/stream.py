"""The stream of one run: a model built, run on the fake device, and every op looked up. Runs in a child process."""

import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.optim import Optimizer

from fusionadvisor.capture.predicted import device, rules
from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.kernels import Call as OpCall
from fusionadvisor.capture.predicted.kernels import Work
from fusionadvisor.capture.predicted.memory import on_gpu
from fusionadvisor.errors import FusionAdvisorError, InputError
from fusionadvisor.flow.graph import FlowGraph, Value
from fusionadvisor.flow.record import record
from fusionadvisor.report.model import Mode, TensorSpec, Workload
from fusionadvisor.units import size_bytes
from fusionadvisor.workload import program
from fusionadvisor.workload.inputs import Call
from fusionadvisor.workload.program import Program
from fusionadvisor.workload.usercode import what_happened

LARGEST_ON_CPU = 4_000_000_000
"""Bytes of weights up to which a model that cannot run without memory is built for real."""


@dataclass(frozen=True)
class Factory:
    """A model that is built by importable functions, without a target. See :func:`capture.predict.predict_model`."""

    model: Callable[[], torch.nn.Module]
    inputs: Callable[[], Any]
    mode: Mode = "inference"
    step: Callable[..., Any] | None = None
    optimizer: Callable[[torch.nn.Module], Optimizer] | None = None


@dataclass(frozen=True)
class Stream:
    """What one step launches.

    Args:
        flow: The ops and values, on ``cuda:0``.
        work: For each op that launches something, its index in ``flow.ops`` and what it launches.
        inputs: What the model was called with.
        stand_ins: How often which op was answered with a stand-in.
        unknown: Ops that are not in the table, and how often they ran.
        torch: Version whose ops these are.
        fallback: Why the run took place on the CPU instead; empty where it did not.
    """

    flow: FlowGraph
    work: tuple[tuple[int, tuple[Work, ...]], ...]
    inputs: tuple[TensorSpec, ...]
    stand_ins: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    torch: str = torch.__version__
    fallback: str = ""


def stream(source: Workload | Factory, gpu: Silicon, crashed: str = "") -> Stream:
    """Run once and look every op up.

    Args:
        source: What to run.
        gpu: What to predict for.
        crashed: How an earlier process ended that tried it on the fake device; empty tries it there.

    Raises:
        InputError: The model cannot be built, or runs neither on the fake device nor on the CPU.
    """
    torch.manual_seed(source.seed if isinstance(source, Workload) else 0)
    if crashed:
        return _on_cpu(source, gpu, crashed)
    device.register()
    session = device.Session(gpu)
    built: Program | None = None
    try:
        built, call = _built(source, session)
        specs = built.specs(call)
        session.known.stand_ins.clear()
        with session.on_gpu(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session.move(built.model)
            flow = _record(built, session.place_call(call))
    except FusionAdvisorError:
        raise
    except Exception as error:
        if built is not None and (size := _weights(built.model)) > LARGEST_ON_CPU:
            raise InputError(
                f"The model does not run on a stand-in for {gpu.name} ({_said(error)}), and its weights of "
                f"{size_bytes(size)} are too large to run it on the CPU instead.",
                "Predict it with fewer layers.",
            ) from error
        return _on_cpu(source, gpu, _said(error))
    return _looked_up(flow, gpu, specs, session.known.stand_ins)


def _weights(model: torch.nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


def _built(source: Workload | Factory, session: device.Session) -> tuple[Program, Call]:
    """The program without memory for weights where its code allows it, with them where not; inputs are real."""
    with session.pretence():
        try:
            built = _build(source, session.on_cpu())
        except Exception:  # noqa: BLE001 - building it for real tells what is wrong, if anything is
            built = _build(source, nullcontext())
        call = built.call()
        # its own device from here on: autocast asks for it
        return replace(built, workload=replace(built.workload, device="cuda")), call


def _build(source: Workload | Factory, where: AbstractContextManager[None]) -> Program:
    if isinstance(source, Workload):
        with where:
            return program.build(replace(source, device="cpu"))
    with where:
        model = source.model()
    made = program.live(model, source.inputs, mode=source.mode, device="cpu", step=source.step)
    if source.optimizer is not None and made.training is not None:
        made.training.make_optimizer = source.optimizer
    return made


def _record(built: Program, call: Call) -> FlowGraph:
    return record(lambda: built.step(call, built.model), built.model, call)


def _on_cpu(source: Workload | Factory, gpu: Silicon, reason: str) -> Stream:
    """A real run on the CPU; its ops are taken for the GPU's."""
    try:
        built = _build(source, nullcontext())
        call = built.call()
        flow = _record(built, call)
    except FusionAdvisorError:
        raise
    except Exception as second:
        raise InputError(
            f"The model runs neither on a stand-in for {gpu.name} ({reason}) nor on the CPU ({what_happened(second)}).",
            "Check that it runs here on the CPU first.",
        ) from second
    return replace(_looked_up(flow, gpu, built.specs(call), {}), fallback=reason)


def _said(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = next(iter(str(error).strip().splitlines()), "")[:200].rstrip(".")
    return f"{type(error).__name__} at {place.name}: {text}" if text else type(error).__name__


def _looked_up(flow: FlowGraph, gpu: Silicon, specs: tuple[TensorSpec, ...], stand_ins: dict[str, int]) -> Stream:
    every_op_counts = not any(on_gpu(v) for v in flow.values)
    flow = replace(flow, values=tuple(_on_cuda(v, everything=every_op_counts) for v in flow.values))
    work: list[tuple[int, tuple[Work, ...]]] = []
    unknown: dict[str, int] = {}
    for op in flow.ops:
        if op.view:
            continue
        call = OpCall.of(op, flow, pointwise=device.is_pointwise(op.name))
        launched = rules.launched(call, gpu)
        if launched:
            work.append((op.index, tuple(launched)))
            if rules.entry(call) is None:
                unknown[op.name] = unknown.get(op.name, 0) + 1
    return Stream(flow, tuple(work), specs, dict(stand_ins), unknown)


def _on_cuda(value: Value, *, everything: bool) -> Value:
    return replace(value, device="cuda:0") if everything or value.device.startswith(device.NAME) else value
