import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.evaluate.leaves import Trained
from fusionadvisor.evaluate.verify import verify
from fusionadvisor.report.model import Verification
from fusionadvisor.strategies.base import Call


class Maps(nn.Module):
    """Returns whatever its function makes of the input."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def judged(original: Any, candidate: Any, *tensors: Tensor, count: int = 3) -> Verification:
    generator = torch.Generator().manual_seed(1)
    first = tensors or (torch.randn(4, 6, generator=generator),)
    calls = [Call(tuple(t + i if t.is_floating_point() else t for t in first)) for i in range(count)]
    with torch.no_grad():
        return verify(Maps(original), Maps(candidate), calls, lambda model, c: model(*c.args, **c.kwargs))


@dataclass
class Output:
    logits: Tensor
    name: str = "x"


def test_agreement_says_how_much_was_compared() -> None:
    found = judged(lambda x: {"a": x * 2, "b": (x.sum(), 3)}, lambda x: {"a": x + x, "b": (x.sum(), 3)})
    assert (found.verdict, found.inputs, found.reason) == ("agrees", 3, "")


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (lambda x: (x * 2, x), "structured differently"),
        (lambda x: (x * 2)[:1], "output has shape [1, 6] instead of [4, 6]"),
        (lambda x: (x * 2).double(), "dtype float64 instead of float32"),
        (lambda x: x * 2.001, "differs by up to"),
        (lambda x: torch.where(x > 0, x * 2, torch.nan), "output is NaN where the original is not"),
        (lambda x: torch.where(x > 0, x * 2, torch.inf), "output is infinite"),
        (lambda x: 3.0, "is float instead of Tensor"),
    ],
)
def test_divergence_is_named(candidate: Any, words: str) -> None:
    found = judged(lambda x: x * 2, candidate)
    assert found.verdict == "diverges"
    assert words in found.reason
    assert found.reason.startswith("input set 1 of 3")


def test_scalars_integers_and_dataclasses() -> None:
    assert judged(lambda x: Output(x), lambda x: Output(x + 0)).verdict == "agrees"
    assert "output.name is 'y'" in judged(lambda x: Output(x), lambda x: Output(x, "y")).reason
    assert "differs in 1 of 2" in judged(lambda x: torch.tensor([1, 2]), lambda x: torch.tensor([1, 3])).reason
    assert judged(lambda x: x > 0, lambda x: ~(x <= 0)).verdict == "agrees"


def test_the_same_infinities_agree_and_opposite_ones_do_not() -> None:
    x = torch.tensor([1.0, torch.inf, -torch.inf, torch.nan])
    assert judged(lambda x: x, lambda x: x.clone(), x).verdict == "agrees"
    assert "infinity of the other sign" in judged(lambda x: x, lambda x: -x.abs(), x.abs()).reason


def test_outputs_without_a_number_are_not_called_agreeing() -> None:
    assert judged(lambda x: x * torch.nan, lambda x: x * torch.nan).verdict == "unchecked"
    assert judged(lambda x: None, lambda x: None).verdict == "unchecked"
    assert judged(lambda x: {}, lambda x: {}).verdict == "unchecked"
    assert judged(lambda x: math.nan, lambda x: math.nan).verdict == "unchecked"
    assert judged(lambda x: x * complex("nan"), lambda x: x * complex("nan")).verdict == "unchecked"
    assert judged(lambda x: x * complex("inf"), lambda x: x * complex("inf")).verdict == "unchecked"


def test_what_is_computed_from_nan_is_no_evidence() -> None:
    def index(x: Tensor) -> Any:
        return x * torch.nan, (x * torch.nan).argmax()

    assert judged(index, index).verdict == "unchecked"
    assert judged(lambda x: x.argmax(), lambda x: x.argmax()).verdict == "agrees"


def test_only_input_sets_that_give_a_number_count() -> None:
    def root(x: Tensor) -> Tensor:
        return x.sqrt()

    found = judged(root, root, torch.tensor([-1.5]), count=4)
    assert (found.verdict, found.inputs) == ("agrees", 2)


def test_a_loss_of_nan_verifies_no_training() -> None:
    def step(loss: float) -> Any:
        return lambda x: Trained(output=torch.tensor(loss), parameters={"w": x}, buffers={"mean": x})

    assert judged(step(math.nan), step(math.nan)).verdict == "unchecked"
    assert judged(step(1.0), step(1.0)).verdict == "agrees"


def test_rounding_no_worse_than_the_originals_own_agrees() -> None:
    # a sum in another order in half precision: far outside testing tolerances, no worse against float64
    x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(3)).half()
    found = judged(lambda x: x.cumsum(1)[:, -1], lambda x: x.flip(1).cumsum(1)[:, -1], x)
    assert found.verdict == "agrees"
    assert found.rmse_ratio is not None
    assert 0 < found.rmse_ratio < 3
    assert found.limit == 3.0
    worse = judged(lambda x: x.float().sum(1).half(), lambda x: x.float().sum(1).half() * 1.01, x)
    assert worse.verdict == "diverges"
    assert "the original's" in worse.reason


def test_small_outputs_are_not_excused_by_an_absolute_tolerance() -> None:
    found = judged(lambda x: x * 1e-7, lambda x: x * 0.0)
    assert found.verdict == "diverges"


def test_an_output_the_next_call_overwrites_is_found() -> None:
    kept = torch.zeros(4, 6)
    found = judged(lambda x: x * 2, lambda x: torch.mul(x, 2, out=kept))
    assert "overwritten by the next call" in found.reason


def test_a_changed_input_is_found_unless_the_original_changes_it_too() -> None:
    def in_place(x: Tensor) -> Tensor:
        return x.mul_(2)

    assert "changed its input input0" in judged(lambda x: x * 2, in_place).reason
    assert judged(in_place, in_place).verdict == "agrees"


def test_dropout_draws_the_same_in_both() -> None:
    assert judged(nn.functional.dropout, nn.functional.dropout).verdict == "agrees"


def test_the_original_and_the_inputs_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True))
    x = torch.randn(2, 6)
    before = {k: v.clone() for k, v in model.state_dict().items()}, x.clone()
    verify(model, model, [Call((x,))], lambda m, c: m(*c.args))
    assert torch.equal(x, before[1])
    assert all(torch.equal(v, before[0][k]) for k, v in model.state_dict().items())
    assert next(model.parameters()).dtype is torch.float32


class Cache(nn.Module):
    """As transformers returns its keys and values: neither a mapping nor a dataclass, and equal only to itself."""

    def __init__(self, keys: list[Tensor]) -> None:
        super().__init__()
        self.keys = keys
        self.owner = self
        self.update = lambda: None


@pytest.mark.parametrize(("error", "verdict"), [(0.0, "agrees"), (0.1, "diverges")])
def test_tensors_in_objects_are_compared(error: float, verdict: str) -> None:
    class Caching(nn.Module):
        def __init__(self, error: float) -> None:
            super().__init__()
            self.error = error

        def forward(self, x: Tensor) -> dict[str, object]:
            return {"logits": x * 2, "cache": Cache([x, x + self.error])}

    calls = [Call((torch.randn(3, 4),))]
    found = verify(Caching(0.0), Caching(error), calls, lambda model, c: model(*c.args))
    assert found.verdict == verdict
    assert verdict == "agrees" or "output['cache'].keys[1] differs" in found.reason


@pytest.mark.parametrize(("size", "verdict"), [(1e-9, "agrees"), (1e-3, "diverges")])
def test_gradients_that_should_vanish_are_rounding_alone(size: float, verdict: str) -> None:
    class Steps(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.noise = torch.randn(2000, generator=torch.Generator().manual_seed(seed)) * size

        def forward(self, x: Tensor) -> Trained:
            gradients = {"weight": x, "key.bias": self.noise.to(x.dtype)}
            return Trained(output=x.sum(), gradients=gradients, parameters={"weight": x}, buffers={})

    calls = [Call((torch.randn(30, 40),))]
    assert verify(Steps(0), Steps(1), calls, lambda model, c: model(*c.args)).verdict == verdict


@pytest.mark.parametrize(("gradient", "step", "verdict"), [
    (1e-9, 1e-3, "agrees"),
    (1e-9, 5e-3, "diverges"),  # further than the optimizer has gone
    (1e-3, 1e-3, "diverges"),  # by a gradient that says something
])  # fmt: skip
def test_what_an_optimizer_makes_of_a_vanishing_gradient_is_rounding_alone(
    gradient: float, step: float, verdict: str
) -> None:
    """Adam divides by the gradient's size: of its noise it makes a whole step, up or down."""

    class Steps(nn.Module):
        def __init__(self, sign: float) -> None:
            super().__init__()
            self.sign = sign

        def forward(self, x: Tensor) -> Trained:
            noise = torch.full((8,), gradient, dtype=x.dtype)
            done = Trained(
                output=x.sum(),
                gradients={"weight": x, "key.bias": noise},
                parameters={"weight": x, "key.bias": torch.full((8,), self.sign * step, dtype=x.dtype)},
                buffers={},
            )
            done.moved = {"weight": 1e-3, "key.bias": 1e-3}
            return done

    calls = [Call((torch.randn(30, 40),))]
    found = verify(Steps(1.0), Steps(-1.0), calls, lambda model, c: model(*c.args))
    assert found.verdict == verdict
    assert verdict == "agrees" or "['parameters']['key.bias']" in found.reason


