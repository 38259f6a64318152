"""The search keeps what is proven, drops the rest with a reason, and never ends slower than it began."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    Hunt,
    Notice,
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
    """What each strategy would bring, without running anything; seconds pass as they are asked.

    ``gains`` by strategy, or by the strategies before it and itself: ``fuse_modules,compile``. ``memory`` likewise, the
    bytes a call holds after it, of 100.
    """

    gains: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    wholes: Mapping[str, float] = field(default_factory=dict)
    """What combinations bring in the end; 1.2 unless told."""
    warnings: list[Notice] = field(default_factory=list)
    hunt: Hunt = field(default_factory=lambda: Hunt("latency", 0.0, 0.0))
    seconds: float = 0.0
    costs: float = 1.0
    empty: tuple[str, ...] = ()
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)

    def do(self, job: Job, name: str) -> Ended:
        self.seconds += self.costs
        if job.survey:
            return Ended("done", Done(survey=tuple(self._planned(step) for step in job.survey)))
        path = ",".join(step.strategy for step in job.kept)
        if job.step is None:
            ratio = self.wholes.get(path, 1.2)
            timings = Timing(10.0, (10, 10), (), 100), Timing(10 / ratio, (9, 9), (), self.memory.get(path, 100))
            return Ended("done", Done(None, None, *timings, gain(ratio), Verification("agrees")))
        own, path = job.step.strategy, f"{path},{job.step.strategy}".lstrip(",")
        self.asked.append(path)
        self.limit.append(self.limits.timeout_s)
        ratio = self.gains.get(path, self.gains.get(own, 1.0))
        outcome: Outcome = "faster" if ratio > 1.05 else "slower" if ratio < 0.95 else "equivalent"
        kept = outcome == "faster" or (ratio == 1.0 and not strategies.get(own).terminal) or self.goal == "memory"
        before = self.memory.get(path.rpartition(",")[0], 100)
        after = self.memory.get(path, before)
        made = Attempt(own, outcome, kept=kept, speedup=gain(ratio), reason="Less is run.",
                       verification=Verification("agrees"), parameters=job.step.parameters,
                       before=Timing(1, (1, 1), (), before), after=Timing(1, (1, 1), (), after))  # fmt: skip
        return Ended("done", Done(made, job.step))

    def _planned(self, step: Step) -> Attempt:
        if step.strategy in self.empty:
            return Attempt(step.strategy, "no_effect", reason="There is nothing in this model for it to change.")
        if step.parameters:
            return Attempt(step.strategy, "not_tried", sites=Sites(modules=("layers.0", "layers.1")))
        return Attempt(step.strategy, "not_tried", sites=Sites(modules=self.places.get(step.strategy, ())))


def world(**more: object) -> World:
    return World(Workload(target="x.py", device="cpu"), Limits(), 1.0, lambda _: None, **more)  # type: ignore[arg-type]


def hunt(trying: World, *findings: Finding, budget_s: float = 1000.0) -> dict[str, Attempt]:
    """Every attempt by what it was tried on and its own name."""
    search = Search(trying, findings, budget_s, 300.0, lambda: trying.seconds)
    search.run()
    best, trying.warnings = auto.confirmed(trying, search.best(), lambda: budget_s - trying.seconds)
    trying.hunt = search.hunt
    attempts = search.told(best)
    assert {a.strategy for a in attempts} == set(strategies.ids())
    assert all(a.reason or a.outcome == "faster" for a in attempts)
    assert [a.strategy for a in attempts if a.kept] == [step.strategy for step in trying.steps]
    return {",".join((*a.on, a.strategy, *a.parameters.values())): a for a in attempts}


def finding(remedy: str, module: str = "layers.1.norm", high: float = 10.0) -> Finding:
    saving = Saving(Range(0, None, high), Range(0, None, high))
    return Finding("F1", "FA103", "", module, saving, modules=(module,), remedies=(remedy,))


def kept(trying: World) -> list[str]:
    return [step.strategy for step in trying.steps]


def test_gains_are_kept_in_the_legal_order_and_the_best_of_what_wraps() -> None:
    trying = world(gains={"fuse_modules": 1.2, "inplace": 1.1, "torchscript": 1.1, "compile": 1.3})
    found = hunt(trying)
    assert kept(trying) == ["fuse_modules", "inplace", "compile"]
    reason = "Dropped: fuse_modules, inplace, compile gains more, 1.72× against 1.45× of"
    assert found["fuse_modules,inplace,torchscript"].reason == f"{reason} fuse_modules, inplace, torchscript."


def test_what_wraps_is_tried_on_the_original_too_and_wins_alone_where_it_gains_more() -> None:
    gains = {"fuse_modules": 1.1, "fuse_modules,torchscript": 1.0, "torchscript": 1.3}
    trying = world(gains=gains)
    found = hunt(trying)
    assert kept(trying) == ["torchscript"]
    assert found["fuse_modules"].reason == "Dropped: torchscript gains more, 1.30× against 1.10× of fuse_modules."
    assert {"fuse_modules,compile", "compile"} <= set(trying.asked)
    assert "torchscript" in hunt(world(gains={}))


def test_an_edit_whose_gain_another_took_is_tried_alone_unless_it_is_elsewhere() -> None:
    gains = {"fuse_modules": 1.1, "fuse_modules,channels_last": 1.0, "channels_last": 1.4, "fuse_modules,inplace": 1.0}
    places = {"fuse_modules": ("a", "b"), "channels_last": ("b",), "inplace": ("c",)}
    trying = world(gains=gains, places=places)
    hunt(trying)
    assert kept(trying) == ["channels_last"]
    assert "inplace" not in trying.asked


def test_what_only_runs_less_is_not_kept() -> None:
    trying = world()
    found = hunt(trying)
    assert not trying.steps
    assert found["fuse_modules"].reason == "Less is run. Only a proven gain is kept."


def test_what_plans_nothing_or_lacks_its_device_is_dropped_with_the_reason() -> None:
    trying = world(empty=("fx", "inplace"))
    found = hunt(trying, finding("inplace"))
    nothing = "There is nothing in this model for it to change."
    assert found["fx"].reason == f"Dropped: no finding names it, and no place fits it. {nothing}"
    assert found["inplace"].reason == f"Dropped: FA103 names it, but no place fits it. {nothing}"
    assert found["cudagraph"].reason == "Dropped: it needs a CUDA device."
    assert found["cudagraph"].outcome == "not_tried"
    assert {"fx", "inplace", "cudagraph"}.isdisjoint(trying.asked)


def test_compile_is_confined_to_the_blocks_with_findings() -> None:
    found = hunt(world(), finding("compile"))
    assert found["compile,layers.1"].outcome == "equivalent"
    assert [name for name in hunt(world(), finding("fx")) if name.startswith("compile,")] == []


def test_what_takes_long_comes_last_and_nothing_is_begun_without_time() -> None:
    trying = world(costs=10.0, gains={"fuse_modules": 1.2})
    found = hunt(trying, finding("compile", high=1e6), finding("fuse_modules"), budget_s=38.0)
    assert found["fuse_modules"].kept
    assert found["fuse_modules,compile"].reason == "Dropped: of the budget of 38 s too little was left for it."
    assert kept(trying) == ["fuse_modules"]
    assert "compile on fuse_modules" in trying.hunt.unreached
    assert trying.seconds <= 40.0  # the survey, one or two attempts and the check


def test_a_short_budget_goes_to_what_the_findings_promise_most_for() -> None:
    trying = world(costs=10.0)
    found = hunt(trying, finding("fx", high=50.0), finding("fuse_modules", high=9.0), budget_s=30.0)
    assert trying.asked == ["fx"]
    start = "Dropped: the budget of 30 s does not allow all, and"
    assert found["fuse_modules"].reason == f"{start} its findings promise at most 9.0 µs."
    assert found["horizontal"].reason == f"{start} no finding names it."
    assert found["inplace"].reason == "Dropped: of the budget of 30 s too little was left for it."
    assert {"inplace on the original", "fuse_modules"} <= set(trying.hunt.unreached)


def test_the_time_left_is_shared_among_what_takes_long() -> None:
    trying = world(costs=10.0, gains={"fuse_modules": 1.2}, empty=("fx", "inplace", "channels_last", "torchscript",
                   "horizontal", "sdpa", "optimizer"))  # fmt: skip
    hunt(trying, finding("compile"), budget_s=120.0)
    assert trying.asked == ["fuse_modules", "fuse_modules,compile", "fuse_modules,compile", "compile", "compile"]
    # 120 - survey 10 - first 10 - check 6 = 94 for four; each took 10
    assert trying.limit[1:] == [23.5, 28.0, 37.0, 64.0]


def test_what_is_not_confirmed_in_the_end_gives_way_to_the_next_best() -> None:
    trying = world(gains={"fuse_modules": 1.2, "compile": 1.3}, wholes={"fuse_modules,compile": 1.0})
    hunt(trying)
    assert kept(trying) == ["compile"]  # 1.3 alone, 1.2 the edit
    assert "no gain is proven" in trying.warnings[0].message
    every = dict.fromkeys(("fuse_modules,compile", "compile", "fuse_modules"), 1.0)
    trying = world(gains={"fuse_modules": 1.2, "compile": 1.3}, wholes=every)
    found = hunt(trying)
    assert not trying.steps
    assert len(trying.warnings) == 3
    assert found["fuse_modules"].reason == "Dropped: no combination was confirmed."


def test_without_time_only_the_best_is_checked() -> None:
    chains = [auto.Chain((Step(name),), 1.3, (0,)) for name in ("compile", "fuse_modules")]
    trying = world(wholes={"compile": 1.0})
    assert auto.confirmed(trying, chains, lambda: 0.0)[0] is None
    assert auto.confirmed(trying, chains, lambda: 100.0)[0] is chains[1]


def test_what_looked_faster_may_be_proven_in_the_end() -> None:
    trying = world(gains={"inplace": 1.03}, wholes={"inplace": 1.1})
    found = hunt(trying)
    assert kept(trying) == ["inplace"]
    assert found["inplace"].reason == "Less is run. Kept: proven in the check of the whole."
    trying = world(gains={"inplace": 1.03}, wholes={"inplace": 1.02})
    assert "Kept" not in hunt(trying)["inplace"].reason
    trying = world(gains={"inplace": 1.03}, wholes={"inplace": 1.02})
    assert not hunt(trying)["inplace"].kept
    assert not trying.warnings


def test_the_goal_of_memory_is_decided_by_what_a_call_holds() -> None:
    memory = {"inplace": 60, "inplace,channels_last": 80, "inplace,torchscript": 50, "torchscript": 90, "compile": 95}
    trying = world(goal="memory", memory=memory, gains={"compile": 1.5, "fuse_modules": 1.4})
    hunt(trying)
    assert kept(trying) == ["inplace", "torchscript"]
    assert trying.hunt.goal == "memory"
    for slow in ({"inplace": 0.8}, {"inplace": 1.2}):
        trying = world(goal="memory", memory=memory | {"inplace": 60}, gains=slow)
        hunt(trying)
        assert ("inplace" in kept(trying)) == (slow["inplace"] > 1)
    trying = world(goal="memory", gains={"fuse_modules": 1.4})
    hunt(trying)
    assert not trying.steps  # faster, and holds no less


@pytest.mark.parametrize(
    ("outcome", "own", "new", "expected"),
    [
        ("equivalent", 100, 50, True),
        ("equivalent", 50, 50, False),
        ("inconclusive", 100, 50, False),
        ("slower", 100, 50, False),
        ("faster", 50, 100, False),
    ],
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
