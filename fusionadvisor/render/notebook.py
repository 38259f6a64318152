"""A report as a notebook shows it: the terminal's text, as HTML in which nothing is live."""

from html import escape

from fusionadvisor.render.terminal import compose as lines
from fusionadvisor.report.model import Report

WIDTH = 100


def compose(report: Report) -> str:
    """Return the report as one preformatted block."""
    text = "\n".join(line.plain for line in lines(report, WIDTH).lines)
    return f'<pre style="line-height: 1.25">{escape(text)}</pre>'
