"""What was applied, as text for a terminal: before and after, each step with what it did, refusals in sentences."""

from collections import Counter
from collections.abc import Sequence

from fusionadvisor.render import labels, verdict
from fusionadvisor.render.text import Piece, Sheet
from fusionadvisor.report.model import Attempt, Finding, Report, Verification
from fusionadvisor.units import plural

STYLES = {
    "faster": "green",
    "same": "yellow",
    "no_effect": "yellow",
    "not_tried": "yellow",
    "slower": "red",
    "diverged": "bold red",
    "refused": "red",
    "crashed": "bold red",
    "timed_out": "red",
}
REFUSALS_SHOWN = 8
INDENT = 5
WORTH_SAYING_S = 0.5
NARROW = 76
"""Cells the whole table needs."""
TIGHT = 48
"""Cells the table needs that has only the columns that matter most."""


def attempts(sheet: Sheet, report: Report) -> None:
    """Add the verdict of an apply and the story of every attempt."""
    sheet.gap()
    _headline(sheet, report)
    sheet.gap()
    timed = any(map(labels.paired, report.attempts))
    if timed:
        words = f"{labels.kernel_word(report)}s"
        gain = "speed-up" if sheet.width >= TIGHT else "gain"
        _columns(sheet, ("", "strategy", "sites", words, "error", "before → after", gain))
    for number, attempt in enumerate(report.attempts, 1):
        _attempt(sheet, report, number, attempt)
    if timed:
        sheet.say(labels.PAIRED, style="dim", indent=INDENT, lead=[" " * INDENT])
    _findings(sheet, report)
    sheet.gap()


def _headline(sheet: Sheet, report: Report) -> None:
    items: list[Piece] = []
    if both := verdict.arms(report):
        items.append((labels.change(*both), "bold"))
    items.append((verdict.of_attempts(report), "bold"))
    if report.result:
        (low, high), (band_low, band_high) = report.result.ci95, report.result.aa_band
        items.append(f"(95 %: {low:.2f}–{high:.2f}; A/A {band_low:.2f}–{band_high:.2f})")
    checked = [a.verification for a in report.attempts if a.kept and a.verification]
    if checked:
        items.append(_agreement(checked[-1]))
    sheet.flow(items, lead=["  "], indent=2, gap="   ")


def _agreement(found: Verification) -> str:
    if found.verdict == "unchecked":
        return f"outputs not checked: {found.reason}"
    if found.verdict == "diverges":
        return f"outputs differ: {found.reason or f'largest error {found.max_error:.2g}'}"
    if found.rmse_ratio is not None:
        return f"outputs agree with fp64 (error {found.rmse_ratio:.2f}× eager's)"
    return "outputs agree exactly" if found.max_error == 0 else f"outputs agree (largest error {found.max_error:.2g})"


def _columns(sheet: Sheet, cells: Sequence[str], *, style: str = "dim", last: str = "dim") -> None:
    """Add a row of the table; a narrow terminal does without the columns that matter least."""
    number, name, sites, kernels, error, median, gain = cells
    row = [sheet.cell(sites, 7), sheet.cell(kernels, 11), sheet.cell(error, 8)] if sheet.width >= NARROW else []
    first, middle = (f"  {sheet.cell(number, 3)}", 21) if sheet.width >= TIGHT else ("  ", 17)
    sheet.add(first, (sheet.cell(name, 14), style), *row, sheet.cell(median, middle), (gain, last))


def _attempt(sheet: Sheet, report: Report, number: int, attempt: Attempt) -> None:
    words = labels.OUTCOMES[attempt.outcome] + (", kept" if attempt.kept else "")
    style = STYLES[attempt.outcome]
    if times := labels.paired(attempt):
        looked = attempt.sites.matched + len(attempt.sites.refused)
        check, counts = attempt.verification, attempt.kernels
        cells = (
            str(number),
            attempt.strategy,
            f"{attempt.sites.applied}/{looked}" if looked else "",
            f"{counts.before} → {counts.after}" if counts else "",
            labels.ratio(check.rmse_ratio) if check and check.rmse_ratio is not None else "",
            times,
            labels.ratio(attempt.speedup.median) if attempt.speedup else "",
        )
        _columns(sheet, cells, style="bold", last=style)
        sheet.say(f"{words}. {attempt.reason}" if attempt.reason else words, style=style, indent=INDENT)
        _interval(sheet, attempt)
    else:
        name = sheet.cell(attempt.strategy, max(14, len(attempt.strategy) + 2))
        sheet.say(
            f"{words}. {attempt.reason}" if attempt.reason else words,
            style=style, lead=[f"  {sheet.cell(str(number), 3)}", (name, "bold")], indent=INDENT + len(name),
        )  # fmt: skip
    _details(sheet, report, attempt)


