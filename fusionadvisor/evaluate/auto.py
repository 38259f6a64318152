"""The best of the legal combinations that a budget of time allows to be tried."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fusionadvisor import recipe, strategies
from fusionadvisor.evaluate.search import Outcome, Progress, Trying, made_of
from fusionadvisor.evaluate.trial import Done, Goal, Job
from fusionadvisor.evaluate.worker import Ended, Limits
from fusionadvisor.recipe import Step
from fusionadvisor.report.model import Attempt, Finding, Timing, Warning, Workload
from fusionadvisor.strategies.base import Strategy
from fusionadvisor.workload.program import Program

BUDGET_S = 120.0
LONGEST_MEASURE_S = 10.0
"""Of one attempt; a shorter budget is shared out evenly."""
SHORTEST_ATTEMPT_S = 5.0
"""What starting a process and recording a model take at the least; with less left nothing is begun."""


@dataclass
class Search:
    """Search for the best combination.

    ## What it does

    Plans every strategy on one recording, and drops those that find nothing to change, with the reason. What edits
    modules is tried first, in the order that keeps every later strategy possible, each step on top of those kept
    before it and measured against them. What wraps or compiles the whole model is tried on top of these, one against
    the other. Only what is faster beyond noise is kept, and the whole is verified and measured once more against the
    original in a fresh process: if it is not faster there, nothing is kept, so that it never ends slower than it began.

    Of those that wrap, the one whose findings have the largest bound comes first, and `compile`, which takes longest to
    prepare, last: on the repeated blocks that have findings, and on the whole model. Nothing is begun once the budget
    is spent (`--budget`, 120 s unless told).

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

    def __post_init__(self) -> None:
        self._deadline = self.clock() + self.budget_s

    def run(self) -> list[Attempt]:
        """Try what is worth it; the kept steps are in ``trying``."""
        edits, wrappers = self._candidates()
        for strategy in edits:
            made, ended = self._tried(strategy)
            if made.kept:
                self.trying.keep(ended.done)
            self.attempts.append(made)
        self._best([(strategy, *self._tried(strategy)) for strategy in wrappers])
        return [*self.attempts, *self.dropped]

    def _candidates(self) -> tuple[list[Strategy], list[Strategy]]:
        """What to try, in order, after dropping what plans nothing: what edits, and what ends a composition."""
        known = sorted(map(strategies.get, strategies.ids()), key=lambda strategy: strategy.order)
        on_cuda = self.trying.workload.device.startswith("cuda")
        for strategy in known:
            if strategy.needs_cuda and not on_cuda:
                self._drop(strategy, "Dropped: it needs a CUDA device.")
        open_ = [strategy for strategy in known if on_cuda or not strategy.needs_cuda]
        regional = next((s for s in open_ if s.id == "compile"), None)
        asked = [*open_, *([strategies.get("compile", {"regions": "auto"})] if regional else [])]
        planned = self._planned(asked)
        left: list[Strategy] = []
        for strategy, plan in zip(asked, planned, strict=True):
            if strategy.parameters():
                left += self._confined(plan)
            elif plan.outcome in ("refused", "no_effect"):
                self._drop(strategy, f"Dropped: {plan.reason}", plan)
            else:
                left.append(strategy)
        bounds = self._bounds()
        return (
            [strategy for strategy in left if not strategy.terminal],
            sorted(
                (s for s in left if s.terminal), key=lambda s: (s.slow, -bounds.get(s.id, -1.0), not s.parameters())
            ),
        )

    def _planned(self, asked: list[Strategy]) -> list[Attempt]:
        survey = tuple(Step(strategy.id, strategy.parameters()) for strategy in asked)
        ended = self.trying.do(Job(self.trying.workload, survey=survey), "auto")
        # without plans every strategy is tried and says by itself what is in its way
        return list(ended.done.survey) or [Attempt(strategy.id, "not_tried") for strategy in asked]

    def _confined(self, plan: Attempt) -> list[Strategy]:
        """``compile`` on the repeated blocks that hold a finding it is a remedy for."""
        places = {m for f in self.findings if "compile" in f.remedies for m in (f.module, *f.modules)}
        blocks = [b for b in plan.sites.modules if any(m == b or m.startswith(f"{b}.") for m in places)]
        return [strategies.get("compile", {"regions": ",".join(blocks)})] if blocks else []

    def _bounds(self) -> dict[str, float]:
        """The most that each strategy could save a step, in µs, by the findings that name it."""
        bounds: dict[str, float] = {}
        for finding in self.findings:
            for remedy in finding.remedies:
                bounds[remedy] = bounds.get(remedy, 0.0) + finding.saving.step_us.high
        return bounds

    def _tried(self, strategy: Strategy) -> tuple[Attempt, Ended]:
        left = self._deadline - self.clock()
        if left < SHORTEST_ATTEMPT_S:
            reason = f"Dropped: the budget of {self.budget_s:g} s was spent before it."
            return Attempt(strategy.id, "not_tried", reason=reason, parameters=strategy.parameters()), Ended("done")
        self.trying.limits = replace(self.trying.limits, timeout_s=min(self.timeout_s, round(left, 1)))
        ended = self.trying.ended(strategy)
        made = made_of(strategy, ended)
        if made.kept and not proven(made, self.trying.goal):
            made = replace(made, kept=False, reason=f"{made.reason} Only a proven gain is kept.".lstrip())
        elif made.outcome == "timed_out":
            made = replace(made, reason=f"{made.reason} The budget was {self.budget_s:g} s.")
        return made, ended

    def _best(self, tried: list[tuple[Strategy, Attempt, Ended]]) -> None:
        """Of those that end a composition keep the one that gains most."""
        gains = [_gain(made, self.trying.goal) if made.kept else 0.0 for _, made, _ in tried]
        best = max(range(len(tried)), key=gains.__getitem__, default=None)
        for index, (_, made, ended) in enumerate(tried):
            if made.kept and index != best and best is not None:
                reason = f"Dropped: {tried[best][0].id} gains more, and both cannot be had."
                made = replace(made, kept=False, reason=reason)
            elif made.kept:
                self.trying.keep(ended.done)
            self.attempts.append(made)

    def _drop(self, strategy: Strategy, reason: str, plan: Attempt | None = None) -> None:
        made = Attempt(strategy.id, "not_tried", reason=reason, parameters=strategy.parameters())
        self.dropped.append(made if plan is None else replace(plan, reason=reason))


