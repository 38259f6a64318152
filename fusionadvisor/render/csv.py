"""The kernels as a table for spreadsheets and scripts: one row a kernel, RFC 4180."""

import csv
import io
from collections.abc import Sequence

from fusionadvisor.render.text import clean
from fusionadvisor.report.model import Report

COLUMNS = (
    "index", "step", "device", "stream", "start_us", "dur_us", "name", "kind", "op", "shapes", "module", "source",
    "group", "bytes",
)  # fmt: skip
MARK = ",".join(COLUMNS)
"""The first line, by which a file is known as this tool's own."""
UNKNOWN = {"step", "group", "bytes"}
"""Columns in which -1 means unknown or none, left empty here."""


def compose(report: Report) -> str:
    """Return the kernel table as CSV. A table that is capped in the report is so here."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    if report.timeline:
        table = report.timeline.kernels
        count = len(table.index)
        columns: list[Sequence[object]] = [getattr(table, name) or ("",) * count for name in COLUMNS]
        for row in zip(*columns, strict=True):
            writer.writerow([_cell(name, value) for name, value in zip(COLUMNS, row, strict=True)])
    return out.getvalue()


def _cell(name: str, value: object) -> object:
    if isinstance(value, str):
        text = clean(value)
        # a spreadsheet would run a name that begins like a formula
        return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
    return "" if name in UNKNOWN and value == -1 else value
