"""The optimizer's update: one kernel for all parameters instead of several for each."""

import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Adafactor, Optimizer

from fusionadvisor.errors import InputError, did_you_mean
from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.flow.record import record
from fusionadvisor.report.model import Refusal
from fusionadvisor.strategies.base import Plan, Site, Strategy, Subject
from fusionadvisor.units import plural
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.training import CLIPPERS, CLIPPING, OPTIONS, set_options
from fusionadvisor.workload.usercode import one_line

FORMS = {"fused": {"fused": True, "foreach": False}, "foreach": {"fused": False, "foreach": True}}
"""The options of each form, the one with fewer kernels first."""
NORM = "aten::linalg_vector_norm"
_CLAMPED = (
    "clips gradients value by value, one after the other: clip_grad_value_ without foreach=False does all at once"
)
ONE_BY_ONE = {
    NORM: "takes the norm of each gradient: torch.nn.utils.clip_grad_norm_(parameters, max_norm) does all at once",
    "aten::clamp_": _CLAMPED, "aten::clamp_min_": _CLAMPED, "aten::clamp_max_": _CLAMPED,
    "aten::zero_": "fills gradients with zeros one by one: zero_grad() without set_to_none=False writes nothing",
}  # fmt: skip
"""What the user's own lines may do per parameter, and what to do there instead."""
LOOPS_ON_CPU = (
    "Clipping all at once is fewer kernels on CUDA only: the CPU goes through the gradients one by one all the same."
)
YOURS = "This line of the step belongs to neither the model nor the optimizer, so it is left to you."


Gradients = dict[int, Tensor]
"""What a step makes of parameters, by their ids."""


