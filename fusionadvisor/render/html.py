"""A report as one HTML page that needs nothing else: no network, and no script to be read. From the report alone."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from fusionadvisor import catalog
from fusionadvisor.render import charts, labels, verdict
from fusionadvisor.render.text import cleaned
from fusionadvisor.report.model import KernelTable, Report
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
    arms = [(f"{a.strategy}: {side}", timing) for a in report.attempts
            for side, timing in (("before", a.before), ("after", a.after)) if timing]  # fmt: skip
    return _template().render(
        report=report,
        verdict=verdict.of_attempts(report) if report.attempts else verdict.of_findings(report),
        subject=labels.target(report.workload) if report.workload else labels.file_name(report.source),
        tiles=_tiles(report),
        kinds=_kinds(report),
        timeline=charts.timeline(table),
        roofline=charts.roofline(table, report.environment.copy_gbs or report.environment.peak_gbs),
        waterfall=charts.waterfall(report.attempts),
        strips=charts.samples(arms),
        findings=[(f, charts.saving(f, verdict.of_step(report)), catalog.url(f.rule)) for f in verdict.ranked(report)],
        common=verdict.common(report.findings),
        footnotes=[f for f in report.findings if f.footnote],
        kernels=_kernels(table),
        word=labels.kernel_word(report),
        labels=labels,
        table=table,
        scale=verdict.scale(report),
        percent=percent,
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("fusionadvisor.render"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return env.get_template("report.html")


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
    tiles.append((f"{word} a step", f"{round(verdict.kernels(report) / verdict.steps_shown(report)):,}"))
    if verdict.kernel_us(report):
        tiles.append(("unfused", percent(report.fusion.unfused_us / verdict.kernel_us(report))))
        tiles.append(("fused already", percent(report.fusion.fused_share)))
    moved = sum(b for b in report.timeline.kernels.bytes if b > 0) if report.timeline else 0
    if moved:
        tiles.append(("moved a step", size_bytes(moved / verdict.steps_shown(report))))
    return tiles


def _kinds(report: Report) -> list[tuple[str, str, int, str, float]]:
    if report.timeline is None:
        return []
    steps, scale = verdict.steps_shown(report), verdict.scale(report)
    ranked = sorted(report.timeline.by_kind, key=lambda k: -k.gpu_us)
    total = sum(k.gpu_us for k in ranked) or 1.0
    return [
        (k.kind, labels.KINDS.get(k.kind, k.kind), round(k.kernels / steps), scale.time(k.gpu_us / steps),
         k.gpu_us / total)
        for k in ranked
    ]  # fmt: skip


def _kernels(table: KernelTable) -> list[KernelRow]:
    totals: dict[tuple[str, str, str], tuple[int, float, int]] = {}
    groups = table.group or (-1,) * len(table.index)
    for name, kind, op, time, group in zip(table.name, table.kind, table.op, table.dur_us, groups, strict=True):
        count, total, grouped = totals.get((name, kind, op), (0, 0.0, 0))
        totals[name, kind, op] = (count + 1, total + time, grouped + (group >= 0))
    rows = [KernelRow(*key, *value) for key, value in totals.items()]
    return sorted(rows, key=lambda row: -row.total_us)[:KERNEL_ROWS]
