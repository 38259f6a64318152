"""What was kept, as data, and how to do it again: with torch alone loaded, sites re-checked, then rewritten."""

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
from fusionadvisor.report.model import Mode, TensorSpec
from fusionadvisor.strategies import source
from fusionadvisor.strategies.base import Call, Plan, Site, Subject
from fusionadvisor.strategies.modules import described, hooked
from fusionadvisor.workload.copies import duplicate

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

_LOADERS = {
    "model.ts": '''

def load_scripted(device=None):
    """Load the frozen TorchScript archive: weights and code, for torch alone."""
    import torch

    return torch.jit.load(Path(__file__).with_name("{file}"), map_location=device)
''',
    "model.pt2": '''

def load_exported():
    """Load the exported program: weights and graph, for torch alone and the shapes it was verified with."""
    import torch

    return torch.export.load(Path(__file__).with_name("{file}")).module()
''',
    "weights.pt": '''

def load_with_weights(model):
    """Return an optimised copy with the saved weights, whatever weights ``model`` has."""
    import torch

    optimized = load_optimized(model)
    optimized.load_state_dict(torch.load(Path(__file__).with_name("{file}"), weights_only=True))
    return optimized
''',
}
"""What the loader offers for each artefact."""


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
        modules: Class and tensor shapes of each module path; a model that differs is refused.
        code: A fingerprint of the functions that forward runs; empty where their source could not be read.
        artefacts: Files beside the recipe, and what each is.
        keys: Keys of the optimised state dict that differ from the original's: ``changed``, ``added`` or ``removed``.
    """

    steps: tuple[Step, ...]
    model: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    mode: Mode = "inference"
    device: str = "cpu"
    versions: dict[str, str] = field(default_factory=dict)
    measured: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    modules: dict[str, str] = field(default_factory=dict)
    code: str = ""
    artefacts: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    format: str = FORMAT


def fingerprint(model: nn.Module) -> tuple[dict[str, str], str]:
    """What a recipe knows its model by: module descriptions, and a digest of the code."""
    return described(model), source.digest(source.read(model))


def check_folder(folder: Path) -> None:
    """Refuse a folder of the user's: a recipe is written to a new or empty one, or over an earlier recipe.

    Raises:
        InputError: If it is no folder, holds a ``recipe.json`` that is none, or files without a recipe.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder.", "Name another.")
    if (folder / FILE).exists():
        read(folder / FILE)
    elif held := sorted(path.name for path in folder.glob("*")):
        more = f" and {len(held) - 1} more" if len(held) > 1 else ""
        raise InputError(
            f"{folder} holds {held[0]}{more} and no recipe, and is not written to.", "Name a new or empty folder."
        )


def save(folder: Path, recipe: Recipe) -> tuple[str, ...]:
    """Write ``load_optimized.py``, then ``recipe.json``, each whole or not at all; return their paths.

    Raises:
        InputError: If the folder cannot be written.
    """
    loader = _LOADER.format(model=recipe.model, steps=", ".join(step.strategy for step in recipe.steps), file=FILE)
    for name, lines in _LOADERS.items():
        if name in recipe.artefacts:
            loader += lines.format(file=name)
    make_folder(folder)
    write_atomically(folder / LOADER, loader)
    write_atomically(folder / FILE, json.dumps(to_dict(recipe), indent=2, ensure_ascii=False) + "\n")
    return str(folder / FILE), str(folder / LOADER)


def make_folder(folder: Path) -> None:
    """Make a folder where there is none.

    Raises:
        InputError: If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}.", "Choose another place.") from None


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
    check_model(recipe, model)
    work = duplicate(model, training=recipe.mode == "training")
    return perform(work, recipe.steps, calls, mode=recipe.mode, device=recipe.device)


def check_model(recipe: Recipe, model: nn.Module) -> None:
    """Compare a model with the one a recipe was made for; weights may differ, nothing else.

    Raises:
        StrategyError: If it differs; names the first module that does.
    """
    again = "Make a recipe for this model with fusion-advisor apply --save."
    if recipe.model and type(model).__name__ != recipe.model:
        raise StrategyError(f"The recipe was made for {recipe.model}, and this is {type(model).__name__}.", again)
    modules, code = fingerprint(model)
    for path in dict.fromkeys((*recipe.modules, *modules)) if recipe.modules else ():
        made, here = recipe.modules.get(path, "not there"), modules.get(path, "not there")
        if made != here:
            raise StrategyError(f"{path or 'The model'} is {here}; when the recipe was made it was {made}.", again)
    if recipe.code and code != recipe.code:
        if reason := hooked(model):  # its source runs with the model's own
            raise StrategyError(reason, again)
        reason = "cannot be read here" if not code else "is not what it was when the recipe was made"
        raise StrategyError(f"The source of {type(model).__name__} {reason}.", again)


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
            training = mode == "inference" and model.training
            hint = "Call eval() on the model first." if training else "Make the recipe again."
            raise StrategyError(f"{step.strategy} does not fit this model: {reason}", hint)
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
