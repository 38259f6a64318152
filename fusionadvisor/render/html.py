"""A report as one HTML page that needs nothing else: no network, and no script to be read. From the report alone."""

from functools import cache
from typing import TYPE_CHECKING

from fusionadvisor.render import charts, labels, outcomes, timeline, variants, verdict, view
from fusionadvisor.render.parts import plain
from fusionadvisor.render.text import cleaned
from fusionadvisor.report.model import KernelTable, Report

if TYPE_CHECKING:
    from jinja2 import Template

MARK = "<!doctype html><!-- fusion-advisor report -->"
"""How a page of this tool begins."""
KERNEL_ROWS = 1000


def compose(report: Report) -> str:
    """Return the page."""
    report = cleaned(report)
    seen, line, steps = view.of(report), report.timeline, _arms(report)
    table = line.kernels if line else KernelTable()
    timed = [(f"{a.strategy}: {side}", timing) for a in report.attempts
            for side, timing in (("before", a.before), ("after", a.after)) if timing]  # fmt: skip
    return _template().render(
        seen=seen,
        report=report,
        title=plain(seen.subject[0]),
        timeline=timeline.draw(steps, seen.word),
        timeline_data=timeline.data(steps, seen.word) if steps else "",
        roofline=charts.roofline(table, report.environment.copy_gbs or report.environment.peak_gbs),
        waterfall=_waterfall(report),
        strips=charts.samples(timed),
        bars=[charts.saving(one.finding, verdict.of_step(report)) for one in seen.findings],
        footnotes=[f for f in report.findings if f.footnote],
        kernels=view.kernels(report)[:KERNEL_ROWS],
        nearly=labels.near_misses(report.near_misses),
        word=seen.word,
        labels=labels,
        plain=plain,
        tones=outcomes.TONES,
        created=_moment(report.created),
        first=variants.names(report)[0],
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
            timeline.arm(report.timeline, "before", length, worth, view.drift(report)),
            timeline.arm(report.timeline_after, "after", both[1] * 1e3),
        ]
    return [one for one in drawn if one]


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
        bars.append((f"limit by the {labels.bound(report)}s", "floor", min(floor, both[1])))
    scale, longest = labels.Scale.of(whole * 1e3), max(ms for _, _, ms in bars) or 1.0
    return [
        (name, kind, ms / longest, scale.time(ms * 1e3), labels.ratio(whole / ms) if kind == "after" else "")
        for name, kind, ms in bars
    ]
