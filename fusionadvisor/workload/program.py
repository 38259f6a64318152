"""A workload that can run: the model on its device, its inputs, and one step of it."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import nn

from fusionadvisor.errors import EnvironmentUnfitError, InputError
from fusionadvisor.flow.frames import built_alike, construction_watched
from fusionadvisor.report.model import Mode, TensorSpec, Workload
from fusionadvisor.workload.inputs import (
    Call,
    Declared,
    Given,
    batch_size,
    forward_names,
    spec_of,
    stack_to,
    tensors_in,
)
from fusionadvisor.workload.target import Entry, Target, find_entry, load, make_model
from fusionadvisor.workload.training import Training, find_training
from fusionadvisor.workload.usercode import failing_module, first_line, user_code


class Source(Protocol):
    """Where inputs come from."""

    def draw(self, seed: int, names: tuple[str, ...]) -> Call:
        """The inputs for a seed; the same for the same seed."""


@dataclass(eq=False)
class Program:
    """A workload made ready to run in this process.

    Args:
        workload: What it was built from.
        model: On the device, in the mode the workload names.
        source: Where its inputs come from.
        training: How a step trains, None for inference.
    """

    workload: Workload
    model: nn.Module
    source: Source
    training: Training | None = None

    def call(self, seed: int = 0, batch: int | None = None) -> Call:
        """Inputs for one call, on the device.

        Seed 0 gives the user's own inputs where there are any, every other seed fresh ones of the same kind.
        ``batch`` changes the size of dim 0 of every tensor that shares the first one's.

        Raises:
            InputError: ``batch`` is given and no input has a dimension to vary.
        """
        drawn = self.source.draw(seed, self._names)
        if batch is not None:
            own = batch_size(drawn)
            if not own:
                raise InputError("No input has a batch dimension.", "Leave --batch out.")
            more = (self.source.draw(seed + 1000 * k, self._names) for k in range(1, -(-batch // own)))
            drawn = stack_to([drawn, *more], batch, self._names)
        return drawn.map(lambda _, tensor: tensor.to(self.workload.device), self._names)

    def step(self, call: Call, model: nn.Module | None = None) -> Any:
        """One inference call under ``no_grad``, or one training step, of the model or of another in its place.

        Raises:
            InputError: The program's own model raises; says where, and with which inputs. Another model's exceptions
                pass through.
        """
        if model is not None:
            return self._run(model, call)
        try:
            return self._run(self.model, call)
        except torch.OutOfMemoryError as error:
            raise InputError(
                f"{self.workload.model} ran out of memory on {self.workload.device}.", "Use a smaller batch."
            ) from error
        except Exception as error:
            raise _misfit(error, self.model, self.specs(call)) from error

    def _run(self, model: nn.Module, call: Call) -> Any:
        if self.training is not None:
            return self.training.step(model, call)
        with torch.no_grad():
            return model(*call.args, **call.kwargs)

    def specs(self, call: Call) -> tuple[TensorSpec, ...]:
        """The tensors of a call, described."""
        return tuple(spec_of(name, tensor) for name, tensor in call.tensors(self._names))

    @property
    def _names(self) -> tuple[str, ...]:
        return self.training.batch_names(self.model) if self.training else forward_names(self.model)

    @cached_property
    def batchable(self) -> bool:
        """Whether the model runs at another batch size and its outputs grow with it (for training: whether it runs)."""
        own = batch_size(self.call())
        if not own or self.training is not None:
            return False
        try:
            few, more = self.step(self.call()), self.step(self.call(batch=own + 1))
        except InputError:
            return False
        grown = [(a, b) for (_, a), (_, b) in zip(tensors_in(few), tensors_in(more), strict=False)]
        return bool(grown) and all(
            a.shape == b.shape if a.dim() == 0 or a.shape[0] != own else b.shape[0] == own + 1 for a, b in grown
        )


def build(workload: Workload) -> Program:
    """Build a workload from its fields alone.

    Raises:
        InputError: See :func:`fusionadvisor.workload.resolve.resolve`; also for a live model, which has no fields to
            build it from.
    """
    ready = _ready.pop(workload, None)
    if ready is not None:
        return ready
    if workload.entry_kind == "live":
        raise InputError("A live model cannot be built again.", "Pass a function that builds it.")
    with torch.random.fork_rng(devices=[]), construction_watched():
        torch.manual_seed(workload.seed)
        target = load(workload.target, workload.entry)
        return _assemble(workload, target, find_entry(target))


def settle(asked: Workload, target: Target, entry: Entry) -> Workload:
    """Build what was asked for, run it once, and return the workload with everything found out filled in.

    The program built is kept for the next :func:`build` of this workload.
    """
    program = _assemble(asked, target, entry)
    call = program.call()
    program.step(call)
    mode = "forward, backward and optimizer, in train()" if program.training else "eval() under no_grad"
    workload = replace(
        asked,
        model=type(program.model).__name__,
        inputs=program.specs(call),
        assumed=(
            *asked.assumed,
            *_inputs_assumed(asked),
            mode,
            *(program.training.assumed if program.training else ()),
        ),
    )
    if program.training is None:  # a training step has changed the weights
        _ready.clear()
        _ready[workload] = replace(program, workload=workload)
    return workload


_ready: dict[Workload, Program] = {}


def _inputs_assumed(asked: Workload) -> tuple[str, ...]:
    return () if asked.inputs_from in ("", "--input") else (f"inputs from {asked.inputs_from}",)


def _assemble(workload: Workload, target: Target, entry: Entry) -> Program:
    model = make_model(target, entry)
    if entry.kind == "module" and workload.mode == "inference":
        # the file keeps its own: programs must not share what a strategy may change
        with user_code(f"{target.label}:{entry.name} cannot be copied", "Define build_model() that builds it."):
            own, model = model, copy.deepcopy(model)
        built_alike(model, own)
    training = find_training(target.module, model) if workload.mode == "training" else None
    return _ready_to_run(workload, model, _source(workload, target, model), training)


def _source(workload: Workload, target: Target, model: nn.Module) -> Source:
    if workload.inputs_from == "--input":
        return Declared(_complete(workload.inputs, model), workload.seed)
    if workload.inputs_from:
        label = f"{target.label}:{workload.inputs_from}"
        return Given(getattr(target.module, workload.inputs_from), label, workload.seed)
    example = getattr(model, "example_input_array", None)
    if example is not None:
        return Given(example, "example_input_array", workload.seed)
    if type(model).forward is nn.Module.forward:
        raise InputError(f"{type(model).__name__} has no forward().", f"Name the whole model: {target.label}:NAME.")
    takes = forward_names(model)
    if not takes:
        return Given((), "forward", workload.seed)
    raise InputError(
        f"{target.label} gives no inputs for {type(model).__name__} (its forward takes {', '.join(takes)}).",
        f'Define example_inputs() in it, or pass --input "{takes[0]}=float32[8,3,224,224]".',
    )


def _complete(specs: tuple[TensorSpec, ...], model: nn.Module) -> tuple[TensorSpec, ...]:
    """Names by position, and a range for integers that have none: the smallest embedding they could index."""
    names = forward_names(model)
    rows = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    highest = float(min(rows) - 1) if rows else 1.0
    completed = []
    for position, spec in enumerate(specs):
        name = spec.name or (names[position] if position < len(names) else f"input{position}")
        ranged = spec.high is not None or "int" not in spec.dtype
        completed.append(replace(spec, name=name) if ranged else replace(spec, name=name, low=0.0, high=highest))
    return tuple(completed)


def live(
    model: nn.Module,
    inputs: Any,
    *,
    mode: Mode = "inference",
    device: str | None = None,
    seed: int = 0,
    step: Callable[..., Any] | None = None,
) -> Program:
    """A program around a model that exists already. It is put in the workload's mode and on its device.

    Args:
        model: The module.
        inputs: A function or a value: a tensor, a tuple of arguments, a dict of keyword arguments.
        mode: inference or training.
        device: None leaves the model where it is.
        seed: For fresh inputs.
        step: For training, the function that makes a step; see :func:`find_training` for its parameters.
    """
    place = next((t.device.type for t in (*model.parameters(), *model.buffers())), "cpu")
    workload = Workload(
        target="", entry_kind="live", model=type(model).__name__, mode=mode, device=check_device(device or place),
        seed=seed, inputs_from="live",
    )  # fmt: skip
    training = find_training(None, model) if mode == "training" else None
    if training is not None and step is not None:
        training.step_function = step
    program = _ready_to_run(workload, model, Given(inputs, "inputs", seed), training)
    return replace(program, workload=replace(workload, inputs=program.specs(program.call())))


def _ready_to_run(workload: Workload, model: nn.Module, source: Source, training: Training | None) -> Program:
    with user_code(f"{type(model).__name__} cannot be moved to {workload.device}"):
        model = model.to(workload.device)
    model.train(workload.mode == "training")
    return Program(workload, model, source, training)


def check_device(device: str) -> str:
    """The device, if it is there.

    Raises:
        InputError: It is no device torch knows.
        EnvironmentUnfitError: It is CUDA and there is none.
    """
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise InputError(f"'{device}' is no device.", "Use cpu or cuda.") from error
    if kind == "cuda" and not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "no usable CUDA device is here"
        raise EnvironmentUnfitError(f"--device {device}: {why}.", "Run `fusion-advisor doctor` to see why.")
    return device


def _misfit(error: Exception, model: nn.Module, specs: tuple[TensorSpec, ...]) -> InputError:
    shapes = ", ".join(f"{s.name}={s.dtype}[{','.join(map(str, s.shape))}]" for s in specs) or "no tensors"
    where = failing_module(error, model)
    place = f"{type(model).__name__}{'.' + where if where else ''}"
    return InputError(
        f"{place} fails with the inputs {shapes}: {first_line(str(error)) or type(error).__name__}.",
        'Give inputs that fit, with example_inputs() in the file or --input "NAME=DTYPE[SHAPE]".',
    )
