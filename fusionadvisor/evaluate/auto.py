"""The best of the legal combinations that a budget of time allows to be tried."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fusionadvisor import strategies
from fusionadvisor.errors import InputError
from fusionadvisor.evaluate import bench
from fusionadvisor.evaluate.search import Outcome, Progress, Trying, stopped
from fusionadvisor.evaluate.trial import Done, Goal, Job
from fusionadvisor.evaluate.worker import Limits
from fusionadvisor.recipe import Step
from fusionadvisor.report.model import Attempt, Finding, Hunt, Notice, Timing, Workload, called
from fusionadvisor.strategies.base import Strategy
from fusionadvisor.units import time_us
from fusionadvisor.workload.program import Program

BUDGET_S = 120.0
LONGEST_MEASURE_S = 10.0
"""Of one attempt; a shorter budget is shared out evenly."""
SHORTEST_ATTEMPT_S = 5.0
"""What starting a process and recording a model take at the least; with less left nothing is begun."""
CHECKS = 3
"""Combinations that are checked as a whole, the best first, until one holds."""
CHECK = 0.6
"""How long the check takes at the least, as a share of an attempt: nothing is recorded, planned and counted for it."""
LONGEST_CHECK_S = 20.0
"""Of measuring in such a check, where the budget leaves that much."""


@dataclass(frozen=True)
class Chain:
    """Steps each of which was better than what was before it, or, where not ``proven``, whose last one may be."""

    steps: tuple[Step, ...] = ()
    gain: float = 1.0
    """The product of what each brought."""
    attempts: tuple[int, ...] = ()
    """Which attempts they were."""
    proven: bool = True

    @property
    def name(self) -> str:
        """``fuse_modules, compile``."""
        return ", ".join(called(step.strategy, step.parameters) for step in self.steps)


@dataclass
class Search:
    """Search for the best combination.

    ## What it does

    Plans every strategy on one recording, and drops those that find nothing to change, with the reason and whether a
    finding names them. What edits modules is tried first, in the order that keeps every later strategy possible, each
    step on top of those kept before it and measured against them. What wraps or compiles the whole model is tried on
    top of these, and on the original as well: it may do by itself what the edits did. So is an edit that found no gain
    on top of others at the same modules. Of all combinations the one that gains most is verified and measured once more
    against the original, in turns, in a fresh process; if it is not faster there, the next best is checked, then what
    looked faster and was not proven so, and where none holds nothing is kept: it never ends slower than it began.

    Where the budget (`--budget`, 120 s unless told) does not allow all, those are tried whose findings promise the
    largest saving; nothing is begun that would leave no time for the check at the end. What takes long to prepare,
    `compile`, comes last and has the time that is left, shared evenly: first on the repeated blocks that have findings,
    then on the whole model. What was not reached is said.

    `--goal latency` judges by the time of one call, `throughput` by the time of a call among many in a queue (on the
    CPU the same), `memory` by the most memory held during a step, at no loss of speed.

    ## When it helps

    When it is not clear what to apply, or in which order.

    ## When it refuses

    Never as a whole: what was refused, dropped or not reached is listed with the reason.

    ## Example

    ```
    $ fusion-advisor apply model.py --strategy auto --budget 120s
    ```
    """

    trying: Trying
    findings: Sequence[Finding]
    budget_s: float
    timeout_s: float
    clock: Callable[[], float] = time.monotonic
    attempts: list[Attempt] = field(default_factory=list)
    dropped: list[Attempt] = field(default_factory=list)
    chains: list[Chain] = field(default_factory=list)
    """Every combination whose last step was a gain, or looked like one, in the order found."""
    unproven: set[int] = field(default_factory=set)
    """Attempts that would be kept outside a search, which is for gains alone."""
    unreached: list[str] = field(default_factory=list)
    places: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The modules each strategy would change; none for the whole model."""

    def __post_init__(self) -> None:
        self.start = self.clock()
        self._quick_s = 0.0
        """The longest a quick attempt took."""

    def run(self) -> None:
        """Try what is worth it; what was found is in ``chains``."""
        edits, wrappers = self._candidates()
        quick = [strategy for strategy in wrappers if not strategy.slow]
        base = Chain()
        for index, strategy in enumerate(edits):
            if self._affordable(strategy, [*edits[index:], *quick]):
                base = self._tried(strategy, base) or base
        alone = self._hidden(edits) if base.steps else []
        todo = [(strategy, base) for strategy in quick]
        todo += [(strategy, Chain()) for strategy in (*(quick if base.steps else ()), *alone)]
        for strategy, on in todo:
            self._tried(strategy, on)
        slow = [strategy for strategy in wrappers if strategy.slow]
        todo = [(strategy, on) for on in ((base, Chain()) if base.steps else (base,)) for strategy in slow]
        for index, (strategy, on) in enumerate(todo):
            self._tried(strategy, on, shared=len(todo) - index)

    @property
    def hunt(self) -> Hunt:
        """How it went so far."""
        spent = round(self.clock() - self.start, 1)
        return Hunt(self.trying.goal, self.budget_s, spent, tuple(dict.fromkeys(self.unreached)))

    def best(self) -> list[Chain]:
        """The combinations found: of the proven ones the one that gains most first, and then the others."""
        return sorted(self.chains, key=lambda chain: (not chain.proven, -chain.gain))

    def told(self, best: Chain | None) -> list[Attempt]:
        """All attempts, those of ``best`` kept, the others with the reason why they are not."""
        made = [self._told(index, attempt, best) for index, attempt in enumerate(self.attempts)]
        return [*made, *self.dropped]

    def _told(self, index: int, attempt: Attempt, best: Chain | None) -> Attempt:
        if best is not None and index in best.attempts:
            late = f"{attempt.reason} Kept: proven in the check of the whole.".lstrip()
            if len(best.attempts) == 1 and not attempt.kept:  # the check was of this attempt, and longer
                whole = self.trying.last
                attempt = replace(attempt, before=whole.before, after=whole.after, speedup=whole.speedup)
            return attempt if attempt.kept else replace(attempt, kept=True, reason=late)
        if index in self.unproven:
            return replace(attempt, reason=f"{attempt.reason} Only a proven gain is kept.".lstrip())
        if not attempt.kept:
            return attempt
        if best is None:
            return replace(attempt, kept=False, reason="Dropped: no combination was confirmed.")
        own = max((c for c in self.chains if index in c.attempts), key=lambda c: c.gain)
        more = "gains more" if best.gain > own.gain else "was confirmed"
        reason = f"Dropped: {best.name} {more}, {best.gain:.2f}× against {own.gain:.2f}× of {own.name}."
        return replace(attempt, kept=False, reason=reason)

    def _candidates(self) -> tuple[list[Strategy], list[Strategy]]:
        """What to try, in order, after dropping what plans nothing: what edits, and what ends a composition."""
        known = self._known()
        on_cuda = self.trying.workload.device.startswith("cuda")
        for strategy in known:
            if strategy.needs_cuda and not on_cuda:
                self._drop(strategy, "Dropped: it needs a CUDA device.")
        open_ = [strategy for strategy in known if on_cuda or not strategy.needs_cuda]
        regional = next((s for s in open_ if s.id == "compile"), None)
        asked = [*open_, *([strategies.get("compile", {"regions": "auto"})] if regional else [])]
        began = self.clock()
        planned = self._planned(asked)
        self._quick_s = self.clock() - began + self.trying.budget_s
        left: list[Strategy] = []
        for strategy, plan in zip(asked, planned, strict=True):
            if strategy.parameters():
                left += self._confined(plan)
            elif plan.outcome in ("refused", "no_effect"):
                self._drop(strategy, f"Dropped: {self._named(strategy)}. {plan.reason}", plan)
            else:
                left.append(strategy)
        return (
            [strategy for strategy in left if not strategy.terminal],
            sorted((s for s in left if s.terminal), key=lambda s: (s.slow, -self._bound(s), not s.parameters())),
        )

    def _known(self) -> list[Strategy]:
        """Every strategy that can be loaded, in the order of a composition."""
        found = []
        for name in strategies.ids():
            try:
                found.append(strategies.get(name))
            except InputError as error:  # another package's
                self.dropped.append(Attempt(name, "not_tried", reason=f"Dropped: {error.what}"))
        return sorted(found, key=lambda strategy: strategy.order)

    def _planned(self, asked: list[Strategy]) -> list[Attempt]:
        survey = tuple(Step(strategy.id, strategy.parameters()) for strategy in asked)
        ended = self.trying.do(Job(self.trying.workload, survey=survey), "auto")
        # without plans every strategy is tried and says by itself what is in its way
        self.places = {plan.strategy: plan.sites.modules for plan in ended.done.survey if not plan.parameters}
        return list(ended.done.survey) or [Attempt(strategy.id, "not_tried") for strategy in asked]

    def _confined(self, plan: Attempt) -> list[Strategy]:
        """``compile`` on the repeated blocks that hold a finding it is a remedy for."""
        places = {m for f in self.findings if "compile" in f.remedies for m in (f.module, *f.modules)}
        blocks = [b for b in plan.sites.modules if any(m == b or m.startswith(f"{b}.") for m in places)]
        return [strategies.get("compile", {"regions": ",".join(blocks)})] if blocks else []

    def _named(self, strategy: Strategy) -> str:
        rules = dict.fromkeys(finding.rule for finding in self.findings if strategy.id in finding.remedies)
        if not rules:
            return "no finding names it, and no place fits it"
        return f"{', '.join(rules)} {'names' if len(rules) == 1 else 'name'} it, but no place fits it"

    def _bound(self, strategy: Strategy) -> float:
        """The most that a strategy could save a step, in µs, by the findings that name it; -1 where none does."""
        bounds = [f.saving.step_us.high for f in self.findings if strategy.id in f.remedies]
        return sum(bounds) if bounds else -1.0

    def _affordable(self, strategy: Strategy, waiting: list[Strategy]) -> bool:
        """Whether there is time for a strategy and all that could save more."""
        fits = math.floor(self._left_s() / self._quick_s) if self._quick_s > 0 else len(waiting)
        if self._left_s() < SHORTEST_ATTEMPT_S or strategy in sorted(waiting, key=lambda s: -self._bound(s))[:fits]:
            return True  # no time at all is said where it is tried
        bound = self._bound(strategy)
        why = f"its findings promise at most {time_us(bound)}" if bound >= 0 else "no finding names it"
        self._drop(strategy, f"Dropped: the budget of {self.budget_s:g} s does not allow all, and {why}.")
        self.unreached.append(strategy.id)
        return False

    def _hidden(self, edits: list[Strategy]) -> list[Strategy]:
        """Edits that gained nothing on top of others at the same modules, which may have taken their gain."""
        found = []
        for strategy in edits:
            own = next((a for a in self.attempts if a.strategy == strategy.id), None)
            if own is None or own.kept or not own.on:
                continue
            sites = set(self.places.get(strategy.id, ()))
            if any(not sites or not sites.isdisjoint(self.places.get(name, sites)) for name in own.on):
                found.append(strategy)
        return found

    def _left_s(self) -> float:
        """Time left for attempts, without what the check at the end takes."""
        return self.start + self.budget_s - self.clock() - CHECK * self._quick_s

    def _tried(self, strategy: Strategy, on: Chain, *, shared: int = 1) -> Chain | None:
        """Try a strategy on top of a combination, and return the longer one if it gained.

        Args:
            strategy: What to try.
            on: What to try it on.
            shared: Among how many attempts the time left is shared, this one included.
        """
        what = f"{called(strategy.id, strategy.parameters())} on {on.name or 'the original'}"
        left = self._left_s() / shared
        if left < max(SHORTEST_ATTEMPT_S, self._quick_s / 2 if strategy.slow else 0.0):
            reason = f"Dropped: of the budget of {self.budget_s:g} s too little was left for it."
            self.attempts.append(
                Attempt(
                    strategy.id, "not_tried", reason=reason, parameters=strategy.parameters(),
                    on=tuple(step.strategy for step in on.steps),
                )
            )  # fmt: skip
            self.unreached.append(what)
            return None
        self.trying.limits = replace(self.trying.limits, timeout_s=min(self.timeout_s, round(left, 1)))
        began = self.clock()
        made, done = self.trying.tried(strategy, on.steps)
        if not strategy.slow:
            self._quick_s = max(self._quick_s, self.clock() - began) if self.attempts else self.clock() - began
        likely = not made.kept and done.step is not None and looks_better(made, self.trying.goal)
        if made.kept and not proven(made, self.trying.goal):
            likely = looks_better(made, self.trying.goal)
            made = replace(made, kept=False)
            self.unproven.add(len(self.attempts))
        elif made.outcome == "timed_out":
            self.unreached.append(what)
            made = replace(made, reason=f"{made.reason} A budget longer than {self.budget_s:g} s gives it more.")
        self.attempts.append(made)
        if done.step is None or not (made.kept or likely):
            return None
        gain = on.gain * _gain(made, self.trying.goal)
        numbers = (*on.attempts, len(self.attempts) - 1)
        self.chains.append(Chain((*on.steps, done.step), gain, numbers, made.kept))
        return self.chains[-1] if made.kept else None

    def _drop(self, strategy: Strategy, reason: str, plan: Attempt | None = None) -> None:
        made = Attempt(strategy.id, "not_tried", reason=reason, parameters=strategy.parameters())
        self.dropped.append(made if plan is None else replace(plan, reason=reason))


