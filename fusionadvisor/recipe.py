"""What was kept, as data, and how to do it again: with torch alone loaded, sites re-checked, then rewritten."""

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fusionadvisor import strategies
from fusionadvisor.errors import InputError, StrategyError
from fusionadvisor.files import write_atomically
from fusionadvisor.report.codec import from_dict, to_dict
from fusionadvisor.report.model import Mode, Speedup, TensorSpec, Verification, Workload
from fusionadvisor.strategies.base import Call, Plan, Site, Subject

FORMAT = "1"
FILE = "recipe.json"
LOADER = "load_optimized.py"

_LOADER = '''"""{model}, optimised by fusion-advisor: {steps}.

Build the model and load its weights as before, then: ``model = load_optimized(model.eval())``.
"""

from pathlib import Path

import fusionadvisor


def load_optimized(model, example_inputs=None):
    """Return an optimised copy; refuses a model or inputs that are not those the recipe was verified with."""
    recipe = Path(__file__).with_name("{file}")
    return fusionadvisor.apply_recipe(model, recipe, example_inputs=example_inputs)
'''


@dataclass(frozen=True)
class Step:
    """One strategy, its parameters, and the sites it changes."""

    strategy: str
    parameters: dict[str, str] = field(default_factory=dict)
    sites: tuple[Site, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """Steps in order, and what they were proven on.

    Args:
        steps: What to do.
        model: Class of the model it was made for.
        inputs: The inputs it was verified with.
        mode: inference or training.
        device: Where it was verified and measured.
        versions: Of fusion-advisor, torch and Python.
        measured: The gain and its interval, and the verdict on the outputs, in words.
        notes: What whoever uses it must know.
    """

    steps: tuple[Step, ...]
    model: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    mode: Mode = "inference"
    device: str = "cpu"
    versions: dict[str, str] = field(default_factory=dict)
    measured: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    format: str = FORMAT


def made(
    workload: Workload, steps: tuple[Step, ...], speedup: Speedup | None, verification: Verification | None
) -> Recipe:
    """Write down what was kept for a workload, and what was measured."""
    measured = {}
    if speedup is not None:
        low, high = speedup.ci95
        measured["speedup"] = f"{speedup.median:.3f}x (95 %: {low:.3f}-{high:.3f})"
        measured["two equal copies"] = f"{speedup.aa_band[0]:.3f}-{speedup.aa_band[1]:.3f}x"
    if verification is not None:
        measured["outputs"] = f"{verification.verdict} on {verification.inputs} inputs"
    notes = tuple(dict.fromkeys(f"{step.strategy}: {site.detail}" for step in steps for site in step.sites))
    return Recipe(
        steps, workload.model or "", workload.inputs, workload.mode, workload.device, dict(versions()), measured, notes
    )


def save(folder: Path, recipe: Recipe) -> tuple[str, ...]:
    """Write ``recipe.json`` and ``load_optimized.py`` into a folder, each whole or not at all; return their paths.

    Raises:
        InputError: If the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}.", "Choose another place.") from None
    loader = _LOADER.format(model=recipe.model, steps=", ".join(step.strategy for step in recipe.steps), file=FILE)
    write_atomically(folder / LOADER, loader)
    write_atomically(folder / FILE, json.dumps(to_dict(recipe), indent=2, ensure_ascii=False) + "\n")
    return str(folder / FILE), str(folder / LOADER)


def read(path: str | Path) -> Recipe:
    """Read a recipe file.

    Raises:
        InputError: If there is none, or it is of a format this program does not know.
    """
    try:
        plain = json.loads(Path(path).read_text(encoding="utf-8"))
        if plain["format"] != FORMAT:
            raise InputError(
                f"{path} is a recipe of format {plain['format']}; this program reads {FORMAT}.",
                "Use the fusion-advisor version that wrote it.",
            )
        recipe: Recipe = from_dict(Recipe, plain)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.") from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is not a recipe: {error}.") from None
    return recipe


def apply_recipe(model: nn.Module, recipe: Recipe | str | Path, *, example_inputs: Any = None) -> nn.Module:
    """Return a copy of ``model`` with the recipe's steps done; the model itself is not changed.

    Args:
        model: The model the recipe was made for, with its weights, in evaluation mode.
        recipe: A recipe or the path of its file.
        example_inputs: One call's arguments (a tensor, tuple or dict), checked against those it was verified with.

    Raises:
        InputError: If the inputs do not fit the recipe.
        StrategyError: If the model is not the one the recipe was made for.
    """
    if not isinstance(recipe, Recipe):
        recipe = read(recipe)
    calls: tuple[Call, ...] = ()
    if example_inputs is not None:
        calls = (Call.of(example_inputs),)
        check_inputs(recipe.inputs, calls[0])
    if recipe.model and type(model).__name__ != recipe.model:
        raise StrategyError(
            f"The recipe was made for {recipe.model}, and this is {type(model).__name__}.",
            "Make a recipe for this model with fusion-advisor apply --save.",
        )
    return perform(copy.deepcopy(model), recipe.steps, calls, mode=recipe.mode, device=recipe.device)


def perform(
    model: nn.Module, steps: Iterable[Step], calls: tuple[Call, ...] = (), *, mode: Mode = "inference", device: str
) -> nn.Module:
    """Do the steps on ``model``, a copy the caller owns.

    Raises:
        StrategyError: If a step no longer fits the model.
    """
    for step in steps:
        strategy = strategies.get(step.strategy, step.parameters)
        plan = Plan(step.sites)
        if reason := strategy.recheck(model, plan):
            raise StrategyError(f"{step.strategy} does not fit this model: {reason}", "Make the recipe again.")
        model = strategy.rewrite(model, plan, Subject(model, (), calls, mode, device))
    return model


def check_inputs(specs: tuple[TensorSpec, ...], call: Call) -> None:
    """Compare a call's tensors with those a recipe was verified with; dimension 0, the batch, may differ.

    Raises:
        InputError: If the number, a dtype, a rank or another dimension differs.
    """
    given = [tensor for _, tensor in call.tensors()]
    if len(given) != len(specs):
        raise InputError(f"The recipe was verified with {len(specs)} input tensors; {len(given)} were given.")
    for spec, tensor in zip(specs, given, strict=True):
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype != spec.dtype or len(tensor.shape) != len(spec.shape) or tuple(tensor.shape[1:]) != spec.shape[1:]:
            raise InputError(
                f"Input {spec.name} is {dtype}{list(tensor.shape)}; the recipe was verified with "
                f"{spec.dtype}{list(spec.shape)}.",
                "Make the recipe again with these inputs.",
            )


def versions() -> Mapping[str, str]:
    """Versions a recipe records."""
    import platform

    import torch

    from fusionadvisor import __version__

    return {"fusion-advisor": __version__, "torch": torch.__version__, "python": platform.python_version()}
