"""One strategy tried on one program in this process: plan, rewrite a copy, verify, count, measure."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from fusionadvisor import recipe, strategies, units
from fusionadvisor.errors import FusionAdvisorError, InputError, StrategyError
from fusionadvisor.evaluate import bench, kernels, saving
from fusionadvisor.evaluate.leaves import Trained
from fusionadvisor.evaluate.memory import peak_bytes
from fusionadvisor.evaluate.variation import Variation
from fusionadvisor.evaluate.verify import verify
from fusionadvisor.flow.record import record
from fusionadvisor.recipe import Step
from fusionadvisor.report.model import Attempt, Sites, Speedup, TimelineSummary, Timing, Verification, Workload
from fusionadvisor.strategies.base import Call, Plan, Strategy, Subject
from fusionadvisor.strategies.compile import itself
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.program import Program

Tell = Callable[[str], None]
Goal = Literal["latency", "throughput", "memory"]
PLAN_SEEDS = (0, 1, 2)
VERIFY_SEEDS = (11, 12, 13)
LAST_ROUNDS = 4 * bench.ROUNDS
"""Of the measurement of the whole, which decides: its interval is half as wide."""


NOT_ITSELF = "the model returns something else when it is called again with the same inputs, so nothing can be verified"


@dataclass(frozen=True)
class Job:
    """One strategy to try on top of the steps kept before it; without one, the kept steps against the original.

    Args:
        workload: Rebuilt in the process that does the job.
        kept: Steps of the baseline.
        step: The strategy to try, its sites still open.
        budget_s: Time for measuring.
        save: Instead of all that, a folder to write recipe and artefacts of the kept steps into.
        recipe: Or a recipe file to load and verify, with its artefacts.
        speedup: What a recipe to be written says was measured.
        verification: What it says was verified.
        goal: What a step is kept for.
        survey: Or strategies to plan, without doing anything.
    """

    workload: Workload
    kept: tuple[Step, ...] = ()
    step: Step | None = None
    budget_s: float = 20.0
    save: str | None = None
    recipe: str | None = None
    speedup: Speedup | None = None
    verification: Verification | None = None
    goal: Goal = "latency"
    survey: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Done:
    """What came of a job: the attempt, and the step with its sites where it could be kept."""

    attempt: Attempt | None = None
    step: Step | None = None
    before: Timing | None = None
    after: Timing | None = None
    speedup: Speedup | None = None
    verification: Verification | None = None
    timeline: TimelineSummary | None = None
    """What a step runs then, of what is to be kept."""
    verdict: bench.Verdict | None = None
    """On all steps together."""
    failure: str = ""
    """Why there is no more than this, in a sentence; ``refused`` where a strategy itself said no."""
    refused: bool = False
    files: tuple[str, ...] = ()
    missing: str = ""
    """What could not be saved with them, and why."""
    survey: tuple[Attempt, ...] = ()
    """For each strategy asked about: refused, no effect, or not tried yet with the modules it would change."""


def perform(job: Job, program: Program, tell: Tell) -> Done:
    """Do a job on a program built from its workload; whatever a strategy raises ends this job alone.

    Raises:
        InputError: What the user gave does not fit.
    """
    stage = ""

    def telling(now: str) -> None:
        nonlocal stage
        stage = now
        tell(now)

    try:
        return _perform(job, program, telling)
    except StrategyError as error:
        return Done(failure=str(error), refused=True)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - the guard around one attempt
        if _is_compilers(error):  # of a graph that was not asked for until then, as of another batch size
            return Done(failure=itself(error), refused=True)
        lines = str(error).strip().splitlines()
        said = f": {lines[0]}" if lines else ""
        return Done(failure=f"{type(error).__name__} while {stage}{said}")


def _is_compilers(error: Exception) -> bool:
    """Whether it is torch's compiler that raised it."""
    return any(kind.__module__.startswith("torch._dynamo") for kind in type(error).__mro__)


def _perform(job: Job, program: Program, tell: Tell) -> Done:
    with _state_kept():
        if job.recipe is not None:
            tell("loading and verifying")
            run, calls = _runner(program), Variation(program).calls(VERIFY_SEEDS)
            return Done(verification=saving.load(Path(job.recipe), program.model, calls, run, program.workload.device))
        if job.save is not None:
            tell("saving")
            candidate, call = with_steps(program, job.kept), program.call()
            files, missing = saving.write(
                Path(job.save), program.workload, job.kept, program.model, candidate, call,
                job.speedup, job.verification,
            )  # fmt: skip
            return Done(files=files, missing=missing)
        if job.step is not None:
            return _Trial(program, job, job.step, tell).run()
        if job.survey:
            return Done(survey=tuple(_survey(program, job, tell)))
        return _whole(program, job, tell)


