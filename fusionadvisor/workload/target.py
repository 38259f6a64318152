"""What was typed, taken apart: which file, which model in it, which inputs."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from torch import nn

from fusionadvisor.errors import InputError, did_you_mean
from fusionadvisor.workload.inputs import Call, parameter_names
from fusionadvisor.workload.sniff import sniff
from fusionadvisor.workload.usercode import load_file, load_module, user_code

FACTORIES = ("build_model", "get_model", "create_model", "make_model")
INSTANCES = ("model", "net", "module")
INPUTS = (
    "example_inputs", "get_inputs", "get_example_inputs", "example_input", "sample_inputs", "sample_input",
    "get_input", "inputs",
)  # fmt: skip
SAVED = (".pt", ".pth", ".pt2", ".ckpt", ".bin", ".safetensors")
"""How checkpoints are called: a name with such an ending is not taken for a module's."""
BATCHES = ("get_batch", "example_batch", "sample_batch", "batch")

Kind = Literal["factory", "module", "class", "checkpoint", "archive", "pretrained"]


@dataclass(frozen=True)
class Entry:
    """The model found in a file: the name it has there and how to get it.

    A factory or class is called to get it; of every other kind ``value`` is the model.
    """

    name: str
    kind: Kind
    value: Any


@dataclass
class Target:
    """What was typed, taken apart and loaded."""

    text: str
    """The target with its path made absolute, without the entry."""
    label: str
    """The target as people should type it."""
    module: ModuleType
    entry: str | None = None
    assumed: list[str] = field(default_factory=list)
    inputs: Any = None
    """Inputs that come with the model: a Call."""
    make_inputs: Callable[[int], Call] | None = None
    """Makes inputs of a batch size."""


# -- the file ---------------------------------------------------------------------------------------------------


def load(target: str, entry: str | None = None) -> Target:
    """Load the Python file or module a target names.

    Raises:
        InputError: It is missing, a directory, not Python, or does not load.
    """
    place, named = _split(target)
    path = Path(place).expanduser()
    if path.suffix in (".py", *SAVED) or path.exists() or "/" in place:
        _check_file(path)
        absolute = path.resolve()
        return Target(str(absolute), path.name, load_file(absolute), entry or named)
    if all(part.isidentifier() for part in place.split(".")):
        return Target(place, place, load_module(place), entry or named)
    raise InputError(f"{place} does not exist.", _nearby(path))


def absolute(target: str) -> str:
    """A target with the path in it made absolute, if it is one."""
    place, name = _split(target)
    path = Path(place).expanduser()
    return f"{path.resolve()}{':' + name if name else ''}" if path.exists() else target


def _split(target: str) -> tuple[str, str | None]:
    place, colon, name = target.rpartition(":")
    if colon and place and all(part.isidentifier() for part in name.split(".")):
        return place, name
    return target, None


def check_there(target: str) -> None:
    """Refuse the path of a file that is not there; what may be a module is let through.

    Raises:
        InputError: There is no such file.
    """
    place, _ = _split(target)
    path = Path(place).expanduser()
    if path.suffix in (".py", *SAVED) or "/" in place:
        _refuse_missing(path)


def _refuse_missing(path: Path) -> None:
    if not path.exists():
        raise InputError(f"{path} does not exist.", _nearby(path))


def _check_file(path: Path) -> None:
    _refuse_missing(path)
    if path.suffix == ".py" and path.is_file():
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty.", "Give the .py file that builds the model.")
        return
    kind = sniff(path)  # refuses in words what is no checkpoint either
    raise InputError(f"{path} is a checkpoint ({kind}), not a Python file.", "Give the file that builds the model.")


def saved_path(target: str) -> Path | None:
    """The path of a target that is no Python file or module but exists: a checkpoint, or something to refuse."""
    path = Path(target).expanduser()
    is_python = path.suffix == ".py" and path.is_file()
    if not path.exists() or is_python:
        return None
    return path.resolve().parent if path.name == "config.json" else path.resolve()


def _nearby(path: Path) -> str:
    names = [child.name for child in path.parent.glob(f"*{path.suffix if path.suffix in SAVED else '.py'}")]
    hint = did_you_mean(path.name, names) if names else ""
    return hint if hint.startswith("Did") else "Check the path."


# -- the model --------------------------------------------------------------------------------------------------


