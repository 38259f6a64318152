"""Do two models agree? Written apart from the tool's own verification, to check it.

Both are compared with the original in float64, on inputs the tool never saw. Inference: every tensor of the output.
Training: loss, gradients and parameters over two steps of the loss alone (dropout off, so that nothing is drawn).
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

RELATIVE = 1e-4
"""Distance from float64, over the tensor's own size, that float32 may show whatever the original's own is."""
EXACTLY = 1e-9
"""Distance of two models in float64 that compute the same."""
TIMES_OWN = 4.0
"""And how many times the original's own distance."""
NEGLIGIBLE = 1e-4
"""Of the largest tensor: a smaller one is measured against this, as gradients that should vanish are rounding alone."""

Inputs = Callable[[], dict[str, torch.Tensor]]
Step = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Agreement:
    """The worst tensor of all: relative distances of the candidate and of the original from float64."""

    wrong: str
    candidate: float
    original: float
    tensors: int


def outputs_agree(
    original: nn.Module, candidate: Callable[..., Any], inputs: Inputs, seeds: tuple[int, ...]
) -> Agreement:
    """Compare outputs on the inputs of each seed."""
    exact = _double(original)
    pairs = []
    for seed in seeds:
        torch.manual_seed(seed)
        given = inputs()
        with torch.no_grad():
            own, new = (list(tensors(model(**_copy(given)))) for model in (original, candidate))
            truth = list(tensors(_exactly(exact, given)))
        pairs.append((own, new, truth))
    return _worst(pairs)


def steps_agree(
    original: nn.Module,
    candidate: nn.Module,
    step: Callable[[nn.Module, Any], Any],
    inputs: Inputs,
    seeds: tuple[int, ...],
) -> Agreement:
    """Compare what training steps leave, one after the other on each model; the models are changed.

    An optimizer that divides by a gradient's size makes whole steps of one that should vanish, and what comes after is
    that of another model. So where the first step agrees and a later one does not, the same two in float64 decide.
    """
    own, rewritten = _double(original), _double(candidate)
    pairs = _steps(original, candidate, copy.deepcopy(own), step, inputs, seeds)
    found = _worst(pairs)
    if not found.wrong or _worst(pairs[:1]).wrong:
        return found
    try:
        wide = _worst(_steps(own, rewritten, None, lambda model, given: step(model, _wide(given)), inputs, seeds))
    except RuntimeError:  # a float32 constant in the model
        return found
    return found if wide.wrong or wide.candidate > EXACTLY else replace(found, wrong="")


Left = list[torch.Tensor]
"""What a step leaves."""


def _steps(
    original: nn.Module, candidate: nn.Module, exact: nn.Module | None, step: Step, inputs: Inputs,
    seeds: tuple[int, ...],
) -> list[tuple[Left, Left, Left]]:  # fmt: skip
    """Of each step what it leaves of the original, of the candidate, and in float64."""
    pairs = []
    for seed in seeds:
        torch.manual_seed(seed)
        given = inputs()
        own, new = (_after(model, step, _copy(given), seed) for model in (original, candidate))
        pairs.append((own, new, _exact_step(exact, step, given, seed)))
    return pairs


def _exactly(exact: nn.Module, given: dict[str, torch.Tensor]) -> Any:
    """The float64 outputs; None where a float32 constant in the model forbids them: the original is the truth then."""
    try:
        return exact(**_wide(given))
    except RuntimeError:
        return None


def _exact_step(exact: nn.Module | None, step: Step, given: dict[str, torch.Tensor], seed: int) -> list[torch.Tensor]:
    try:
        return [] if exact is None else _after(exact, step, _wide(given), seed)
    except RuntimeError:
        return []


def without_dropout(model: nn.Module) -> nn.Module:
    """The model with everything that draws random numbers in training turned off."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if ("drop" in name or name == "activation_dropout") and isinstance(value, float):
                setattr(module, name, 0.0)
    return model


def _after(model: nn.Module, step: Step, given: dict[str, torch.Tensor], seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)  # layers may be left out at random
    loss = step(model, given)
    named = sorted(model.named_parameters())
    gradients = [p.grad.detach().clone() for _, p in named if p.grad is not None]
    return [loss.detach().clone(), *gradients]


def _worst(pairs: list[tuple[Left, Left, Left]]) -> Agreement:
    candidate = original = 0.0
    count = 0
    for own, new, truth in pairs:
        if [t.shape for t in own] != [t.shape for t in new]:
            return Agreement("other tensors come out", candidate, original, count)
        truth = truth if [t.shape for t in truth] == [t.shape for t in own] else own
        floor = NEGLIGIBLE * max((_rms(t) for t in truth if t.is_floating_point()), default=1.0)
        for a, b, c in zip(own, new, truth, strict=True):
            count += 1
            if not a.is_floating_point():
                if not torch.equal(a, b):
                    return Agreement("integers differ", candidate, original, count)
                continue
            mine, theirs = _distance(b, c, floor), _distance(a, c, floor)
            if mine > candidate:
                candidate, original = mine, theirs
            if not mine <= max(RELATIVE, TIMES_OWN * theirs):
                return Agreement(f"{mine:.2g} from float64, the original {theirs:.2g}", mine, theirs, count)
    return Agreement("", candidate, original, count)


def _distance(value: torch.Tensor, truth: torch.Tensor, floor: float) -> float:
    """Root mean square of the difference over that of the truth; infinite where NaN and infinities differ."""
    value, truth = value.double(), truth.double()
    same = value.isfinite() == truth.isfinite()
    if not bool(same.all()):
        return float("inf")
    value, truth = (torch.where(t.isfinite(), t, 0.0) for t in (value, truth))
    return _rms(value - truth) / max(_rms(truth), floor, 1e-30)


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else 0.0


def _double(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


def _copy(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in given.items()}


def _wide(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: v.double() if v.is_floating_point() else v.clone() for n, v in given.items()}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in an output, whatever holds it."""
    if isinstance(value, torch.Tensor):
        yield value.detach()
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif hasattr(value, "__dict__") and not isinstance(value, type | nn.Module):
        yield from tensors({k: v for k, v in vars(value).items() if not k.startswith("__")})
