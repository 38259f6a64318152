"""Ops computed on the fake device; see :mod:`ops` for eager ones and :mod:`compiled` for Inductor's."""

from collections.abc import Callable
from typing import Any


def install(after_import: Callable[[str, Callable[[Any], None]], None]) -> None:
    """Have all that torch does on CUDA computed from here on; ``after_import`` calls back once a module has run."""
    from . import compiled, ops

    ops.install()
    compiled.install(after_import)
