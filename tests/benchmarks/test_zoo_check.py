"""The zoo's own judge finds what is wrong, and nothing where only rounding differs."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.zoo.check import outputs_agree, steps_agree, without_dropout


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.drop, self.last = nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": self.last(self.drop(torch.relu(self.first(x)))), "cache": [x + 1, {"n": torch.tensor(3)}]}


def inputs() -> dict[str, Tensor]:
    return {"x": torch.randn(8, 16)}


def step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    model.zero_grad()
    loss: Tensor = model(**batch)["logits"].square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.1 * parameter.grad)
    return loss


def off(model: nn.Module, by: float) -> nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        next(other.parameters()).mul_(1 + by)
    return other


@pytest.mark.parametrize(("by", "wrong"), [(0.0, False), (1e-7, False), (1e-2, True)])
def test_outputs(by: float, wrong: bool) -> None:
    model = Net().eval()
    found = outputs_agree(model, off(model, by), inputs, (1, 2))
    assert bool(found.wrong) is wrong
    assert found.tensors == (1 if wrong else 6)


def test_a_structure_that_changed_is_wrong() -> None:
    model = Net().eval()
    found = outputs_agree(model, lambda x: model(x)["logits"], inputs, (1,))
    assert found.wrong == "other tensors come out"


@pytest.mark.parametrize(("by", "wrong"), [(0.0, False), (1e-2, True)])
def test_training_steps(by: float, wrong: bool) -> None:
    model = without_dropout(Net().train())
    assert bool(steps_agree(model, off(model, by), step, inputs, (1, 2)).wrong) is wrong


class Drifting(Net):
    """Rounds otherwise than :class:`Net` from the second step on, or from the first."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def forward(self, x: Tensor) -> dict[str, Any]:
        self.left -= 1
        return super().forward(x if self.left >= 0 else (x + 3e4) - 3e4)


@pytest.mark.parametrize(("steps", "wrong"), [(1, False), (0, True)])
def test_rounding_that_an_update_magnified_is_told_from_an_error_by_float64(steps: int, wrong: bool) -> None:
    model, candidate = without_dropout(Net().train()), without_dropout(Drifting(steps).train())
    assert bool(steps_agree(model, candidate, step, inputs, (1, 2)).wrong) is wrong