def find_entry(target: Target) -> Entry:
    """The model a file offers, by the name given or by convention.

    Raises:
        InputError: None or several are found (they are listed), or the one named is no model.
    """
    if target.entry is not None:
        return _named(target, target.entry)
    offers = vars(target.module)
    for name in FACTORIES:
        if callable(offers.get(name)):
            target.assumed.append(f"model from {name}()")
            return Entry(name, "factory", offers[name])
    for name in INSTANCES:
        if isinstance(offers.get(name), nn.Module):
            target.assumed.append(f"model from the variable {name}")
            return Entry(name, "module", offers[name])
    instances = [name for name, value in offers.items() if isinstance(value, nn.Module)]
    if len(instances) == 1:
        target.assumed.append(f"model from the variable {instances[0]}")
        return Entry(instances[0], "module", offers[instances[0]])
    classes = _own_classes(target.module)
    if not instances and len(classes) == 1:
        target.assumed.append(f"model from the class {classes[0]}")
        return Entry(classes[0], "class", offers[classes[0]])
    raise _not_one(target, instances or classes, "model" if instances else "nn.Module class")


def _own_classes(module: ModuleType) -> list[str]:
    return [
        name for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__
    ]  # fmt: skip


def _not_one(target: Target, found: list[str], what: str) -> InputError:
    if found:
        names = ", ".join(found[:8]) + (", …" if len(found) > 8 else "")
        return InputError(
            f"{target.label} holds {len(found)} candidates ({what}): {names}.",
            f"Name one: {target.label}:{found[-1]}, or define build_model() in it.",  # parts stand before the whole
        )
    functions = [
        name for name, value in vars(target.module).items()
        if inspect.isfunction(value) and value.__module__ == target.module.__name__ and not name.startswith("_")
    ]  # fmt: skip
    offered = f" (its functions: {', '.join(functions[:8])})" if functions else ""
    hint = f"Name one: {target.label}:{functions[0]}, or define" if functions else "Define"
    return InputError(f"{target.label} holds no model{offered}.", f"{hint} build_model() that returns an nn.Module.")


def _named(target: Target, name: str) -> Entry:
    value: Any = target.module
    for part in name.split("."):
        if not hasattr(value, part):
            known = [n for n, v in vars(target.module).items() if not n.startswith("_") and _could_be(v, target.module)]
            hint = did_you_mean(name, known) if known else "It holds no model."
            raise InputError(f"{target.label} has no '{name}'.", hint)
        value = getattr(value, part)
    if isinstance(value, nn.Module):
        return Entry(name, "module", value)
    if isinstance(value, type) and issubclass(value, nn.Module):
        return Entry(name, "class", value)
    if callable(value):
        return Entry(name, "factory", value)
    raise InputError(
        f"{target.label}:{name} is {_a(type(value).__name__)}, not a model.",
        "Name an nn.Module, its class, or a function that returns one.",
    )


def _could_be(value: Any, module: ModuleType) -> bool:
    return isinstance(value, nn.Module) or (callable(value) and getattr(value, "__module__", "") == module.__name__)


def make_model(target: Target, entry: Entry, arguments: Mapping[str, Any] | None = None) -> nn.Module:
    """Build the model an entry stands for, with keyword arguments where they are given.

    Raises:
        InputError: It needs other arguments, raises, or does not return a module.
    """
    label = f"{target.label}:{entry.name}"
    given = dict(arguments or {})
    if entry.kind not in ("factory", "class"):
        if given:
            raise InputError(f"{label} is a model already and takes no --model-arg.", "Name its class or a function.")
        return entry.value  # type: ignore[no-any-return]
    taken = parameter_names(entry.value)
    if unknown := [name for name in given if not takes_any(entry.value) and name not in taken]:
        raise InputError(f"{label} takes no argument '{unknown[0]}'.", did_you_mean(unknown[0], taken))
    if needed := [name for name in required_arguments(entry.value) if name not in given]:
        raise InputError(
            f"{label} needs arguments to be built: {', '.join(needed)}.",
            f"Pass {' '.join(f'--model-arg {name}=VALUE' for name in needed)}, or define a build_model().",
        )
    with user_code(f"{label} failed"):
        model = entry.value(**given)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{label} returned {_a(type(model).__name__)}, not an nn.Module.", "Name a function that returns the model."
        )
    return model


def required_arguments(function: Any) -> list[str]:
    """Parameters without a default that a call has to give."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        p.name for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]  # fmt: skip


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def find_inputs(module: ModuleType, training: bool) -> str | None:
    """Name of the function or value that gives the inputs, None where there is none."""
    names = (*BATCHES, *INPUTS) if training else INPUTS
    return next((name for name in names if getattr(module, name, None) is not None), None)


def takes_any(function: Any) -> bool:
    """Whether it takes any keyword."""
    try:
        return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return True
