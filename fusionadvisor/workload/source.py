"""Where a model's inputs come from: the user's file, --input, the model itself, or a guess from its first layer."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fusionadvisor.errors import InputError
from fusionadvisor.report.model import TensorSpec, Workload
from fusionadvisor.workload.inputs import Declared, Given, Made, Source, forward_names
from fusionadvisor.workload.target import Target, find_inputs, required_arguments
from fusionadvisor.workload.usercode import set_mode, user_code

_GUESSED_BATCH = 8


def find_source(workload: Workload, target: Target, model: nn.Module) -> tuple[Source, str, list[str]]:
    """The inputs of a model, where they come from (for ``Workload.inputs_from``), and what had to be assumed.

    Raises:
        InputError: There are none and none can be guessed, or a file of inputs does not read.
    """
    given_by = workload.inputs_from
    if given_by.startswith("--input "):
        file = Path(given_by.removeprefix("--input "))
        return Given(read_inputs(file), file.name, workload.seed), given_by, []
    if given_by in ("--input", "guess"):
        specs = _complete(workload.inputs, model)
        apart = _apart(specs, workload.device) if given_by == "--input" else {}
        return Declared(specs, workload.seed, apart), given_by, []
    if target.make_inputs is not None:
        return Made(target.make_inputs, workload.seed), "", []
    if target.inputs is not None:
        return Given(target.inputs, target.label, workload.seed), "", []
    if name := find_inputs(target.module, workload.mode == "training"):
        value = getattr(target.module, name)
        called = callable(value) and not isinstance(value, torch.Tensor)
        source = Given(value, f"{target.label}:{name}", workload.seed)
        return source, name, [f"inputs from {name}{'()' if called else ''}"]
    example = getattr(model, "example_input_array", None)
    if example is not None:
        return Given(example, "example_input_array", workload.seed), "", ["inputs from example_input_array"]
    return _guessed(workload, target, model)


def _apart(specs: tuple[TensorSpec, ...], device: str) -> dict[str, str]:
    """The inputs that are to be on another device than the model, by name."""
    kind = torch.device(device).type
    return {spec.name: spec.device for spec in specs if spec.device not in ("", kind, device)}


def _guessed(workload: Workload, target: Target, model: nn.Module) -> tuple[Source, str, list[str]]:
    name = type(model).__name__
    scripted = isinstance(model, torch.jit.ScriptModule)
    if not scripted and type(model).forward is nn.Module.forward:
        raise InputError(f"{name} has no forward().", f"Name the whole model: {target.label}:NAME.")
    takes = forward_names(model)
    needed = required_arguments(model.forward)
    if not takes and not scripted:
        return Given((), "forward", workload.seed), "", []
    failure: InputError | None = None
    if len(needed) <= 1:
        for layer, spec in guesses(model):
            named = replace(spec, name=(needed or list(takes) or ["input0"])[0])
            source = Declared((named,), workload.seed)
            failure = _failure(model, source)
            if failure is None:
                shape = ",".join(map(str, spec.shape))
                return source, "guess", [f"input {named.name}={spec.dtype}[{shape}], guessed from {layer}"]
    define = "Define example_inputs() in it, or pass" if hasattr(target.module, "__file__") else "Pass"
    raise InputError(
        f"{target.label} gives no inputs for {name} (its forward takes {', '.join(takes) or 'inputs'}).",
        f'{define} --input "{takes[0] if takes else "x"}=float32[8,3,224,224]".',
    ) from failure


def _failure(model: nn.Module, source: Source) -> InputError | None:
    """What the model raises on a guess; None where it runs."""
    training = model.training
    call = source.draw(0, ())
    try:
        with user_code("the guess fails"), torch.no_grad():
            set_mode(model, training=False)
            model(*call.args, **call.kwargs)
    except InputError as failure:
        return failure
    finally:
        set_mode(model, training=training)
    return None


def guesses(model: nn.Module) -> Iterator[tuple[str, TensorSpec]]:
    """Inputs the first layer with weights could take, likeliest first, with the layer in words."""
    dtype = next((str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.is_floating_point()), "float32")
    for layer in model.modules():
        shapes = list(_shapes(layer))
        if not shapes:
            continue
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            high = float(layer.num_embeddings - 1)
            words = f"Embedding({layer.num_embeddings}, …)"
            yield from ((words, TensorSpec("", shape, "int64", low=0.0, high=high)) for shape in shapes)
        else:
            words = f"{type(layer).__name__}({_width(layer)}, …)"
            yield from ((words, TensorSpec("", shape, dtype)) for shape in shapes)
        return


def _width(layer: Any) -> int:
    return int(getattr(layer, "in_features", None) or getattr(layer, "in_channels", None) or layer.input_size)


def _shapes(layer: nn.Module) -> list[tuple[int, ...]]:
    batch = _GUESSED_BATCH
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return [(batch, 128), (batch, 16)]
    if isinstance(layer, nn.Linear):
        return [(batch, layer.in_features), (batch, 16, layer.in_features)]
    if isinstance(layer, nn.Conv1d):
        return [(batch, layer.in_channels, size) for size in (1024, 128)]
    if isinstance(layer, nn.Conv2d):
        return [(batch, layer.in_channels, size, size) for size in (224, 64, 32, 28)]
    if isinstance(layer, nn.Conv3d):
        return [(2, layer.in_channels, 16, size, size) for size in (112, 32)]
    if isinstance(layer, nn.RNNBase):
        return [(batch, 32, layer.input_size)]
    return []


def _complete(specs: tuple[TensorSpec, ...], model: nn.Module) -> tuple[TensorSpec, ...]:
    """Names by position, and a range for integers that have none: the smallest embedding they could index."""
    names = forward_names(model)
    rows = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    highest = float(min(rows) - 1) if rows else 1.0
    completed = []
    for position, spec in enumerate(specs):
        name = spec.name or (names[position] if position < len(names) else f"input{position}")
        ranged = spec.high is not None or "int" not in spec.dtype
        completed.append(replace(spec, name=name) if ranged else replace(spec, name=name, low=0.0, high=highest))
    return tuple(completed)


def read_inputs(path: Path) -> Any:
    """Inputs from a file: a tensor, tuple or dict saved with torch, arrays of an .npz, or safetensors.

    Raises:
        InputError: It does not read, or holds more than tensors.
    """
    from fusionadvisor.workload.checkpoint import read

    if path.suffix == ".npz":
        return _read_npz(path)
    contents = read(path)
    if contents.weights is None:
        raise InputError(f"--input {path.name} holds a model, not inputs.", "Save the tensors with torch.save.")
    return contents.weights


def _read_npz(path: Path) -> Any:
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except (ValueError, OSError, zipfile.BadZipFile, TypeError) as error:
        raise InputError(f"--input {path.name} is no .npz of plain arrays.", "Save it with numpy.savez.") from error
    positional = all(name == f"arr_{i}" for i, name in enumerate(tensors))
    return tuple(tensors.values()) if positional else tensors
