"""A training step by convention: the user's own ``train_step``, or forward, loss, backward and optimizer."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from fusionadvisor.errors import InputError
from fusionadvisor.workload.inputs import Call, parameter_names, tensors_in
from fusionadvisor.workload.target import required_arguments

STEPS = ("train_step", "training_step", "step")
LOSSES = ("loss_fn", "criterion", "compute_loss", "loss_function")
OPTIMIZERS = ("get_optimizer", "build_optimizer", "create_optimizer", "make_optimizer", "configure_optimizers")
OPTIMIZER_INSTANCES = ("optimizer", "optim", "opt")

_ROLES = {
    **dict.fromkeys(("model", "net", "module", "network"), "model"),
    **dict.fromkeys(("optimizer", "optim", "opt", "optimiser"), "optimizer"),
    **dict.fromkeys(LOSSES, "loss"),
}
_WHOLE_BATCH = ("batch", "data")

DEFAULT_LEARNING_RATE = 1e-3

OPTIONS = "_optimizer_options"
"""Attribute of a model that says how its optimizer is to run, ``{"fused": True}``; copies of the model keep it."""

CLIPPERS = ("_get_total_norm", "_clip_grads_with_norm_")
"""What ``torch.nn.utils.clip_grad.clip_grad_norm_`` calls by name, however it was imported (torch 2.6 to 2.13)."""
CLIPPING = "_clips_at_once"
"""Attribute of a model in whose training step ``clip_grad_norm_`` ignores ``foreach=False``; copies keep it."""


@dataclass
class Training:
    """How one step is made. A step changes the model it is given, as training does."""

    step_function: Callable[..., Any] | None
    loss: Callable[..., Any] | None
    make_optimizer: Callable[[nn.Module], Optimizer]
    assumed: tuple[str, ...]
    accumulate: int = 1

    def __post_init__(self) -> None:
        self._optimizers: WeakKeyDictionary[nn.Module, Optimizer] = WeakKeyDictionary()

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of a model's parameters, made once, run as the model's :data:`OPTIONS` say."""
        if model not in self._optimizers:
            self._optimizers[model] = self.make_optimizer(model)
            set_options(self._optimizers[model], vars(model).get(OPTIONS, {}))
        return self._optimizers[model]

    def optimizer_in_use(self, model: nn.Module) -> Optimizer | None:
        """The optimizer that steps of this model have used, if they have."""
        return self._optimizers.get(model)

    @contextmanager
    def undone(self, model: nn.Module) -> Iterator[None]:
        """Put back what steps within change: parameters and buffers in place, gradients, optimizer, random state."""
        saved = [(t, t.detach().clone()) for t in (*model.parameters(), *model.buffers())]
        gradients = [(p, p.grad) for p in model.parameters()]
        with torch.random.fork_rng():
            try:
                yield
            finally:
                with torch.no_grad():
                    for tensor, content in saved:
                        tensor.copy_(content)
                for parameter, gradient in gradients:
                    parameter.grad = gradient
                self._optimizers.pop(model, None)

    def step(self, model: nn.Module, call: Call, autocast: Callable[[], AbstractContextManager[None]]) -> Any:
        """One step: forward, loss, backward, optimizer; returns what the user's step returned, or the loss.

        ``autocast`` surrounds forward and loss, as backward runs in the dtypes of its forward; the user's own step is
        surrounded whole.
        """
        if self.step_function is not None:
            with autocast(), clipping_at_once() if vars(model).get(CLIPPING) else nullcontext():
                return self.step_function(**self._arguments(self.step_function, model, call))
        optimizer = self.optimizer(model)
        optimizer.zero_grad()
        inputs, targets = split_batch(model, call)
        total: Any = 0.0
        for _ in range(self.accumulate):
            with autocast():
                loss: Any = self._loss(model(*inputs.args, **inputs.kwargs), targets) / self.accumulate
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    def batch_names(self, model: nn.Module) -> tuple[str, ...]:
        """Names of the items of a batch, in order."""
        if self.step_function is not None:
            names = _batch_names(self.step_function)
            return () if len(names) == 1 and names[0] in _WHOLE_BATCH else names
        return (*required_arguments(model.forward), "target")

    def _loss(self, output: Any, targets: tuple[Any, ...]) -> torch.Tensor:
        if self.loss is not None:
            return self.loss(output, *targets)  # type: ignore[no-any-return]
        own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(own, torch.Tensor):
            return own
        parts = [t.float().square().mean() for _, t in tensors_in(output) if t.requires_grad]
        if not parts:
            raise InputError(
                "The model's output needs no gradient, so there is nothing to train on.",
                "Define loss_fn(output, target) or train_step(model, optimizer, batch) beside the model.",
            )
        return torch.stack(parts).sum()

    def _arguments(self, function: Callable[..., Any], model: nn.Module, call: Call) -> dict[str, Any]:
        """What the user's step is called with: by name what has a known role, the rest from the batch in order."""
        roles = {name: _ROLES[name] for name in parameter_names(function) if name in _ROLES}
        known: dict[str, Any] = {"model": model, "loss": self.loss}
        if "optimizer" in roles.values():
            known["optimizer"] = self.optimizer(model)
        given = {name: known[role] for name, role in roles.items()}
        given |= {name: call.kwargs[name] for name in _batch_names(function) if name in call.kwargs}
        open_names = [name for name in _batch_names(function) if name not in given]
        if len(open_names) == 1 and (open_names[0] in _WHOLE_BATCH or not call.args):
            whole = call.kwargs or (call.args[0] if len(call.args) == 1 else call.args)
            return {**given, open_names[0]: whole}
        needed = [name for name in open_names if name in required_arguments(function)]
        if not len(needed) <= len(call.args) <= len(open_names):
            raise InputError(
                f"{function.__name__} takes {', '.join(open_names) or 'no batch'}, and the batch has "
                f"{len(call.args)} items.",
                "Define get_batch() that returns what the step needs, in its order.",
            )
        return {**given, **dict(zip(open_names, call.args, strict=False))}


