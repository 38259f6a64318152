"""Two reports side by side, aligned by rule, module and op instead of by time.

Counts are of one step each. What changed is told apart by what it means: a fusion gained (a place that is no longer
unfused), one lost, a place that came or went together with its module, and one that only moved.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Literal

from fusionadvisor.report import quantities, step
from fusionadvisor.report.model import Basis, Finding, Report, Source, Workload
from fusionadvisor.report.step import Place, Rows

FusionEvent = Literal["gained", "lost", "new", "gone", "moved", "hidden"]
Verdict = Literal["faster", "slower", "no proven difference", "unknown"]

GRAPHED = 0.01
"""Difference in the share of kernel time replayed from graphs from which places may be hidden in them."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: what it is of, and where it ran."""

    source: str
    created: str
    basis: Basis | None
    gpu: str | None
    rank: int | None


@dataclass(frozen=True, slots=True)
class Figure:
    """A quantity on both sides; None where a report does not say it."""

    name: str
    meaning: str
    before: float | None
    after: float | None
    timed: bool
    worse: bool
    """True where it went the wrong way, however little."""


@dataclass(frozen=True, slots=True)
class FusionChange:
    """A place that a rule found on one side only.

    ``gained``: unfused before, and kernels went for it. ``lost``: what ran there before is gone, and unfused kernels
    stand in its place. ``new``: it came without anything going, with its module or in it. ``gone``: no longer found,
    and nothing went for it: its module did, or other work stands in between. ``moved``: the same under another module
    path (``module`` before, ``to`` after). ``hidden``: the side without it replays more of its work from graphs, in
    which nothing is sought.
    """

    event: FusionEvent
    rule: str
    title: str
    module: str
    count: int
    source: Source | None
    to: str = ""


