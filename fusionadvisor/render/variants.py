"""Several workloads of one target side by side: batch sizes, or prefill and decode. Works from the report alone."""

from collections.abc import Sequence
from math import prod

from fusionadvisor import catalog
from fusionadvisor.render import labels, verdict
from fusionadvisor.render.parts import Column, Row, Table
from fusionadvisor.report.model import Report, Workload
from fusionadvisor.units import percent

GENERATION = ("prefill", "decode")
"""Entries whose samples are tokens."""


def each(report: Report) -> tuple[Report, ...]:
    """The report on each workload, in the order they ran."""
    return (report, *report.variants)


def names(report: Report) -> list[str]:
    """What tells the workloads apart: ``batch 8``, ``decode``, or both."""
    works = [one.workload or Workload("") for one in each(report)]
    entries = len({work.entry for work in works}) > 1
    batches = len({work.batch for work in works}) > 1
    return [", ".join([work.entry or ""] * entries + [f"batch {work.batch or 'as given'}"] * batches) for work in works]


def table(report: Report) -> Table:
    """The workloads side by side. Times are in one unit a column, so that they compare at a glance."""
    reports = each(report)
    steps = labels.Scale.of(max(map(verdict.of_step, reports)))
    shares = [verdict.of_step(one) / samples(one) for one in reports]
    share = labels.Scale.of(10 * min(shares))  # the least keeps its digits
    columns = (
        Column(""), Column("step", number=True), Column(f"{labels.kernel_word(report)}s", number=True),
        Column(f"per {_sample(report)}", number=True), Column("launch-bound"), Column("top finding", wraps=True),
    )  # fmt: skip
    rows = [
        Row((name, steps.time(verdict.of_step(one)), f"{verdict.step_kernels(one):,}", share.time(per),
             launch_bound(one), _top(one)))
        for name, one, per in zip(names(report), reports, shares, strict=True)
    ]  # fmt: skip
    return Table("Side by side", columns, tuple(rows), tuple(notes(report)))


def samples(report: Report) -> int:
    """Rows of the batch in one step; of text that is generated, its tokens."""
    work = report.workload
    shapes = [spec.shape for spec in work.inputs if spec.shape] if work else []
    if not shapes:
        return 1
    return max(1, prod(shapes[0]) if work and work.entry in GENERATION else shapes[0][0])


def launch_bound(report: Report) -> str:
    """``no``; ``yes, 40 % idle``; where launching was not seen, from how long a launch on it is: ``above 3.0 µs``."""
    launching = report.fusion.launch_bound
    if launching.share is not None:
        return (
            f"yes, {percent(launching.share)} idle"
            if any(catalog.concerns(f.rule, "launches") for f in report.findings)
            else "no"
        )
    if launching.break_even_us is not None and not labels.cpu_times(report):
        return f"above {launching.break_even_us:.1f} µs"
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
        return f"Larger batches do not help: {names(report)[0]} takes the least time per {_sample(report)}"
    gain = labels.ratio(shares[0] / shares[least])
    best, first = names(report)[least], names(report)[0]
    return f"{best.capitalize()} takes the least time per {_sample(report)}: {gain} faster than {first}"


def notes(report: Report) -> list[str]:
    """What the table needs to be understood."""
    if not any(launch_bound(one).startswith("above") for one in each(report)):
        return []
    where = f" on the {report.predicted.gpu}" if report.predicted else ""
    return [f"Launch-bound{where} if the CPU takes longer than this to launch one kernel."]


def warnings(report: Report) -> list[str]:
    """The warnings of all workloads, once each; one that is not on all of them names those it is on."""
    reports: Sequence[Report] = each(report)
    messages: dict[str, list[str]] = {}
    for name, one in zip(names(report), reports, strict=True):
        for warning in one.warnings:
            messages.setdefault(warning.message, []).append(name)
    return [
        message if len(of) == len(reports) else f"{'; '.join(of)}: {message}" if any(of) else message
        for message, of in messages.items()
    ]


def _sample(report: Report) -> str:
    return "token" if all(one.workload and one.workload.entry in GENERATION for one in each(report)) else "sample"


def _top(report: Report) -> str:
    ranked = verdict.ranked(report)
    if not ranked:
        return "none worth acting on" if report.findings else "none"
    count = labels.counted(ranked[0])
    return f"{ranked[0].rule} {ranked[0].title} {count}".rstrip()
