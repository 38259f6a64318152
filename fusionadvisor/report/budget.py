"""The gate: a report against limits a project set, and against a report it kept as its baseline.

Counts are compared exactly, times only where both were measured alike, and then by their intervals.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fusionadvisor.errors import InputError
from fusionadvisor.report import condition, diff, quantities, wording
from fusionadvisor.report.condition import Condition
from fusionadvisor.report.diff import Comparison
from fusionadvisor.report.model import KernelTable, Report, Source
from fusionadvisor.report.step import step_rows
from fusionadvisor.report.structure import canonical, structure

__all__ = ["Breach", "Check", "Place", "against", "baseline", "check", "read", "structure"]

EXACT = ("kernels", "launches", "groups", "unfused_bytes", "bytes", "syncs", "graph_breaks", "fused_share")
"""What must not get worse than the baseline, besides each rule's places. Of ``graph_launches`` neither side
is worse."""
TOLERANCE = 0.05
"""How much slower a measured step may be, beyond its interval, where nothing else is said. Two sessions on one idle
machine differ by a few per cent that no interval within a session shows."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something broke, and what happened there."""

    module: str
    source: Source | None
    words: str


@dataclass(frozen=True, slots=True)
class Breach:
    """A limit that does not hold."""

    what: str
    limit: str
    found: str
    origin: str
    """``budget``, ``baseline`` or ``--fail-on``."""
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of a gate."""

    breaches: tuple[Breach, ...]
    compared: tuple[str, ...]
    """What was held against a limit, in words."""
    better: tuple[str, ...] = ()
    """What improved on the baseline, which could be updated."""
    notes: tuple[str, ...] = ()
    """What differs besides the code, and what could not be compared."""
    same: bool = False
    """True where the step equals the baseline's in everything that is compared exactly."""
    comparison: Comparison | None = None


def read(table: Mapping[str, Any], report: Report | None = None) -> tuple[Condition, ...]:
    """Return the limits of a ``[tool.fusion-advisor.budget]`` table.

    Args:
        table: A quantity's name to the most it may be (the least, where more is better), and ``fail-on``, a list of
            conditions as for the option. A nested table's keys are joined with a dot: ``findings.FA101``.
        report: Makes rules of other packages known that it mentions.

    Raises:
        InputError: If a name is unknown or a value is no number.
    """
    limits: list[Condition] = []
    for name, value in _flat(table):
        where = f"[tool.fusion-advisor.budget] {name}"
        if name == "fail-on":
            texts = [value] if isinstance(value, str) else value
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise InputError(f"{where} is no list of conditions.", 'Write: fail-on = ["syncs > 0"]')
            limits += condition.parse(texts, origin=where)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            limits.append(condition.at_most(name, value, report))
        else:
            raise InputError(f"{where} = {value!r} is no number.", f"Write: {name} = 12")
    return tuple(limits)


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in table.items():
        flat += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return flat


def against(conditions: Sequence[Condition], report: Report, origin: str) -> tuple[Breach, ...]:
    """Return the conditions that are met, each a breach with the findings it is about.

    Raises:
        InputError: If the report does not say a quantity.
    """
    return tuple(_breach(c, report, origin) for c in conditions if c.met(report))


def _breach(met: Condition, report: Report, origin: str) -> Breach:
    value = met.quantity.of(report) or 0
    places = tuple(Place(", ".join(f.modules or (f.module,)), f.source, f.title) for f in met.findings(report))
    return Breach(met.quantity.name, met.holds, f"{_amount(value)}", origin, places)


def check(
    report: Report, limits: Sequence[Condition] = (), baseline: Report | None = None, *, tolerance: float = TOLERANCE
) -> Check:
    """Hold a report against limits and a baseline.

    Args:
        report: What the change under test gave.
        limits: The project's budget.
        baseline: The report of the code before; None where there is none.
        tolerance: Share by which a measured time may grow beyond its interval.

    Raises:
        InputError: If the two are of different things (a GPU's kernels against a CPU's ops), or a limit is on a
            quantity that the report does not say.
    """
    breaches = against(limits, report, "budget")
    compared = tuple(limit.quantity.name for limit in limits)
    if baseline is None:
        return Check(breaches, compared)
    if reason := diff.incomparable(baseline, report):
        raise InputError(
            f"This report and its baseline cannot be compared: {reason}.",
            "Make both on the same kind of machine, or update the baseline.",
        )
    comparison = diff.compare(baseline, report)
    breaches += (
        *_inputs(baseline, report),
        *_worse(comparison),
        *_broken(comparison),
        *_slower(comparison, tolerance),
    )
    return Check(
        breaches=breaches,
        compared=(*compared, *(f.name for f in comparison.figures if _exact(f))),
        better=tuple(
            f"{f.name} {_amount(f.before or 0)} → {_amount(f.after or 0)}"
            for f in comparison.figures
            if _better(f) and _fused(f.name, comparison)
        ),
        notes=(*_targets(baseline, report), *comparison.notes, *_unknown(comparison), *_unjudged(comparison)),
        same=canonical(baseline) == canonical(report),
        comparison=comparison,
    )