@dataclass(frozen=True, slots=True)
class ModuleChange:
    """A module whose kernels differ; modules that differ alike are one change. ``ops`` are names with a count."""

    modules: tuple[str, ...]
    source: Source | None
    before: int
    after: int
    gone: tuple[tuple[str, int], ...]
    came: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class TimeChange:
    """Time of a step on both sides, in µs. ``ratio`` is after/before; its interval is None where none was measured.

    ``reason`` says why the verdict is unknown.
    """

    what: str
    before_us: float
    after_us: float
    ratio: float
    ci95: tuple[float, float] | None
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that differs between two reports. ``notes`` say what else differs and may be the reason."""

    before: Side
    after: Side
    notes: tuple[str, ...]
    figures: tuple[Figure, ...]
    fusions: tuple[FusionChange, ...]
    modules: tuple[ModuleChange, ...]
    time: TimeChange | None
    ranks: bool = False
    """True where both are ranks of what looks like one job."""


def compare(before: Report, after: Report) -> Comparison:
    """Return what differs from ``before`` to ``after``."""
    went, came = step.differing(before, after)
    return Comparison(
        before=_side(before),
        after=_side(after),
        notes=tuple(differing(before, after)),
        figures=tuple(_figures(before, after)),
        fusions=tuple(_fusions(before, after, came, went)),
        modules=_modules(before, after, came),
        time=_time(before, after),
        ranks=_one_job(before, after),
    )


def _side(report: Report) -> Side:
    line = report.timeline
    basis, rank = (line.basis, line.rank) if line else (None, None)
    return Side(report.source, report.created, basis, _gpu(report), rank)


def _gpu(report: Report) -> str | None:
    """The GPU that ran the kernels, or that they are predicted for; None where CPU ops stand in for them."""
    if report.environment.gpu or report.timeline is None or report.timeline.stand_ins:
        return report.environment.gpu
    return " + ".join(sorted({device.name for device in report.timeline.devices if device.name})) or None


def _one_job(before: Report, after: Report) -> bool:
    """Two ranks do the same work: at least half of the kernels of one are kernels of the other."""
    a, b = before.timeline, after.timeline
    if a is None or b is None or a.rank is None or b.rank is None or a.rank == b.rank:
        return False
    left, right = (Counter((k.op, k.kind) for k in step.kernels(r)) for r in (before, after))
    return 2 * (left & right).total() >= max(left.total(), right.total(), 1)


# ---- what else differs ----


def differing(before: Report, after: Report) -> list[str]:
    """Say in sentences what differs besides the code: the machine, the versions, the way of recording, the input."""
    changes = [*_versions(before, after), *workload_changes(before, after)]
    return [*_recording(before, after), *(f"{what}: {a} → {b}." for what, a, b in changes)]


def incomparable(before: Report, after: Report) -> str:
    """Say why the kernels of two reports cannot be held against each other; empty where they can."""
    a, b = before.timeline, after.timeline
    if a is None or b is None:
        return "one of the reports has no timeline"
    if a.stand_ins != b.stand_ins:
        return "one lists the ops of a CPU run, the other the kernels of a GPU"
    return ""


def _recording(before: Report, after: Report) -> list[str]:
    a, b = before.timeline, after.timeline
    notes = []
    if reason := incomparable(before, after):
        notes.append(f"Kernel counts do not compare: {reason}.")
    elif a and b and a.basis != b.basis:
        notes.append(f"The first is {a.basis}, the second {b.basis}: counts compare, times do not.")
    for name, report in (("first", before), ("second", after)):
        if report.attempts or report.command == "apply":
            notes.append(f"The {name} is of an apply: it is read as the step profiled before anything was applied.")
    for name, line in (("first", a), ("second", b)):
        if line and line.kernels.total > len(line.kernels.op):
            notes.append(f"The {name} lists {len(line.kernels.op):,} of {line.kernels.total:,} kernels.")
    return notes


def _versions(before: Report, after: Report) -> list[tuple[str, str, str]]:
    pairs = [("GPU", _gpu(before), _gpu(after))]
    pairs += [(label, getattr(before.environment, key), getattr(after.environment, key)) for key, label in _VERSIONS]
    pairs.append((before.tool.name, before.tool.version, after.tool.version))
    return [(label, str(a), str(b)) for label, a, b in pairs if a and b and a != b]


_VERSIONS = (
    ("compute_capability", "Compute capability"), ("driver", "Driver"), ("cuda", "CUDA"),
    ("torch", "torch"), ("python", "Python"), ("cpu", "CPU"), ("threads", "CPU threads"),
)  # fmt: skip


def workload_changes(before: Report, after: Report) -> list[tuple[str, str, str]]:
    """Return how the work asked for differs, as what, before and after: the model's class, its mode, its inputs."""
    a, b = before.workload, after.workload
    if a is None or b is None:
        return []
    pairs = (("Model", a.model or "", b.model or ""), ("Mode", a.mode, b.mode), ("Inputs", _inputs(a), _inputs(b)))
    return [(what, x or "none", y or "none") for what, x, y in pairs if x != y]


def _inputs(work: Workload) -> str:
    return ", ".join(f"[{','.join(map(str, s.shape))}] {s.dtype} {s.layout}" for s in work.inputs)


# ---- figures ----


def _figures(before: Report, after: Report) -> list[Figure]:
    rules = sorted({f.rule for r in (before, after) for f in r.findings})
    wanted = [*quantities.QUANTITIES, *(quantities.of_rule(rule, _either(rule, before, after)) for rule in rules)]
    rows = [_figure(quantity, before, after) for quantity in wanted]
    return [row for row in rows if row.before is not None or row.after is not None]


def _either(rule: str, before: Report, after: Report) -> Report:
    return before if any(f.rule == rule for f in before.findings) else after


def _figure(quantity: quantities.Quantity, before: Report, after: Report) -> Figure:
    a, b = quantity.of(before), quantity.of(after)
    worse = a is not None and b is not None and (b < a if quantity.more_is_better else b > a)
    return Figure(quantity.name, quantity.meaning, a, b, quantity.timed, worse)


