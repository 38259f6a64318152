"""What was applied, as text for a terminal: before and after, each step with what it did, refusals in sentences."""

from collections import Counter
from collections.abc import Sequence

from fusionadvisor.render import labels, verdict
from fusionadvisor.render.text import Piece, Sheet
from fusionadvisor.report.model import Attempt, Credit, Finding, Report, Verification
from fusionadvisor.units import plural, size_bytes

STYLES = {
    "faster": "green",
    "equivalent": "yellow",
    "inconclusive": "yellow",
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
CREDITS_SHOWN = 12
INDENT = 5
WORTH_SAYING_S = 0.5
COLUMNS = (5, 14, 7, 11, 8, 21)
"""Cells of number, strategy, sites, kernels, error and median; large counts take more. The gain stands last."""
OPTIONAL = (4, 2, 3)
"""Columns a narrow terminal does without, what matters least first."""
TIGHT = 48
"""Cells the table needs that has only the columns that matter most."""


def attempts(sheet: Sheet, report: Report) -> None:
    """Add the verdict of an apply and the story of every attempt."""
    sheet.gap()
    _headline(sheet, report)
    sheet.gap()
    gain = "speed-up" if sheet.width >= TIGHT else "gain"
    head = ("", "strategy", "sites", f"{labels.kernel_word(report)}s", "error", "before → after", gain)
    rows = [_cells(number, attempt) for number, attempt in enumerate(report.attempts, 1) if labels.paired(attempt)]
    widths = _widths(sheet, (head, *rows))
    if rows:
        _row(sheet, widths, head)
    for number, attempt in enumerate(report.attempts, 1):
        _attempt(sheet, report, number, attempt, widths)
    if rows:
        sheet.say(labels.PAIRED, style="dim", indent=INDENT, lead=[" " * INDENT])
    _path(sheet, report)
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


def _cells(number: int, attempt: Attempt) -> tuple[str, ...]:
    """A row of the table, a text a column."""
    looked, check, counts = attempt.sites.matched, attempt.verification, attempt.kernels
    return (
        f"  {number}",
        attempt.strategy,
        f"{attempt.sites.applied}/{looked}" if looked else "",
        f"{counts.before} → {counts.after}" if counts else "",
        labels.ratio(check.rmse_ratio) if check and check.rmse_ratio is not None else "",
        labels.paired(attempt),
        labels.ratio(attempt.speedup.median) if attempt.speedup else "",
    )


def _widths(sheet: Sheet, table: Sequence[Sequence[str]]) -> dict[int, int]:
    """The cells of each column that is shown; a long name is shortened rather than a column left out."""
    if sheet.width < TIGHT:
        return {1: 14, 5: 18}
    longest = [max(sheet.size(row[at]) for row in table) for at in range(len(table[0]))]
    widths = {at: least if at == 1 else max(least, longest[at] + 2) for at, least in enumerate(COLUMNS)}
    for at in OPTIONAL:
        if sum(widths.values()) + longest[-1] > sheet.width:
            del widths[at]
    return widths


def _row(sheet: Sheet, widths: dict[int, int], cells: Sequence[str], *, style: str = "dim", last: str = "dim") -> None:
    """Add a row of the table."""
    indent = "" if 0 in widths else "  "
    shown = [(f"{sheet.cell(cells[at], width - 1)} ", style if at == 1 else "") for at, width in widths.items()]
    sheet.add(indent, *shown, (cells[-1], last))


def _attempt(sheet: Sheet, report: Report, number: int, attempt: Attempt, widths: dict[int, int]) -> None:
    words = labels.outcome(report, attempt)
    style = STYLES[attempt.outcome]
    if labels.paired(attempt):
        _row(sheet, widths, _cells(number, attempt), style="bold", last=style)
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
    if memory := _memory(attempt):
        sheet.say(memory, style="dim", indent=INDENT)
    if attempt.compile_s is not None and attempt.compile_s >= WORTH_SAYING_S:
        pays = f", pays after {plural(attempt.break_even_calls, 'call')}" if attempt.break_even_calls else ""
        sheet.say(f"{attempt.compile_s:.2g} s to prepare{pays}", style="dim", indent=INDENT)
    for note in attempt.notes:
        if note in attempt.reason:
            continue
        sheet.say(note, indent=INDENT)
    for refusal in attempt.sites.refused[:REFUSALS_SHOWN]:
        where = f" ({labels.source(refusal.source)})" if refusal.source else ""
        site = "" if refusal.site in refusal.reason else f"{refusal.site}: "
        sheet.say(f"left alone: {site}{refusal.reason}{where}", style="dim", indent=INDENT)
    if (more := len(attempt.sites.refused) - REFUSALS_SHOWN) > 0:
        sheet.add((f"{' ' * INDENT}and {plural(more, 'more refusal')} (all in --json)", "dim"))


def _memory(attempt: Attempt) -> str:
    """``peak memory 12.3 → 10.1 MB``; empty where it reads the same before and after."""
    own, new = (timing.peak_memory_bytes if timing else None for timing in (attempt.before, attempt.after))
    if own is None or new is None or size_bytes(own) == size_bytes(new):
        return ""
    left, right = size_bytes(own), size_bytes(new)
    same = left.split()[-1] == right.split()[-1]
    return f"peak memory of a call {left.split()[0] if same else left} → {right}"


def _path(sheet: Sheet, report: Report) -> None:
    """Say by which steps a search came to what it kept, how long it took, and what it did not reach."""
    if (hunt := report.hunt) is None:
        return
    sheet.gap()
    kept = [a for a in report.attempts if a.kept]
    steps = [f"{a.name}{f' {labels.ratio(a.speedup.median)}' if a.speedup else ''}" for a in kept]
    way = " → ".join(["original", *steps]) if steps else "nothing was kept"
    spent = f"{hunt.spent_s:.0f} of {hunt.budget_s:g} s"
    for_ = "" if hunt.goal == "latency" else f" for {hunt.goal}"
    tried = sum(a.outcome != "not_tried" and a.before is not None for a in report.attempts)
    sheet.say(f"{way}; {plural(tried, 'measurement')}{for_} in {spent}", lead=[("Path      ", "bold")], indent=10)
    if hunt.unreached:
        sheet.say(f"not reached in that time: {'; '.join(hunt.unreached)}", indent=10)


def _findings(sheet: Sheet, report: Report) -> None:
    """For each finding what could go, what went, and whether its kernels are gone; and which findings stay."""
    told, lead = _told(report), "Findings  "
    kept = any(attempt.kept for attempt in report.attempts)
    if not (told or kept):
        return
    sheet.gap()
    for found, attempt, credit in told[:CREDITS_SHOWN]:
        sheet.flow(_credit(report, found, attempt, credit), lead=[(lead, "bold")], indent=12, gap="   ")
        lead = " " * len(lead)
    if (more := len(told) - CREDITS_SHOWN) > 0:
        sheet.say(f"and {more} more (all in --json)", style="dim", indent=10)
    closed = {credit.finding for _, attempt, credit in told if attempt.kept and credit.closed}
    still = {f.id for f in report.findings if f.id not in closed and not f.footnote}
    if still:
        sheet.say(f"still open: {_rules(report, still)}", lead=[] if told else [(lead, "bold")], indent=10)


def _told(report: Report) -> list[tuple[Finding, Attempt, Credit]]:
    """One credit a finding: of the kept attempt that closed or reached it, else of the one that came closest."""
    best: dict[str, tuple[tuple[bool, bool, int], Attempt, Credit]] = {}
    for attempt in report.attempts:
        for credit in attempt.credits:
            rank = attempt.kept, credit.closed, credit.gone
            if credit.finding not in best or rank > best[credit.finding][0]:
                best[credit.finding] = rank, attempt, credit
    return [(f, *best[f.id][1:]) for f in report.findings if f.id in best]


def _credit(report: Report, found: Finding, attempt: Attempt, credit: Credit) -> list[Piece]:
    """``FA101 ×2   bound 150–185 µs   fuse_modules: measured 184 µs   2 of 2 kernels gone: closed``."""
    word, high = labels.bound(report), credit.bound_us.high
    expected = f"{word} {verdict.scale(report).range(credit.bound_us.low, high)}"
    items: list[Piece] = [f"{found.rule} {labels.counted(found)}".rstrip()]
    items.append(expected if high > 0 else f"no {word} of time")
    items.append(f"{attempt.strategy}: {_measured(report, attempt, credit)}")
    closed = "closed" if attempt.kept and credit.closed else "" if attempt.kept else "not kept"
    if credit.kernels:
        gone = f"{credit.gone} of {plural(credit.kernels, labels.kernel_word(report))} gone"
        items.append(f"{gone}: {closed}" if closed else gone)
    elif closed:
        items.append(closed)
    return items


def _measured(report: Report, attempt: Attempt, credit: Credit) -> str:
    """What the attempt took off; where that is more than its findings can explain, why it may be."""
    went, scale = credit.measured_us, verdict.scale(report)
    if went is None:
        return "not measured"
    if labels.late(report, attempt):
        return "proven in the check of the whole"
    if attempt.outcome in ("equivalent", "inconclusive", "same"):
        return "no proven difference"
    shared = f" for {credit.shared} findings together" if credit.shared > 1 else ""
    if went < 0:
        return f"measured {scale.time(-went)} slower{shared}"
    high = sum(other.bound_us.high for other in attempt.credits)
    reason = "CPU times vary" if labels.cpu_times(report) else "the rest of the step got shorter too"
    more = f" (more than the {labels.bound(report)}: {reason})" if went > high > 0 else ""
    return f"measured {scale.time(went)}{shared}{more}"


def _rules(report: Report, ids: set[str]) -> str:
    """The rules of findings, each once: ``FA101, FA103 (1 of 2)``."""
    whole = Counter(f.rule for f in report.findings)
    some = Counter(f.rule for f in report.findings if f.id in ids)
    return ", ".join(rule if n == whole[rule] else f"{rule} ({n} of {whole[rule]})" for rule, n in some.items())
