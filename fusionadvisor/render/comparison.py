"""What differs between two reports, as text for a terminal and as Markdown. Works from the comparison alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusionadvisor.render import labels
from fusionadvisor.render.markdown import MARK, code, escape, table
from fusionadvisor.render.terminal import MAX_WIDTH, ascii_only
from fusionadvisor.render.text import Piece, Sheet, cleaned
from fusionadvisor.report import wording
from fusionadvisor.report.diff import Comparison, Figure, FusionChange, Side, TimeChange
from fusionadvisor.units import plural, size_bytes, time_us

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 20
"""Fusions and modules listed; all are in the JSON."""
_STYLE = {"lost": "red", "new": "yellow", "gained": "green", "gone": "dim", "moved": "dim", "hidden": "dim"}
_RANKS = {"lost": "only B", "new": "only B", "gained": "only A", "gone": "only A"}


def render(comparison: Comparison, console: "Console") -> None:
    """Print a comparison; see :func:`fusionadvisor.render.terminal.render`."""
    for line in compose(comparison, min(console.width, MAX_WIDTH), ascii_only=ascii_only(console)).lines:
        console.print(line, soft_wrap=True, highlight=False)


def compose(comparison: Comparison, width: int, *, ascii_only: bool = False) -> Sheet:
    """Return the comparison as lines of at most ``width`` cells where words allow."""
    comparison = cleaned(comparison)
    sheet = Sheet(width, ascii_only=ascii_only)
    for letter, side in (("A", comparison.before), ("B", comparison.after)):
        sheet.flow(_side(side), lead=[(f"{letter}  ", "bold")], indent=3)
    sheet.gap()
    sheet.say(verdict(comparison), style="bold", lead=["  "], indent=2)
    if comparison.time:
        sheet.say(time(comparison.time), lead=["  "], indent=2)
    _fusions(sheet, comparison)
    _modules(sheet, comparison)
    _figures(sheet, comparison)
    if comparison.notes:
        sheet.gap()
    for i, note in enumerate(comparison.notes):
        sheet.say(note, lead=[("Differs   " if not i else " " * 10, "bold yellow")], indent=10)
    return sheet


def _side(side: Side) -> list[Piece]:
    items: list[Piece] = [(labels.file_name(side.source), "bold"), side.gpu or "", side.basis or ""]
    items += [f"rank {side.rank}" if side.rank is not None else ""]
    items += [side.created] if side.basis != "recorded" else []  # when a trace was read says nothing of it
    return [item for item in items if item]


def verdict(comparison: Comparison) -> str:
    """The sentence a comparison comes down to."""
    if comparison.ranks:
        a, b = comparison.before.rank, comparison.after.rank
        return f"Ranks {a} and {b} of what looks like one job: what differs is between ranks, not between versions"
    counts = {event: sum(c.count for c in comparison.fusions if c.event == event) for event in _STYLE}
    said = [plural(counts["gained"], "fusion") + " gained"] if counts["gained"] else []
    said += [plural(counts["lost"], "fusion") + " lost"] if counts["lost"] else []
    said += [plural(counts["new"], "new place") + " unfused"] if counts["new"] else []
    kernels = next((f for f in comparison.figures if f.name == "kernels"), None)
    if kernels and kernels.before is not None and kernels.after is not None:
        same = kernels.before == kernels.after
        said.append(f"kernels {value(kernels, kernels.before)} {'as before' if same else f'→ {kernels.after:,.0f}'}")
    if not counts["lost"] and not said[:-1] and not comparison.modules:
        return "Nothing differs in what ran" + (f": {said[-1]}" if said else "")
    return "; ".join(said)


def time(change: TimeChange) -> str:
    """``latency 462.0 → 278.0 µs, −40 % (95 %: −41 to −39 %): faster``."""
    times = labels.change(change.before_us / 1e3, change.after_us / 1e3)
    said = f"no verdict: {change.reason}" if change.verdict == "unknown" else change.verdict
    return f"{change.what} {times}, {wording.slower_or_faster(change.ratio, change.ci95)}: {said}"


def _fusions(sheet: Sheet, comparison: Comparison) -> None:
    changes = comparison.fusions
    if not changes:
        return
    sheet.gap()
    sheet.add(("Fusions", "bold"))
    alike = wording.alike(changes)
    for places in alike[:SHOWN]:
        change, count = places[0], sum(c.count for c in places)
        times = f" ×{count}" if count > 1 else ""
        items: list[Piece] = [(f"{change.rule} {change.title}{times}", "bold"), _modules_at(places)]
        items += [labels.source(change.source)] + ([f"now at {change.to}"] if change.to and len(places) == 1 else [])
        lead: Piece = (f"  {event(change, comparison):<8}", _STYLE[change.event])
        sheet.flow([i for i in items if i], lead=[lead], indent=10)
    if (more := len(alike) - SHOWN) > 0:
        sheet.add((f"          and {more} more (all in --format json)", "dim"))


def _modules_at(places: Sequence[FusionChange]) -> str:
    return wording.listed([f"{c.module} (now {c.to})" if c.to and len(places) > 1 else c.module for c in places])


def event(change: FusionChange, comparison: Comparison) -> str:
    """What became of a place; between two ranks nothing became of anything."""
    return _RANKS.get(change.event, change.event) if comparison.ranks else change.event


def _modules(sheet: Sheet, comparison: Comparison) -> None:
    if not comparison.modules:
        return
    sheet.gap()
    sheet.add(("Modules", "bold"))
    for change in comparison.modules[:SHOWN]:
        items: list[Piece] = [(wording.names(change), "bold"), labels.source(change.source)]
        sheet.flow([i for i in items if i], lead=["  "], indent=2)
        sheet.say(wording.module_words(change), indent=10)
    if (more := len(comparison.modules) - SHOWN) > 0:
        sheet.add((f"  and {more} more (all in --format json)", "dim"))


def _figures(sheet: Sheet, comparison: Comparison) -> None:
    changed = [f for f in comparison.figures if f.before != f.after]
    if not changed:
        return
    sheet.gap()
    sheet.add(("In a step ", "bold"))
    for figure in changed:
        style = "" if figure.timed else "red" if figure.worse else "green"
        amounts = f"{value(figure, figure.before)} → {value(figure, figure.after)}"
        meaning = f"  {figure.meaning}" if sheet.width >= MAX_WIDTH - 20 else ""
        sheet.add("  ", sheet.cell(figure.name, 20), (sheet.cell(amounts, 26), style), (meaning, "dim"))


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
        f"{letter}: {code(labels.file_name(s.source))} {escape(' · '.join(filter(None, (s.gpu, s.basis))))}"
        for letter, s in (("A", comparison.before), ("B", comparison.after))
    ]
    parts = [MARK, f"### {escape(verdict(comparison))}", "<br>".join(sides)]
    parts += [escape(time(comparison.time))] if comparison.time else []
    parts += details(comparison)
    return "\n\n".join(parts) + "\n"


def details(comparison: Comparison) -> list[str]:
    """The tables of a comparison and what else differs, as blocks of Markdown."""
    blocks = []
    if comparison.fusions:
        rows = [
            [event(first, comparison), f"{first.rule} {escape(first.title)}", str(sum(c.count for c in (first, *more))),
             _place(wording.listed([c.module for c in (first, *more)]), first),
             code(wording.listed([c.to for c in (first, *more) if c.to]))]
            for first, *more in wording.alike(comparison.fusions)[:SHOWN]
        ]  # fmt: skip
        blocks.append(table(["fusion", "", "times", "where", "now at"], rows, numbers=(2,)))
    if comparison.modules:
        rows = [[code(wording.names(m)), escape(wording.module_words(m))] for m in comparison.modules[:SHOWN]]
        blocks.append(table(["module", "kernels"], rows))
    if changed := [f for f in comparison.figures if f.before != f.after]:
        rows = [[f.name, value(f, f.before), value(f, f.after), escape(f.meaning)] for f in changed]
        blocks.append(table(["in a step", "A", "B", ""], rows, numbers=(1, 2)))
    return [*blocks, *(f"> [!NOTE]\n> {escape(note)}" for note in comparison.notes)]


def _place(module: str, change: FusionChange) -> str:
    return " ".join(filter(None, (code(module), code(labels.source(change.source)))))
