"""Which line of the user's code is running: the innermost frame outside torch, the standard library and this one."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fusionadvisor.flow.graph import Frame, Phase

_TORCH = str(Path(torch.__file__).parent) + os.sep
_OWN = str(Path(__file__).parents[1]) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_SITE = tuple({sysconfig.get_paths()[kind] + os.sep for kind in ("purelib", "platlib")})

_PARSER = tuple(site + "typer" + os.sep for site in _SITE)
"""What calls this program's commands: the innermost frame left where a model has no Python code, as TorchScript."""

_PHASE_FILES: dict[str, Phase] = {
    "optim/": "optimizer",
    "nn/utils/clip_grad.py": "optimizer",
    "amp/grad_scaler.py": "optimizer",
    "autograd/__init__.py": "backward",
    "autograd/graph.py": "backward",
}
"""Files of torch that tell the phase by being on the stack: they run optimizers and start the backward pass."""


@dataclass(frozen=True, slots=True)
class Where:
    """What the Python stack tells: the user's line, and the phase where a frame of torch gives it away."""

    frame: Frame | None
    phase: Phase | None


_user_file: dict[str, bool] = {}
_phase_of_file: dict[str, Phase | None] = {}


def is_user_file(name: str) -> bool:
    """Whether a frame's file is neither torch's, nor the standard library's, nor this package's, nor generated."""
    # generated code has a name in angle brackets and no line anyone could open
    if name.startswith(("<", _TORCH, _OWN, *_PARSER)):
        return False
    return not name.startswith(_STDLIB) or name.startswith(_SITE)


def _phase_from_file(name: str) -> Phase | None:
    if not name.startswith(_TORCH):
        return None
    inside = name[len(_TORCH) :].replace(os.sep, "/")
    return next((phase for prefix, phase in _PHASE_FILES.items() if inside.startswith(prefix)), None)


def where(root: CodeType | None = None) -> Where:
    """Walk the Python stack from the caller outwards, to the function that started the run if that is given."""
    current: FrameType | None = sys._getframe(1)
    frame: Frame | None = None
    phase: Phase | None = None
    while current is not None and current.f_code is not root:
        name = current.f_code.co_filename
        if name not in _user_file:
            _user_file[name], _phase_of_file[name] = is_user_file(name), _phase_from_file(name)
        phase = phase or _phase_of_file[name]
        if frame is None and _user_file[name]:
            frame = Frame(name, current.f_lineno, current.f_code.co_name)
        current = current.f_back
    return Where(frame, phase)


_built: WeakKeyDictionary[nn.Module, Frame] = WeakKeyDictionary()


@contextmanager
def construction_watched() -> Iterator[None]:
    """Remember where the user's code builds each module, for :func:`built_at`."""
    original = nn.Module.__init__

    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        frame = where().frame
        if frame is not None and type(self).__hash__ is not None:
            _built[self] = frame
        original(self, *args, **kwargs)

    nn.Module.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__init__ = original  # type: ignore[method-assign]


def built_at(module: nn.Module) -> Frame | None:
    """The line that built a module; stands in for the line that calls it where torch's containers do the calling."""
    return _built.get(module) if type(module).__hash__ is not None else None


def built_alike(copy: nn.Module, original: nn.Module) -> None:
    """Let a deep copy's modules have been built where the original's were."""
    for (_, new), (_, old) in zip(copy.named_modules(), original.named_modules(), strict=True):
        if (frame := built_at(old)) is not None:
            _built[new] = frame