@dataclass(frozen=True)
class FusedOptimizer(Strategy):
    """Update all parameters with one kernel.

    ## What it does

    Switches the optimizer of the training step to its `fused` form, a few kernels for all parameters, or where it has
    none to `foreach`, one kernel for each operation of the update. The optimizer stays the same object with the same
    state and hyper-parameters. `form=foreach` asks for that one.

    Where the step clips with `clip_grad_norm_(…, foreach=False)`, the gradients are clipped all at once as well, and
    that is verified and measured with the rest. A loop written by hand, a `clip_grad_value_` that loops, and gradients
    filled with zeros instead of set to None are named with their lines and what to write there: they are lines of the
    step, which is neither the model's nor the optimizer's.

    ## When it helps

    Models of many small parameters, where the update is a large share of the step's kernels.

    ## When it refuses

    - Inference, which has no optimizer.
    - An optimizer that is not torch.optim's own, as it may compute something else.
    - One that has neither form, or whose step in it fails on copies of these parameters and gradients: complex or
      sparse ones, a device without fused kernels, `differentiable=True`. The reason is given.

    ## Example

    ```
    $ fusion-advisor apply train.py --train --strategy optimizer
    ```

    In production pass `fused=True` where the optimizer is made, or call
    `fusionadvisor.strategies.optimizer.configure(optimizer, model)` with a model that a recipe was applied to. Leave
    `foreach=False` out of the clipping.
    """

    id: ClassVar[str] = "optimizer"
    order: ClassVar[int] = 60

    form: str = "auto"

    def __post_init__(self) -> None:
        known = ("auto", *FORMS)
        if self.form not in known:
            raise InputError(f"Strategy optimizer: form is not '{self.form}'.", did_you_mean(self.form, known))

    def plan(self, subject: Subject) -> Plan:
        """Find the form with the fewest kernels that the optimizer has for these parameters."""
        if subject.mode != "training":
            return Plan(blocker="It changes the optimizer, and inference has none: add --train.")
        optimizer = subject.optimizer
        if optimizer is None:
            return Plan(blocker="The training step was not given an optimizer, so there is none to change.")
        repeated = _repeated(subject)
        notes = tuple(_by_hand(repeated))
        clip = tuple(_clipped(repeated, optimizer))
        if clip and not subject.device.startswith("cuda"):
            notes = (*notes, LOOPS_ON_CPU)
        site, refused, said = self._update(optimizer, _gradients(subject))
        return Plan((*site, *clip), tuple(refused), notes=(*said, *notes))

    def _update(
        self, optimizer: Optimizer, gradients: Gradients
    ) -> tuple[tuple[Site, ...], list[Refusal], tuple[str, ...]]:
        """The site of the update, if there is one, the forms refused, and what else there is to say."""
        name = type(optimizer).__name__
        if not type(optimizer).__module__.startswith("torch.optim."):
            return (), [Refusal(name, f"{name} is not torch.optim's own, so what it computes is not known.")], ()
        refused: list[Refusal] = []
        for form, options in FORMS.items():
            if self.form not in ("auto", form):
                continue
            if all(group.get(form) for group in optimizer.param_groups):
                return (), refused, (f"{name} runs {form} already.",)
            if reason := _unsupported(optimizer, form, gradients):
                refused.append(Refusal(name, reason))
                continue
            count = sum(len(group["params"]) for group in optimizer.param_groups)
            detail = f"{name} of {plural(count, 'parameter')} runs {form}"
            data = {"options": {key: value for key, value in options.items() if key in optimizer.defaults}}
            return (Site(name, (), detail, data),), refused, ()
        return (), refused, ()

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Say on the model how its optimizer and the clipping in its step are to run."""
        for site in plan.sites:
            if "options" in site.data:
                setattr(model, OPTIONS, dict(site.data["options"]))
            else:
                setattr(model, CLIPPING, True)
        return model


def configure(optimizer: Optimizer, model: nn.Module) -> Optimizer:
    """Have an optimizer run as a model that a recipe was applied to says; return it."""
    set_options(optimizer, vars(model).get(OPTIONS, {}))
    return optimizer


def _unsupported(optimizer: Optimizer, form: str, gradients: Gradients) -> str:
    """Say why the optimizer cannot run in this form; empty where it can."""
    name = type(optimizer).__name__
    if form not in optimizer.defaults:
        return f"{name} has no {form} form."
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{name} is differentiable, which its {form} form is not."
    try:
        _twin(optimizer, form, gradients).step()
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AttributeError) as error:
        return f"{name} cannot run {form} here: {one_line(error)}."
    return ""


def _twin(optimizer: Optimizer, form: str, gradients: Gradients) -> Optimizer:
    """An optimizer of this form on copies of the parameters and gradients, to see whether it takes them."""
    accepted = inspect.signature(type(optimizer)).parameters
    settings: dict[str, Any] = {**optimizer.defaults, **FORMS[form]}
    parameters = [p.detach().clone().requires_grad_() for group in optimizer.param_groups for p in group["params"]]
    own = [p for group in optimizer.param_groups for p in group["params"]]
    for twin_of, parameter in zip(own, parameters, strict=True):
        parameter.grad = gradients.get(id(twin_of), twin_of.grad)
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
    twin = type(optimizer)(parameters, **{name: value for name, value in settings.items() if name in accepted})
    if form == "fused":
        from torch.optim.optimizer import _device_dtype_check_for_fused

        for parameter in parameters:
            _device_dtype_check_for_fused(parameter, cuda_unsupported=False)
    return twin


def _gradients(subject: Subject) -> Gradients:
    """The gradients of a step on a copy of the model: whether they are sparse shows only there."""
    if subject.run is None or not subject.calls:
        return {}
    twin = duplicate(subject.model)
    subject.run(twin, subject.calls[0].map(lambda _, tensor: tensor.clone()))
    pairs = zip(subject.model.parameters(), twin.parameters(), strict=True)
    return {id(parameter): copied.grad for parameter, copied in pairs if copied.grad is not None}


Repeated = dict[tuple[str, str, str], int]
"""Ops with their phase and line, and how often each ran."""


def _clipped(repeated: Repeated, optimizer: Optimizer) -> Iterator[Site]:
    """Where torch's own clipping takes the norms one by one, as it does when told ``foreach=False``."""
    from torch.nn.utils import clip_grad

    if not all(hasattr(clip_grad, name) for name in CLIPPERS) or isinstance(optimizer, Adafactor):
        return  # Adafactor's own update takes norms, too
    for (name, phase, line), count in repeated.items():
        if name == NORM and phase == "optimizer":
            gradients = plural(count - 1, "gradient")  # the last is the norm of the norms
            detail = f"clip_grad_norm_ of {gradients} at {line} runs foreach: leave foreach=False out there"
            yield Site(f"clip_grad_norm_ ({line})", (), detail, {"clip": line})


def _by_hand(repeated: Repeated) -> Iterator[str]:
    """What lines of the user's step do parameter by parameter."""
    for name, phase, line in repeated:
        if name != NORM or phase != "optimizer":
            yield f"{line} {ONE_BY_ONE[name]}. {YOURS}"


def _repeated(subject: Subject) -> Repeated:
    """What of :data:`ONE_BY_ONE` runs once a parameter at the least."""
    fewest = max(2, len(list(subject.model.parameters())))
    graph = _second_step(subject)
    lines = Counter(
        (op.name, op.phase, f"{op.source.file.rpartition('/')[2]}:{op.source.line}")
        for op in (graph.ops if graph else ())
        if op.name in ONE_BY_ONE and op.source and not op.module
    )
    return {key: count for key, count in lines.items() if count >= fewest}


def _second_step(subject: Subject) -> FlowGraph | None:
    """A step like all but the first, which finds no gradients there to fill with zeros."""
    if subject.run is None or not subject.calls:
        return subject.graphs[0] if subject.graphs else None
    run, call, twin = subject.run, subject.calls[0], duplicate(subject.model)
    run(twin, call.map(lambda _, tensor: tensor.clone()))
    return record(lambda: run(twin, call), twin, call)
