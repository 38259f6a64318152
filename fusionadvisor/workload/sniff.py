"""What a file is, told by its content: names lie, and a wrong guess would end in a confusing error much later."""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fusionadvisor.errors import InputError
from fusionadvisor.workload.usercode import shown

Kind = Literal["pickle", "torch", "torchscript", "exported", "safetensors", "index", "folder"]

_HEAD = 4096


@dataclass(frozen=True, slots=True)
class Foreign:
    """A kind of file this program does not load: how it starts, what it is, what to do."""

    start: bytes
    at: int
    what: str
    hint: str


_FOREIGN = (
    Foreign(b"\x89HDF\r\n\x1a\n", 0, "an HDF5 file (Keras)", "Convert the model to PyTorch first."),
    Foreign(b"GGUF", 0, "a GGUF file (llama.cpp)", "Give the PyTorch or safetensors weights it was made from."),
    Foreign(b"TFL3", 4, "a TensorFlow Lite model", "Give the PyTorch model it was converted from."),
    Foreign(b"\x93NUMPY", 0, "a NumPy array", "Pass arrays as inputs; give the .py file that builds the model."),
    Foreign(b"%PDF", 0, "a PDF document", "Give the .py file that builds the model."),
    Foreign(
        b"\x1f\x8b",
        0,
        "a gzip file, perhaps a recorded trace",
        "Read a trace with: fusion-advisor analyze {path}",
    ),
)


def sniff(path: Path) -> Kind:
    """Tell what kind of checkpoint a file or folder is.

    Raises:
        InputError: It is none: missing, empty, cut off, a placeholder, or a format of something else; says which.
    """
    if not path.exists():
        raise InputError(f"{shown(path)} does not exist.", "Check the path.")
    if path.is_dir():
        return _folder(path)
    size = path.stat().st_size
    if size == 0:
        raise InputError(f"{shown(path)} is empty (0 bytes).", "Copy or download it again.")
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    _refuse_placeholders(path, head, size)
    if head.startswith(b"PK\x03\x04"):
        return _zip(path, size)
    if _safetensors_length(head) is not None:
        return "safetensors"
    if head.startswith(b"\x80") and len(head) > 1 and head[1] <= 5:
        return "pickle"
    for foreign in _FOREIGN:
        if head[foreign.at :].startswith(foreign.start):
            raise InputError(
                f"{shown(path)} is {foreign.what}, not a PyTorch model.", foreign.hint.format(path=shown(path))
            )
    if head[:1] == b"\x08" and (b"onnx" in head.lower() or b"pytorch" in head or b"ir_version" in head):
        raise InputError(f"{shown(path)} is an ONNX model.", "Give the PyTorch model it was exported from.")
    raise _text_or_unknown(path, head)


def _refuse_placeholders(path: Path, head: bytes, size: int) -> None:
    if head.startswith(b"version https://git-lfs"):
        raise InputError(
            f"{shown(path)} is a Git LFS pointer ({size} bytes), not a checkpoint.", "Run `git lfs pull` and try again."
        )
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:200].lower()
    if text.startswith((b"<!doctype html", b"<html")) or (text.startswith(b"<") and b"<html" in text):
        raise InputError(
            f"{shown(path)} is an HTML page, not a checkpoint.", "Download the file itself, not the page that shows it."
        )


def _text_or_unknown(path: Path, head: bytes) -> InputError:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith((b"{", b"[")):
        if b'"weight_map"' in head:
            return InputError(
                f"{shown(path)} is the index of a sharded checkpoint.", f"Give its folder: {shown(path.parent)}"
            )
        return InputError(
            f"{shown(path)} looks like a recorded trace, not a model.",
            f"Read it with: fusion-advisor analyze {shown(path)}",
        )
    return InputError(
        f"{shown(path)} is not a Python file or a checkpoint.", "Give the .py file that builds the model."
    )


def _zip(path: Path, size: int) -> Kind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile as error:
        raise InputError(
            f"{shown(path)} is cut off or damaged ({size} bytes).", "Copy or download it again."
        ) from error
    inside = {name.partition("/")[2] or name for name in names}
    if "archive_format" in inside or any(name.startswith("serialized_exported_program") for name in names):
        return "exported"
    if "constants.pkl" in inside or any(name.startswith("code/") for name in inside):
        return "torchscript"
    if "data.pkl" in inside:
        return "torch"
    if any(name.endswith(".npy") for name in names):
        raise InputError(
            f"{shown(path)} holds NumPy arrays.", "Pass arrays as inputs; give the .py file that builds the model."
        )
    what = "a Keras model" if "model.weights.h5" in names else "a zip file"
    raise InputError(f"{shown(path)} is {what}, not a PyTorch checkpoint.", "Give the checkpoint itself.")


def _folder(path: Path) -> Kind:
    if (path / "config.json").is_file() or any(path.glob("*.index.json")):
        return "folder"
    files = sorted(child.name for child in path.glob("*.py"))
    some = f"one of its files: {', '.join(files[:5])}" if files else "the .py file that builds the model"
    raise InputError(f"{shown(path)} is a directory.", f"It holds no model's config.json: give {some}.")


def _safetensors_length(head: bytes) -> int | None:
    """Length of the JSON header: eight bytes, then the JSON object itself (safetensors format)."""
    if len(head) < 10 or head[8:9] != b"{":
        return None
    length = int.from_bytes(head[:8], "little")
    if length > len(head) - 8:
        return length if b'"dtype"' in head or b'"__metadata__"' in head else None
    try:
        return length if isinstance(json.loads(head[8 : 8 + length]), dict) else None
    except ValueError:
        return None
