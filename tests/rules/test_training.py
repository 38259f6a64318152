"""What is written out by hand is found in a training step too, where the backward pass keeps what it is made of."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fusionadvisor import catalog, strategies
from fusionadvisor.rules import engine
from fusionadvisor.rules.engine import INFERENCE_ALONE, Advice
from tests.rules import live
from tests.rules.models import HandNorm
from tests.strategies.subjects import subject


class Classifier(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 10)
        self.norm = nn.GroupNorm(2, 16)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.a(x)
        if self.kind == "quick":
            h = h * torch.sigmoid(1.702 * h)
        elif self.kind == "erf":
            h = 0.5 * h * (1 + torch.erf(h * 0.5**0.5))
        elif self.kind == "gate":
            h = functional.silu(h) * self.b(x)
        elif self.kind == "group":
            h = functional.silu(self.norm(h))
        else:
            h = functional.gelu(h)
        return self.c(h)  # type: ignore[no-any-return]


def trained(model: nn.Module, *inputs: Tensor) -> Advice:
    """One step with a loss written out."""
    rows = torch.arange(len(inputs[0]))

    def step() -> object:
        result = model(*inputs)
        logits = (result[0] if isinstance(result, tuple) else result).flatten(1)
        loss = -torch.log_softmax(logits, -1)[rows, rows % 2].mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return engine.run(live.of_step(model, step))


@pytest.mark.parametrize(
    ("kind", "rule", "said"),
    [
        ("quick", "FA106", "QuickGELU: 3 kernels"),
        ("erf", "FA106", "GELU by hand: 5 kernels"),
        ("gate", "FA106", "silu gate: 2 kernels"),
        ("group", "FA105", "GroupNorm and SiLU: 2 kernels"),
    ],
)
def test_found_in_the_forward_pass_of_a_training_step(kind: str, rule: str, said: str) -> None:
    advice = trained(Classifier(kind), torch.randn(4, 8))
    (found,) = (f for f in advice.findings if f.rule == rule)
    assert found.evidence[0].startswith(said)
    assert rule not in {p.rule for p in advice.passed}


@pytest.mark.parametrize(
    ("kind", "rule", "remedies"),
    [
        ("quick", "FA106", ("compile",)),
        ("erf", "FA106", ("fx", "compile")),
        ("gate", "FA106", ("compile",)),
        ("group", "FA105", ("compile",)),
    ],
)
def test_fx_is_named_for_formulas_that_it_knows_alone(kind: str, rule: str, remedies: tuple[str, ...]) -> None:
    found = [f for f in engine.run(live.of(Classifier(kind).eval(), torch.randn(4, 8))).findings if f.rule == rule]
    assert [f.remedies for f in found] == [remedies]
    assert "by hand" not in found[0].title


@pytest.mark.parametrize("mode", ["rms", "layer"])
@pytest.mark.parametrize("residual", [False, True])
def test_a_norm_by_hand_is_found_whole(mode: str, residual: bool) -> None:
    model, inputs = HandNorm(mode, residual=residual), (torch.randn(4, 8, 16), torch.randn(4, 8, 16))
    rule = "FA104" if residual else "FA105"
    (inferred,) = (f for f in engine.run(live.of(model, *inputs)).findings if f.rule == rule)
    advice = trained(model, *inputs)
    (found,) = (f for f in advice.findings if f.rule == rule)
    assert len(found.kernels) == len(inferred.kernels)
    assert "FA105" not in {p.rule for p in advice.passed}


def test_a_loss_by_hand_is_found_and_a_single_op_passes() -> None:
    advice = trained(Classifier("gelu"), torch.randn(4, 8))
    (loss,) = (f for f in advice.findings if f.rule == "FA110")
    assert loss.evidence[0].startswith("log_softmax → index → mean → neg: 4 kernels")
    assert "FA106" in {p.rule for p in advice.passed}


def test_a_norm_by_hand_after_a_residual_is_no_pass_and_fx_replaces_it() -> None:
    written = engine.run(live.of(HandNorm("layer", residual=True), torch.randn(4, 8, 16), torch.randn(4, 8, 16)))
    (found,) = (f for f in written.findings if f.rule == "FA104")
    assert found.remedies == ("compile", "fx")
    assert "FA105" not in {p.rule for p in written.passed}
    assert "FA104" in next(n.reason for n in written.not_applicable if n.rule == "FA105")

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(16)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.norm(x + y)  # type: ignore[no-any-return]

    library = engine.run(live.of(Residual(), torch.randn(4, 8, 16), torch.randn(4, 8, 16)))
    (found,) = (f for f in library.findings if f.rule == "FA104")
    assert found.remedies == ("compile",)
    assert "FA105" in {p.rule for p in library.passed}


def test_in_training_no_remedy_is_named_that_refuses_it() -> None:
    for finding in trained(Classifier("quick"), torch.randn(4, 8)).findings:
        assert not INFERENCE_ALONE & set(finding.remedies)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).train()
    given = subject(model, (8,), mode="training")
    refusals = {entry.id: strategies.get(entry.id).plan(given).blocker.lower() for entry in catalog.STRATEGIES}
    refusing = {name for name, said in refusals.items() if "in training" in said}
    assert refusing == INFERENCE_ALONE
