"""Try strategies in a legal order, each in its own process, each measured against what was kept before it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fusionadvisor import catalog, recipe, strategies
from fusionadvisor.evaluate import trial, worker
from fusionadvisor.evaluate.trial import Done, Goal, Job
from fusionadvisor.evaluate.worker import Ended, Limits
from fusionadvisor.recipe import Step
from fusionadvisor.report import model
from fusionadvisor.report.model import (
    INTERRUPTED,
    LOST,
    Attempt,
    Hunt,
    Notice,
    Speedup,
    TimelineSummary,
    Timing,
    Verification,
    Workload,
)
from fusionadvisor.strategies.base import Strategy
from fusionadvisor.workload.program import Program

Progress = Callable[[str], None]
"""Told in a few words what is being done."""


@dataclass(frozen=True)
class Outcome:
    """What came of all attempts.

    Args:
        attempts: In the order they were made.
        result: The kept steps together against the original; None where nothing was kept.
        steps: The kept steps, for a recipe.
        before: The original's latency beside ``after``, that of the whole.
        verification: Of the whole, the original against all kept steps.
        timeline: What a step of the whole runs.
        warnings: What the reader must know: another order, no isolation, a recipe that did not hold.
        files: What was saved.
        hunt: How a search went; None where the strategies were given.
    """

    attempts: tuple[Attempt, ...]
    result: Speedup | None = None
    steps: tuple[Step, ...] = ()
    before: Timing | None = None
    after: Timing | None = None
    verification: Verification | None = None
    timeline: TimelineSummary | None = None
    warnings: tuple[Notice, ...] = ()
    files: tuple[str, ...] = ()
    hunt: Hunt | None = None


def attempt(
    workload: Workload,
    wanted: Sequence[str],
    *,
    parameters: Mapping[str, Mapping[str, str]] | None = None,
    timeout_s: float = 300.0,
    memory_bytes: int | None = None,
    budget_s: float = 20.0,
    save: Path | None = None,
    progress: Progress = lambda _: None,
    program: Program | None = None,
) -> Outcome:
    """Try each strategy on top of those kept before it.

    Args:
        workload: What to run; rebuilt in each child process.
        wanted: Strategy ids.
        parameters: Their parameters, as typed, by strategy id.
        timeout_s: How long one attempt may take.
        memory_bytes: How much memory it may hold; None for 80 % of what is free.
        budget_s: How long the measuring of one attempt may take.
        save: A folder for the recipe of what was kept.
        progress: Told what is being done.
        program: For a live model, which no other process can build: the attempts then run in this one.

    Raises:
        InputError: If a strategy or parameter is not known, or the workload cannot be built.
    """
    chosen = [strategies.get(name, (parameters or {}).get(name)) for name in wanted]
    ordered = sorted(chosen, key=lambda strategy: strategy.order)
    warnings: list[Notice] = []
    if ordered != chosen:
        order = ", ".join(s.id for s in ordered)
        said = f"Tried in the order {order}, not as given: each has to find what the one before it left."
        warnings.append(Notice("W-order", said))
    trying = Trying(workload, Limits(timeout_s, memory_bytes), budget_s, progress, program)
    attempts: list[Attempt] = []
    for strategy in ordered:
        if reason := trying.too_late(strategy):
            attempts.append(Attempt(strategy.id, "not_tried", reason=reason, parameters=strategy.parameters()))
            continue
        try:
            made, done = trying.tried(strategy, trying.steps)
        except KeyboardInterrupt:
            left = ordered[len(attempts) :]
            attempts += [Attempt(s.id, "not_tried", reason="Interrupted.", parameters=s.parameters()) for s in left]
            warnings.append(stopped(save))
            save = None
            if len(trying.steps) > 1:  # to measure them together would take as long again
                attempts, trying.steps = [replace(made, kept=False) for made in attempts], []
            break
        attempts.append(made)
        if made.kept:
            trying.keep(done)
    return trying.outcome(attempts, warnings, save)


def stopped(save: Path | None) -> Notice:
    """What is said after Ctrl-C."""
    unsaved = f" Nothing was written to {save}." if save is not None else ""
    return Notice(INTERRUPTED, f"Interrupted: what was tried until then is reported.{unsaved}")


@dataclass
class Trying:
    """Attempts at one workload, each on top of what was kept before.

    Args:
        workload: What to run.
        limits: Of one attempt.
        budget_s: How long the measuring of one attempt may take.
        progress: Told what is being done.
        program: A live model, to be tried in this process.
        goal: What to improve.
        steps: What was kept.
        alone: What came of each.
        last: What came of the last kept step, or of all together.
        confirmed: True once ``last`` is of all together.
    """

    workload: Workload
    limits: Limits
    budget_s: float
    progress: Progress
    program: Program | None = None
    goal: Goal = "latency"
    steps: list[Step] = field(default_factory=list)
    alone: list[Done] = field(default_factory=list)
    last: Done = field(default_factory=Done)
    confirmed: bool = False

    def tried(self, strategy: Strategy, on: Sequence[Step]) -> tuple[Attempt, Done]:
        """Try a strategy on top of steps that hold."""
        job = Job(self.workload, tuple(on), Step(strategy.id, strategy.parameters()), self.budget_s, goal=self.goal)
        ended = self.do(job, strategy.id)
        return replace(made_of(strategy, ended), on=tuple(step.strategy for step in on)), ended.done

    def keep(self, done: Done) -> None:
        """Build on an attempt from now on."""
        if done.step is not None:
            self.steps.append(done.step)
            self.alone.append(done)
            self.last = done

    def too_late(self, strategy: Strategy) -> str:
        """Say which kept step leaves nothing for a strategy to change; empty where none does."""
        for step in self.steps:
            if strategies.get(step.strategy, step.parameters).terminal:
                return f"{step.strategy} is kept, and after it no module is left to change."
        return ""

    def do(self, job: Job, name: str) -> Ended:
        """Do a job in a process of its own; a live model's in this one."""

        def tell(stage: str) -> None:
            self.progress(f"{name}: {stage}")

        if self.program is not None:
            return Ended("done", trial.perform(job, self.program, tell))
        return worker.run(job, self.limits, tell)

    def _together(self, attempts: list[Attempt]) -> list[Attempt]:
        """Check the kept steps as a whole; the last one is given up until what is left holds."""
        while len(self.steps) > 1:
            ended = self.do(Job(self.workload, tuple(self.steps), None, self.budget_s), "together")
            self.last = ended.done
            if self.last.verdict in ("faster", "equivalent"):
                return attempts
            given_up, _ = self.steps.pop(), self.alone.pop()
            outcome: model.Outcome = self.last.verdict or ("diverged" if self.last.verification else _ended(ended))
            why = ended.reason or self.last.failure or _reason(self.last)
            said = f"Measured by itself it was kept; done in one go after the others it does not hold: {why}"
            attempts = [
                replace(made, kept=False, outcome=outcome, reason=said)
                if made.kept and made.strategy == given_up.strategy
                else made
                for made in attempts
            ]
        self.last = self.alone[0]
        return attempts

    def outcome(self, attempts: list[Attempt], warnings: list[Notice], save: Path | None) -> Outcome:
        """Verify and measure the kept steps together, and save them."""
        warnings = [*(Notice("W10", said) for said in catalog.refused_strategies()), *warnings]
        if self.program is not None:
            live = "A live model is not isolated: a crash would have ended this process too."
            warnings = [*warnings, Notice("W-live", live)]
        if len(self.steps) > 1 and not self.confirmed:
            attempts = self._together(attempts)
        if len(self.steps) == 1 and not self.confirmed:
            self.last = replace(self.last, verification=next(a.verification for a in attempts if a.kept))
        files: tuple[str, ...] = ()
        if save is not None and self.steps:
            files, said, lost = _save(self.workload, self.steps, self.last, save, lambda job: self.do(job, "recipe"))
            warnings = [*warnings, *said]
            if lost:  # what does not hold when it is done again was not proven
                what = f"The recipe did not hold in a fresh process and was not kept: {lost}"
                warnings.append(Notice(LOST, what))
                attempts = [replace(a, outcome="refused", kept=False, reason=what) if a.kept else a for a in attempts]
                self.steps, self.last = [], Done()
        last = self.last
        return Outcome(
            tuple(attempts), last.speedup, tuple(self.steps), last.before, last.after, last.verification,
            last.timeline, tuple(warnings), files,
        )  # fmt: skip