def _amount(value: float) -> str:
    """Counts to the last digit: a limit that fails by one must show it."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.6g}"


def _exact(figure: diff.Figure) -> bool:
    return not figure.timed and (figure.name in EXACT or figure.name.startswith(quantities.PREFIX))


def _better(figure: diff.Figure) -> bool:
    known = figure.before is not None and figure.after is not None
    return known and _exact(figure) and not figure.worse and figure.before != figure.after


def _fused(name: str, comparison: Comparison) -> bool:
    """A rule that finds fewer places is better only where kernels went for one of them."""
    rule = name.removeprefix(quantities.PREFIX)
    return rule == name or any(c.rule == rule and c.event == "gained" for c in comparison.fusions)


def _inputs(baseline: Report, report: Report) -> list[Breach]:
    return [
        Breach(what, then, now, "baseline")
        for what, then, now in diff.workload_changes(baseline, report)
        if what != "Model"
    ]


def _targets(baseline: Report, report: Report) -> list[str]:
    """Say where the two are of different models, whatever their classes are called."""
    then, now = (
        f"{Path(work.target).name}:{work.entry}" if (work := r.workload) and work.target else ""
        for r in (baseline, report)
    )
    return [f"The baseline is of another target: {then} → {now}."] if then and now and then != now else []


def _worse(comparison: Comparison) -> list[Breach]:
    breaches = []
    for figure in comparison.figures:
        if figure.worse and _exact(figure) and figure.before is not None and figure.after is not None:
            limit = f"at {'least' if figure.after < figure.before else 'most'} {_amount(figure.before)}"
            where = _where(figure.name, comparison)
            breaches.append(Breach(figure.name, limit, _amount(figure.after), "baseline", where))
    return breaches


def _where(name: str, comparison: Comparison) -> tuple[Place, ...]:
    """Which places a figure got worse at, where it is a figure of places."""
    if name == "kernels":
        return tuple(Place(wording.names(m), m.source, wording.module_words(m)) for m in comparison.modules if m.came)
    rule = name.removeprefix(quantities.PREFIX)
    worse = (c for c in comparison.fusions if c.event in ("lost", "new") and c.rule == rule)
    return tuple(Place(c.module, c.source, wording.fusion_words(c)) for c in worse)


def _broken(comparison: Comparison) -> list[Breach]:
    """Fusions lost at one place and gained at another: the totals hold, the place is broken all the same.

    Of a rule that looked at one side only nothing is known to be lost.
    """
    told = {
        figure.name.removeprefix(quantities.PREFIX)
        for figure in comparison.figures
        if figure.worse or figure.before is None or figure.after is None
    }
    return [
        Breach(f"{c.rule} at {c.module}", "none there", "unfused", "baseline",
               (Place(c.module, c.source, wording.fusion_words(c)),))
        for c in comparison.fusions
        if c.event == "lost" and c.rule not in told
    ]  # fmt: skip


def _slower(comparison: Comparison, tolerance: float) -> list[Breach]:
    time = comparison.time
    if time is None or time.verdict != "slower" or time.ci95 is None or time.ci95[0] <= 1 + tolerance:
        return []
    limit, now = f"at most {time.before_us:,.6g} + {tolerance:.0%}", f"{time.after_us:,.6g}"
    return [Breach(f"{time.what} (µs)", limit, f"{now}, {wording.slower_or_faster(time.ratio, time.ci95)}", "baseline")]


def _unknown(comparison: Comparison) -> list[str]:
    missing = [f for f in comparison.figures if _exact(f) and (f.before is None) != (f.after is None)]
    return [f"{f.name} is known {'before' if f.after is None else 'after'} only; not compared." for f in missing]


def _unjudged(comparison: Comparison) -> list[str]:
    time = comparison.time
    return [f"Time is not judged: {time.reason}."] if time and time.verdict == "unknown" and time.reason else []


def baseline(report: Report) -> Report:
    """Return a report small enough to keep under version control: one typical step, and no raw samples.

    Its structure is the report's own.
    """
    timed = replace(report.latency, samples_ms=()) if report.latency else None
    report = replace(report, latency=timed, timeline_after=None)
    if report.timeline is None:
        return report
    table = report.timeline.kernels
    rows = step_rows(table)
    columns = {f.name: getattr(table, f.name) for f in fields(table) if f.name != "total"}
    kept = {name: tuple(column[row] for row in rows) for name, column in columns.items() if column}
    one_step = KernelTable(total=table.total if table.total > len(table.op) else len(rows), **kept)
    return replace(report, timeline=replace(report.timeline, kernels=one_step))
