"""What was kept, as data, and how to do it again: with torch alone loaded, sites re-checked, then rewritten."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from fusionadvisor import strategies
from fusionadvisor.errors import InputError, StrategyError
from fusionadvisor.files import put_in_place, sha256, write_atomically
from fusionadvisor.report.codec import from_dict, to_dict
from fusionadvisor.report.model import Mode, TensorSpec
from fusionadvisor.strategies import passfile
from fusionadvisor.strategies.base import Call, Plan, Site, Subject
from fusionadvisor.strategies.legality import observe
from fusionadvisor.strategies.modules import class_name, described, hooked
from fusionadvisor.workload.copies import duplicate

FORMAT = "1"
CODE = "code"
"""Folder of a recipe with what its strategies run of the user's."""
FILE = "recipe.json"
LOADER = "load_optimized.py"
_AGAIN = "Make the recipe again with fusion-advisor apply --save."

_LOADER = '''"""{model}, optimised by fusion-advisor: {steps}.

Build the model and load its weights as before, then: ``model = load_optimized(model.eval())``.
"""

import hashlib
import json
from pathlib import Path

HERE = Path(__file__).parent


def load_optimized(model, example_inputs=None):
    """Return an optimised copy; refuses a model or inputs that are not those the recipe was verified with."""
    import fusionadvisor

    return fusionadvisor.apply_recipe(model, HERE / "{file}", example_inputs=example_inputs)


def verified(name):
    """Return the path of a file of the recipe, if it is still the one that was verified."""
    known = json.loads((HERE / "{file}").read_text(encoding="utf-8"))["files"][name]
    with open(HERE / name, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != known:
            raise RuntimeError(f"{{HERE / name}} is not the file that was verified with this recipe.")
    return HERE / name
'''

