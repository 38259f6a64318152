"""Subjects to plan on: a model with recordings of several inputs, and the check that a rewrite changed nothing."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fusionadvisor.flow.record import record
from fusionadvisor.strategies.base import Call, Plan, Strategy, Subject
from fusionadvisor.workload.copies import duplicate


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give batch norms statistics that a folding bug cannot hide behind: fresh ones are nearly the identity."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            pairs = ((module.running_mean, -2.0, 2.0), (module.running_var, 0.3, 3.0),
                     (module.weight, -1.5, 1.5), (module.bias, -2.0, 2.0))  # fmt: skip
            for tensor, low, high in pairs:
                if tensor is not None:
                    with torch.no_grad():
                        tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)
    return model


def subject(
    model: nn.Module, *shapes: tuple[int, ...], batches: tuple[int, ...] = (2, 2, 2, 3), **more: Any
) -> Subject:
    """Record ``model`` on random inputs of these shapes (without the batch), as the evaluation does."""
    generator = torch.Generator().manual_seed(7)
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    calls = tuple(
        Call(tuple(torch.randn(batch, *shape, generator=generator).to(dtype) for shape in shapes)) for batch in batches
    )
    return subject_of(model, calls, **more)


def subject_of(model: nn.Module, calls: tuple[Call, ...], **more: Any) -> Subject:
    with torch.no_grad():
        graphs = tuple(record(lambda c=c: model(*c.args, **c.kwargs), model, c) for c in calls)  # type: ignore[misc]
    return Subject(model, graphs, calls, **more)


def applied(strategy: Strategy, given: Subject) -> tuple[nn.Module, Plan]:
    """Plan, rewrite a copy, and check against the model in float64 on fresh inputs that nothing changed."""
    before = {name: tensor.clone() for name, tensor in given.model.state_dict().items()}
    plan = strategy.plan(given)
    candidate = strategy.rewrite(copy.deepcopy(given.model), plan, given)
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.model.state_dict().items())
    assert_same(given.model, candidate, given.calls)
    return candidate, plan


def assert_same(model: nn.Module, candidate: nn.Module, calls: tuple[Call, ...]) -> None:
    truth = duplicate(model).double()
    generator = torch.Generator().manual_seed(11)

    def fresh(_: str, tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator).to(tensor.dtype) if tensor.is_floating_point() else tensor

    for call in (*calls, *(call.map(fresh) for call in calls)):
        exact = call.map(lambda _, t: t.double() if t.is_floating_point() else t)
        with torch.no_grad():
            own, new = leaves(model(*call.args, **call.kwargs)), leaves(candidate(*call.args, **call.kwargs))
            right = leaves(truth(*exact.args, **exact.kwargs))
        assert len(own) == len(new) == len(right)
        for a, b, c in zip(own, new, right, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            floor = 20 * torch.finfo(a.dtype).eps * c.abs().max().clamp(min=1)
            assert (b.double() - c).abs().max() <= 3 * (a.double() - c).abs().max() + floor


def leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    return [leaf for item in items for leaf in leaves(item)]


def reasons(plan: Plan) -> str:
    return " ".join([plan.blocker, *(refusal.reason for refusal in plan.refused)])