# ---- fusions ----


def _fusions(before: Report, after: Report, came: Rows, went: Rows) -> list[FusionChange]:
    """The places that one side has; ``came`` and ``went`` are the kernels that only ``after`` or ``before`` has."""
    old, new = (step.places(step.structural(r.findings)) for r in (before, after))
    less, more = old - new, new - old
    known = _modules_of(before), _modules_of(after)
    changes = _moved(less, more, before, after, known)
    graphed = [r.fusion.graphed_share for r in (before, after)]
    all_went = {row for rows in went.values() for row in rows}
    for place, count in less.items():
        fused = _replaced(place.module, known[0], went) or not all_went.isdisjoint(_kernels(before, place))
        event: FusionEvent = "gained" if fused and _lives(place.module, known[1]) else "gone"
        event = "hidden" if graphed[1] > graphed[0] + GRAPHED else event
        changes.append(_change(event, place, count, before, after, went))
    for place, count in more.items():
        event = "lost" if _lives(place.module, known[0]) and _replaced(place.module, known[0], went) else "new"
        event = "hidden" if graphed[0] > graphed[1] + GRAPHED else event
        changes.append(_change(event, place, count, after, before, came))
    order: tuple[FusionEvent, ...] = ("lost", "new", "gained", "gone", "moved", "hidden")
    return sorted(changes, key=lambda c: (order.index(c.event), c.rule, c.module))


def _replaced(module: str, known: frozenset[str], went: Rows) -> bool:
    """Whether kernels went away where a place came or went: in its module, or around it where that ran none before."""
    around = module if module in known else module.rpartition(".")[0]
    return any(path == around or (around and path.startswith(f"{around}.")) for path in went)


def _change(event: FusionEvent, place: Place, count: int, report: Report, other: Report, only: Rows) -> FusionChange:
    """A place that only one report has, or has more often: at the line of its kernels that only that one has.

    Where it has none, at the line of a finding of which the other has none.
    """
    own, rows = _findings(report, place), only.get(place.module, ())
    kernels = _kernels(report, place)
    source = step.source_at(report, place.module, [row for row in rows if row in kernels] or rows)
    stays = [f.source for f in _findings(other, place)]
    lines = [f.source for f in own if f.source and step.module_path(f.module) == place.module]
    source = source or next((line for line in lines if stays and line not in stays), None)
    title = own[0].title if own else ""
    return FusionChange(event, place.rule, title, place.module, count, source or step.source_of(report, place))


def _findings(report: Report, place: Place) -> list[Finding]:
    return [f for f in report.findings if f.rule == place.rule and place.module in step.modules(f)]


def _kernels(report: Report, place: Place) -> set[int]:
    """Rows of the kernels of a place, and of those it was found together with."""
    return {row for finding in _findings(report, place) for row in finding.kernels}


def _modules_of(report: Report) -> frozenset[str]:
    """Every module that ran a kernel, with the modules around it."""
    found: set[str] = set()
    for path in {k.module for k in step.kernels(report)} - {""}:
        parts = path.split(".")
        found.update(".".join(parts[: i + 1]) for i in range(len(parts)))
    return frozenset(found)


def _lives(module: str, known: frozenset[str]) -> bool:
    """True where the code around a place exists on the other side: its module, or else the module it is in.

    A batch norm that was folded runs no kernel of its own any more, but its parent does.
    """
    parent = module.rpartition(".")[0]
    return not known or not parent or module in known or parent in known


