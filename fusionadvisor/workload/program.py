"""A workload that can run: the model on its device, its inputs, and one step of it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from fusionadvisor.errors import EnvironmentUnfitError, InputError, StrategyError
from fusionadvisor.flow.frames import built_alike, construction_watched
from fusionadvisor.report.model import Mode, TensorSpec, Workload, spelled
from fusionadvisor.workload.checkpoint import parse_arguments
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.inputs import Call, Given, Source, batch_size, forward_names, spec_of, tensors_in
from fusionadvisor.workload.saved import open_saved
from fusionadvisor.workload.source import find_source
from fusionadvisor.workload.target import check_there, find_entry, load, make_model, saved_path
from fusionadvisor.workload.training import Training, find_training
from fusionadvisor.workload.usercode import about_inputs, failing_module, set_mode, user_code, what_happened


@dataclass(eq=False)
class Program:
    """A workload made ready to run in this process.

    Args:
        workload: What it was built from.
        model: On the device, in the mode the workload names.
        source: Where its inputs come from.
        training: How a step trains, None for inference.
        place: Where model and inputs are while that is not yet the workload's device; empty where they are there.
    """

    workload: Workload
    model: nn.Module
    source: Source
    training: Training | None = None
    place: str = ""

    def call(self, seed: int = 0, batch: int | None = None) -> Call:
        """Inputs for one call, on the device.

        Seed 0 gives the user's own inputs where there are any, every other seed fresh ones of the same kind.
        ``batch`` changes the size of dim 0 of every tensor that shares the first one's.

        Raises:
            InputError: ``batch`` is given and no input has a dimension to vary.
        """
        names, batch = self.names, self.workload.batch if batch is None else batch
        drawn = self.source.draw(seed, names) if batch is None else self.source.sized(seed, names, batch)
        apart = {} if self.place else self.source.devices
        usual = self.place or self.workload.device
        return drawn.map(lambda name, tensor: tensor.to(apart.get(name, usual)), names)

    def at(self, batch: int | None) -> "Program":
        """The same model at another batch size, run once and described.

        Raises:
            InputError: It does not run at that size; see :meth:`run_once`.
        """
        resized = replace(self, workload=replace(self.workload, batch=batch))
        return replace(resized, workload=replace(resized.workload, inputs=resized.specs(resized.run_once())))

    def run_once(self) -> Call:
        """Run on the workload's own inputs, to see that they fit, and return them.

        Raises:
            InputError: They do not; where they do at their own batch size, says which inputs have to keep it.
        """
        call = self.call()
        try:
            self.step(call)
        except InputError as refusal:
            own = replace(self, workload=replace(self.workload, batch=None))
            if self.workload.batch is None or not own._runs():
                raise
            raise self._unbatchable(own.call(), refusal) from refusal
        return call

    def _runs(self) -> bool:
        try:
            self.step(self.call())
        except InputError:
            return False
        return True

    def _unbatchable(self, own: Call, refusal: InputError) -> InputError:
        size = batch_size(own)
        kept = [f"{s.name} [{','.join(map(str, s.shape))}]" for s in self.specs(own) if s.shape and s.shape[0] == size]
        why = what_happened(refusal.__cause__) if refusal.__cause__ else refusal.what
        return InputError(
            f"{self.workload.model} does not run at batch {self.workload.batch}: the batch dimension of "
            f"{', '.join(kept)} cannot be changed ({why}).",
            f"Leave --batch out: it runs at {size}.",
        )

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
            raise misfit(error, self.model, self.specs(call)) from error

    def _run(self, model: nn.Module, call: Call) -> Any:
        if self.training is not None:
            return self.training.step(model, call, self._autocast)
        with torch.no_grad(), self._autocast():
            return model(*call.args, **call.kwargs)

    def _autocast(self) -> AbstractContextManager[None]:
        amp = self.workload.amp
        kind = torch.device(self.workload.device).type
        return torch.autocast(kind, getattr(torch, amp)) if amp else nullcontext()

    def specs(self, call: Call) -> tuple[TensorSpec, ...]:
        """The tensors of a call, described."""
        return tuple(spec_of(name, tensor) for name, tensor in call.tensors(self.names))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what a call passes by position."""
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
    return opened(workload)[0]


def settle(asked: Workload) -> Workload:
    """Build what was asked for, run it once, and return the workload with everything found out filled in.

    The program built is kept for the next :func:`build` of this workload.
    """
    program = start(asked)
    if program.training is None:  # a training step has changed the weights
        _ready.clear()
        _ready[program.workload] = program
    return program.workload


def start(asked: Workload) -> Program:
    """Build what was asked for, run it once, and return it with its workload filled in. In training, it has trained.

    Raises:
        InputError: See :func:`fusionadvisor.workload.resolve.resolve`.
    """
    program, said = opened(asked)
    return replace(program, workload=described(program, program.run_once(), said))