def _reason(done: Done) -> str:
    if done.speedup is not None:
        low, high = done.speedup.ci95
        return f"together they are {low:.2f}–{high:.2f} times as fast as the original, which may be slower."
    return done.verification.reason if done.verification else ""


def _save(
    workload: Workload, steps: list[Step], last: Done, folder: Path, do: Callable[[Job], Ended]
) -> tuple[tuple[str, ...], list[Notice], str]:
    """Have one process write the recipe beside the folder, and another load and verify it; then it takes its place.

    Returns:
        The files, warnings about them, and why there are none.
    """
    with recipe.draft(folder) as beside:
        written = do(
            Job(workload, tuple(steps), save=str(beside), speedup=last.speedup, verification=last.verification)
        )
        loaded = do(Job(workload, recipe=str(beside / recipe.FILE))) if written.done.files else written
        verification = loaded.done.verification
        if verification is None or verification.verdict != "agrees":
            return (), [], loaded.reason or loaded.done.failure or _reason(loaded.done)
        recipe.publish(beside, folder)
    files = tuple(str(folder / Path(name).relative_to(beside)) for name in written.done.files)
    return files, [Notice("W-saved", missing) for missing in (written.done.missing,) if missing], ""


def made_of(strategy: Strategy, ended: Ended) -> Attempt:
    """The attempt that came of a child, whichever way it ended."""
    if ended.done.attempt is not None:
        return ended.done.attempt
    return Attempt(
        strategy.id, _ended(ended), reason=ended.reason or ended.done.failure, parameters=strategy.parameters()
    )


def _ended(ended: Ended) -> model.Outcome:
    return "timed_out" if ended.how == "timed_out" else "refused" if ended.done.refused else "crashed"