def proven(made: Attempt, goal: Goal) -> bool:
    """Whether an attempt gained, by the goal's measure, more than chance would."""
    if goal == "memory":
        return made.outcome in ("faster", "same") and _gain(made, goal) > 1
    return made.outcome == "faster"


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
    if save is not None:
        recipe.check_folder(save)
    measure_s = min(LONGEST_MEASURE_S, budget_s / (2 * len(strategies.ids())))
    trying = Trying(workload, Limits(timeout_s, memory_bytes), measure_s, progress, program, goal)
    named = [finding for finding in findings if not finding.footnote]
    warnings: list[Warning] = []
    hunt = Search(trying, named, budget_s, timeout_s)
    try:
        attempts = hunt.run()
    except KeyboardInterrupt:
        warnings.append(Warning("W-interrupted", "Interrupted: what was tried until then is reported."))
        trying.steps, trying.last = [], Done()
        return trying.outcome([replace(a, kept=False) for a in hunt.attempts], warnings, None)
    trying.limits = Limits(timeout_s, memory_bytes)
    attempts, said = _confirmed(trying, attempts, goal)
    return trying.outcome(attempts, [*warnings, *said], save)


def _confirmed(trying: Trying, attempts: list[Attempt], goal: Goal) -> tuple[list[Attempt], list[Warning]]:
    """Keep the steps only if the whole is better than the original in a process of its own."""
    if not trying.steps:
        return attempts, []
    ended = trying.do(Job(trying.workload, tuple(trying.steps), None, trying.budget_s, goal=goal), "the whole")
    done = ended.done
    if done.speedup is not None and _holds(done, goal):
        trying.last, trying.confirmed = done, True
        return attempts, []
    trying.steps, trying.last = [], Done()
    why = ended.reason or done.failure or (done.verification.reason if done.verification else "")
    why = why or "measured once more against the original, they bring no proven gain."
    kept = [replace(a, kept=False, reason=a.reason or "Not confirmed.") if a.kept else a for a in attempts]
    return kept, [Warning("W-together", f"Nothing is kept: of the kept steps together, {why}")]


def _holds(done: Done, goal: Goal) -> bool:
    assert done.speedup is not None
    (low, high), (band_low, band_high) = done.speedup.ci95, done.speedup.aa_band
    if goal == "memory":
        return high >= band_low and _ratio(done.before, done.after) > 1
    return low > band_high