def _moved(
    left: Counter[Place], came: Counter[Place], before: Report, after: Report,
    known: tuple[frozenset[str], frozenset[str]],
) -> list[FusionChange]:  # fmt: skip
    """Take out of both sides what is the same finding in a module that was renamed."""
    titles = {(id(r), f.rule): f.title for r in (before, after) for f in r.findings}
    changes = []
    for old in sorted(left, key=lambda p: (p.rule, p.module)):
        for new in sorted(came, key=lambda p: (p.rule, p.module)):
            renamed = old.module not in known[1] and new.module not in known[0] and old.module and new.module
            same = old.rule == new.rule and titles[id(before), old.rule] == titles[id(after), new.rule]
            if same and renamed and left[old] == came[new] > 0 and known[0] and known[1]:
                change = _change("moved", old, left[old], before, after, {})
                changes.append(replace(change, source=step.source_of(after, new), to=new.module))
                left[old] = came[new] = 0
    left += Counter()  # drops what is zero
    came += Counter()
    return changes


# ---- modules ----


def _modules(before: Report, after: Report, only: Rows) -> tuple[ModuleChange, ...]:
    if incomparable(before, after):
        return ()
    old, new = (_ops_by_module(r) for r in (before, after))
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    changes: dict[str, ModuleChange] = {}
    for module in [*old, *(m for m in new if m not in old)]:
        a, b = old.get(module, Counter()), new.get(module, Counter())
        if a != b:
            gone, came = tuple(sorted((a - b).items())), tuple(sorted((b - a).items()))
            source = step.source_at(after, module, only.get(module, ())) or step.source_at(after, module)
            source = source or step.source_at(before, module)
            changes[module] = ModuleChange((module,), source, a.total(), b.total(), gone, came)
            alike[step.numberless(module), repr((gone, came))].append(module)
    merged = []
    for modules in alike.values():
        each = [changes[m] for m in modules]
        totals = sum(c.before for c in each), sum(c.after for c in each)
        merged.append(replace(each[0], modules=tuple(modules), before=totals[0], after=totals[1]))
    return tuple(sorted(merged, key=lambda c: (-abs(c.after - c.before), c.modules)))


def _ops_by_module(report: Report) -> dict[str, Counter[str]]:
    ops: dict[str, Counter[str]] = defaultdict(Counter)
    for kernel in step.kernels(report):
        ops[kernel.module][kernel.op or kernel.kind] += 1
    return dict(ops)


# ---- time ----


def _time(before: Report, after: Report) -> TimeChange | None:
    a, b = before.timeline, after.timeline
    reason = _times_incomparable(before, after)
    if before.latency and after.latency:
        x, y = before.latency, after.latency
        interval = (y.ci95_ms[0] / x.ci95_ms[1], y.ci95_ms[1] / x.ci95_ms[0]) if x.ci95_ms[0] > 0 else None
        return _timed("latency", x.median_ms * 1e3, y.median_ms * 1e3, interval, reason)
    if a is None or b is None or not (kernel := quantities.find("kernel_us").of(before)):
        return None
    then = quantities.find("kernel_us").of(after) or 0.0
    if not reason and a.basis != "predicted":
        reason = "without repeated measurements on both sides there is no interval"
    exact = (then / kernel,) * 2 if not reason else None
    return _timed("predicted kernel time" if a.basis == "predicted" else "kernel time", kernel, then, exact, reason)


def _times_incomparable(before: Report, after: Report) -> str:
    a, b = _gpu(before), _gpu(after)
    if a != b:
        return f"the GPUs differ ({a or 'none'}, {b or 'none'})"
    if before.timeline and before.timeline.stand_ins:
        return "CPU times of two sessions depend on what else the machine did"
    if before.timeline and after.timeline and before.timeline.basis != after.timeline.basis:
        return f"one is {before.timeline.basis}, the other {after.timeline.basis}"
    return "the inputs differ" if workload_changes(before, after) else ""


def _timed(
    what: str, before_us: float, after_us: float, interval: tuple[float, float] | None, reason: str
) -> TimeChange | None:
    if before_us <= 0:
        return None
    verdict: Verdict = "unknown"
    if not reason and interval:
        verdict = "slower" if interval[0] > 1 else "faster" if interval[1] < 1 else "no proven difference"
    return TimeChange(what, before_us, after_us, after_us / before_us, interval, verdict, reason)
