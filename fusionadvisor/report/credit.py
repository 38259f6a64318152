"""Which findings an attempt addressed, and which it closed: those whose kernels are gone from the step."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusionadvisor.report.model import Attempt, Credit, Finding, KernelCount, KernelTable

_LAYERS = ("gemm", "conv")
"""Beside other kinds, what the others merge into: it stays."""
_MOVES = ("copy", "cast", "layout")
"""Where a finding holds nothing else, nothing of it has to stay."""


def credited(attempts: Sequence[Attempt], findings: Sequence[Finding], table: KernelTable) -> tuple[Attempt, ...]:
    """Name for each attempt the findings it addressed and those it closed, and what was expected and measured of each.

    A finding is addressed where the strategy is its remedy and changed one of its modules. It is closed where as many
    of its kernels are gone as would go if each place became one kernel; and, where it is not about kernels too many,
    as soon as it is addressed. Which kernels are gone is known by their place in the step; where it is not, by the
    names of their ops, each op that went once, for addressed findings first. No more can be closed than there are
    kernels less, as ops under new names are no gain. What went in the attempts that one was made on top of counts for
    it, too. A finding half of whose kernels went is named with what was expected of it, if it stays open.
    """
    rows = {found.id: _rows(found, table) for found in findings}
    steps = _by_step(table)
    after: dict[tuple[str, ...], _State] = {}
    made = []
    for attempt in attempts:
        state = after.get(attempt.on, _State())
        addressed = [found for found in findings if _addressed(attempt, found)]
        others = [found for found in findings if found not in addressed and _reaches(attempt, found)]
        step = _Step(attempt, table, steps, set(state.gone))
        closed = {found.id for found in (*addressed, *others) if step.closes(rows[found.id], found in addressed)}
        closed -= state.closed
        if attempt.kernels is not None:
            after[(*attempt.on, attempt.strategy)] = _State(frozenset(step.gone), state.closed | closed)
        mostly = {found.id for found in findings if step.mostly_took(rows[found.id], state.gone)}
        met = [found for found in findings if found in addressed or found.id in closed | mostly]
        made.append(
            replace(
                attempt,
                findings=tuple(found.id for found in addressed),
                closed=tuple(found.id for found in findings if found.id in closed),
                credits=tuple(_credit(attempt, f, rows[f.id], step.gone, f.id in closed, len(met)) for f in met),
            )
        )
    return tuple(made)


@dataclass(frozen=True, slots=True)
class _State:
    """Rows of the table that are gone, and findings closed, after an attempt and those before it."""

    gone: frozenset[int] = frozenset()
    closed: frozenset[str] = frozenset()


def _credit(attempt: Attempt, found: Finding, rows: "_Rows", gone: set[int], closed: bool, shared: int) -> Credit:
    """What was expected of a finding's remedy beside what was measured."""
    measured = ci95 = None
    if attempt.before is not None and attempt.speedup is not None:
        whole_us = attempt.before.median_ms * 1e3
        measured = whole_us * (1 - 1 / attempt.speedup.median)
        low, high = attempt.speedup.ci95
        ci95 = whole_us * (1 - 1 / low), whole_us * (1 - 1 / high)
    went = len(gone.intersection(rows.ops)) if rows.needed else 0
    kernels = len(rows.ops) if rows.needed else 0
    return Credit(found.id, found.saving.step_us, kernels, went, closed, measured, ci95, shared)


class _Step:
    """The ops that went in one attempt, handed out to the kernels that ran them."""

    def __init__(self, attempt: Attempt, table: KernelTable, steps: Sequence[Sequence[int]], gone: set[int]) -> None:
        counts = attempt.kernels
        self.table = table
        self.gone = gone
        self.left = Counter(dict(counts.gone)) if counts else Counter[str]()
        for op, count in counts.added if counts else ():
            # the same op in place, or no longer in place, is still there
            self.left[op.removesuffix("_") if op.endswith("_") else f"{op}_"] -= count
        self.room = counts.before - counts.after if counts else 0
        self.known = _known(counts, steps) if counts else None
        self.counted = set(gone)
        self.gone |= self.known or set()

    def closes(self, rows: "_Rows", addressed: bool) -> bool:
        """Take what of a finding's kernels went; say whether that closes it."""
        if not rows.needed:
            return addressed
        if self.known is not None:
            return self._closes_known(rows)
        before = len(self.gone.intersection(rows.ops))
        took = [row for row in rows.ops if row not in self.gone and self._take(self.table.op[row])]
        fewer = rows.needed - before
        if len(took) < fewer or fewer > self.room:
            if addressed:
                self.gone.update(took)
            else:
                self.left.update(self.table.op[row] for row in took)
            return False
        self.gone.update(took)
        self.room -= max(fewer, 0)
        return True

    def mostly_took(self, rows: "_Rows", earlier: frozenset[int]) -> bool:
        """Whether at least half of a finding's kernels are known to have gone in this attempt."""
        went = self.gone.difference(earlier).intersection(rows.ops) if self.known is not None and rows.needed else ()
        return 0 < len(rows.ops) <= 2 * len(went)

    def _closes_known(self, rows: "_Rows") -> bool:
        took = self.gone.intersection(rows.ops)
        fewer = max(rows.needed - len(self.counted.intersection(rows.ops)), 0)
        if len(took) < rows.needed or fewer > self.room:
            return False
        self.counted |= took
        self.room -= fewer
        return True

    def _take(self, op: str) -> bool:
        if self.left[op] <= 0:
            return False
        self.left[op] -= 1
        return True


def _by_step(table: KernelTable) -> list[list[int]]:
    """The rows of each step."""
    steps: dict[int, list[int]] = {}
    for row in range(len(table.op)):
        steps.setdefault(table.step[row] if table.step else 0, []).append(row)
    return list(steps.values())


def _known(counts: KernelCount, steps: Sequence[Sequence[int]]) -> frozenset[int] | None:
    """The rows of the table that no longer run, in each step; None where the places of ops do not tell."""
    alike = [rows for rows in steps if len(rows) == counts.original]
    return frozenset(rows[place] for rows in alike for place in counts.went) if alike else None


@dataclass(frozen=True, slots=True)
class _Rows:
    """A finding's kernels of one step that could go, and how many of them do; none where it is not about that."""

    ops: tuple[int, ...] = ()
    needed: int = 0


def _rows(found: Finding, table: KernelTable) -> _Rows:
    listed = [row for row in dict.fromkeys(found.kernels) if row < len(table.op) and row < len(table.kind)]
    if not listed or len(listed) < len(set(found.kernels)):
        return _Rows()
    if table.step:
        listed = [row for row in listed if table.step[row] == table.step[listed[0]]]
    light = [row for row in listed if table.kind[row] not in _LAYERS]
    if light and (len(light) < len(listed) or all(table.kind[row] in _MOVES for row in light)):
        return _Rows(tuple(light), len(light))
    return _Rows(tuple(listed), max(0, len(listed) - found.instances))


def _addressed(attempt: Attempt, found: Finding) -> bool:
    touched = set(attempt.sites.modules)
    there = not touched or not touched.isdisjoint(found.modules)
    return attempt.strategy in found.remedies and attempt.sites.applied > 0 and there


def _reaches(attempt: Attempt, found: Finding) -> bool:
    """Whether what was changed and what the finding is at lie within each other."""
    places = found.modules or (found.module,)
    return not attempt.sites.modules or any(
        _within(place, site) or _within(site, place) for place in places for site in attempt.sites.modules
    )


def _within(path: str, parent: str) -> bool:
    return not parent or path == parent or path.startswith(f"{parent}.")
