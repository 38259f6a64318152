"""Read checkpoints, safely: nothing that a file could run is run unless it is trusted."""

import json
import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any

import torch
from torch import nn
from torch._guards import active_fake_mode

from fusionadvisor.errors import EnvironmentUnfitError, InputError
from fusionadvisor.workload.pickles import unsafe_names
from fusionadvisor.workload.sniff import Kind, sniff
from fusionadvisor.workload.usercode import first_line, shown, user_code
from fusionadvisor.workload.weights import mappings, some

_SHOWN = 6


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds: weights (a nest of mappings), or a model that runs by itself, with its inputs if any."""

    kind: Kind
    weights: Any = None
    model: nn.Module | None = None
    inputs: Any = None

    def describe(self) -> str:
        """How many weights of which names, for a message."""
        found = [tensors for _, tensors in mappings(self.weights)]
        if not found:
            return "no tensors"
        tensors = max(found, key=len)
        shown = ", ".join(f"{name} [{','.join(map(str, t.shape))}]" for name, t in list(tensors.items())[:2])
        return f"{len(tensors)} weights ({shown}{', …' if len(tensors) > 2 else ''})"


def read(path: Path, *, trust: bool = False, home: ModuleType | None = None) -> Contents:
    """Read a checkpoint of any kind this program knows.

    Args:
        path: A file, or a folder with shards.
        trust: Run what a pickle or archive asks for. Without it a file that asks for anything is refused.
        home: Defines what the script that saved a trusted pickle had defined itself.

    Raises:
        InputError: It is damaged, of another kind, or would run code that is not trusted; lists what it would run.
        EnvironmentUnfitError: A package that reads it is not installed.
    """
    kind = sniff(path)
    if kind == "folder":
        return Contents(kind, weights=read_shards(path, trust=trust))
    if kind == "safetensors":
        return Contents(kind, weights=_read_safetensors(path))
    if kind == "torchscript":
        with user_code(
            f"{shown(path)} cannot be loaded as a TorchScript archive", "Save it again with this torch version."
        ):
            return Contents(kind, model=torch.jit.load(str(path), map_location="cpu"))  # type: ignore[no-untyped-call]
    if kind == "exported":
        return _read_exported(path, trust)
    return _read_pickle(path, kind, trust, home)


def _read_pickle(path: Path, kind: Kind, trust: bool, home: ModuleType | None) -> Contents:
    try:
        with user_code(f"{shown(path)} is damaged", "Copy or download it again."):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except InputError as refusal:
        if not isinstance(refusal.__cause__, pickle.UnpicklingError):
            raise
        if not trust:
            raise _untrusted(path) from refusal
        loaded = _unpickled(path, home)
    if isinstance(loaded, nn.Module):
        return Contents(kind, model=loaded)
    return Contents(kind, weights=loaded)


def _unpickled(path: Path, home: ModuleType | None) -> Any:
    """Run what a pickle asks for; what its script had defined itself (``__main__``) is looked up in ``home``."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            if module == "__main__" and hasattr(home, name):
                return getattr(home, name)
            return super().find_class(module, name)

    lookup = ModuleType("pickle")
    vars(lookup).update(vars(pickle), Unpickler=Unpickler)
    try:
        with user_code(f"{shown(path)} cannot be unpickled", "It was saved with other versions of its classes."):
            return torch.load(path, map_location="cpu", weights_only=False, pickle_module=lookup)
    except InputError as failure:
        raise _undefined(path, failure) from failure.__cause__


_ATTRIBUTE = re.compile(r"Can't get attribute '(\w+)' on <module '([\w.]+)'")


def _undefined(path: Path, failure: InputError) -> InputError:
    """What to say where a pickle names what cannot be imported here: whose file to give."""
    cause = failure.__cause__
    if isinstance(cause, ModuleNotFoundError) and cause.name:
        top, last = cause.name.partition(".")[0], cause.name.rpartition(".")[2]
        return InputError(
            f"{shown(path)} was saved with the module {cause.name}, which cannot be imported here.",
            f"Give the file that defines it with --model {last}.py, run from the folder it is in, or install {top}.",
        )
    if (found := _ATTRIBUTE.match(str(cause))) and found[2].rpartition(".")[2] == "__main__":
        return InputError(
            f"{shown(path)} was saved by a script that defines {found[1]} itself.",
            "Give that script, or another file that defines it, with --model SCRIPT.py.",
        )
    return failure


