"""``fusion-advisor compare``."""

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from fusionadvisor.cli.options import TextFormat, TextFormatOption


def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="A report (--json) or a trace.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    format: TextFormatOption = TextFormat.text,
) -> int:
    """Show which fusions came and went from A to B, in which modules kernels changed, and whether time did."""
    from fusionadvisor.cli.inputs import report_or_trace
    from fusionadvisor.cli.output import printing, working, write
    from fusionadvisor.render import comparison
    from fusionadvisor.report import codec, diff

    with working() as say:
        found = diff.compare(report_or_trace(before, say), report_or_trace(after, say))
    if format is TextFormat.json:
        write(json_text.dumps(codec.to_dict(found), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    elif format is TextFormat.markdown:
        write(comparison.markdown(found))
    else:
        with printing() as console:
            comparison.render(found, console)
    return 0
