"""One step of a report: which kernels ran in it, where rules found something, and on which lines that is."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from fusionadvisor import catalog, sequences
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


def numberless(path: str) -> str:
    """Return a module path that repeated blocks share: ``layers.*.norm``."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


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
        named = modules(finding)
        each, rest = divmod(finding.instances, len(named))
        if not each:  # fewer instances a step than modules: steps differ, each module counts
            each, rest = 1, 0
        found.update({Place(finding.rule, module): each for module in dict.fromkeys(named)})
        if rest:
            found[Place(finding.rule, "")] += rest
    return found


def modules(finding: Finding) -> tuple[str, ...]:
    """Return the modules a finding names, as :func:`places` counts them."""
    return tuple(module_path(module) for module in finding.modules or (finding.module,))


def structural(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that follow from what ran, not from how long it took."""
    timed = {entry.id for entry in catalog.rules() if entry.timed}
    return tuple(finding for finding in findings if finding.rule not in timed)


Rows = dict[str, tuple[int, ...]]
"""Kernels by module."""


def differing(before: Report, after: Report) -> tuple[Rows, Rows]:
    """Return the rows of kernels that went and of those that came, by module, ops aligned in the order they ran.

    An edit moves every line below it, and no op's name alone says which of several adds is the new one.
    """
    (old, left), (new, right) = _rows_by_module(before), _rows_by_module(after)
    went, came = {}, {}
    for module in {**old, **new}:
        a, b = old.get(module, []), new.get(module, [])
        gone, added = _unmatched([left[row] for row in a], [right[row] for row in b])
        went[module], came[module] = tuple(a[i] for i in gone), tuple(b[i] for i in added)
    return ({m: rows for m, rows in went.items() if rows}, {m: rows for m, rows in came.items() if rows})


def _unmatched(a: list[str], b: list[str]) -> tuple[list[int], list[int]]:
    """Which of a module's ops have no counterpart on the other side, on either."""
    found = sequences.align(a, b)
    if not found.whole:
        less, more = Counter(a) - Counter(b), Counter(b) - Counter(a)
        return [i for i, op in enumerate(a) if op in less], [i for i, op in enumerate(b) if op in more]
    left, right = ({pair[side] for pair in found.pairs} for side in (0, 1))
    return [i for i in range(len(a)) if i not in left], [i for i in range(len(b)) if i not in right]


def _rows_by_module(report: Report) -> tuple[dict[str, list[int]], tuple[str, ...]]:
    """The rows of a typical step by module, and the ops of all rows."""
    if report.timeline is None:
        return {}, ()
    table, rows = report.timeline.kernels, defaultdict(list)
    for row in step_rows(table):
        rows[module_path(table.module[row])].append(row)
    return rows, table.op


def source_at(report: Report, module: str, rows: Iterable[int] | None = None) -> Source | None:
    """Return the first line of user code that ran a kernel of this module, of these rows where given."""
    if report.timeline is None:
        return None
    table = report.timeline.kernels
    for row in range(len(table.source)) if rows is None else rows:
        if table.source[row : row + 1] and table.source[row] and module_path(table.module[row]) == module:
            file, _, line = table.source[row].rpartition(":")
            return Source(file, int(line)) if file and line.isdigit() else None
    return None


def source_of(report: Report, place: Place) -> Source | None:
    """Return the line of a place: the finding's own for its first module, else that of its kernels there."""
    for finding in report.findings:
        if finding.rule == place.rule and place.module in modules(finding):
            if finding.source and module_path(finding.module) == place.module:
                return finding.source
            return source_at(report, place.module) or finding.source
    return None
