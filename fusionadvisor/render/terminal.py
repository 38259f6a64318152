"""A report as text for a terminal: the verdict first, then what it rests on. Works from the report alone."""

import os
from typing import TYPE_CHECKING

from fusionadvisor.render import labels, variants, view
from fusionadvisor.render.parts import Table
from fusionadvisor.render.text import Sheet, cleaned
from fusionadvisor.render.view import View
from fusionadvisor.report.model import Report

if TYPE_CHECKING:
    from rich.console import Console

MAX_WIDTH = 110
"""Lines longer than this are hard to read; wider terminals leave the rest empty."""
FINDINGS_SHOWN = 7
"""With what else is shown, as many as fit a terminal of 40 lines."""


def render(report: Report, console: "Console", *, verbose: bool = False, top: int = 0) -> None:
    """Print a report.

    Args:
        report: What one command found.
        console: Its width, encoding and colour decide the form; ``TERM=dumb`` or a narrow encoding gives ASCII.
        verbose: Print every finding, attempt and reason.
        top: How many of the longest kernels to list.
    """
    sheet = compose(report, min(console.width, MAX_WIDTH), ascii_only=ascii_only(console), verbose=verbose, top=top)
    sheet.print(console)


def ascii_only(console: "Console") -> bool:
    """True where the terminal cannot be trusted with more than ASCII."""
    return os.environ.get("TERM") == "dumb" or not console.encoding.lower().replace("-", "").startswith("utf")


def compose(report: Report, width: int, *, ascii_only: bool = False, verbose: bool = False, top: int = 0) -> Sheet:
    """Return the report as lines of at most ``width`` cells where words allow."""
    sheet, report = Sheet(width, ascii_only=ascii_only), cleaned(report)
    seen = view.of(report)
    sheet.flow([(item, "soft" if i else "strong") for i, item in enumerate(seen.about)], indent=2, lead=[""])
    sheet.flow(seen.subject, indent=2, lead=[""])
    sheet.flow([(item, "soft") for item in seen.assumed], lead=[("assumed: ", "soft")], indent=9)
    if report.attempts or report.command == "apply":
        _applied(sheet, seen, verbose)
    elif report.variants:
        _variants(sheet, report, seen, verbose)
    else:
        _profiled(sheet, seen, verbose)
    if top:
        _titled(sheet, view.top(report, top))
    sheet.facts(seen.notes, verbose=verbose)
    return sheet


def _headline(sheet: Sheet, seen: View) -> None:
    sheet.gap()
    sheet.flow([(seen.headline, "strong"), *seen.proof], lead=["  "], indent=2, gap="   ")
    sheet.gap()


def _profiled(sheet: Sheet, seen: View, verbose: bool) -> None:
    _headline(sheet, seen)
    sheet.facts(seen.step, verbose=verbose)
    sheet.table(seen.kinds if verbose else seen.kinds_in_short)
    if seen.ranks:
        _titled(sheet, seen.ranks)
    if seen.findings:
        sheet.gap()
        sheet.table(view.findings_table(seen, None if verbose else FINDINGS_SHOWN), verbose=verbose)
    sheet.gap()
    sheet.facts(seen.checks, verbose=verbose)


def _applied(sheet: Sheet, seen: View, verbose: bool) -> None:
    _headline(sheet, seen)
    sheet.table(seen.tried.table, verbose=verbose)
    if names := seen.tried.not_applicable:
        more = "" if verbose else " (--verbose for reasons)"
        sheet.say(f"Not applicable: {', '.join(names)}{more}", style="soft", lead=["  "], indent=2)
    if verbose:
        sheet.facts(seen.tried.reasons, indent=4)
        sheet.say(labels.PAIRED, style="soft", lead=["  "], indent=2)
    sheet.gap()
    sheet.facts(seen.tried.facts, verbose=verbose)


def _variants(sheet: Sheet, report: Report, seen: View, verbose: bool) -> None:
    """The workloads side by side; then in full each kind of step, of several batch sizes the first."""
    sheet.gap()
    if best := variants.best(report):
        sheet.say(best, style="strong", lead=["  "], indent=2)
        sheet.gap()
    if seen.variants:
        sheet.table(seen.variants)
    kinds: set[str | None] = set()
    for name, one in zip(variants.names(report), variants.each(report), strict=True):
        entry = one.workload.entry if one.workload else None
        if entry not in kinds:
            kinds.add(entry)
            sheet.gap()
            inputs = [labels.tensor(spec) for spec in one.workload.inputs] if one.workload else []
            sheet.flow([(name, "strong"), *inputs], lead=[("In full   ", "strong")], indent=10)
            _profiled(sheet, view.of(one), verbose)


def _titled(sheet: Sheet, table: Table) -> None:
    if not table.rows:
        return
    sheet.gap()
    sheet.add((table.caption, "strong"))
    sheet.table(table)
    sheet.gap()
