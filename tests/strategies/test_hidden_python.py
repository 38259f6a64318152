"""Whatever Python allows, a rewritten model computes what it computed before."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from fusionadvisor.strategies.base import Strategy
from fusionadvisor.strategies.fuse_modules import FuseModules
from fusionadvisor.strategies.horizontal import Horizontal
from fusionadvisor.strategies.inplace import InPlace
from tests.strategies import hidden_flags, hidden_objects, hidden_python, hidden_tensors
from tests.strategies.subjects import leaves, randomise, subject

CLASSES = [kind for module in (hidden_python, hidden_objects, hidden_flags, hidden_tensors) for kind in module.CLASSES]


def put(model: nn.Module, path: str, name: str, value: Any) -> None:
    holder: Any = model
    for part in path.split(".") if path else ():
        holder = holder[int(part)] if part.isdigit() else getattr(holder, part)
    if isinstance(holder, dict | list):
        holder[int(name) if name.isdigit() else name] = value  # type: ignore[index]
    else:
        setattr(holder, name, value)


def compare(model: Any, candidate: Any, methods: tuple[str, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    for size in (16, 40, 16):
        for name in ("forward", *methods):
            x = torch.randn(2, 3, size, size, generator=generator, dtype=torch.float64)
            given = x.clone(), x.clone()
            with torch.no_grad():
                runs = [model if name == "forward" else getattr(model, name),
                        candidate if name == "forward" else getattr(candidate, name)]  # fmt: skip
                outputs = [leaves(run(own)) for run, own in zip(runs, given, strict=True)]
            torch.testing.assert_close(given[1], given[0], rtol=0, atol=0)
            for a, b in zip(*outputs, strict=True):
                torch.testing.assert_close(b, a, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("strategy", [FuseModules(), InPlace(), Horizontal()], ids=lambda s: s.id)
@pytest.mark.parametrize("kind", CLASSES)
def test_every_path_computes_what_it_did(kind: type[hidden_python.Pythonic], strategy: Strategy) -> None:
    model: Any = randomise(kind()).double().eval()
    given = subject(model, (3, 16, 16))
    candidate = strategy.rewrite(copy.deepcopy(model), strategy.plan(given), given)
    original = copy.deepcopy(model)
    compare(original, candidate, kind.methods)
    for setting in kind.settings:
        put(original, *setting)
        put(candidate, *setting)
        compare(original, candidate, kind.methods)
