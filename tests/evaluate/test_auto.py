"""The search keeps what is proven, drops the rest with a reason, and never ends slower than it began."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fusionadvisor import strategies
from fusionadvisor.evaluate import auto
from fusionadvisor.evaluate.auto import Search, proven
from fusionadvisor.evaluate.search import Trying
from fusionadvisor.evaluate.trial import Done, Job
from fusionadvisor.evaluate.worker import Ended, Limits
from fusionadvisor.recipe import Step
from fusionadvisor.report.model import (
    Attempt,
    Finding,
    Outcome,
    Range,
    Saving,
    Sites,
    Speedup,
    Timing,
    Verification,
    Workload,
)
from fusionadvisor.workload.resolve import resolve

BAND = (0.97, 1.03)


def gain(ratio: float) -> Speedup:
    return Speedup(ratio, (ratio - 0.02, ratio + 0.02), BAND)


@dataclass
class World(Trying):
    """What each strategy would bring, without running anything: ``gains`` by its id; seconds pass as they are asked."""

    gains: Mapping[str, float] | None = None
    whole: float = 1.2
    seconds: float = 0.0
    costs: float = 1.0
    empty: tuple[str, ...] = ()

    def do(self, job: Job, name: str) -> Ended:
        self.seconds += self.costs
        if job.survey:
            return Ended("done", Done(survey=tuple(self._planned(step) for step in job.survey)))
        if job.step is None:
            timings = Timing(10.0, (10, 10)), Timing(10 / self.whole, (9, 9))
            return Ended("done", Done(None, None, *timings, gain(self.whole), Verification("agrees")))
        ratio = (self.gains or {}).get(job.step.strategy, 1.0)
        outcome: Outcome = "faster" if ratio > 1.05 else "slower" if ratio < 0.95 else "same"
        made = Attempt(job.step.strategy, outcome, kept=ratio > 0.95, speedup=gain(ratio), reason="Less is run.",
                       verification=Verification("agrees"), parameters=job.step.parameters)  # fmt: skip
        return Ended("done", Done(replace(made, kept=outcome == "faster" or ratio == 1.0), job.step))

    def _planned(self, step: Step) -> Attempt:
        if step.strategy in self.empty:
            return Attempt(step.strategy, "no_effect", reason="There is nothing in this model for it to change.")
        if step.parameters:
            return Attempt(step.strategy, "not_tried", sites=Sites(modules=("layers.0", "layers.1")))
        return Attempt(step.strategy, "not_tried")


def world(**more: object) -> World:
    return World(Workload(target="x.py", device="cpu"), Limits(), 1.0, lambda _: None, **more)  # type: ignore[arg-type]


def hunt(trying: World, *findings: Finding, budget_s: float = 100.0) -> dict[str, Attempt]:
    attempts = Search(trying, findings, budget_s, 300.0, lambda: trying.seconds).run()
    assert {a.strategy for a in attempts} == set(strategies.ids())
    assert all(a.reason or a.outcome == "faster" for a in attempts)
    return {",".join((a.strategy, *a.parameters.values())): a for a in attempts}


def finding(remedy: str, module: str = "layers.1.norm", high: float = 10.0) -> Finding:
    saving = Saving(Range(0, None, high), Range(0, None, high))
    return Finding("F1", "FA103", "", module, saving, modules=(module,), remedies=(remedy,))


def test_gains_are_kept_in_the_legal_order_and_the_best_of_what_wraps() -> None:
    trying = world(gains={"fuse_modules": 1.2, "inplace": 1.1, "torchscript": 1.1, "compile": 1.3})
    found = hunt(trying)
    assert [step.strategy for step in trying.steps] == ["fuse_modules", "inplace", "compile"]
    assert found["torchscript"].reason == "Dropped: compile gains more, and both cannot be had."


def test_what_only_runs_less_is_not_kept() -> None:
    trying = world()
    found = hunt(trying)
    assert not trying.steps
    assert found["fuse_modules"].reason == "Less is run. Only a proven gain is kept."


def test_what_plans_nothing_or_lacks_its_device_is_dropped_with_the_reason() -> None:
    found = hunt(world(empty=("fx", "inplace")))
    assert found["fx"].reason == "Dropped: There is nothing in this model for it to change."
    assert found["cudagraph"].reason == "Dropped: it needs a CUDA device."
    assert found["cudagraph"].outcome == "not_tried"


def test_compile_is_confined_to_the_blocks_with_findings() -> None:
    found = hunt(world(), finding("compile"))
    assert found["compile,layers.1"].outcome == "same"
    assert [name for name in hunt(world(), finding("fx")) if name.startswith("compile,")] == []


def test_what_takes_long_comes_last_and_nothing_is_begun_without_time() -> None:
    trying = world(costs=10.0, gains={"fuse_modules": 1.2})
    found = hunt(trying, finding("compile", high=1e6), budget_s=25.0)
    assert found["fuse_modules"].kept
    assert found["compile"].reason == "Dropped: the budget of 25 s was spent before it."
    assert [step.strategy for step in trying.steps] == ["fuse_modules"]


def test_what_is_not_confirmed_in_the_end_is_not_kept() -> None:
    trying = world(gains={"fuse_modules": 1.2}, whole=1.0)
    attempts, warnings = auto._confirmed(trying, list(hunt(trying).values()), "latency")
    assert not trying.steps
    assert not any(a.kept for a in attempts)
    assert "no proven gain" in warnings[0].message
    good = world(gains={"fuse_modules": 1.2}, whole=1.2)
    attempts, warnings = auto._confirmed(good, list(hunt(good).values()), "latency")
    assert [a.strategy for a in attempts if a.kept] == ["fuse_modules"]
    assert not warnings


@pytest.mark.parametrize(
    ("outcome", "own", "new", "expected"),
    [("same", 100, 50, True), ("same", 50, 50, False), ("slower", 100, 50, False), ("faster", 50, 100, False)],
)
def test_memory_is_a_goal(outcome: Outcome, own: int, new: int, expected: bool) -> None:
    before, after = Timing(1, (1, 1), peak_memory_bytes=own), Timing(1, (1, 1), peak_memory_bytes=new)
    made = Attempt("x", outcome, before=before, after=after)
    assert proven(made, "memory") is expected
    assert proven(made, "latency") is (outcome == "faster")


@pytest.mark.slow
def test_a_search_of_a_real_model_gives_a_reason_for_each(tiny: str, tmp_path: Path) -> None:
    found = auto.search(resolve(tiny, device="cpu"), (), budget_s=30.0, save=tmp_path / "out")
    assert {a.strategy for a in found.attempts} == set(strategies.ids())
    assert all(a.reason or a.outcome == "faster" for a in found.attempts)
    assert bool(found.steps) == any(a.kept for a in found.attempts) == (found.result is not None)
    if found.result is not None:
        assert found.result.ci95[0] > found.result.aa_band[1]
        assert found.files


SAMPLES = sorted((Path(__file__).parents[2] / "sample_models").glob("*.py"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_never_ends_slower(sample: Path) -> None:
    """What is kept is better than the original in a last measurement, or nothing is kept."""
    found = auto.search(resolve(str(sample), device="cpu"), (), budget_s=40.0)
    assert {a.strategy for a in found.attempts} == set(strategies.ids())
    assert bool(found.steps) == (found.result is not None)
    if found.result is not None:
        assert found.result.ci95[0] > found.result.aa_band[1]
        assert found.verification is not None
        assert found.verification.verdict == "agrees"
