"""The outcome of a gate, as text for a terminal and as Markdown. Works from the outcome alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusionadvisor.render import comparison as compared
from fusionadvisor.render import labels
from fusionadvisor.render.markdown import MARK, code, escape, table
from fusionadvisor.render.terminal import MAX_WIDTH, ascii_only
from fusionadvisor.render.text import Piece, Sheet, cleaned
from fusionadvisor.report import wording
from fusionadvisor.report.budget import Breach, Check, Place
from fusionadvisor.report.step import numberless
from fusionadvisor.units import plural

if TYPE_CHECKING:
    from rich.console import Console

PLACES = 12
"""Places listed for one limit."""


def render(check: Check, console: "Console") -> None:
    """Print the outcome; see :func:`fusionadvisor.render.terminal.render`."""
    for line in compose(check, min(console.width, MAX_WIDTH), ascii_only=ascii_only(console)).lines:
        console.print(line, soft_wrap=True, highlight=False)


def verdict(check: Check) -> str:
    """The sentence an outcome comes down to."""
    if check.breaches:
        return f"{plural(len(check.breaches), 'limit')} {'does' if len(check.breaches) == 1 else 'do'} not hold"
    if check.same:
        return "Passed: the step is the baseline's, kernel for kernel"
    if not check.compared:
        return "There is nothing to compare with yet"
    return f"Passed: {plural(len(set(check.compared)), 'figure')} within their limits"


def compose(check: Check, width: int, *, ascii_only: bool = False) -> Sheet:
    """Return the outcome as lines of at most ``width`` cells where words allow."""
    check = cleaned(check)
    sheet = Sheet(width, ascii_only=ascii_only)
    sheet.say(verdict(check), style="bold red" if check.breaches else "bold green")
    for breach in check.breaches:
        _breach(sheet, breach)
    sheet.gap()
    if check.breaches and check.comparison and check.comparison.time:
        sheet.say(compared.time(check.comparison.time), lead=[("Time      ", "bold")], indent=10)
    if check.compared and not check.breaches:
        sheet.flow(dict.fromkeys(check.compared), lead=[("Compared  ", "bold")], indent=10, gap=", ")
    if check.better:
        sheet.flow(check.better, lead=[("Better    ", "bold")], indent=10, gap=", ")
    for i, note in enumerate(check.notes):
        sheet.say(note, lead=[("Note      " if not i else " " * 10, "bold yellow")], indent=10)
    return sheet


def _breach(sheet: Sheet, breach: Breach) -> None:
    sheet.gap()
    items: list[Piece] = [f"now {breach.found}", f"{breach.origin}: {breach.limit}"]
    sheet.flow(items, lead=[(f"  {breach.what}   ", "bold")], indent=4)
    places = _alike(breach.places)
    for modules, place in places[:PLACES]:
        where = [i for i in (modules, labels.source(place.source)) if i]
        sheet.flow(where, lead=["    "], indent=6, gap="  ")
        sheet.say(place.words, style="dim", indent=6)
    if (more := len(places) - PLACES) > 0:
        sheet.add((f"    and {plural(more, 'more place')}", "dim"))


def _alike(places: Sequence[Place]) -> list[tuple[str, Place]]:
    """The places, those of repeated blocks in one: what happened at one line of modules that differ by number."""
    found: dict[tuple[object, ...], list[Place]] = {}
    for place in places:
        found.setdefault((place.source, place.words, numberless(place.module)), []).append(place)
    return [(wording.listed([p.module for p in same]), same[0]) for same in found.values()]


def markdown(check: Check) -> str:
    """Return the outcome as Markdown, the verdict first."""
    check = cleaned(check)
    parts = [MARK, f"### {'❌' if check.breaches else '✅'} {escape(verdict(check))}"]
    if check.breaches:
        rows = [row for breach in check.breaches for row in _rows(breach)]
        parts.append(table(["what", "limit", "now", "where", "what happened"], rows))
    if check.better:
        parts.append(f"Better: {escape(', '.join(check.better))}")
    if check.comparison and check.comparison.time:
        parts.append(escape(compared.time(check.comparison.time)))
    parts += [f"> [!NOTE]\n> {escape(note)}" for note in check.notes]
    return "\n\n".join(parts) + "\n"


def _rows(breach: Breach) -> list[list[str]]:
    head = [escape(breach.what), escape(f"{breach.origin}: {breach.limit}"), escape(breach.found)]
    rows = [
        [" ".join(filter(None, (code(modules), code(labels.source(p.source))))), escape(p.words)]
        for modules, p in _alike(breach.places)[:PLACES]
    ] or [["", ""]]
    return [[*(head if not i else ["", "", ""]), *row] for i, row in enumerate(rows)]
