"""Random small models that take another path by size, flag, data or dtype, in every form that Python has for it.

Each model is planned on small inputs, rewritten by each strategy and by all of them, and compared with the original in
float64 on every path: each size, each value of a flag set afterwards, each public method. A search is run by
``python -m tests.strategies.fuzz_branches 500 1000``: 500 models from seed 1000 on.
"""

import copy
import gc
import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fusionadvisor.strategies.base import Call, Strategy
from fusionadvisor.strategies.fuse_modules import FuseModules
from fusionadvisor.strategies.horizontal import Horizontal
from fusionadvisor.strategies.inplace import InPlace
from tests.strategies.branch_forms import HEADER, SETTINGS
from tests.strategies.branch_models import Writer
from tests.strategies.fuzz import made
from tests.strategies.subjects import leaves, randomise, subject_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "branch_fuzz.json"
STRATEGIES: dict[str, tuple[Strategy, ...]] = {
    "fuse_modules": (FuseModules(),), "inplace": (InPlace(),), "horizontal": (Horizontal(),),
    "together": (FuseModules(), Horizontal(), InPlace()),
}  # fmt: skip


def build(seed: int) -> tuple[nn.Module, str, list[str]]:
    """A model in float64 evaluation, its source, and the names of its further methods."""
    writer = Writer(seed)
    text = writer.source()
    return randomise(made(text, seed), seed).double().eval(), text, writer.public


def put(model: Any, path: str, value: Any) -> None:
    """Set a flag by its path."""
    *holders, name = path.split(".")
    for holder in holders:
        model = getattr(model, holder)
    if isinstance(model, dict | list):
        model[int(name) if name.isdigit() else name] = value  # type: ignore[index]
    else:
        setattr(model, name, value)


def outcome(model: Any, name: str, x: Tensor, seed: int) -> list[Tensor] | None:
    """What a method returns; None where it fails."""
    torch.manual_seed(seed)
    try:
        return leaves((model if name == "forward" else getattr(model, name))(x))
    except (
        RuntimeError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        KeyError,
        UnboundLocalError,
        StopIteration,
    ):
        return None


def close(a: Tensor, b: Tensor) -> bool:
    scale = float(a.abs().max().clamp(min=1)) if a.numel() else 1.0
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-8, atol=1e-8 * scale, equal_nan=True)


def differs(model: nn.Module, candidate: nn.Module, text: str, methods: list[str], seed: int) -> str:
    """Where a rewritten model computes something else; empty where it does not."""
    generator = torch.Generator().manual_seed(seed)
    settings: list[tuple[str, Any]] = [("", None)]
    written = text.split("identity, self.block", 1)[1]
    settings += [(path, value) for path, value in SETTINGS if path.split(".")[0] in written]
    for path, value in settings:
        one, two = copy.deepcopy(model), copy.deepcopy(candidate)
        if path:
            put(one, path, value)
            put(two, path, value)
        for (batch, side, shift), name in itertools.product(
            ((2, 5, 0.0), (2, 12, 1.5), (4, 5, 3.0)), ["forward", *methods]
        ):
            x = torch.randn(batch, 4, side, side, generator=generator, dtype=torch.float64) + shift
            given = x.clone(), x.clone()
            want, got = outcome(one, name, given[0], seed), outcome(two, name, given[1], seed)
            if want is None:
                one, two = copy.deepcopy(model), copy.deepcopy(candidate)  # what a failed call has left is not compared
                if path:
                    put(one, path, value)
                    put(two, path, value)
                continue
            place = f"{name} of {list(x.shape)} where {path or 'nothing'} is set"
            if got is None or len(got) != len(want):
                return f"{place}: fails"
            if not close(*given):
                return f"{place}: changes its input"
            for a, b in zip(want, got, strict=True):
                if not close(a, b):
                    return f"{place}: {float((a - b).abs().max()) if a.shape == b.shape else b.shape}"
    return ""


@torch.no_grad()
def check(seed: int) -> tuple[Counter[str], list[str]]:
    """Figures of one model, and what is wrong with its rewrites."""
    tally = Counter(generated=1)
    try:
        model, text, methods = build(seed)
    except SyntaxError:
        return tally, []
    generator = torch.Generator().manual_seed(seed)
    calls = tuple(Call((torch.randn(b, 4, 5, 5, generator=generator, dtype=torch.float64),)) for b in (2, 3))
    try:
        given = subject_of(copy.deepcopy(model), calls)
    except (
        RuntimeError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        KeyError,
        UnboundLocalError,
        StopIteration,
    ):
        return tally, []  # not a model
    tally["models"] += 1
    wrong = []
    for name, strategies in STRATEGIES.items():
        candidate = copy.deepcopy(model)
        sites: list[str] = []
        for strategy in strategies:
            given_now = subject_of(copy.deepcopy(candidate), calls) if sites else given
            plan = strategy.plan(given_now)
            candidate = strategy.rewrite(candidate, plan, given_now)
            sites += [site.name for site in plan.sites]
            tally[f"{name} sites"] += len(plan.sites)
            tally[f"{name} refusals"] += len(plan.refused)
            tally[f"{name} guarded"] += sum("runs as before" in site.detail for site in plan.sites)
        if sites and (problem := differs(model, candidate, text, methods, seed)):
            tally["wrong"] += 1
            wrong.append(f"seed {seed}, {name}, {sites}: {problem}\n{text[len(HEADER) :]}")
    return tally, wrong


def main() -> None:
    count, start = int(sys.argv[1]), int(sys.argv[2])
    asked = ["git", "rev-parse", "--short", "HEAD"]  # at the start: the code that is searched
    commit = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=RESULTS.parent).stdout.strip()
    gc.collect()
    gc.freeze()  # each recording collects garbage; what is here already is none
    tally: Counter[str] = Counter(wrong=0)
    for seed in range(start, start + count):
        one, wrong = check(seed)
        tally.update(one)
        if one["wrong"] or seed % 100 == 0:
            sys.stdout.write(f"after {seed}: {dict(tally)}\n")
        for problem in wrong:
            sys.stdout.write(problem + "\n")
            sys.stdout.flush()
    runs = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
    runs = [run for run in runs if run["seeds"] != [start, start + count - 1]]
    runs.append({"seeds": [start, start + count - 1], "commit": commit, **dict(sorted(tally.items()))})
    RESULTS.write_text(json.dumps({"torch": torch.__version__, "runs": runs}, indent=1) + "\n")
    sys.stdout.write(f"{dict(tally)}\n")


if __name__ == "__main__":
    main()