def proven(made: Attempt, goal: Goal) -> bool:
    """Whether an attempt gained, by the goal's measure, more than chance would."""
    if goal == "memory":
        return made.outcome in ("faster", "equivalent") and _gain(made, goal) > 1
    return made.outcome == "faster"


def looks_better(made: Attempt, goal: Goal) -> bool:
    """Whether an attempt may be a gain that it measured too briefly to prove: likelier than not, and not ruled out."""
    found = made.speedup
    likely = found is not None and found.median > 1 and found.ci95[1] > found.aa_band[1]
    # on top of others the check of the whole says nothing of this step alone: it must be no slower by itself
    alone = made.outcome == "equivalent" or (made.outcome == "inconclusive" and not made.on)
    return goal != "memory" and alone and likely


def _gain(made: Attempt, goal: Goal) -> float:
    """How many times better it is than what was before."""
    if goal == "memory":
        return _ratio(made.before, made.after)
    return made.speedup.median if made.speedup else 1.0


def _ratio(before: Timing | None, after: Timing | None) -> float:
    own, new = (timing.peak_memory_bytes if timing else None for timing in (before, after))
    return own / new if own and new else 1.0


def search(
    workload: Workload,
    findings: Iterable[Finding],
    *,
    budget_s: float = BUDGET_S,
    goal: Goal = "latency",
    timeout_s: float = 300.0,
    memory_bytes: int | None = None,
    save: Path | None = None,
    progress: Progress = lambda _: None,
    program: Program | None = None,
) -> Outcome:
    """Find the best combination for a workload; see :class:`Search`.

    Args:
        workload: What to run.
        findings: Of its profile; those that are footnotes name no strategy.
        budget_s: When to begin no further attempt; the last check of the whole comes on top.
        goal: What to improve.
        timeout_s: How long one attempt may take.
        memory_bytes: How much memory it may hold; None for 80 % of what is free.
        save: A folder for the recipe of what was kept.
        progress: Told what is being done.
        program: A live model, to be tried in this process.

    Raises:
        InputError: If the workload cannot be built.
    """
    measure_s = min(LONGEST_MEASURE_S, budget_s / (2 * len(strategies.ids())))
    trying = Trying(workload, Limits(timeout_s, memory_bytes), measure_s, progress, program, goal)
    named = [finding for finding in findings if not finding.footnote]
    hunt = Search(trying, named, budget_s, timeout_s)
    try:
        hunt.run()
        trying.limits = Limits(timeout_s, memory_bytes)
        best, warnings = confirmed(trying, hunt.best(), lambda: hunt.start + budget_s - hunt.clock())
    except KeyboardInterrupt:
        trying.steps, trying.last = [], Done()
        return replace(trying.outcome(hunt.told(None), [stopped(save)], None), hunt=hunt.hunt)
    return replace(trying.outcome(hunt.told(best), warnings, save), hunt=hunt.hunt)


