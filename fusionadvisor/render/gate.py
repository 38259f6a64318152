"""The outcome of a gate: decided once, and laid out for a terminal or as Markdown."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusionadvisor.render import comparison as compared
from fusionadvisor.render import labels
from fusionadvisor.render.markdown import MARK, code, escape, table
from fusionadvisor.render.parts import Column, Fact, Row, Table
from fusionadvisor.render.terminal import MAX_WIDTH, ascii_only
from fusionadvisor.render.text import Sheet, cleaned
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
    compose(check, min(console.width, MAX_WIDTH), ascii_only=ascii_only(console)).print(console)


def verdict(check: Check) -> str:
    """The sentence an outcome comes down to."""
    if check.breaches:
        return f"Failed: {plural(len(check.breaches), 'limit')} violated"
    if check.same:
        return "Passed: the step has the baseline's kernels, in the same order"
    if not check.compared:
        return "There is nothing to compare with yet"
    return f"Passed: {plural(len(set(check.compared)), 'figure')} within limits"


def compose(check: Check, width: int, *, ascii_only: bool = False) -> Sheet:
    """Return the outcome as lines of at most ``width`` cells where words allow."""
    check = cleaned(check)
    sheet = Sheet(width, ascii_only=ascii_only)
    sheet.say(verdict(check), style="bold red" if check.breaches else "bold green")
    sheet.gap()
    columns = Column("figure"), Column("limit", wraps=True), Column("now", wraps=True)
    sheet.table(Table("", columns, tuple(map(_breach, check.breaches))))
    sheet.gap()
    sheet.facts(_facts(check))
    return sheet


def _breach(breach: Breach) -> Row:
    places, details = _alike(breach.places), []
    for modules, place in places[:PLACES]:
        where = "  ".join(filter(None, (modules, labels.source(place.source))))
        details.append(Fact("", (f"{where}: {place.words}" if where else place.words,)))
    if (more := len(places) - PLACES) > 0:
        details.append(Fact("", ((f"and {plural(more, 'more place')}", "soft"),)))
    return Row(((breach.what, "strong"), f"{breach.origin}: {breach.limit}", breach.found), tuple(details))


def _facts(check: Check) -> list[Fact]:
    facts = []
    if check.breaches and check.comparison and check.comparison.time:
        facts.append(Fact("Time", (compared.time(check.comparison.time),)))
    if check.compared and not check.breaches:
        facts.append(Fact("Compared", tuple(dict.fromkeys(check.compared)), gap=", "))
    if check.better:
        facts.append(Fact("Better", check.better, gap=", "))
    return facts + [Fact("Note", (note,)) for note in check.notes]


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