@contextmanager
def clipping_at_once() -> Iterator[None]:
    """Have ``clip_grad_norm_`` clip all gradients in a few kernels where their device can, whatever it is told."""
    from torch.nn.utils import clip_grad

    originals = {name: getattr(clip_grad, name) for name in CLIPPERS}

    def free(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.arguments["foreach"] = None
            return original(*given.args, **given.kwargs)

        return call

    try:
        for name, original in originals.items():
            setattr(clip_grad, name, free(original))
        yield
    finally:
        for name, original in originals.items():
            setattr(clip_grad, name, original)


def set_options(optimizer: Optimizer, options: Mapping[str, bool]) -> None:
    """Change how an optimizer runs, ``foreach`` or ``fused``, in place and with the state it has."""
    if not options:
        return
    for group in optimizer.param_groups:
        group.update(options)
    optimizer.defaults.update(options)
    optimizer.load_state_dict(optimizer.state_dict())  # a fused optimizer counts its steps on the device


def _batch_names(step: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(name for name in parameter_names(step) if name not in _ROLES)


def split_batch(model: nn.Module, call: Call) -> tuple[Call, tuple[Any, ...]]:
    """What of a batch goes to the model, and what to the loss: the model takes what its forward requires."""
    takes = max(1, len([n for n in required_arguments(model.forward) if n not in call.kwargs]))
    accepted = set(inspect.signature(model.forward).parameters)
    kwargs = {name: value for name, value in call.kwargs.items() if name in accepted}
    rest = tuple(value for name, value in call.kwargs.items() if name not in accepted)
    return Call(call.args[:takes], kwargs), (*call.args[takes:], *rest)


def find_training(module: ModuleType | None, own_model: nn.Module, accumulate: int = 1) -> Training:
    """What a file says about training, by convention; what it does not say is assumed and told.

    Raises:
        InputError: Its step has no parameter for the model, or makes a whole step where batches are to be accumulated.
    """
    offers = vars(module) if module else {}
    step = next((offers[name] for name in STEPS if inspect.isfunction(offers.get(name))), None)
    if step is not None and "model" not in [_ROLES.get(name) for name in parameter_names(step)]:
        raise InputError(
            f"{step.__name__}() has no parameter for the model.",
            f"Write it as {step.__name__}(model, optimizer, batch).",
        )
    if step is not None and accumulate > 1:
        raise InputError(
            f"{step.__name__}() makes a whole step, so gradients cannot be accumulated around it.",
            "Accumulate inside it, or define loss_fn and get_optimizer instead.",
        )
    loss = next((offers[name] for name in LOSSES if callable(offers.get(name))), None)
    if isinstance(loss, type):
        loss = loss()
    assumed: list[str] = []
    maker = _optimizer_maker(offers, own_model, step, assumed)
    if step is None and loss is None:
        assumed.append("loss: the model's own if it returns one, else the mean square of its outputs")
    return Training(step, loss, maker, tuple(assumed), accumulate)


def _optimizer_maker(
    offers: Mapping[str, Any], own_model: nn.Module, step: Callable[..., Any] | None, assumed: list[str]
) -> Callable[[nn.Module], Optimizer]:
    for name in OPTIMIZERS:
        if callable(offers.get(name)):
            function = offers[name]
            return lambda model: function(model) if parameter_names(function) else function()
    for name in OPTIMIZER_INSTANCES:
        instance = offers.get(name)
        if isinstance(instance, Optimizer):
            return lambda model: instance if model is own_model else remake(instance, model)
    if step is None or any(_ROLES.get(name) == "optimizer" for name in parameter_names(step)):
        assumed.append(f"optimizer: SGD, learning rate {DEFAULT_LEARNING_RATE:g}")
    return lambda model: torch.optim.SGD(model.parameters(), lr=DEFAULT_LEARNING_RATE)


def remake(optimizer: Optimizer, model: nn.Module) -> Optimizer:
    """An optimizer of the same class and settings for another model's parameters.

    Raises:
        InputError: It treats groups of parameters differently, and which are which is known only to its maker.
    """
    if len(optimizer.param_groups) > 1:
        raise InputError(
            f"The optimizer has {len(optimizer.param_groups)} parameter groups and cannot be made again.",
            "Define get_optimizer(model) that makes it.",
        )
    return type(optimizer)(model.parameters(), **optimizer.defaults)
