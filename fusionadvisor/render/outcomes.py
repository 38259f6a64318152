"""What a report says of the strategies it tried: a row each, what stands under it, and what became of the findings."""

from collections import Counter
from dataclasses import dataclass

from fusionadvisor.render import labels, verdict
from fusionadvisor.render.parts import Column, Fact, Piece, Row, Table, plain
from fusionadvisor.report.model import Attempt, Credit, Finding, Report, Verification
from fusionadvisor.units import plural, size_bytes

TONES = {"faster": "good", "equivalent": "good", "same": "warn", "no_effect": "warn", "not_tried": "warn",
         "inconclusive": "warn", "unchecked": "warn"}  # fmt: skip
"""Of outcomes; any other is bad."""
FAILED = ("diverged", "crashed", "timed_out")
"""Outcomes whose reason is always shown: nobody expects them."""
REFUSALS_SHOWN, CREDITS_SHOWN, OP = 8, 12, 48
WORTH_SAYING_S = 0.5


@dataclass(frozen=True, slots=True)
class Tried:
    """The strategies that were tried, those a search found not applicable, and what it came to."""

    table: Table
    not_applicable: tuple[str, ...]
    reasons: tuple[Fact, ...]
    """Of those not applicable."""
    facts: tuple[Fact, ...]


def proof(report: Report) -> tuple[str, ...]:
    """What the headline of an apply rests on."""
    items = []
    if report.result:
        (low, high), (band_low, band_high) = report.result.ci95, report.result.aa_band
        items.append(f"(95 %: {low:.2f}–{high:.2f}; identical copies differ by {band_low:.2f}–{band_high:.2f})")
    checked = [a.verification for a in report.attempts if a.kept and a.verification]
    return (*items, *map(agreement, checked[-1:]))


def agreement(found: Verification) -> str:
    """Whether the outputs agree, and by which measure."""
    if found.verdict == "unchecked":
        return f"outputs not checked: {found.reason}"
    if found.verdict == "diverges":
        return f"outputs differ: {found.reason or f'largest error {found.max_error:.2g}'}"
    sets = f", {plural(found.inputs, 'input set')}" if found.inputs else ""
    if found.rmse_ratio is not None:
        return f"outputs agree with float64 (error {found.rmse_ratio:.2f}× the original's{sets})"
    exact = "outputs agree exactly" if found.max_error == 0 else "outputs agree"
    return exact if found.max_error == 0 else f"{exact} (largest error {found.max_error:.2g}{sets})"


def tried(report: Report) -> Tried:
    """Return what is said of the attempts. A search tries everything: what could not be applied is named, no more."""
    shown: list[tuple[int, Attempt]] = []
    left: list[tuple[int, Attempt]] = []
    for number, attempt in enumerate(report.attempts, 1):
        untimed = report.hunt is not None and attempt.before is None and attempt.outcome not in FAILED
        (left if untimed else shown).append((number, attempt))
    late = tuple(name.partition(" on ")[0] for name in report.hunt.unreached) if report.hunt else ()
    left = [(number, attempt) for number, attempt in left if attempt.name not in late]
    rows = tuple(_row(report, number, attempt) for number, attempt in shown)
    word = f"{labels.kernel_word(report)}s"
    columns = (
        Column("", spare=2), Column("tried", limit=16), Column("sites", spare=4), Column(word, spare=3),
        Column("before → after", number=True, spare=5), Column("speed-up", spare=1), Column("verdict", wraps=True),
    )  # fmt: skip
    names = dict.fromkeys(attempt.strategy for _, attempt in left)
    done = {attempt.strategy for _, attempt in shown}
    return Tried(
        table=Table("Tried", columns, rows),
        not_applicable=tuple(name for name in names if name not in done),
        reasons=tuple(Fact("", (f"{a.strategy}: {labels.outcome(report, a)}. {a.reason}".rstrip(),)) for _, a in left),
        facts=(*_path(report), *_findings(report), *_cost(report)),
    )


