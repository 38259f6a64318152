"""What differs between two reports: decided once, and laid out for a terminal or as Markdown."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusionadvisor.render import labels
from fusionadvisor.render.markdown import MARK, code, escape, laid_out
from fusionadvisor.render.parts import Column, Fact, Piece, Row, Table
from fusionadvisor.render.terminal import MAX_WIDTH, ascii_only
from fusionadvisor.render.text import Sheet, cleaned
from fusionadvisor.report import wording
from fusionadvisor.report.diff import Comparison, Figure, FusionChange, Side, TimeChange
from fusionadvisor.units import plural, size_bytes, time_us

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 20
"""Fusions and modules listed; all are in the JSON."""
_TONES = {"lost": "bad", "new": "warn", "gained": "good", "gone": "soft", "moved": "soft", "hidden": "soft"}
_RANKS = {"lost": "only B", "new": "only B", "gained": "only A", "gone": "only A"}


def render(comparison: Comparison, console: "Console") -> None:
    """Print a comparison; see :func:`fusionadvisor.render.terminal.render`."""
    compose(comparison, min(console.width, MAX_WIDTH), ascii_only=ascii_only(console)).print(console)


def compose(comparison: Comparison, width: int, *, ascii_only: bool = False) -> Sheet:
    """Return the comparison as lines of at most ``width`` cells where words allow."""
    comparison = cleaned(comparison)
    sheet = Sheet(width, ascii_only=ascii_only)
    for letter, side in (("A", comparison.before), ("B", comparison.after)):
        sheet.flow(
            [(labels.file_name(side.source), "strong"), *_side(side)], lead=[(f"{letter}  ", "strong")], indent=3
        )
    sheet.gap()
    sheet.say(verdict(comparison), style="strong", lead=["  "], indent=2)
    if comparison.time:
        sheet.say(time(comparison.time), lead=["  "], indent=2)
    for table in tables(comparison):
        sheet.gap()
        sheet.add((table.caption, "strong"))
        sheet.table(table)
    sheet.gap()
    sheet.facts(Fact("Differs", (note,)) for note in comparison.notes)
    return sheet


def _side(side: Side) -> list[str]:
    items = [side.gpu or "", side.basis or "", f"rank {side.rank}" if side.rank is not None else ""]
    items += [side.created] if side.basis != "recorded" else []  # when a trace was read says nothing about it
    return [item for item in items if item]


def verdict(comparison: Comparison) -> str:
    """The sentence a comparison comes down to."""
    if comparison.ranks:
        a, b = comparison.before.rank, comparison.after.rank
        return f"Ranks {a} and {b} of what looks like one job: differences are between ranks, not versions"
    counts = {event: sum(c.count for c in comparison.fusions if c.event == event) for event in _TONES}
    parts = [plural(counts["gained"], "fusion") + " gained"] if counts["gained"] else []
    parts += [plural(counts["lost"], "fusion") + " lost"] if counts["lost"] else []
    parts += [plural(counts["new"], "new unfused place")] if counts["new"] else []
    kernels = next((f for f in comparison.figures if f.name == "kernels"), None)
    if kernels and kernels.before is not None and kernels.after is not None:
        same = kernels.before == kernels.after
        parts.append(f"kernels {value(kernels, kernels.before)} {'unchanged' if same else f'→ {kernels.after:,.0f}'}")
    if not counts["lost"] and not parts[:-1] and not comparison.modules:
        return "The same kernels ran" + (f": {parts[-1]}" if parts else "")
    return "; ".join(parts)


def time(change: TimeChange) -> str:
    """``latency 462.0 → 278.0 µs, −40 % (95 %: −41 to −39 %): faster``."""
    times = labels.change(change.before_us / 1e3, change.after_us / 1e3)
    result = f"no verdict: {change.reason}" if change.verdict == "unknown" else change.verdict
    return f"{change.what} {times}, {wording.slower_or_faster(change.ratio, change.ci95)}: {result}"


def tables(comparison: Comparison) -> list[Table]:
    """What differs, as tables: fusions, modules, figures of a step; those without a row are left out."""
    fusions = [_fusion(changes, comparison) for changes in wording.alike(comparison.fusions)]
    modules = [
        Row(((wording.names(m), "strong"), labels.source(m.source), wording.module_words(m)))
        for m in comparison.modules
    ]
    figures = [
        Row((f.name, (amounts(f), "" if f.timed else "bad" if f.worse else "good"), (f.meaning, "soft")))
        for f in comparison.figures
        if f.before != f.after
    ]
    found = (
        _table(
            "Fusions",
            fusions,
            Column(""),
            Column("rule"),
            Column("where", wraps=True),
            Column("line"),
            Column("now at"),
        ),
        _table("Modules", modules, Column("module", wraps=True), Column("line"), Column("kernels", wraps=True)),
        _table("Per step", figures, Column("figure"), Column("A → B"), Column("meaning", wraps=True, spare=1)),
    )
    return [table for table in found if table.rows]


def _table(caption: str, rows: Sequence[Row], *columns: Column) -> Table:
    more = len(rows) - SHOWN if caption != "Per step" else 0
    notes = (f"and {more} more (all in --format json)",) if more > 0 else ()
    return Table(caption, columns, tuple(rows[: len(rows) - max(more, 0)]), notes)


def _fusion(changes: Sequence[FusionChange], comparison: Comparison) -> Row:
    first, count = changes[0], sum(change.count for change in changes)
    title: Piece = (f"{first.rule} {first.title}{f' ×{count}' if count > 1 else ''}", "strong")
    places = wording.listed([change.module for change in changes])
    now = wording.listed([change.to for change in changes if change.to])
    return Row(((event(first, comparison), _TONES[first.event]), title, places, labels.source(first.source), now))


def event(change: FusionChange, comparison: Comparison) -> str:
    """What became of a place; between two ranks nothing became of anything."""
    return _RANKS.get(change.event, change.event) if comparison.ranks else change.event


def amounts(figure: Figure) -> str:
    """Both amounts of a figure; times in one unit."""
    per_unit = next((scale for ending, scale in (("_us", 1e-3), ("_ms", 1.0)) if figure.name.endswith(ending)), None)
    if per_unit and figure.before is not None and figure.after is not None:
        return labels.change(figure.before * per_unit, figure.after * per_unit)
    return f"{value(figure, figure.before)} → {value(figure, figure.after)}"


def value(figure: Figure, amount: float | None) -> str:
    """An amount of a figure in the unit its name ends with."""
    if amount is None:
        return "unknown"
    if figure.name.endswith("bytes"):
        return size_bytes(amount)
    if figure.name.endswith("_us"):
        return time_us(amount)
    if figure.name.endswith("_ms"):
        return time_us(amount * 1e3)
    return f"{amount:,.0f}" if amount == int(amount) else f"{amount:.3g}"


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown, the verdict first."""
    comparison = cleaned(comparison)
    sides = [
        f"{letter}: {code(labels.file_name(side.source))} {escape(' · '.join(_side(side)))}"
        for letter, side in (("A", comparison.before), ("B", comparison.after))
    ]
    parts = [MARK, f"### {escape(verdict(comparison))}", "<br>".join(sides)]
    parts += [escape(time(comparison.time))] if comparison.time else []
    parts += [f"**{table.caption}**\n\n{laid_out(table)}" for table in tables(comparison)]
    return "\n\n".join([*parts, *(f"> [!NOTE]\n> {escape(note)}" for note in comparison.notes)]) + "\n"
