"""``fusion-advisor compare``."""

from pathlib import Path
from typing import Annotated

import typer

from fusionadvisor.cli.options import TextFormat, TextFormatOption


def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="A report (--json) or a trace.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another report or trace.")],
    format: TextFormatOption = TextFormat.text,
) -> int:
    """Compare two reports or traces: fusions gained and lost, kernels per module, time."""
    from fusionadvisor.cli.inputs import report_or_trace
    from fusionadvisor.cli.output import show, working
    from fusionadvisor.render import comparison
    from fusionadvisor.report import diff

    with working() as say:
        found = diff.compare(report_or_trace(before, say), report_or_trace(after, say))
    show(found, comparison, format)
    return 0
