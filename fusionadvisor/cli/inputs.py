"""What ``compare`` and ``check`` are given: a report, or a trace that becomes one."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

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
    from fusionadvisor.trace.container import open_file

    head = b""
    if not path.is_dir():  # as a folder of traces is
        with open_file(path) as file:
            head = file.read(HEAD)
    if head.lstrip().startswith(b"{") and b'"schema_version"' in head:
        return codec.read(path)
    from fusionadvisor import advisor

    return advisor.analyze(path, progress=say)