def _whole(program: Program, job: Job, tell: Tell) -> Done:
    """All kept steps together against the original."""
    tell("verifying the whole")
    candidate = with_steps(program, job.kept)
    kept = [strategies.get(step.strategy, step.parameters) for step in job.kept]
    verification = _verify(program, candidate, sizes=not any(strategy.terminal for strategy in kept))
    if verification.verdict != "agrees":
        return Done(verification=verification)
    tell("measuring the whole")
    measured = _compare(program, program.model, candidate, job)
    timeline = _timeline(program, candidate, measured.before, measured.speedup)
    return Done(
        None, None, measured.before, measured.after, measured.speedup, verification, timeline, verdict=measured.verdict
    )


def _survey(program: Program, job: Job, tell: Tell) -> Iterator[Attempt]:
    """What each strategy plans; one that fails at that, or is slow, is tried like the others, and then says how."""
    tell("recording")
    base = with_steps(program, job.kept)
    subject = _subject(program, base)
    for step in job.survey:
        strategy = strategies.get(step.strategy, step.parameters)
        attempt = Attempt(step.strategy, "refused", parameters=dict(step.parameters))
        if strategy.slow:  # planning it is half the work of trying it
            yield replace(attempt, outcome="not_tried", sites=Sites(modules=strategy.places(base)))
            continue
        tell(f"planning {step.strategy}")
        try:
            plan = strategy.plan(subject)
        except Exception:  # noqa: BLE001 - the guard around one attempt
            yield replace(attempt, outcome="not_tried")
            continue
        sites = _sites(plan)
        attempt = replace(attempt, sites=sites, notes=plan.notes, graph_breaks=plan.graph_breaks)
        stopped = _Trial(program, job, step, tell).unplanned(strategy, plan, attempt, base)
        found = replace(sites, modules=_sites(plan, applied=True).modules)
        yield stopped or replace(attempt, outcome="not_tried", sites=found)


