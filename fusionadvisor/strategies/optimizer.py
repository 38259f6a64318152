"""The optimizer's update: one kernel for all parameters instead of several for each."""

import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer

from fusionadvisor.errors import InputError, did_you_mean
from fusionadvisor.report.model import Refusal
from fusionadvisor.strategies.base import Plan, Site, Strategy, Subject
from fusionadvisor.units import plural
from fusionadvisor.workload.training import OPTIONS, set_options

FORMS = {"fused": {"fused": True, "foreach": False}, "foreach": {"fused": False, "foreach": True}}
"""The options of each form, the one with fewer kernels first."""
ONE_BY_ONE = {
    "aten::linalg_vector_norm": "clips gradients one by one: leave foreach=False out",
    "aten::zero_": "fills gradients with zeros one by one: zero_grad() without set_to_none=False writes nothing",
}
"""What the user's own lines may do per parameter, and what to do there instead."""


@dataclass(frozen=True)
class FusedOptimizer(Strategy):
    """Update all parameters with one kernel.

    ## What it does

    Switches the optimizer of the training step to its `fused` form, a few kernels for all parameters, or where it has
    none to `foreach`, one kernel for each operation of the update. The optimizer stays the same object with the same
    state and hyper-parameters. `form=foreach` asks for that one.

    Also says where the step itself clips gradients one by one, or fills them with zeros instead of setting them to
    None; those lines are the user's to change.

    ## When it helps

    Models of many small parameters, where the update is a large share of the step's kernels.

    ## When it refuses

    - Inference, which has no optimizer.
    - An optimizer that is not torch.optim's own, as it may compute something else.
    - One that has neither form, or not for these parameters: complex, on a device without fused kernels, sparse
      gradients, `differentiable=True`. The reason is given.

    ## Example

    ```
    $ fusion-advisor apply train.py --train --strategy optimizer
    ```

    In production pass `fused=True` where the optimizer is made, or call
    `fusionadvisor.strategies.optimizer.configure(optimizer, model)` with a model that a recipe was applied to.
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
        name, notes = type(optimizer).__name__, tuple(_by_hand(subject))
        if not type(optimizer).__module__.startswith("torch.optim."):
            reason = f"{name} is not torch.optim's own, so what it computes is not known."
            return Plan(refused=(Refusal(name, reason),), notes=notes)
        refused: list[Refusal] = []
        for form, options in FORMS.items():
            if self.form not in ("auto", form):
                continue
            if all(group.get(form) for group in optimizer.param_groups):
                return Plan(refused=tuple(refused), notes=(f"{name} runs {form} already.", *notes))
            if reason := _unsupported(optimizer, form):
                refused.append(Refusal(name, reason))
                continue
            count = sum(len(group["params"]) for group in optimizer.param_groups)
            detail = f"{name} of {plural(count, 'parameter')} runs {form}"
            data = {"options": {key: value for key, value in options.items() if key in optimizer.defaults}}
            return Plan((Site(name, (), detail, data),), tuple(refused), notes=notes)
        return Plan(refused=tuple(refused), notes=notes)

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Say on the model how its optimizer is to run."""
        setattr(model, OPTIONS, dict(plan.sites[0].data["options"]))
        return model


def configure(optimizer: Optimizer, model: nn.Module) -> Optimizer:
    """Have an optimizer run as a model that a recipe was applied to says; return it."""
    set_options(optimizer, vars(model).get(OPTIONS, {}))
    return optimizer


def _unsupported(optimizer: Optimizer, form: str) -> str:
    """Say why the optimizer cannot run in this form; empty where it can."""
    name = type(optimizer).__name__
    if form not in optimizer.defaults:
        return f"{name} has no {form} form."
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(p.grad is not None and p.grad.is_sparse for p in parameters):
        return f"{name} gets sparse gradients, for which there is no {form} form."
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{name} is differentiable, which its {form} form is not."
    if any(p.is_complex() for p in parameters):
        return f"A parameter is complex, for which {name} has no {form} form."
    try:
        _twin(optimizer, form)
    except (RuntimeError, ValueError) as error:
        return f"{name} cannot run {form} here: {str(error).splitlines()[0].rstrip('.')}."
    return ""


def _twin(optimizer: Optimizer, form: str) -> Optimizer:
    """An optimizer of this form on the same parameters, made for what its constructor refuses."""
    accepted = inspect.signature(type(optimizer)).parameters
    settings: dict[str, Any] = {**optimizer.defaults, **FORMS[form]}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    twin = type(optimizer)(parameters, **{name: value for name, value in settings.items() if name in accepted})
    if form == "fused":
        from torch.optim.optimizer import _device_dtype_check_for_fused

        for parameter in parameters:
            _device_dtype_check_for_fused(parameter, cuda_unsupported=False)
    return twin


def _by_hand(subject: Subject) -> Iterator[str]:
    """What lines of the user's step do parameter by parameter."""
    fewest = max(2, len(list(subject.model.parameters())))
    lines = Counter(
        (op.name, op.source.file, op.source.line)
        for op in (subject.graphs[0].ops if subject.graphs else ())
        if op.name in ONE_BY_ONE and op.source
    )
    for (name, file, line), count in lines.items():
        if count >= fewest:
            yield f"{file.rpartition('/')[2]}:{line} {ONE_BY_ONE[name]}."
