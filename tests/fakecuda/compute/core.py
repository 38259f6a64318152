"""The functions of the fake device's core library."""

import ctypes
import os
from collections.abc import Callable
from typing import Any

_LIBRARY = ctypes.CDLL(os.environ["FAKECUDA_CORE"])
_LIBRARY.fakecuda_captured.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
_LIBRARY.fakecuda_dropped.restype = ctypes.c_uint64
_LIBRARY.fakecuda_uncomputed.restype = ctypes.c_char_p
_LIBRARY.fakecuda_answer.argtypes = [ctypes.c_int64]
_LIBRARY.fakecuda_mapped.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBRARY.fakecuda_pause.argtypes = [ctypes.c_uint64]
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
_kept: list[Any] = []

scope: Callable[[int], None] = _LIBRARY.fakecuda_scope
"""Enter (1) or leave (-1), on this thread, what will be computed."""
changed: Callable[[], None] = _LIBRARY.fakecuda_changed
"""Say that Python wrote to the device's memory."""
pause: Callable[[int], None] = _LIBRARY.fakecuda_pause
"""Let the device's clock stand for so many nanoseconds, which computing took."""
answer: Callable[[int], None] = _LIBRARY.fakecuda_answer
"""What the op in progress is to read where it reads a count back; -1: what is there."""


def call_back(compute: Callable[[int], None]) -> None:
    """Have this called at its place in each replay, with the number that :func:`captured` was given."""
    _kept.append(_CALLBACK(compute))
    _LIBRARY.fakecuda_set_compute(_kept[-1])


def captured(stream: int, number: int) -> bool:
    """Whether the stream captures; if so the graph holds the number (0: nothing) from here on."""
    return bool(_LIBRARY.fakecuda_captured(stream, number))


def dropped() -> int:
    """A number that no graph holds any more; 0: none."""
    return int(_LIBRARY.fakecuda_dropped())


def uncomputed() -> str:
    """The first kernel since the last question that ran outside of all that is computed; empty: none."""
    name = _LIBRARY.fakecuda_uncomputed()
    return name.decode() if name else ""


def mapped(pointer: int, size: int) -> bool:
    """Whether this memory is the device's."""
    return bool(_LIBRARY.fakecuda_mapped(pointer, size))