def _row(report: Report, number: int, attempt: Attempt) -> Row:
    looked, counts, gain = attempt.sites.matched, attempt.kernels, attempt.speedup
    cells: tuple[Piece, ...] = (
        str(number),
        (attempt.strategy, "strong"),
        f"{attempt.sites.applied} of {looked}" if looked else "",
        f"{counts.before} → {counts.after}" if counts else "",
        labels.paired(attempt),
        f"{labels.ratio(gain.median)} ({gain.ci95[0]:.2f}–{gain.ci95[1]:.2f})" if gain else "",
        (labels.outcome(report, attempt), TONES.get(attempt.outcome, "bad")),
    )
    return Row(cells, tuple(details(report, attempt)), key=attempt.outcome)


def details(report: Report, attempt: Attempt) -> list[Fact]:
    """What stands under an attempt: its reason, and in full the kernels, errors, costs, notes and refusals."""
    asked = report.hunt is None
    facts = []
    if attempt.reason:
        facts.append(Fact("", (attempt.reason,), None if asked or attempt.outcome in FAILED else True))
    if attempt.kernels:
        gone, added = ([f"{labels.kernel(name, OP)} ×{count}" for name, count in ops] for ops in
                       (attempt.kernels.gone, attempt.kernels.added))  # fmt: skip
        facts += [Fact(f"{label}: ", tuple(ops), True, ", ") for label, ops in (("gone", gone), ("new", added)) if ops]
    facts += [Fact("", (text,), True) for text in _figures(attempt)]
    facts += [Fact("", (note,), None if asked else True) for note in attempt.notes if note not in attempt.reason]
    for number, refusal in enumerate(attempt.sites.refused):
        if number == REFUSALS_SHOWN:
            more = len(attempt.sites.refused) - REFUSALS_SHOWN
            facts.append(Fact("", (f"and {plural(more, 'more refusal')} (all in --json)",), None if asked else True))
            break
        where = f" ({labels.source(refusal.source)})" if refusal.source else ""
        site = "" if refusal.site in refusal.reason else f"{refusal.site}: "
        short = asked and not attempt.sites.applied
        facts.append(Fact("", (f"skipped {site}{refusal.reason}{where}",), None if short else True))
    return [Fact(f.label, tuple((plain(item), "soft") for item in f.items), f.verbose, f.gap) for f in facts]


def _figures(attempt: Attempt) -> list[str]:
    check, gain, texts = attempt.verification, attempt.speedup, []
    if gain:
        texts.append(f"identical copies differ by {gain.aa_band[0]:.2f}–{gain.aa_band[1]:.2f}")
    if check:
        texts.append(agreement(check))
    return texts


def _memory(attempt: Attempt) -> str:
    """``peak memory of a call 12.3 → 10.1 MB``; empty where it reads the same before and after."""
    old, new = (timing.peak_memory_bytes if timing else None for timing in (attempt.before, attempt.after))
    if old is None or new is None or size_bytes(old) == size_bytes(new):
        return ""
    left, right = size_bytes(old), size_bytes(new)
    same = left.split()[-1] == right.split()[-1]
    return f"peak memory of a call {left.split()[0] if same else left} → {right}"


def _cost(report: Report) -> list[Fact]:
    """What the kept strategies cost before they pay, and what they did to memory."""
    kept, facts = [attempt for attempt in report.attempts if attempt.kept], []
    for attempt in kept:
        items = []
        if attempt.compile_s is not None and attempt.compile_s >= WORTH_SAYING_S:
            pays = f", pays off after {plural(attempt.break_even_calls, 'call')}" if attempt.break_even_calls else ""
            items.append(f"{attempt.name}: {attempt.compile_s:.2g} s to prepare{pays}")
        items += [memory] if (memory := _memory(attempt)) else []
        facts += [Fact("Cost", tuple(items))] if items else []
    return facts


