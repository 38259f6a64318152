"""Ctrl-C: the first ends what is being measured, so that what there is gets reported; a second ends the program."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def twice() -> Iterator[None]:
    """For a program of our own: the first Ctrl-C raises ``KeyboardInterrupt``, the next ends the process at once."""
    if not _ours_to_handle(signal.default_int_handler):
        yield
        return
    signal.signal(signal.SIGINT, _raise_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def held() -> Iterator[list[int]]:
    """Note a Ctrl-C instead of raising it, while what was measured is made into a report.

    Yields:
        A list that is not empty once it was pressed. Pressed again, it does what it did outside.
    """
    pressed: list[int] = []
    if not _ours_to_handle(signal.default_int_handler, _raise_once):
        yield pressed
        return
    before = signal.getsignal(signal.SIGINT)
    again = signal.SIG_DFL if before is _raise_once else before

    def note(number: int, _: FrameType | None) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, again)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, again if pressed else before)


def _raise_once(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


def _ours_to_handle(*known: object) -> bool:
    """Handlers can be set in the main thread alone, and those of the user's code stay."""
    return threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) in known
