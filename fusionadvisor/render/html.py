"""A report as one HTML page that needs nothing else: no network, and no script to be read. From the report alone."""

from collections import Counter
from dataclasses import astuple, dataclass
from functools import cache
from typing import TYPE_CHECKING

from fusionadvisor import catalog
from fusionadvisor.render import charts, labels, timeline, variants, verdict
from fusionadvisor.render.text import cleaned
from fusionadvisor.report.model import KernelTable, KindSummary, Report, TimelineSummary
from fusionadvisor.units import percent, size_bytes

if TYPE_CHECKING:
    from jinja2 import Template

MARK = "<!doctype html><!-- fusion-advisor report -->"
"""How a page of this tool begins."""
KERNEL_ROWS = 1000


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Launches of one kernel from one op, summed over the timeline."""

    name: str
    kind: str
    op: str
    count: int
    total_us: float
    grouped: int


def compose(report: Report) -> str:
    """Return the page."""
    report = cleaned(report)
    line = report.timeline
    table = line.kernels if line else KernelTable()
    word, steps = labels.kernel_word(report), _arms(report)
    timed = [(f"{a.strategy}: {side}", timing) for a in report.attempts
            for side, timing in (("before", a.before), ("after", a.after)) if timing]  # fmt: skip
    return _template().render(
        report=report,
        verdict=verdict.of_attempts(report) if report.attempts else verdict.of_findings(report),
        subject=labels.target(report.workload) if report.workload else labels.file_name(report.source),
        tiles=_tiles(report),
        kinds=_kinds(report),
        timeline=timeline.draw(steps, word),
        timeline_data=timeline.data(steps, word) if steps else "",
        fitted=report.latency is not None,
        roofline=charts.roofline(table, report.environment.copy_gbs or report.environment.peak_gbs),
        waterfall=_waterfall(report),
        strips=charts.samples(timed),
        findings=[(f, charts.saving(f, verdict.of_step(report)), catalog.url(f.rule)) for f in verdict.ranked(report)],
        common=verdict.common(report.findings),
        footnotes=[f for f in report.findings if f.footnote],
        kernels=_kernels(table),
        word=word,
        labels=labels,
        scale=verdict.scale(report),
        created=_moment(report.created),
        nearly=labels.near_misses(report.near_misses),
        small=Counter(f.rule for f in report.findings if f.footnote),
        percent=percent,
        variants=_variants(report),
        warnings=variants.warnings(report),
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("fusionadvisor.render"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return env.get_template("report.html")


def _moment(created: str) -> str:
    """``2026-01-02 03:04 UTC`` of a time as a report has it."""
    date, _, time = created.partition("T")
    return f"{date} {time[:5]} UTC" if created.endswith("+00:00") else created


def _arms(report: Report) -> list[timeline.Arm]:
    """What to draw along time: one step, and where something was kept the step it became."""
    length = report.latency.median_ms * 1e3 if report.latency else None
    worth = [f for f in report.findings if not f.footnote]
    both = verdict.arms(report)
    if both is None or report.timeline_after is None:
        drawn = [timeline.arm(report.timeline, "", length, worth)]
    else:
        drawn = [
            timeline.arm(report.timeline, "before", length, worth, _drift(report)),
            timeline.arm(report.timeline_after, "after", both[1] * 1e3),
        ]
    return [one for one in drawn if one]


def _drift(report: Report) -> float:
    """How much slower the original was when before and after were measured than when it was profiled."""
    both = verdict.arms(report)
    return both[0] / report.latency.median_ms if both and report.latency else 1.0


def _variants(report: Report) -> list[tuple[str, ...]]:
    """The table of several workloads with its head; empty where there is one."""
    return [variants.headings(report), *map(astuple, variants.rows(report))] if report.variants else []


def _tiles(report: Report) -> list[tuple[str, str]]:
    """The figures at the top, each with what it is."""
    tiles = []
    if both := verdict.arms(report):
        tiles.append(("before → after", labels.change(*both)))
    if report.result:
        low, high = report.result.ci95
        tiles.append(("speed-up, 95 %", f"{labels.ratio(report.result.median)} ({low:.2f}–{high:.2f})"))
        band_low, band_high = report.result.aa_band
        tiles.append(("same code, A/A", f"{band_low:.2f}–{band_high:.2f}"))
    elif report.latency:
        tiles.append(("step, 95 %", labels.interval(report.latency)))
    elif report.timeline:
        tiles.append(("step", verdict.scale(report).time(report.timeline.step_us)))
    word = f"{labels.kernel_word(report)}s"
    ran = f"{round(verdict.kernels(report) / verdict.steps_shown(report)):,}"
    runs = f" → {sum(d.kernels for d in report.timeline_after.devices):,}" if report.timeline_after else ""
    tiles.append((f"{word} a step", ran + runs))
    if verdict.kernel_us(report):
        tiles.append(("unfused", percent(report.fusion.unfused_us / verdict.kernel_us(report))))
        tiles.append(("fused already", percent(report.fusion.fused_share)))
    moved = sum(b for b in report.timeline.kernels.bytes if b > 0) if report.timeline else 0
    if moved:
        tiles.append(("moved a step", size_bytes(moved / verdict.steps_shown(report))))
    return tiles


def _waterfall(report: Report) -> list[tuple[str, str, float, str, str]]:
    """Latency from the original through each kept step to what the findings would leave, as bars.

    Each step divides what was before it by its own speed-up, so that what drifts between the steps is left out.

    Returns:
        For each bar its name, its class, its length as a share of the longest, its time, and the speed-up until then.
    """
    kept, both = [a for a in report.attempts if a.kept and a.speedup], verdict.arms(report)
    if not kept or both is None:
        return []
    whole = both[0]
    bars = [("original", "before", whole)]
    for attempt in kept:
        bars.append((attempt.strategy, "after", bars[-1][2] / (attempt.speedup.median if attempt.speedup else 1.0)))
    if len(kept) > 1:
        bars.append(("together", "after", both[1]))
    if could := verdict.could_save(report):
        floor = max(whole * (1 - could / verdict.of_step(report)), 0.0)
        bars.append((f"least by the {labels.bound(report)}s", "floor", floor))
    scale, longest = labels.Scale.of(whole * 1e3), max(ms for _, _, ms in bars) or 1.0
    return [
        (name, kind, ms / longest, scale.time(ms * 1e3), labels.ratio(whole / ms) if kind == "after" else "")
        for name, kind, ms in bars
    ]


@dataclass(frozen=True, slots=True)
class KindRow:
    """Kernels of one kind in a step, before and after; without an after, ``after`` is None."""

    kind: str
    before: KindSummary
    after: KindSummary | None
    share: float


def _kinds(report: Report) -> list[KindRow]:
    before = _of_a_step(report.timeline)
    after = _of_a_step(report.timeline_after, 1 / _drift(report)) if report.timeline_after else None
    whole = sum(k.gpu_us for k in before.values()) or 1.0
    none = KindSummary("", 0, 0.0)
    pairs = {
        name: (before.get(name, none), (after or {}).get(name, none)) for name in sorted({*before, *(after or ())})
    }
    ranked = sorted(pairs.items(), key=lambda item: (-item[1][0].gpu_us, -item[1][1].gpu_us))
    return [
        KindRow(name, own, new if report.timeline_after else None, own.gpu_us / whole) for name, (own, new) in ranked
    ]


def _of_a_step(line: TimelineSummary | None, scale: float = 1.0) -> dict[str, KindSummary]:
    if line is None:
        return {}
    steps = max(line.steps, 1)
    return {k.kind: KindSummary(k.kind, round(k.kernels / steps), scale * k.gpu_us / steps) for k in line.by_kind}


def _kernels(table: KernelTable) -> list[KernelRow]:
    totals: dict[tuple[str, str, str], tuple[int, float, int]] = {}
    groups = table.group or (-1,) * len(table.index)
    for name, kind, op, time, group in zip(table.name, table.kind, table.op, table.dur_us, groups, strict=True):
        count, total, grouped = totals.get((name, kind, op), (0, 0.0, 0))
        totals[name, kind, op] = (count + 1, total + time, grouped + (group >= 0))
    rows = [KernelRow(*key, *value) for key, value in totals.items()]
    return sorted(rows, key=lambda row: -row.total_us)[:KERNEL_ROWS]