def _interval(sheet: Sheet, attempt: Attempt) -> None:
    if attempt.speedup is None:
        return
    (low, high), (band_low, band_high) = attempt.speedup.ci95, attempt.speedup.aa_band
    text = f"speed-up {low:.2f}–{high:.2f} (95 %), the same code against itself {band_low:.2f}–{band_high:.2f}"
    sheet.say(text, style="dim", indent=INDENT)


def _details(sheet: Sheet, report: Report, attempt: Attempt) -> None:
    counts = attempt.kernels
    if counts and (counts.gone or counts.added):
        gone = [f"{name} ×{count}" for name, count in counts.gone]
        came = [f"{name} ×{count}" for name, count in counts.added]
        if gone:
            sheet.flow(gone, lead=[" " * INDENT, ("gone: ", "dim")], indent=INDENT + 6, gap=", ")
        if came:
            sheet.flow(came, lead=[" " * INDENT, ("new: ", "dim")], indent=INDENT + 6, gap=", ")
    if attempt.compile_s is not None and attempt.compile_s >= WORTH_SAYING_S:
        pays = f", pays after {plural(attempt.break_even_calls, 'call')}" if attempt.break_even_calls else ""
        sheet.say(f"{attempt.compile_s:.2g} s to prepare{pays}", style="dim", indent=INDENT)
    for note in attempt.notes:
        sheet.say(note, indent=INDENT)
    for refusal in attempt.sites.refused[:REFUSALS_SHOWN]:
        where = f" ({labels.source(refusal.source)})" if refusal.source else ""
        site = "" if refusal.site in refusal.reason else f"{refusal.site}: "
        sheet.say(f"left alone: {site}{refusal.reason}{where}", style="dim", indent=INDENT)
    if (more := len(attempt.sites.refused) - REFUSALS_SHOWN) > 0:
        sheet.add((f"{' ' * INDENT}and {plural(more, 'more refusal')} (all in --json)", "dim"))


def _findings(sheet: Sheet, report: Report) -> None:
    """Say which findings the kept steps closed, what could go and what went, and which findings stay."""
    kept = [a for a in report.attempts if a.kept]
    ids = {id_ for a in kept for id_ in a.closed}
    tried = {id_ for a in kept for id_ in a.findings} - ids
    closed = [f for f in report.findings if f.id in ids]
    if not (closed or tried):
        return
    sheet.gap()
    items: list[Piece] = []
    if closed:
        items.append(f"closed: {_rules(report, ids)} ({_expected_and_measured(report, closed)})")
    if tried:
        items.append(f"addressed, no fewer {labels.kernel_word(report)}s: {_rules(report, tried)}")
    still = {f.id for f in report.findings if f.id not in ids | tried and not f.footnote}
    items += [f"still open: {_rules(report, still)}"] if still else []
    sheet.flow(items, lead=[("Findings  ", "bold")], indent=10, gap="   ")


def _rules(report: Report, ids: set[str]) -> str:
    """The rules of findings, each once: ``FA101, FA103 (1 of 2)``."""
    whole = Counter(f.rule for f in report.findings)
    some = Counter(f.rule for f in report.findings if f.id in ids)
    return ", ".join(rule if n == whole[rule] else f"{rule} ({n} of {whole[rule]})" for rule, n in some.items())


def _expected_and_measured(report: Report, closed: Sequence[Finding]) -> str:
    """``bound 150–185 µs, measured 184.0 µs``; where more went than that, why it may have."""
    scale, word = verdict.scale(report), labels.bound(report)
    low, high = (sum(getattr(f.saving.step_us, end) for f in closed) for end in ("low", "high"))
    expected = f"{word} {scale.range(low, high)}" if high > 0 else f"no {word} of time"
    both = verdict.arms(report)
    if both is None or not verdict.proven(report):
        return f"{expected}, no proven difference measured"
    went = (both[0] - both[1]) * 1e3
    if went < 0:
        return f"{expected}, measured {scale.time(-went)} slower"
    reason = "CPU times vary" if labels.cpu_times(report) else "the rest of the step got shorter too"
    return f"{expected}, measured {scale.time(went)}" + (f": more, as {reason}" if went > high > 0 else "")
