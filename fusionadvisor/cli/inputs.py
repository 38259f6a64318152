"""What ``compare`` and ``check`` are given: a report, or a trace that becomes one."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fusionadvisor.errors import InputError
from fusionadvisor.report import codec

if TYPE_CHECKING:
    from fusionadvisor.report.model import Report

HEAD = 4096
"""Bytes in which a report states its ``schema_version``, its first key."""


def report_or_trace(path: Path, say: Callable[[str], None]) -> "Report":
    """Read a report, or analyse a trace.

    Raises:
        InputError: If the file is neither.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except IsADirectoryError:
        head = b""  # a folder of traces
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.") from None
    if head.lstrip().startswith(b"{") and b'"schema_version"' in head:
        return codec.read(path)
    from fusionadvisor import advisor

    return advisor.analyze(path, progress=say)
