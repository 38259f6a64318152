"""A checkpoint as a target: the model it holds, or the one its weights belong to with the weights loaded."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from fusionadvisor.errors import InputError
from fusionadvisor.workload.checkpoint import Contents, parse_arguments, read, saved_arguments
from fusionadvisor.workload.inputs import Call, parameter_names
from fusionadvisor.workload.target import Entry, Target, find_entry, load, make_model
from fusionadvisor.workload.weights import fit

_ARCHIVES = {
    "torchscript": "a TorchScript archive",
    "exported": "an exported program",
    "pickle": "a pickled module",
    "torch": "a pickled module",
}


def open_saved(
    path: Path, entry: str | None, model_from: str | None, model_args: Sequence[str], *, trust: bool
) -> tuple[Target, Entry]:
    """Read a checkpoint and build its model.

    Args:
        path: A checkpoint file, or a folder with a config or shards.
        entry: Which call of a Hugging Face model; for others what is named in ``model_from``.
        model_from: ``file.py:name`` or ``package.module:name`` of the model the weights belong to.
        model_args: ``name=value`` texts to build that model with.
        trust: Run what the checkpoint asks for.

    Raises:
        InputError: It cannot be read or trusted, needs a model to be named, or does not fit the one that is.
        EnvironmentUnfitError: A package that reads it is not installed.
    """
    if model_from is None and (path / "config.json").is_file():
        from fusionadvisor.workload.huggingface import open_folder

        return open_folder(path, entry, trust=trust)
    if entry is not None and model_from is None:
        raise InputError(f"{path.name} has no entry '{entry}'.", "Leave --entry out.")
    # what a trusted pickle names may be defined in the model's file
    target = load(model_from, entry) if model_from and trust else None
    contents = read(path, trust=trust, home=target.module if target else None)
    if contents.model is not None:
        return _archive(path, contents, model_from, model_args)
    if model_from is None:
        raise InputError(
            f"{path.name} holds {contents.describe()}, and no model.",
            "Name the model they belong to with --model FILE.py:NAME.",
        )
    target = target or load(model_from, entry)
    found = find_entry(target)
    given = parse_arguments(model_args)
    taken = parameter_names(found.value) if found.kind in ("factory", "class") else ()
    held = {name: value for name, value in saved_arguments(contents.weights).items() if name in taken}
    stated = {name: value for name, value in held.items() if name not in given}
    model = make_model(target, found, {**stated, **given})
    said = fit(model, contents.weights, path.name, taken)
    if stated:
        said = (f"{', '.join(f'{name}={value!r}' for name, value in stated.items())} as saved in it", *said)
    whole = Target(str(path), path.name, target.module, None, [*target.assumed, *said])
    return whole, Entry(found.name, "checkpoint", model)


def _archive(path: Path, contents: Contents, model_from: str | None, model_args: Sequence[str]) -> tuple[Target, Entry]:
    what = _ARCHIVES[contents.kind]
    model = contents.model
    of_classes = contents.kind in ("pickle", "torch")
    if model_args or (model_from and not of_classes):
        raise InputError(f"{path.name} is {what} and holds its model.", "Leave --model and --model-arg out.")
    inputs = Call(tuple(contents.inputs[0]), contents.inputs[1]) if contents.inputs else None
    said = f"model from {what}" + (f", its classes from {Path(model_from).name}" if model_from else "")
    target = Target(str(path), path.name, ModuleType(path.stem), None, [said], inputs)
    return target, Entry(type(model).__name__, "archive", model)
