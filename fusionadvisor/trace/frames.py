"""Python frames of a trace: which are modules, which are the user's code, and how they are written."""

import re
import sys
from functools import lru_cache

import msgspec

MODULE = "nn.Module: "
_FRAME = re.compile(r"^(?P<file>.+?\.py)\((?P<line>\d+)\): (?P<function>.*)$", re.DOTALL)
_GENERATED = re.compile(r"(?:^|/)lib/python3[^/]*/|torchinductor_|/tmp/tmp")
_LIBRARIES = frozenset(("torch", "functorch", "triton", "_pytest", "pluggy", "numpy", "typing_extensions"))


@lru_cache(maxsize=1 << 16)
def worth_keeping(name: str) -> bool:
    """Whether a python_function event says where in the user's model the program is."""
    return name.startswith(MODULE) or bool(source_line(name))


def stack_line(recorded: bytes) -> str:
    """Return the first line of user code in an op's recorded call stack (JSON text, innermost first)."""
    try:
        stack = msgspec.json.decode(recorded, type=str) if recorded else ""
    except msgspec.MsgspecError:
        return ""
    return next(filter(None, map(source_line, stack.split(";"))), "")


def module_label(name: str) -> str:
    """Return ``Linear#36`` for the event ``nn.Module: Linear_36``: the class, and which of its instances."""
    name = name.removeprefix(MODULE)
    head, _, number = name.rpartition("_")
    return f"{head}#{number}" if head and number.isdigit() else name


@lru_cache(maxsize=1 << 16)
def source_line(name: str) -> str:
    """Return ``file.py:31`` for a frame of user code, ``""`` for PyTorch, the standard library and built-ins."""
    match = _FRAME.match(name)
    if match is None:
        return ""
    file = match["file"].replace("\\", "/")
    path = re.split(r"(?:site|dist)-packages/", file)[-1]
    if path == file and _GENERATED.search(file):
        return ""
    first = path.split("/")[0].removesuffix(".py")
    if first in _LIBRARIES or (not path.startswith("/") and first in sys.stdlib_module_names) or first.startswith("<"):
        return ""
    return f"{path}:{match['line']}"
