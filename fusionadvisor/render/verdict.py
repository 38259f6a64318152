"""The one sentence a report comes down to."""

from collections import Counter
from collections.abc import Sequence

from fusionadvisor import catalog
from fusionadvisor.render import labels
from fusionadvisor.report.model import OUTSIDE, Finding, Report
from fusionadvisor.units import percent, plural

MOST = 0.5
"""A verdict that rests on less than this share of kernel time says so."""


def of_step(report: Report) -> float:
    """One step in µs, which savings are a part of: the measured latency, else as recorded."""
    if report.latency:
        return report.latency.median_ms * 1e3
    return report.timeline.step_us if report.timeline else 0.0


def kernel_us(report: Report) -> float:
    """Summed time of a step's kernels, in µs."""
    if report.timeline and report.timeline.step_kernel_us:
        return report.timeline.step_kernel_us
    devices = report.timeline.devices if report.timeline else ()
    return sum(device.kernel_us for device in devices) / steps_shown(report)


def kernels(report: Report) -> int:
    """Kernels on all devices."""
    return sum(device.kernels for device in report.timeline.devices) if report.timeline else 0


def step_kernels(report: Report) -> int:
    """Kernels of a step on all devices."""
    if report.timeline and report.timeline.step_kernels:
        return round(report.timeline.step_kernels)
    return round(kernels(report) / steps_shown(report))


def steps_shown(report: Report) -> int:
    """Into how many steps the timeline's totals are divided, as findings and savings already are."""
    return max(report.timeline.steps, 1) if report.timeline else 1


def ranked(report: Report) -> list[Finding]:
    """The findings worth acting on, the largest saving first."""
    worth = [f for f in report.findings if not f.footnote]
    return sorted(worth, key=lambda f: -f.saving.step_us.high)


def offered(report: Report) -> tuple[str, ...]:
    """Strategies that answer the findings and can run here: first remedies first, by the largest finding."""
    known = {entry.id for entry in catalog.strategies()}
    findings = ranked(report)
    first = [finding.remedies[0] for finding in findings if finding.remedies]
    found = [r for r in (*first, *(r for finding in findings for r in finding.remedies)) if r in known]
    if not report.environment.gpu:
        found = [r for r in found if not catalog.entry(r).needs_cuda] or found
    return tuple(dict.fromkeys(found))


def syncs(report: Report) -> str:
    """``2 syncs``; where no rule found an op that waits, they are outside its ops."""
    count = plural(report.fusion.syncs, "sync")
    caused = any(catalog.concerns(finding.rule, "syncs", "transfers") for finding in report.findings)
    looked = any(catalog.concerns(p.rule, "syncs") for p in report.passed)
    return f"{count} outside the step's ops" if looked and not caused else count


def could_save(report: Report) -> float:
    """Upper end of what the findings could save together, in µs; never more than the step."""
    total = sum(finding.saving.step_us.high for finding in report.findings)
    return min(total, of_step(report) or total)


def of_findings(report: Report) -> str:
    """The verdict of a profile or an analysis, beginning with what it cannot say."""
    word = labels.kernel_word(report)
    if not kernels(report):
        return f"No {word}s were recorded: there is nothing to analyse"
    if outside := next((notice.message for notice in report.warnings if notice.code == OUTSIDE), ""):
        return outside
    if report.fusion.not_examined:
        return f"Not examined: {report.fusion.not_examined}"
    message, idle = _of_findings(report), report.fusion.launch_bound.idle_share
    if idle is not None and idle > MOST:
        whole, times = of_step(report), scale(report)
        first = f"The GPU is idle for {percent(idle)} of the step: {times.bound(idle * whole)} of {times.bound(whole)}"
        return first if could_save(report) <= 0 else f"{first}. {message}"
    if report.fusion.judged_share >= MOST:
        return message
    return f"{message}; only {percent(report.fusion.judged_share)} of {word} time could be analysed"


def _of_findings(report: Report) -> str:
    if not report.findings:
        return f"Nothing to fuse: {plural(len(report.passed), 'check')} passed"
    if all(finding.footnote for finding in report.findings):
        return "Nothing worth acting on: every finding is smaller than run-to-run noise"
    high, whole = could_save(report), of_step(report)
    if high <= 0:
        return f"{plural(len(report.findings), 'finding')}, none known to shorten the step"
    time = "the step's CPU time" if labels.cpu_times(report) else "the step"
    if not whole:
        return f"Up to {scale(report).bound(high)} could be saved"
    parts = f"{scale(report).bound(high)} of {scale(report).bound(whole)}"
    return f"Up to {percent(high / whole)} of {time} could be saved: {parts}"


def unfused_share(report: Report) -> float:
    """Share of kernel time in kernels that could be one with others."""
    return report.fusion.unfused_us / (kernel_us(report) or 1.0)


def common(findings: Sequence[Finding]) -> list[str]:
    """Sentences that several findings share, to be said once."""
    counts = Counter(sentence for finding in findings for sentence in finding.evidence)
    return [sentence for sentence, count in counts.items() if count > 1]


def scale(report: Report) -> labels.Scale:
    """The unit of the report's times."""
    return labels.Scale.of(max(of_step(report), kernel_us(report)))


def arms(report: Report) -> tuple[float, float] | None:
    """Latency before and after what was kept, else of the last attempt that was timed, in ms.

    After is before over the speed-up, as in :func:`labels.paired`.
    """
    timed = [a for a in report.attempts if a.before and a.speedup]
    kept = [a for a in timed if a.kept]
    if not timed:
        return None
    shown = kept[0] if kept else timed[-1]
    before, gain = report.before or shown.before, report.result if kept else shown.speedup
    return (before.median_ms, before.median_ms / gain.median) if before and gain else None


def headline(report: Report) -> str:
    """The verdict of a report, with its figures."""
    if not report.attempts and report.command != "apply":
        return of_findings(report)
    both = arms(report) if report.result else None
    return of_attempts(report) + (f": {labels.change(*both)}" if both else "")


def of_attempts(report: Report) -> str:
    """The verdict of an apply, without its figures."""
    if not report.attempts:
        return "Nothing was tried"
    if report.result and any(a.kept for a in report.attempts):
        if not proven(report):
            return "No proven difference"
        gain = report.result.median
        return f"{labels.ratio(gain)} faster" if gain > 1 else f"{labels.ratio(1 / gain)} slower"
    if len(report.attempts) > 1 and any(a.before for a in report.attempts):
        return "Nothing was changed: no proven gain"
    if report.hunt:
        return "Nothing was changed: no strategy was measured"
    worst = next((a for a in report.attempts if labels.failed(a)), report.attempts[-1])
    return f"Nothing was changed: {worst.strategy} {labels.ENDED[worst.outcome]}"


def proven(report: Report) -> bool:
    """Whether the interval of the result lies outside what the same code against itself showed."""
    if report.result is None:
        return False
    (low, high), (band_low, band_high) = report.result.ci95, report.result.aa_band
    return low > max(band_high, 1.0) or high < min(band_low, 1.0)