@dataclass
class _Trial:
    program: Program
    job: Job
    step: Step
    tell: Tell

    def run(self) -> Done:
        strategy = strategies.get(self.step.strategy, self.step.parameters)
        attempt = Attempt(strategy.id, "refused", parameters=dict(self.step.parameters))
        self.tell("recording")
        base = with_steps(self.program, self.job.kept)
        subject = _subject(self.program, base)
        self.tell("planning")
        plan = strategy.plan(subject)
        attempt = replace(attempt, sites=_sites(plan), notes=plan.notes, graph_breaks=plan.graph_breaks)
        if stopped := self.unplanned(strategy, plan, attempt, base):
            return Done(stopped)
        self.tell("rewriting")
        start = time.perf_counter()
        candidate = strategy.rewrite(copied(base), plan, subject)
        training = self.program.training
        with training.undone(candidate) if training else nullcontext():
            said = strategy.first_call(lambda: self.program.step(subject.calls[0], candidate))
            compile_s = time.perf_counter() - start
        notes = (*plan.notes, *said)
        attempt = replace(attempt, compile_s=compile_s, sites=_sites(plan, applied=True), notes=notes)
        self.tell("verifying")
        verification = _verify(self.program, candidate, sizes=not strategy.terminal)
        if verification.verdict == "agrees" and not (strategy.needs_cuda or strategy.slow or self.program.training):
            verification = self._with_used_norms(strategy, plan, subject, verification)
        attempt = replace(attempt, verification=verification, notes=(*notes, *verification.notes))
        if verification.verdict == "diverges":
            return Done(replace(attempt, outcome="diverged", reason=f"{_sentence(verification.reason)}"))
        if verification.verdict == "unchecked":
            return Done(replace(attempt, outcome="refused", reason=_sentence(verification.reason)))
        attempt = self._measured(strategy, attempt, base, candidate)
        before, speedup = attempt.before, attempt.speedup
        timeline = _timeline(self.program, candidate, before, speedup) if attempt.kept and before and speedup else None
        return Done(attempt, replace(self.step, sites=plan.sites), before, attempt.after, speedup, timeline=timeline)

    def _with_used_norms(
        self, strategy: Strategy, plan: Plan, subject: Subject, verification: Verification
    ) -> Verification:
        """Verify again with other batch-norm statistics: fresh ones (mean 0, variance 1) hide a wrong fold."""
        twin = copied(subject.model)
        if not _disturb_fresh_norms(twin):
            return verification
        candidate = strategy.rewrite(copied(twin), plan, subject)
        calls = Variation(self.program).calls(VERIFY_SEEDS[:1])[:1]
        again = verify(twin, candidate, calls, _runner(self.program), device=self.program.workload.device)
        return verification if again.verdict != "diverges" else again

    def unplanned(self, strategy: Strategy, plan: Plan, attempt: Attempt, base: nn.Module) -> Attempt | None:
        """The attempt where there is nothing to rewrite, or no device to rewrite for."""
        if plan.blocker:
            return replace(attempt, reason=plan.blocker)
        if strategy.needs_cuda and not self._on_cuda:
            found = plan.refused[0].reason if plan.refused else "nothing else stands in its way."
            return replace(attempt, outcome="not_tried", reason=f"It needs a CUDA device; checked without one: {found}")
        if plan.sites:
            return None
        if plan.refused:
            return replace(attempt, reason=plan.refused[0].reason)
        ops = self._ops(base, self.program.call())
        what = " ".join(plan.notes) or "There is nothing in this model for it to change."
        count = kernels.difference(ops, ops, ops)
        return replace(attempt, outcome="no_effect", kernels=count, reason=f"{what} {self._counts(ops, ops)}")

    def _measured(self, strategy: Strategy, attempt: Attempt, base: nn.Module, candidate: nn.Module) -> Attempt:
        self.tell("counting")
        call = self.program.call()
        before, after = self._ops(base, call), self._ops(candidate, call)
        original = self._ops(copied(self.program.model), call) if self.job.kept else before
        attempt = replace(attempt, kernels=kernels.difference(before, after, original))
        if strategy.changes_ops and Counter(before) == Counter(after):
            return replace(attempt, outcome="no_effect", reason=f"The same ops run: {self._counts(before, after)}")
        self.tell("measuring")
        result = _compare(self.program, base, candidate, self.job)
        attempt = replace(
            attempt, outcome=result.verdict, before=result.before, after=result.after, speedup=result.speedup
        )
        saved_ms = result.before.median_ms * (1 - 1 / result.speedup.median)
        if result.verdict == "faster":
            return replace(attempt, kept=True, break_even_calls=_break_even(attempt.compile_s, saved_ms))
        # no slower: what others can build on is kept for doing less, what ends the composition has to pay for itself
        less = len(before) > len(after) and not strategy.terminal
        kept = bench.keeps(result.verdict, less or (self.job.goal == "memory" and _held_less(result)))
        return replace(attempt, kept=kept, reason=_reason(result, kept, self._counts(before, after)))

    def _ops(self, model: nn.Module, call: Call) -> list[str]:
        return kernels.names(lambda: self.program.step(call, model), self.program.workload.device)

    def _counts(self, before: list[str], after: list[str]) -> str:
        noun = "kernel" if self._on_cuda else "op"
        return f"{units.plural(len(before), noun)} before, {len(after):,} after."

    @property
    def _on_cuda(self) -> bool:
        return self.program.workload.device.startswith("cuda")


def _reason(result: bench.Comparison, kept: bool, counts: str) -> str:
    if result.verdict == "slower":
        return f"The interval lies below what two copies of the baseline differ by. {counts}"
    if result.verdict == "inconclusive":
        return f"{bench.why_open(result.speedup, len(result.before.samples_ms))} {counts}"
    if kept:
        return f"It is no slower, and less is run: {counts}"
    return f"It is no slower, and no gain is proven. {counts}"


def _held_less(result: bench.Comparison) -> bool:
    return (result.after.peak_memory_bytes or 0) < (result.before.peak_memory_bytes or 0)


def _break_even(compile_s: float | None, saved_ms: float) -> int | None:
    return None if compile_s is None or saved_ms <= 0 else round(1e3 * compile_s / saved_ms)


def with_steps(program: Program, steps: tuple[Step, ...]) -> nn.Module:
    """A copy of the program's model with the steps done."""
    work = program.workload
    calls = (program.call(),) if steps else ()
    return recipe.perform(copied(program.model), steps, calls, mode=work.mode, device=work.device)


def copied(model: nn.Module) -> nn.Module:
    """A deep copy.

    Raises:
        StrategyError: If the model cannot be copied.
    """
    return duplicate(model)