_LOADERS = {
    "model.ts": '''

def load_scripted(device=None):
    """Load the frozen TorchScript archive: weights and code, for torch alone."""
    import torch

    return torch.jit.load(verified("{file}"), map_location=device)
''',
    "model.pt2": '''

def load_exported():
    """Load the exported program: weights and graph, for torch alone and the shapes it was verified with."""
    import torch

    return torch.export.load(verified("{file}")).module()
''',
    "weights.pt": '''

def load_with_weights(model):
    """Return an optimised copy with the saved weights, whatever weights ``model`` has."""
    import torch

    optimized = load_optimized(model)
    optimized.load_state_dict(torch.load(verified("{file}"), weights_only=True))
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
        files: The SHA-256 of each file beside the recipe that is loaded or run: artefacts, and under ``code/`` what
            strategies run of the user's.
        keys: Keys of the optimised state dict that differ from the original's: ``changed``, ``added`` or ``removed``.
        limits: What the original can do and the optimised model cannot, and why.
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
    files: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    format: str = FORMAT


def fingerprint(model: nn.Module) -> tuple[dict[str, str], str]:
    """What a recipe knows its model by: module descriptions, and a digest of the code."""
    return described(model), observe.read(model).fingerprint


def check_folder(folder: Path) -> None:
    """Refuse a folder of the user's: a recipe is written to a new or empty one, or takes the place of an earlier one.

    Raises:
        InputError: If it is no folder, cannot be replaced as a whole, holds a ``recipe.json`` that is none, or files
            that are not of the recipe.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder.", "Name another.")
    earlier = (folder / FILE).exists()
    known = {FILE, LOADER, CODE, "__pycache__", *read(folder / FILE).artefacts} if earlier else set()
    if held := sorted(path.name for path in folder.iterdir() if path.name not in known):
        more = f" and {len(held) - 1} more" if len(held) > 1 else ""
        what = "which is not of the recipe in it" if earlier else "and no recipe"
        raise InputError(
            f"{folder} holds {held[0]}{more}{',' if earlier else ''} {what}, and is not written to.",
            "Name a new or empty folder.",
        )
    place = folder.resolve()
    if place.is_mount() or place in (Path.cwd(), *Path.cwd().parents) or not os.access(place.parent, os.W_OK):
        raise InputError(f"{folder} cannot be replaced as a whole.", "Name a new folder in it.")


@contextmanager
def draft(folder: Path) -> Iterator[Path]:
    """A folder beside ``folder`` to write a recipe into; :func:`publish` puts it in its place, else it goes again.

    Raises:
        InputError: If it cannot be made.
    """
    place = folder.resolve()
    for left in place.parent.glob(f".{place.name}.*.draft"):
        pid = left.name.split(".")[-2]
        if pid.isdigit() and not _runs(int(pid)):  # it was killed
            shutil.rmtree(left, ignore_errors=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}.draft")
    make_folder(beside)
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def publish(beside: Path, folder: Path) -> None:
    """Put a recipe that was written and verified beside ``folder`` in its place, as a whole.

    Raises:
        InputError: If ``folder`` cannot be replaced, or meanwhile holds what is not of a recipe.
    """
    check_folder(folder)
    place = folder.resolve()
    try:
        if place.exists():
            shutil.copymode(place, beside)
        put_in_place(beside, place)
    except OSError as error:
        raise InputError(f"{folder} cannot be replaced: {error.strerror}.", "Choose another place.") from None


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
    folder = None
    if not isinstance(recipe, Recipe):
        folder, recipe = Path(recipe).parent, read(recipe)
    calls: tuple[Call, ...] = ()
    if example_inputs is not None:
        calls = (Call.of(example_inputs),)
        check_inputs(recipe.inputs, calls[0])
    steps = located(recipe, folder)
    check_model(recipe, model)
    work = duplicate(model, training=recipe.mode == "training")
    return perform(work, steps, calls, mode=recipe.mode, device=recipe.device)


def check_file(recipe: Recipe, folder: Path, name: str) -> Path:
    """The path of a file of a recipe, if it is the one that was verified.

    Raises:
        StrategyError: If it is another.
    """
    path = folder / name
    if name not in recipe.files:
        raise StrategyError(f"{path} is not of the recipe beside it.", _AGAIN)
    if not path.is_file():
        raise StrategyError(f"{path} is missing.", _AGAIN)
    if sha256(path) != recipe.files[name]:
        raise StrategyError(f"{path} is not the file that was verified with this recipe.", _AGAIN)
    return path


def located(recipe: Recipe, folder: Path | None) -> tuple[Step, ...]:
    """The steps of a recipe in a folder, with the user's files that they run: those in it, once they were checked.

    Raises:
        StrategyError: If a file is missing, is another one, or is not of the recipe.
    """
    steps = []
    for step in recipe.steps:
        parameters = dict(step.parameters)
        for name in strategies.get(step.strategy).runs:
            if where := parameters.get(name):
                file, _, function = where.rpartition(":")
                if folder is None or file not in recipe.files or not file.startswith(f"{CODE}/"):
                    raise StrategyError(f"{step.strategy} runs {where}, and no copy of it is in a recipe here.", _AGAIN)
                parameters[name] = f"{folder / file}:{function}"
        if parameters != step.parameters:
            assert folder is not None
            there = (path.relative_to(folder).as_posix() for path in sorted((folder / CODE).rglob("*.py")))
            for held in dict.fromkeys((*there, *(name for name in recipe.files if name.startswith(f"{CODE}/")))):
                check_file(recipe, folder, held)
        steps.append(replace(step, parameters=parameters))
    return tuple(steps)


def with_code(steps: Iterable[Step]) -> tuple[tuple[Step, ...], dict[str, bytes], tuple[str, ...]]:
    """Steps that run copies of the user's files, those copies by name, and what is not among them, in sentences."""
    made, contents, notes = [], {}, []
    for step in steps:
        parameters = dict(step.parameters)
        for name in strategies.get(step.strategy).runs:
            if where := parameters.get(name):
                path, function = passfile.split(where)
                parameters[name] = f"{CODE}/{path.name}:{function}"
                for file in (path, *passfile.beside(path).values()):
                    contents[f"{CODE}/{file.relative_to(path.parent).as_posix()}"] = file.read_bytes()
                if place := passfile.unnamed(path):
                    notes.append(f"{place} may load files by name: such files are not in the recipe.")
        made.append(replace(step, parameters=parameters))
    return tuple(made), contents, tuple(notes)


def check_model(recipe: Recipe, model: nn.Module) -> None:
    """Compare a model with the one a recipe was made for; weights may differ, nothing else.

    Raises:
        StrategyError: If it differs; names the first module that does.
    """
    again = "Make a recipe for this model with fusion-advisor apply --save."
    if recipe.model and class_name(model) != recipe.model:
        raise StrategyError(f"The recipe was made for {recipe.model}, and this is {class_name(model)}.", again)
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
