"""Which line of whose code: the innermost frame outside torch and this package, and the module whose forward it is."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType

from torch import nn

from fusionadvisor.flow.frames import is_user_file
from fusionadvisor.report.model import Source


def locate(frames: Iterable[tuple[FrameType, int]]) -> tuple[nn.Module | None, Source | None]:
    """Return the module whose code runs innermost and the innermost user line; ``frames`` go outwards."""
    owner: nn.Module | None = None
    source: Source | None = None
    for frame, line in frames:
        itself = frame.f_locals.get("self")
        if owner is None and isinstance(itself, nn.Module):
            owner = itself
        if source is None and is_user_file(frame.f_code.co_filename):
            source = Source(frame.f_code.co_filename, line)
        if owner is not None and source is not None:
            break
    return owner, source


def current_frames() -> Iterator[tuple[FrameType, int]]:
    """Frames of the running thread, innermost first, starting at the caller."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def traceback_frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Frames an exception came through, innermost first."""
    found: list[tuple[FrameType, int]] = []
    step: TracebackType | None = error.__traceback__
    while step is not None:
        found.append((step.tb_frame, step.tb_lineno))
        step = step.tb_next
    return reversed(found)


def place(source: Source | None, module: str) -> str:
    """``models/decoder.py:88 (decoder.layers.0)``, as much of it as is known."""
    if source is None:
        return module or "the model"
    return f"{short(source.file)}:{source.line}" + (f" ({module})" if module else "")


def short(file: str) -> str:
    """The path relative to the working directory where it lies below it, else its last two parts."""
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return "/".join(path.parts[-2:])
