"""Everything a limit can be set on, by name: ``kernels``, ``unfused_bytes``, ``findings.FA101``, ``latency_ms``.

All are of one step. A quantity is None where the report does not say it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fusionadvisor import catalog
from fusionadvisor.errors import InputError, did_you_mean
from fusionadvisor.report.model import Report
from fusionadvisor.report.step import kernels, step_rows, structural

PREFIX = "findings."
FUSED = ("fused", "attention")
"""Kinds of kernel that do the work of several."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a report.

    Args:
        name: What a limit calls it.
        meaning: What it is, in a few words.
        of: Reads it from a report.
        timed: True where it depends on a clock, so that two runs differ.
        more_is_better: True where a limit is a lower one.
    """

    name: str
    meaning: str
    of: Callable[[Report], float | None]
    timed: bool = False
    more_is_better: bool = False


def _steps(report: Report) -> int:
    return max(report.timeline.steps, 1) if report.timeline else 1


def _kernels(report: Report) -> float | None:
    line = report.timeline
    if line is None:
        return None
    if line.kernels.step and line.kernels.total <= len(line.kernels.op):
        return len(kernels(report))
    return round(sum(device.kernels for device in line.devices) / _steps(report))


def _per_step(read: Callable[[Report], float | None]) -> Callable[[Report], float | None]:
    def of(report: Report) -> float | None:
        value = read(report)
        return None if value is None or report.timeline is None else round(value / _steps(report))

    return of


def _fusion(read: Callable[[Report], float | None]) -> Callable[[Report], float | None]:
    return lambda report: None if report.timeline is None else read(report)


def _bytes(report: Report) -> float | None:
    if report.timeline is None or not report.timeline.kernels.bytes:
        return None
    moved = [report.timeline.kernels.bytes[row] for row in step_rows(report.timeline.kernels)]
    return sum(moved) if moved and min(moved) >= 0 else None


def _fused_share(report: Report) -> float | None:
    ran = kernels(report)
    return round(sum(kernel.kind in FUSED for kernel in ran) / len(ran), 6) if ran else None


def _graph_breaks(report: Report) -> float | None:
    counts = [a.graph_breaks for a in report.attempts if a.graph_breaks is not None]
    return sum(counts) if counts else None


def _kernel_us(report: Report) -> float | None:
    if report.timeline is None:
        return None
    return sum(device.kernel_us for device in report.timeline.devices) / _steps(report)


def _unfused_share(report: Report) -> float | None:
    whole = _kernel_us(report)
    return report.fusion.unfused_us / whole if whole else None


def _saving(report: Report) -> float:
    return sum(f.saving.step_us.high for f in report.findings if not f.overlaps)


def _peak_memory(report: Report) -> float | None:
    return report.latency.peak_memory_bytes if report.latency else None


QUANTITIES: tuple[Quantity, ...] = (
    Quantity("kernels", "kernels, or ops without a GPU", _kernels),
    Quantity("launches", "runtime calls that start work on a device",
             _per_step(lambda r: r.timeline.launches if r.timeline else None)),
    Quantity("graph_launches", "of these, launches of a CUDA graph",
             _per_step(lambda r: r.timeline.graph_launches if r.timeline else None)),
    Quantity("groups", "groups of two or more kernels that could be one", _fusion(lambda r: r.fusion.groups)),
    Quantity("unfused_bytes", "bytes of intermediates inside these groups",
             _fusion(lambda r: r.fusion.unfused_bytes)),
    Quantity("bytes", "bytes all kernels read and write", _bytes),
    Quantity("syncs", "times the CPU waited for the GPU", _fusion(lambda r: r.fusion.syncs)),
    Quantity("graph_breaks", "places where a compiler ended a graph", _graph_breaks),
    Quantity("fused_share", "share of kernels that are already fused, by count", _fused_share, more_is_better=True),
    Quantity("findings", "places where a rule applies",
             lambda r: sum(f.instances for f in structural(r.findings))),
    Quantity("latency_ms", "time of a step, measured without the profiler",
             lambda r: r.latency.median_ms if r.latency else None, timed=True),
    Quantity("peak_memory_bytes", "most memory allocated in a step", _peak_memory, timed=True),
    Quantity("kernel_us", "summed time of the kernels", _kernel_us, timed=True),
    Quantity("unfused_us", "of it, time of kernels in groups", _fusion(lambda r: r.fusion.unfused_us),
             timed=True),
    Quantity("unfused_share", "unfused_us as a share of kernel_us", _unfused_share, timed=True),
    Quantity("saving_us", "upper end of all savings together", _saving, timed=True),
    Quantity("speedup", "baseline time over candidate time, of all kept strategies",
             lambda r: r.result.median if r.result else None, timed=True, more_is_better=True),
)  # fmt: skip
"""In the order they are shown. ``findings.RULE`` exists besides, for every rule."""


def find(name: str, report: Report | None = None) -> Quantity:
    """Return the quantity of this name.

    Args:
        name: As in :data:`QUANTITIES`, or ``findings.`` and a rule.
        report: Makes rules of other packages known that it mentions.

    Raises:
        InputError: If there is none; the message names the closest.
    """
    if name.lower().startswith(PREFIX):
        return of_rule(name[len(PREFIX) :], report)
    known = {quantity.name: quantity for quantity in QUANTITIES}
    if name in known:
        return known[name]
    raise InputError(f"A report has no quantity '{name}'.", did_you_mean(name, (*known, "findings.RULE")))


def of_rule(rule: str, report: Report | None = None) -> Quantity:
    """Return the quantity that counts the places of one rule; see :func:`find`."""
    known = {entry.id.lower(): entry for entry in catalog.rules()}
    if entry := known.get(rule.lower()):
        rule, timed = entry.id, entry.timed
    elif report and rule in _mentioned(report):
        timed = False
    else:
        raise InputError(f"No rule is called '{rule}'.", did_you_mean(rule, tuple(e.id for e in catalog.rules())))
    return Quantity(f"{PREFIX}{rule}", f"places where {rule} applies", _places_of(rule), timed=timed)


def _places_of(rule: str) -> Callable[[Report], float | None]:
    def of(report: Report) -> float | None:
        found = sum(f.instances for f in report.findings if f.rule == rule)
        return found if found or rule in _mentioned(report) else None

    return of


def _mentioned(report: Report) -> set[str]:
    """The rules that looked: each found something, almost did, passed, or says why it had nothing to look at."""
    looked = (report.findings, report.passed, report.not_applicable, report.near_misses)
    return {str(item.rule) for items in looked for item in items}
