"""Steps that were kept one by one are checked as a whole; what does not hold then is given up from the end."""

from pathlib import Path

import pytest

from fusionadvisor.evaluate.search import Trying
from fusionadvisor.evaluate.trial import Done, Job
from fusionadvisor.evaluate.worker import Ended, Limits
from fusionadvisor.recipe import Step
from fusionadvisor.report.model import Attempt, Speedup, Timing, Verification, Workload

FASTER = Speedup(1.2, (1.1, 1.3), (0.98, 1.02))
AGREES = Verification("agrees")
NAMES = ("horizontal", "sdpa", "fx")


class Checking(Trying):
    """Answers the check of the whole: a job of this many steps or fewer holds."""

    holds = 3
    ending = Ended("done", Done(failure="AssertionError while verifying the whole: Guard failed"))

    def do(self, job: Job, name: str) -> Ended:
        if len(job.kept) > self.holds:
            return self.ending
        return Ended(
            "done",
            Done(
                speedup=FASTER,
                verification=AGREES,
                before=Timing(1, (1, 1)),
                after=Timing(1, (1, 1)),
                verdict="faster",
            ),
        )


def kept(holds: int, ending: Ended | None = None) -> tuple[list[str], dict[str, Attempt]]:
    trying = Checking(Workload(target="x.py", device="cpu"), Limits(), 1.0, lambda _: None)
    trying.holds, trying.ending = holds, ending or Checking.ending
    attempts = [Attempt(name, "faster", True, speedup=FASTER, verification=AGREES) for name in NAMES]
    for made in attempts:
        trying.keep(Done(made, Step(made.strategy), speedup=made.speedup))
    outcome = trying.outcome(attempts, [], None)
    assert outcome.result == FASTER
    assert outcome.verification == AGREES
    return [step.strategy for step in outcome.steps], {made.strategy: made for made in outcome.attempts}


@pytest.mark.parametrize("holds", [1, 2, 3])
def test_the_longest_beginning_that_holds_is_kept(holds: int) -> None:
    steps, attempts = kept(holds)
    assert steps == list(NAMES[:holds])
    assert [name for name, made in attempts.items() if made.kept] == steps
    for name in NAMES[holds:]:
        assert attempts[name].outcome == "crashed"
        assert attempts[name].reason.endswith("does not hold: AssertionError while verifying the whole: Guard failed")


def test_what_differs_or_takes_too_long_says_so() -> None:
    differs = Ended("done", Done(verification=Verification("diverges", reason="output differs")))
    assert kept(2, differs)[1]["fx"].outcome == "diverged"
    assert kept(2, Ended("timed_out", reason="still measuring after 300 s"))[1]["fx"].outcome == "timed_out"


def test_what_may_be_slower_together_is_given_up() -> None:
    open_ = Done(speedup=Speedup(0.99, (0.9, 1.1), (0.95, 1.05)), verification=AGREES, verdict="inconclusive")
    made = kept(2, Ended("done", open_))[1]["fx"]
    assert (made.outcome, made.kept) == ("inconclusive", False)
    assert "0.90–1.10 times as fast as the original, which may be slower" in made.reason


def test_a_recipe_that_does_not_hold_is_not_faster_and_kept(tmp_path: Path) -> None:
    class Saving(Checking):
        def do(self, job: Job, name: str) -> Ended:
            if job.save is not None:
                (tmp_path / "recipe.json").write_text("{}")
                return Ended("done", Done(files=(str(tmp_path / "recipe.json"),)))
            if job.recipe is not None:
                return Ended("done", Done(verification=Verification("diverges", reason="output differs")))
            return super().do(job, name)

    trying = Saving(Workload(target="x.py", device="cpu"), Limits(), 1.0, lambda _: None)
    attempts = [
        Attempt("fx", "faster", True, speedup=FASTER, verification=AGREES),
        Attempt("sdpa", "no_effect", reason="None."),
    ]
    trying.keep(Done(attempts[0], Step("fx"), speedup=FASTER))
    outcome = trying.outcome(attempts, [], tmp_path)
    assert [(made.outcome, made.kept) for made in outcome.attempts] == [("refused", False), ("no_effect", False)]
    assert "did not hold in a fresh process" in outcome.attempts[0].reason
    assert (outcome.result, outcome.steps, outcome.files) == (None, (), ())
    assert [warning.code for warning in outcome.warnings] == ["W-recipe"]