def _subject(program: Program, base: nn.Module) -> Subject:
    calls = Variation(program).calls(PLAN_SEEDS)
    work = program.workload

    def run(model: nn.Module, call: Call) -> object:
        return program.step(call, model)

    if any(isinstance(module, torch.jit.ScriptModule) for module in base.modules()):
        return Subject(base, (), calls, work.mode, work.device, run)
    graphs = tuple(record(lambda c=call: program.step(c, base), base, call) for call in calls)  # type: ignore[misc]
    optimizer = program.training.optimizer_in_use(base) if program.training else None
    return Subject(base, graphs, calls, work.mode, work.device, run, optimizer)


def _disturb_fresh_norms(model: nn.Module) -> bool:
    """Give batch norms that have seen no data statistics as training would; say whether there were any."""
    generator = torch.Generator().manual_seed(0)
    fresh = False
    for module in model.modules():
        mean, var = getattr(module, "running_mean", None), getattr(module, "running_var", None)
        if not (isinstance(mean, torch.Tensor) and isinstance(var, torch.Tensor)):
            continue
        if not mean.any() and bool((var == 1).all()):
            fresh = True
            mean.copy_(torch.randn(mean.shape, generator=generator))
            var.copy_(torch.rand(var.shape, generator=generator) + 0.5)
    return fresh


def _verify(program: Program, candidate: nn.Module, *, sizes: bool) -> Verification:
    """Compare a candidate with the original; on other sizes, too, where each does not have to be compiled anew."""
    variation = Variation(program)
    calls = variation.calls(VERIFY_SEEDS, sizes=sizes)
    original, run, device = program.model, _runner(program), program.workload.device
    if program.training is not None:
        found = verify(copied(original), candidate, calls, run, device=device)
        return replace(found, notes=(*found.notes, *variation.notes))
    found = verify(original, candidate, calls, run, device=device)
    found = replace(found, notes=(*found.notes, *variation.notes))
    if found.verdict == "diverges" and verify(original, original, calls[:1], run, device=device).verdict == "diverges":
        return Verification("unchecked", device, reason=NOT_ITSELF)
    return found


def _runner(program: Program) -> Callable[[nn.Module, Call], object]:
    """What verification compares: outputs, and in training all that a step changes, step after step."""
    moved: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def infer(model: nn.Module, call: Call) -> object:
        return program.step(call, model)

    def train(model: nn.Module, call: Call) -> object:
        parameters = dict(model.named_parameters())
        before = {n: p.detach().clone() for n, p in parameters.items()}
        output = program.step(call, model)
        done = Trained(
            output=output,
            gradients={n: p.grad.clone() for n, p in parameters.items() if p.grad is not None},
            parameters={n: p.detach().clone() for n, p in parameters.items()},
            buffers={n: b.clone() for n, b in model.named_buffers()},
        )
        for name, old in before.items():
            moved[id(model)][name] += float((done["parameters"][name] - old).abs().amax()) if old.numel() else 0.0
        done.moved = moved[id(model)]
        return done

    return infer if program.training is None else train


def _compare(program: Program, base: nn.Module, candidate: nn.Module, job: Job) -> bench.Comparison:
    call, device = program.call(), program.workload.device
    control = copied(base)
    clock = bench.clock(device, queued=job.goal == "throughput")
    found = bench.compare(
        lambda: program.step(call, base), lambda: program.step(call, control), lambda: program.step(call, candidate),
        clock, budget_s=job.budget_s, rounds=bench.ROUNDS if job.step else LAST_ROUNDS, seed=program.workload.seed,
    )  # fmt: skip
    before, after = (peak_bytes(lambda m=model: program.step(call, m), device) for model in (base, candidate))  # type: ignore[misc]
    return replace(
        found,
        before=replace(found.before, peak_memory_bytes=before),
        after=replace(found.after, peak_memory_bytes=after),
    )


def _timeline(program: Program, candidate: nn.Module, before: Timing, speedup: Speedup) -> TimelineSummary | None:
    """What a step runs then; None where the candidate, verified and measured as it is, cannot be profiled."""
    median_ms = before.median_ms / speedup.median
    try:
        return kernels.timeline(program, candidate, Timing(median_ms, (median_ms, median_ms)))
    except (FusionAdvisorError, RuntimeError):
        return None


def _sites(plan: Plan, applied: bool = False) -> Sites:
    members = tuple(dict.fromkeys(member for site in plan.sites for member in site.members)) if applied else ()
    return Sites(len(plan.sites) + len(plan.refused), len(plan.sites) if applied else 0, plan.refused, members)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


@contextmanager
def _state_kept() -> Iterator[None]:
    """Random state and grad mode as they were, for a job done in the user's own process."""
    grad = torch.is_grad_enabled()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            torch.set_grad_enabled(grad)
