"""One step of a report: which kernels ran in it, where rules found something, and on which lines that is."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fusionadvisor import catalog
from fusionadvisor.report.model import Finding, KernelTable, Report, Source

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module")
"""Path parts that ``torch.compile`` and FSDP put between a module and its own children."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a step, without its time."""

    module: str
    op: str
    shapes: str
    kind: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rule found something: the unit in which fusions appear and break."""

    rule: str
    module: str


def module_path(path: str) -> str:
    """Return a module path without the wrappers that change no kernel, so that eager and compiled align."""
    return ".".join(part for part in path.split(".") if part not in WRAPPERS)


def step_rows(table: KernelTable) -> tuple[int, ...]:
    """Return the rows of one typical step: the earliest that looks like most of them.

    A table that does not know its steps is one step.
    """
    if not table.step or max(table.step) < 0:
        return tuple(range(len(table.op)))
    rows: dict[int, list[int]] = {}
    for row, step in enumerate(table.step):
        if step >= 0:
            rows.setdefault(step, []).append(row)
    looks = {step: frozenset(Counter(kernels_of(table, members)).items()) for step, members in rows.items()}
    common = Counter(looks.values()).most_common(1)[0][0]
    return tuple(next(rows[step] for step in sorted(rows) if looks[step] == common))


def kernels(report: Report) -> tuple[Kernel, ...]:
    """Return the kernels of a typical step in the order they ran."""
    if report.timeline is None:
        return ()
    return kernels_of(report.timeline.kernels, step_rows(report.timeline.kernels))


def kernels_of(table: KernelTable, rows: Iterable[int]) -> tuple[Kernel, ...]:
    """Return the kernels of these rows of a table."""
    shapes = table.shapes or ("",) * len(table.op)
    return tuple(Kernel(module_path(table.module[i]), table.op[i], shapes[i], table.kind[i]) for i in rows)


def places(findings: Iterable[Finding]) -> Counter[Place]:
    """Return how often a step shows each rule at each module.

    A finding that repeats more often than it names modules counts evenly at each of them; what is left over has no
    module.
    """
    found: Counter[Place] = Counter()
    for finding in findings:
        modules = [module_path(m) for m in finding.modules or (finding.module,)]
        each, rest = divmod(finding.instances, len(modules))
        if not each:  # fewer instances a step than modules: steps differ, each module counts
            each, rest = 1, 0
        found.update({Place(finding.rule, module): each for module in dict.fromkeys(modules)})
        if rest:
            found[Place(finding.rule, "")] += rest
    return found


def structural(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that follow from what ran, not from how long it took."""
    timed = {entry.id for entry in catalog.rules() if entry.timed}
    return tuple(finding for finding in findings if finding.rule not in timed)


def source_at(report: Report, module: str, ops: frozenset[str] | None = None) -> Source | None:
    """Return the first line of user code that ran a kernel of this module, of these ops where given."""
    if report.timeline is None:
        return None
    table = report.timeline.kernels
    for path, op, where in zip(table.module, table.op, table.source, strict=False):
        if where and module_path(path) == module and (ops is None or op in ops):
            file, _, line = where.rpartition(":")
            return Source(file, int(line)) if file and line.isdigit() else None
    return None


def source_of(report: Report, place: Place) -> Source | None:
    """Return the line of a place: the finding's own for its first module, else that of its kernels there."""
    for finding in report.findings:
        if finding.rule == place.rule and place.module in map(module_path, finding.modules or (finding.module,)):
            if finding.source and module_path(finding.module) == place.module:
                return finding.source
            return source_at(report, place.module) or finding.source
    return None
