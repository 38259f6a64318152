"""A report's kernels as a pandas table."""

from dataclasses import fields
from typing import TYPE_CHECKING

from fusionadvisor.report.model import KernelTable, Report

if TYPE_CHECKING:
    import pandas as pd

NAMES = ("name", "kind", "op", "module", "source", "shapes")
"""Columns with few different values."""
OPTIONAL = ("group", "bytes", "step")
"""Columns in which the report writes -1 for none or unknown; missing in the table."""


def kernels(report: Report) -> "pd.DataFrame":
    """Return one row a kernel, in the order of the report, indexed by its number.

    Args:
        report: Its kernel table holds the first 20 000 kernels.

    Returns:
        Times in µs (``start_us``, ``dur_us``); ``bytes`` of external traffic; columns the report lacks are left out.
    """
    import pandas as pd

    table = report.timeline.kernels if report.timeline else KernelTable()
    columns = {f.name: getattr(table, f.name) for f in fields(KernelTable) if f.name not in ("total", "index")}
    frame = pd.DataFrame({name: column for name, column in columns.items() if column or not table.index})
    frame.index = pd.Index(table.index, name="kernel", dtype="int64")
    for name in [n for n in NAMES if n in frame]:
        frame[name] = frame[name].astype("category")
    for name in [n for n in OPTIONAL if n in frame]:
        column = frame[name].astype("Int64")
        frame[name] = column.mask(column == -1)
    return frame
