"""The stream of one run: a model built, run on the fake device, and every op looked up. Runs in a child process."""

import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim import Optimizer

from fusionadvisor.capture.predicted import device, rules
from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.kernels import Call as OpCall
from fusionadvisor.capture.predicted.kernels import Work
from fusionadvisor.capture.predicted.memory import on_gpu
from fusionadvisor.errors import FusionAdvisorError, InputError
from fusionadvisor.flow.graph import FlowGraph, Value
from fusionadvisor.flow.record import record
from fusionadvisor.report.model import Mode, TensorSpec, Workload, spelled
from fusionadvisor.units import size_bytes
from fusionadvisor.workload import program
from fusionadvisor.workload.inputs import Call, Given, batch_size, layout_of
from fusionadvisor.workload.program import Program
from fusionadvisor.workload.usercode import about_inputs

LARGEST_ON_CPU = 4_000_000_000
"""Bytes of weights up to which a model that cannot run without memory is built for real."""
LARGEST_DRAWN = 1 << 24
"""Elements of all inputs up to which they are drawn, as a model may ask what they hold; others are shapes alone."""
LARGEST_ON_GPU = 192_000_000_000
"""Bytes of memory of the largest GPU in the table (NVIDIA Blackwell datasheet, B200, 2024)."""


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
        workload: What was run, with everything found out filled in; None for a factory.
    """

    flow: FlowGraph
    work: tuple[tuple[int, tuple[Work, ...]], ...]
    inputs: tuple[TensorSpec, ...]
    stand_ins: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    torch: str = torch.__version__
    fallback: str = ""
    workload: Workload | None = None


@dataclass(frozen=True)
class _Built:
    """A program with the inputs of its run, and what had to be assumed to open it."""

    program: Program
    call: Call
    said: tuple[str, ...] = ()


def stream(source: Workload | Factory, gpu: Silicon, crashed: str = "", *, as_here: bool = False) -> Stream:
    """Run once and look every op up.

    Args:
        source: What to run.
        gpu: What to predict for.
        crashed: How an earlier process ended that tried it on the fake device; empty tries it there.
        as_here: Build the model and its inputs as they are without that GPU, where the code asks for one.

    Raises:
        InputError: The model cannot be built, or runs neither on the fake device nor on the CPU; or no GPU has the
            memory for it.
    """
    torch.manual_seed(source.seed if isinstance(source, Workload) else 0)
    if crashed:
        return _on_cpu(source, gpu, crashed)
    device.register()
    session = device.Session(gpu, as_here=as_here)
    built: _Built | None = None
    try:
        built = _built(source, session)
        specs = built.program.specs(built.call)
        session.known.stand_ins.clear()
        running = replace(built.program, place="")
        with session.on_gpu(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session.move(running.model)
            call = session.place_call(built.call, running.names, running.source.devices)
            flow = record(lambda: running.step(call, running.model), running.model, call)
        _fits(flow)
    except FusionAdvisorError:
        raise
    except Exception as error:
        if built is not None and (size := _weights(built.program.model)) > LARGEST_ON_CPU:
            raise _too_large(built, error, size, gpu) from error
        return _on_cpu(source, gpu, _said(error))
    return _looked_up(source, built, flow, gpu, specs, session.known.stand_ins)


def _weights(model: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


def _too_large(built: _Built, error: Exception, size: int, gpu: Silicon) -> InputError:
    """Why a model that failed on the stand-in is not tried on the CPU; where its inputs are to blame, that they are."""
    if about_inputs(error):
        return program.misfit(error, built.program.model, built.program.specs(built.call))
    return InputError(
        f"The model does not run on a stand-in for {gpu.name} ({_said(error)}), and its weights of "
        f"{size_bytes(size)} are too large to run it on the CPU instead.",
        "Predict it with fewer layers.",
    )


def _built(source: Workload | Factory, session: device.Session) -> _Built:
    """The program without memory for weights where its code allows it, with them where not; inputs are real."""
    with session.building():
        try:
            return _build(source, session.on_cpu(), session.fake)
        except Exception as error:
            if isinstance(error, InputError) and error.__cause__ is None:
                raise  # nothing that ran was to blame
            with _limited(source, error):
                return _build(source, nullcontext(), session.fake)


@contextmanager
def _limited(source: Workload | Factory, before: Exception) -> Iterator[None]:
    """Build for real only what fits into memory beside everything else.

    Raises:
        InputError: The weights are larger; says what went wrong ``before``, without memory.
    """
    refusal = before if isinstance(before, InputError) else InputError(
        f"The model cannot be built without memory for its weights ({_said(before)}), and over "
        f"{size_bytes(LARGEST_ON_CPU)} they are too large to build it for real.",
        "Predict it with fewer layers.",
    )  # fmt: skip
    registered = 0

    def count(module: nn.Module, name: str, parameter: torch.Tensor | None) -> None:
        nonlocal registered
        registered += parameter.nbytes if parameter is not None else 0
        if registered > LARGEST_ON_CPU:
            raise refusal

    if isinstance(source, Workload) and _bytes_on_disk(Path(source.target)) > LARGEST_ON_CPU:
        raise refusal
    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def _bytes_on_disk(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path] if path.is_file() else []
    return sum(file.stat().st_size for file in files if file.is_file())


def _build(source: Workload | Factory, where: AbstractContextManager[None], fake: FakeTensorMode) -> _Built:
    if isinstance(source, Workload):
        with where:
            made, said = program.opened(_for_gpu(source), place="cpu")
        return _Built(made, _inputs(made, fake), tuple(said))
    with where:
        model = source.model()
    made = program.live(model, source.inputs, mode=source.mode, device="cpu", step=source.step)
    if source.optimizer is not None and made.training is not None:
        made.training.make_optimizer = source.optimizer
    # its own device from here on: autocast asks for it
    return _Built(replace(made, workload=replace(made.workload, device="cuda"), place="cpu"), made.call())


def _inputs(made: Program, fake: FakeTensorMode) -> Call:
    """What the step is called with: as drawn where it is small, else fake tensors of the same shapes.

    Raises:
        InputError: No GPU has the memory for it.
    """
    sketch = _sketch(made, fake)
    held = [tensor for _, tensor in sketch.tensors()]
    if (size := sum(t.numel() * t.element_size() for t in held)) > LARGEST_ON_GPU:
        raise _fits_nowhere(f"The inputs ({spelled(made.specs(sketch))}) take {size_bytes(size)}")
    return made.call() if sum(t.numel() for t in held) <= LARGEST_DRAWN else sketch


def _sketch(made: Program, fake: FakeTensorMode) -> Call:
    """The inputs without memory; those of the user's own code are drawn at their own batch size."""
    batch = made.workload.batch
    if batch and batch > LARGEST_ON_GPU:
        raise _fits_nowhere(f"A batch of {batch:,} takes at least {size_bytes(batch)}")
    if not isinstance(made.source, Given):
        with fake:
            return made.call()
    own = replace(made, workload=replace(made.workload, batch=None)).call()
    rows = batch_size(own)
    if not batch or not rows:
        return own

    def resized(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != rows:
            return tensor
        layout = layout_of(tensor)
        kept = getattr(torch, layout) if layout.startswith("channels_last") else torch.contiguous_format
        with fake:
            fresh = tensor.new_empty((batch, *tensor.shape[1:])).contiguous(memory_format=kept)
        return fresh.requires_grad_(tensor.requires_grad)

    return own.map(resized, made.names)


def _fits(flow: FlowGraph) -> None:
    """Refuse a step with a tensor that is larger than any GPU's memory."""
    largest = max(flow.values, key=lambda value: value.touched_bytes, default=None)
    if largest is not None and largest.touched_bytes > LARGEST_ON_GPU:
        shape = ",".join(map(str, largest.shape))
        raise _fits_nowhere(
            f"One tensor of the step, {largest.dtype}[{shape}], takes {size_bytes(largest.touched_bytes)}"
        )


def _fits_nowhere(what: str) -> InputError:
    return InputError(f"{what}, which no GPU has the memory for.", "Use a smaller batch.")


def _for_gpu(workload: Workload) -> Workload:
    """The workload on a GPU. Inputs that were put on another device than the model stay there."""
    found_there = workload.device if workload.model is not None else None
    specs = tuple(replace(spec, device="") if spec.device == found_there else spec for spec in workload.inputs)
    return replace(workload, device="cuda", inputs=specs)


def _on_cpu(source: Workload | Factory, gpu: Silicon, reason: str) -> Stream:
    """A real run on the CPU; its ops are taken for the GPU's."""
    built = _build(source, nullcontext(), FakeTensorMode(allow_non_fake_inputs=True))
    if any(isinstance(tensor, FakeTensor) for _, tensor in built.call.tensors()):
        raise InputError(
            f"The model does not run on a stand-in for {gpu.name} ({reason}), and its inputs "
            f"({spelled(built.program.specs(built.call))}) are too large to run it on the CPU instead.",
            "Use a smaller batch.",
        )
    running = replace(built.program, workload=replace(built.program.workload, device="cpu"))
    call = running.run_once()
    flow = record(lambda: running.step(call), running.model, call)
    found = _looked_up(source, built, flow, gpu, running.specs(call), {})
    return replace(found, fallback=reason)


def _said(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = next(iter(str(error).strip().splitlines()), "")[:200].rstrip(".")
    return f"{type(error).__name__} at {place.name}: {text}" if text else type(error).__name__


def _looked_up(
    source: Workload | Factory,
    built: _Built,
    flow: FlowGraph,
    gpu: Silicon,
    specs: tuple[TensorSpec, ...],
    stand_ins: dict[str, int],
) -> Stream:
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
    ran = _described(source, built, specs) if isinstance(source, Workload) else None
    return Stream(flow, tuple(work), specs, dict(stand_ins), unknown, workload=ran)


def _described(source: Workload, built: _Built, specs: tuple[TensorSpec, ...]) -> Workload:
    """The workload with what was found out; its device stays the one that it would run on here."""
    if source.model is not None:
        return replace(source, inputs=specs)
    found = program.described(built.program, built.call, built.said)
    return replace(found, device=source.device)


def _on_cuda(value: Value, *, everything: bool) -> Value:
    return replace(value, device="cuda:0") if everything or value.device.startswith(device.NAME) else value