_ready: dict[Workload, Program] = {}


def described(program: Program, call: Call, said: Sequence[str]) -> Workload:
    """The workload of a program with everything found out filled in.

    Args:
        program: As opened.
        call: The inputs it runs on.
        said: What had to be assumed to open it.
    """
    exported = program.workload.entry_kind == "archive" and isinstance(program.model, torch.fx.GraphModule)
    mode = "as exported, under no_grad" if exported else "eval() under no_grad"
    if program.training:
        mode = "forward, backward and optimizer, in train()"
    if program.workload.amp:
        mode += f", autocast to {program.workload.amp}"
    training = program.training.assumed if program.training else ()
    assumed = (*said, *program.workload.assumed, mode, *training)
    return replace(program.workload, inputs=program.specs(call), assumed=assumed)


def opened(workload: Workload, place: str = "") -> tuple[Program, list[str]]:
    """Load the target, find model and inputs; also what had to be assumed.

    Args:
        workload: As asked for, or as settled.
        place: A device to have the model on instead of the workload's.
    """
    with torch.random.fork_rng(devices=[]), construction_watched():
        torch.manual_seed(workload.seed)
        if saved := saved_path(workload.target):
            target, entry = open_saved(
                saved, _saved_entry(workload), workload.model_from, workload.model_args, trust=workload.trust
            )
            model = make_model(target, entry)
        else:
            _refuse_model_from(workload)
            target = load(workload.target, workload.entry)
            entry = find_entry(target)
            model = make_model(target, entry, parse_arguments(workload.model_args))
        if entry.kind == "module" and workload.mode == "inference":
            model = _copied(model, f"{target.label}:{entry.name}")
        training = find_training(target.module, model, workload.accumulate) if workload.mode == "training" else None
        source, given_by, said = find_source(workload, target, model)
    settled = replace(
        workload, target=target.text, entry=entry.name, entry_kind=entry.kind, model=type(model).__name__,
        inputs_from=given_by,
    )  # fmt: skip
    return _ready_to_run(settled, model, source, training, place), [*target.assumed, *said]


def _saved_entry(workload: Workload) -> str | None:
    """The entry to look for in a checkpoint; that of an archive is the class of its model, found and not asked for."""
    return None if workload.entry_kind == "archive" else workload.entry


def _refuse_model_from(workload: Workload) -> None:
    if workload.model_from:
        check_there(workload.target)
        raise InputError(
            f"--model is for checkpoints, and {workload.target} is none.",
            f"Name the model with --entry, or give the checkpoint as the target and --model {workload.target}.",
        )


def _copied(model: nn.Module, label: str) -> nn.Module:
    """A copy of a model that a file holds in a variable: programs must not share what a strategy may change."""
    try:
        own = duplicate(model)
    except StrategyError as error:
        raise InputError(f"{label}: {error.what}", "Define build_model() that builds it.") from error
    built_alike(own, model)
    return own


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


def _ready_to_run(
    workload: Workload, model: nn.Module, source: Source, training: Training | None, place: str = ""
) -> Program:
    with user_code(f"{type(model).__name__} cannot be moved to {place or workload.device}"):
        model = model.to(place or workload.device)
    if not set_mode(model, training=training is not None) and training is not None:
        raise InputError("An exported program cannot be trained.", "Give the model it was exported from.")
    return Program(workload, model, source, training, place)


def check_device(device: str, given_by: str = "") -> str:
    """The device, if it is there. ``given_by`` is the option that names it, for the message.

    Raises:
        InputError: It is no device torch knows.
        EnvironmentUnfitError: It is CUDA and there is none.
    """
    option = given_by or f"--device {device}"
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise InputError(f"{option}: '{device}' is no device.", "Use cpu or cuda.") from error
    if kind == "cuda" and not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "no usable CUDA device is here"
        raise EnvironmentUnfitError(f"{option}: {why}.", "Run `fusion-advisor doctor` to see why.")
    if kind == "cuda" and (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise EnvironmentUnfitError(f"{option}: torch sees {torch.cuda.device_count()} GPUs here.", "Use cuda:0.")
    return device


def misfit(error: Exception, model: nn.Module, specs: tuple[TensorSpec, ...]) -> InputError:
    """What to say of a model that raises: where, with which inputs, and what."""
    shapes = spelled(specs) or "no tensors"
    where = failing_module(error, model)
    place = f"{type(model).__name__}{'.' + where if where else ''}"
    fitting = 'Give inputs that fit, with example_inputs() in the file or --input "NAME=DTYPE[SHAPE]".'
    return InputError(
        f"{place} fails with the inputs {shapes}: {what_happened(error)}.",
        fitting if about_inputs(error) else "--debug shows the whole traceback.",
    )