def test_what_noise_moved_stays_moved() -> None:
    """In the second step the gradient is no noise any more; where the first one's led, the parameter still is."""

    class Steps(nn.Module):
        def __init__(self, sign: float) -> None:
            super().__init__()
            self.sign, self.gradient = sign, 1e-9

        def forward(self, x: Tensor) -> Trained:
            key = torch.full((8,), self.gradient, dtype=x.dtype)
            self.gradient = 1e-2
            moved = torch.full((8,), self.sign * 1e-3, dtype=x.dtype)
            done = Trained(output=x.sum(), gradients={"w": x, "b": key}, parameters={"w": x, "b": moved}, buffers={})
            done.moved = {"w": 1e-3, "b": 1e-3}
            return done

    calls = [Call((torch.randn(30, 40),)) for _ in range(2)]
    assert verify(Steps(1.0), Steps(-1.0), calls, lambda model, c: model(*c.args)).verdict == "agrees"


class Named(dict[str, Tensor]):
    """As transformers' outputs: a mapping whose items are attributes, too."""

    @property
    def logits(self) -> Tensor:
        return self["logits"]


def test_a_plain_dictionary_does_not_stand_for_one_with_attributes() -> None:
    assert judged(lambda x: Named(logits=x), lambda x: Named(logits=x)).verdict == "agrees"
    found = judged(lambda x: (x, [Named(logits=x)]), lambda x: (x, [{"logits": x}]))
    assert "output[1][0] is a dict instead of a Named" in found.reason
    assert judged(lambda x: [x], lambda x: (x,)).verdict == "agrees"
