"""A recorded trace to a :class:`~fusionadvisor.trace.timeline.Timeline`.

``fusionadvisor.trace.load("trace.json.gz").kernels`` is a documented DataFrame.
"""

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from fusionadvisor.trace.timeline import Timeline


def load(source: str | Path | BinaryIO, *, stand_ins: bool = False) -> "Timeline":
    """Read one Kineto/Chrome trace: JSON, gzip or zip of it, told apart by content.

    Args:
        source: A file's path, ``"-"`` for standard input, or a binary stream.
        stand_ins: Where the trace holds no GPU events, let leaf CPU ops stand in for kernels instead of refusing.

    Raises:
        InputError: If the file cannot be read, is no trace, or holds no GPU events.
    """
    from fusionadvisor.trace.build import load_timeline

    return load_timeline(source, stand_ins=stand_ins)