def _untrusted(path: Path) -> InputError:
    names = unsafe_names(path)
    if not names:
        return InputError(f"{shown(path)} is damaged or no torch checkpoint.", "Copy or download it again.")
    return InputError(
        f"{shown(path)} holds more than tensors; loading it would run {some(names, _SHOWN)}.",
        "If you trust where it comes from, add --trust; else ask for a state_dict or safetensors.",
    )


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"{shown(path)} needs the package safetensors.", "pip install 'fusion-advisor[hf]'"
        ) from error
    try:
        return _shapes_alone(path) if active_fake_mode() else dict(load_file(path))
    except SafetensorError as error:
        raise InputError(
            f"{shown(path)} is cut off or damaged: {first_line(str(error))}.", "Download it again."
        ) from error


_SAVED_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
"""The names that the safetensors format has for dtypes."""


def _shapes_alone(path: Path) -> dict[str, torch.Tensor]:
    """Tensors as the header states them: what has no memory needs no content."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        return {n: torch.empty(s.get_shape(), dtype=_SAVED_DTYPES[s.get_dtype()]) for n, s in slices.items()}


def _read_exported(path: Path, trust: bool) -> Contents:
    if not trust and (names := unsafe_names(path)):
        raise InputError(
            f"{shown(path)} is an exported program with Python objects; loading it would run {some(names, _SHOWN)}.",
            "If you trust where it comes from, add --trust.",
        )
    with user_code(
        f"{shown(path)} cannot be loaded as an exported program", "Export it again with this torch version."
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.load(path)
        return Contents("exported", model=program.module(), inputs=program.example_inputs)


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights or an index of them."""
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "*.bin", "*.index.json"))


def read_shards(folder: Path, *, trust: bool = False) -> dict[str, torch.Tensor]:
    """All weights of a folder: one file, or the shards its index names.

    Raises:
        InputError: The index lists a shard that is not there, a shard lacks a weight, or there are no weights.
    """
    for pattern in ("*.safetensors.index.json", "*.bin.index.json", "*.index.json"):
        if index := next(iter(sorted(folder.glob(pattern))), None):
            return _read_index(index, trust)
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).exists():
            return dict(read(folder / name, trust=trust).weights)
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return _read_safetensors(files[0])
    raise InputError(f"{shown(folder)} holds no weights.", "Look for model.safetensors or pytorch_model.bin.")


def _read_index(index: Path, trust: bool) -> dict[str, torch.Tensor]:
    try:
        places: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError) as error:
        raise InputError(f"{shown(index)} is no index of shards.", "Download it again.") from error
    shards = sorted(set(places.values()))
    gone = [shard for shard in shards if not (index.parent / shard).is_file()]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise InputError(
            f"{shown(index)} lists {gone[0]}{more}, which {'is' if len(gone) == 1 else 'are'} not there "
            f"({len(gone)} of {len(shards)} shards missing).",
            "Download the missing shards.",
        )
    weights: dict[str, torch.Tensor] = {}
    for shard in shards:
        held = read(index.parent / shard, trust=trust).weights
        absent = [name for name, place in places.items() if place == shard and name not in held]
        if absent:
            raise InputError(f"{shard} does not hold {absent[0]}, which its index promises.", "Download it again.")
        weights.update(held)
    return weights


ARGUMENTS = ("hyper_parameters", "hparams", "model_args", "model_kwargs", "init_args", "config")
"""Where checkpoints keep what their model was built with; Lightning's name first."""


def saved_arguments(saved: Any) -> dict[str, Any]:
    """What a checkpoint says its model was built with: plain values by name; empty where it does not say."""
    held = [saved[key] for key in ARGUMENTS if isinstance(saved, Mapping) and isinstance(saved.get(key), Mapping)]
    plain = (bool, int, float, str, list, tuple, dict, NoneType)
    return {name: value for name, value in held[0].items() if isinstance(value, plain)} if held else {}


def parse_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """Read ``--model-arg`` texts, ``name=value``: a Python literal where it reads as one, else text.

    Raises:
        InputError: One has no name.
    """
    import ast

    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise InputError(f"--model-arg '{text}' cannot be read.", "Write it as NAME=VALUE, e.g. num_classes=10.")
        try:
            arguments[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            arguments[name.strip()] = value.strip()
    return arguments
