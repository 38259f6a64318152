"""A norm written out by hand is found whole: a kernel left out of it would be left over when it is replaced."""

import pytest
import torch

from fusionadvisor.rules import engine
from tests.rules import live
from tests.rules.models import HandNorm


@pytest.mark.parametrize(
    ("mode", "ops"),
    [
        ("rms", "pow mean add rsqrt mul mul"),
        ("layer", "mean sub pow mean add sqrt sub div mul add"),
        ("variance", "mean sub var add rsqrt mul"),
        ("deviation", "mean sub mul std add div add"),
    ],
)
@pytest.mark.parametrize("residual", [False, True])
def test_every_kernel_of_it_is_in_the_finding(mode: str, ops: str, residual: bool) -> None:
    facts = live.of(HandNorm(mode, residual=residual), torch.randn(4, 8, 16), torch.randn(4, 8, 16))
    rule = "FA104" if residual else "FA105"
    (found,) = [f for f in engine.run(facts).findings if f.rule == rule]
    names = [facts.nodes[i].op for i in found.kernels]
    assert sorted(names) == sorted(ops.split() + ["add"] * residual)


def test_a_norm_whose_variance_may_be_unbiased_is_not_said_to_be_the_librarys() -> None:
    facts = live.of(HandNorm("deviation"), torch.randn(4, 8, 16), torch.randn(4, 8, 16))
    (found,) = [f for f in engine.run(facts).findings if f.rule == "FA105"]
    assert "compile" in found.snippet
    assert "F.layer_norm" not in found.snippet