def confirmed(
    trying: Trying, chains: Sequence[Chain], left_s: Callable[[], float]
) -> tuple[Chain | None, list[Notice]]:
    """Keep the first combination that is better than the original in a process of its own.

    Args:
        trying: Holds what is kept.
        chains: The combinations, the best first.
        left_s: Time left of the budget: without any only the first is checked.
    """
    warnings: list[Notice] = []
    for number, chain in enumerate(chains[:CHECKS]):
        if number and left_s() < trying.budget_s:
            break
        job = Job(trying.workload, chain.steps, None, min(LONGEST_CHECK_S, max(trying.budget_s, left_s() / 2)),
                  goal=trying.goal)  # fmt: skip
        ended = trying.do(job, "the whole")
        done = ended.done
        if done.speedup is not None and _holds(done, trying.goal):
            trying.steps, trying.last, trying.confirmed = list(chain.steps), done, True
            return chain, warnings
        why = ended.reason or done.failure or (done.verification.reason if done.verification else "")
        why = why or "measured once more against the original, no gain is proven."
        if chain.proven:  # what was only likely promised nothing
            warnings.append(Notice("W-together", f"Not confirmed: {chain.name}: {why}"))
    return None, warnings


def _holds(done: Done, goal: Goal) -> bool:
    assert done.speedup is not None
    low, most = done.speedup.ci95[0], done.speedup.aa_band[1]
    if goal == "memory":
        return low >= bench.NOT_SLOWER and _ratio(done.before, done.after) > 1
    return low > most
