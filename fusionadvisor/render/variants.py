"""Several workloads of one target side by side: batch sizes, or prefill and decode. Works from the report alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fusionadvisor import catalog
from fusionadvisor.render import labels, verdict
from fusionadvisor.report.model import Report, Workload
from fusionadvisor.units import percent

GENERATION = ("prefill", "decode")
"""Entries whose samples are tokens."""


@dataclass(frozen=True, slots=True)
class Row:
    """One workload, each cell as it is shown."""

    name: str
    step: str
    kernels: str
    per_sample: str
    launch_bound: str
    finding: str


def each(report: Report) -> tuple[Report, ...]:
    """The report on each workload, in the order they ran."""
    return (report, *report.variants)


def names(report: Report) -> list[str]:
    """What tells the workloads apart: ``batch 8``, ``decode``, or both."""
    works = [one.workload or Workload("") for one in each(report)]
    entries = len({work.entry for work in works}) > 1
    batches = len({work.batch for work in works}) > 1
    return [", ".join([work.entry or ""] * entries + [f"batch {work.batch or 'as given'}"] * batches) for work in works]


def headings(report: Report) -> tuple[str, ...]:
    """Titles of the columns, in the order of :class:`Row`'s fields."""
    word = f"{labels.kernel_word(report)}s"
    return ("", "step", word, f"per {_sample(report)}", "launch-bound", "top finding")


def rows(report: Report) -> list[Row]:
    """The table. Times are in one unit a column, so that they compare at a glance, and the least keeps its digits."""
    reports = each(report)
    steps = labels.Scale.of(max(map(verdict.of_step, reports)))
    shares = [verdict.of_step(one) / samples(one) for one in reports]
    share = labels.Scale.of(10 * min(shares))
    return [
        Row(name, steps.time(verdict.of_step(one)), _kernels(one), share.time(per), launch_bound(one), _top(one))
        for name, one, per in zip(names(report), reports, shares, strict=True)
    ]


def samples(report: Report) -> int:
    """Rows of the batch in one step; of text that is generated, its tokens."""
    work = report.workload
    shapes = [spec.shape for spec in work.inputs if spec.shape] if work else []
    if not shapes:
        return 1
    return max(1, prod(shapes[0]) if work and work.entry in GENERATION else shapes[0][0])


def launch_bound(report: Report) -> str:
    """``no``; ``yes, 40 % idle``; where launching was not seen, from how long a launch on it is: ``above 3.0 µs``."""
    told = report.fusion.launch_bound
    if told.share is not None:
        return (
            f"yes, {percent(told.share)} idle"
            if any(catalog.concerns(f.rule, "launches") for f in report.findings)
            else "no"
        )
    if told.break_even_us is not None and not labels.cpu_times(report):
        return f"above {told.break_even_us:.1f} µs"
    if report.predicted and report.predicted.kernel_us.likely is not None:
        return f"above {report.predicted.kernel_us.likely / max(report.predicted.kernels, 1):.1f} µs"
    return "unknown"


def best(report: Report) -> str:
    """Which batch size takes least time a sample, and by how much; empty where the workloads differ in kind."""
    reports = each(report)
    if len({one.workload.entry for one in reports if one.workload}) > 1:
        return ""
    shares = [verdict.of_step(one) / samples(one) for one in reports]
    least = min(range(len(shares)), key=shares.__getitem__)
    if not least or not shares[least]:
        return f"Larger batches bring nothing here: {names(report)[0]} takes least time a {_sample(report)}"
    gain = labels.ratio(shares[0] / shares[least])
    return f"Least time a {_sample(report)} at {names(report)[least]}: {gain} faster than {names(report)[0]}"


def notes(report: Report) -> list[str]:
    """What the table needs to be understood."""
    if not any(launch_bound(one).startswith("above") for one in each(report)):
        return []
    where = f" on the {report.predicted.gpu}" if report.predicted else ""
    return [f"Launch-bound{where} where the CPU needs more time than that to launch a kernel."]


def warnings(report: Report) -> list[str]:
    """The warnings of all workloads, once each; one that is not on all of them names those it is on."""
    reports: Sequence[Report] = each(report)
    said: dict[str, list[str]] = {}
    for name, one in zip(names(report), reports, strict=True):
        for warning in one.warnings:
            said.setdefault(warning.message, []).append(name)
    return [
        message if len(of) == len(reports) else f"{'; '.join(of)}: {message}" if any(of) else message
        for message, of in said.items()
    ]


def _sample(report: Report) -> str:
    return "token" if all(one.workload and one.workload.entry in GENERATION for one in each(report)) else "sample"


def _kernels(report: Report) -> str:
    return f"{round(verdict.kernels(report) / verdict.steps_shown(report)):,}"


def _top(report: Report) -> str:
    ranked = verdict.ranked(report)
    if not ranked:
        return "none worth acting on" if report.findings else "none"
    count = labels.counted(ranked[0])
    return f"{ranked[0].rule} {ranked[0].title}{'  ' + count if count else ''}"
