"""The code a finding offers, run on the model it was found in: the outputs stay the same."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusionadvisor.report.model import Finding
from fusionadvisor.rules import engine
from tests.rules import live, models
from tests.rules.cases import PAIRS, Pair


def finding(rule: str, model: nn.Module, *inputs: torch.Tensor) -> Finding:
    (found,) = (f for f in engine.run(live.of(model, *inputs)).findings if f.rule == rule)
    return found


def run(snippet: str, model: nn.Module) -> dict[str, object]:
    names: dict[str, object] = {"torch": torch, "copy": copy, "F": F, "model": model}
    exec(compile(snippet, "snippet", "exec"), names)  # the tool's own text
    return names


def test_folding() -> None:
    model, x = models.ConvNorm().eval(), torch.randn(2, 8, 6, 6)
    assert isinstance(model.norm.running_mean, torch.Tensor)
    assert isinstance(model.norm.running_var, torch.Tensor)
    nn.init.normal_(model.norm.running_mean)
    nn.init.uniform_(model.norm.running_var, 0.5, 2.0)
    with torch.no_grad():
        before = model(x)
        run(finding("FA101", model, x).snippet, model)
        assert isinstance(model.norm, nn.Identity)
        torch.testing.assert_close(model(x), before)


def test_merging_linear_layers() -> None:
    model, x = models.Qkv(merged=False).eval(), torch.randn(2, 8, 16)
    merged = run(finding("FA201", model, x).snippet, model)["merged"]
    assert isinstance(merged, nn.Linear)
    with torch.no_grad():
        parts = merged(x).split([16, 16, 16], dim=-1)
        for part, layer in zip(parts, (model.q, model.k, model.v), strict=True):
            torch.testing.assert_close(part, layer(x))


def test_adding_convolutions() -> None:
    model, x = models.Branches(merged=False).eval(), torch.randn(2, 3, 8, 8)
    merged = run(finding("FA202", model, x).snippet, model)["merged"]
    assert isinstance(merged, nn.Conv2d)
    with torch.no_grad():
        torch.testing.assert_close(merged(x), model(x), atol=1e-5, rtol=1e-5)


def test_doing_activations_in_place() -> None:
    model, x = models.Act().eval(), torch.randn(2, 8, 6, 6)
    with torch.no_grad():
        before = model(x)
        run(finding("FA401", model, x).snippet, model)
        assert model.act.inplace
        torch.testing.assert_close(model(x), before)


LIVE = [p for p in PAIRS if callable(p.fires)]


@pytest.mark.parametrize("pair", LIVE, ids=lambda p: f"{p.rule}: {p.name}")
def test_every_snippet_is_python_and_names_modules_that_exist(pair: Pair) -> None:
    facts = pair.facts()
    modules = {c.module for c in facts.flow.calls} if facts.flow else set()
    for found in engine.run(facts).findings:
        if found.rule == pair.rule and not found.snippet.startswith("TORCH_LOGS"):
            compile(found.snippet.replace("return ", "y = "), "snippet", "exec")
            for path in re.findall(r'get_submodule\("([^"]+)"\)', found.snippet):
                assert path in modules