def _path(report: Report) -> list[Fact]:
    """By which steps a search came to what it kept, how long it took, and what it did not reach."""
    if (hunt := report.hunt) is None:
        return []
    steps = [f"{a.name}{f' {labels.ratio(a.speedup.median)}' if a.speedup else ''}" for a in report.attempts if a.kept]
    path = " → ".join(["original", *steps]) if steps else "nothing was kept"
    spent = f"{hunt.spent_s:.0f} of {hunt.budget_s:g} s"
    goal = "" if hunt.goal == "latency" else f" for {hunt.goal}"
    count = sum(a.outcome != "not_tried" and a.before is not None for a in report.attempts)
    facts = [Fact("Search", (f"{path}; {plural(count, 'measurement')}{goal} in {spent}",))]
    if hunt.unreached:
        facts.append(Fact("Search", (f"not reached in that time: {'; '.join(hunt.unreached)}",)))
    return facts


def _findings(report: Report) -> list[Fact]:
    """For each finding what was expected, what was measured, and whether its kernels are gone; and which stay open."""
    credited = _credited(report)
    if not credited and not any(attempt.kept for attempt in report.attempts):
        return []
    facts = [Fact("Findings", _credit(report, *one), None if i < CREDITS_SHOWN else True)
             for i, one in enumerate(credited)]  # fmt: skip
    if (more := len(credited) - CREDITS_SHOWN) > 0:
        facts.append(Fact("Findings", ((f"and {more} more (--verbose)", "soft"),), False))
    closed = {credit.finding for _, attempt, credit in credited if attempt.kept and credit.closed}
    still = {f.id for f in report.findings if f.id not in closed and not f.footnote}
    if still:
        facts.append(Fact("Findings", (f"still open: {_rules(report, still)}",)))
    return facts


def _credited(report: Report) -> list[tuple[Finding, Attempt, Credit]]:
    """One credit a finding: of the kept attempt that closed or reached it, else of the one that came closest."""
    best: dict[str, tuple[tuple[bool, bool, int], Attempt, Credit]] = {}
    for attempt in report.attempts:
        for credit in attempt.credits:
            rank = attempt.kept, credit.closed, credit.gone
            if credit.finding not in best or rank > best[credit.finding][0]:
                best[credit.finding] = rank, attempt, credit
    return [(f, *best[f.id][1:]) for f in report.findings if f.id in best]


def _credit(report: Report, found: Finding, attempt: Attempt, credit: Credit) -> tuple[str, ...]:
    """``FA101 ×2 closed``, ``bound 150–185 µs``, ``fuse_modules saved 184 µs``, ``2 of 2 kernels gone``."""
    word, high = labels.bound(report), credit.bound_us.high
    state = ("closed" if credit.closed else "open") if attempt.kept else "open, not kept"
    items = [f"{found.rule} {labels.counted(found)}".rstrip() + f" {state}"]
    items.append(
        f"{word} {verdict.scale(report).range(credit.bound_us.low, high)}" if high > 0 else f"no {word} of time"
    )
    items.append(_measured(report, attempt, credit))
    if credit.kernels:
        items.append(f"{credit.gone} of {plural(credit.kernels, labels.kernel_word(report))} gone")
    return tuple(items)


def _measured(report: Report, attempt: Attempt, credit: Credit) -> str:
    """What the attempt saved; where that is more than its findings explain, why it may be."""
    saved, scale, name = credit.measured_us, verdict.scale(report), attempt.strategy
    if saved is None:
        return f"{name} was not measured"
    if labels.late(report, attempt):
        return f"{name}: proven in the final check"
    if attempt.outcome in ("equivalent", "inconclusive", "same"):
        return f"{name}: no proven difference"
    shared = f" for {credit.shared} findings together" if credit.shared > 1 else ""
    if saved < 0:
        return f"{name} took {scale.time(-saved)} longer{shared}"
    high = sum(other.bound_us.high for other in attempt.credits)
    reason = "CPU times vary" if labels.cpu_times(report) else "the rest of the step got shorter too"
    more = f" (more than the {labels.bound(report)}: {reason})" if saved > high > 0 else ""
    return f"{name} saved {scale.time(saved)}{shared}{more}"


def _rules(report: Report, ids: set[str]) -> str:
    """The rules of findings, each once: ``FA101, FA103 (1 of 2)``."""
    whole = Counter(f.rule for f in report.findings)
    some = Counter(f.rule for f in report.findings if f.id in ids)
    return ", ".join(rule if n == whole[rule] else f"{rule} ({n} of {whole[rule]})" for rule, n in some.items())
