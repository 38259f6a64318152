from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor import strategies
from fusionadvisor.evaluate import bench, kernels, trial
from fusionadvisor.evaluate.search import Trying, attempt
from fusionadvisor.evaluate.trial import Goal, Job
from fusionadvisor.evaluate.worker import Limits
from fusionadvisor.recipe import Step
from fusionadvisor.report.model import Attempt, Speedup, Timing
from fusionadvisor.strategies import folding
from fusionadvisor.workload.program import build
from fusionadvisor.workload.resolve import resolve


def test_a_wrong_fold_shows_although_the_statistics_are_fresh(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = resolve(tiny)
    right = folding.fold_after

    def forgets_the_shift(layer: Any, scale: Tensor, shift: Tensor) -> None:
        right(layer, scale, torch.zeros_like(shift))

    good = attempt(workload, ["fuse_modules"], program=build(workload), budget_s=0).attempts[0]
    assert good.verification is not None
    assert good.verification.verdict == "agrees"
    monkeypatch.setattr(folding, "fold_after", forgets_the_shift)
    made = attempt(workload, ["fuse_modules"], program=build(workload), budget_s=0).attempts[0]
    assert made.outcome == "diverged"


def test_a_live_program_is_left_as_it_was_and_said_to_be_unisolated(tiny: str) -> None:
    workload = resolve(tiny)
    program = build(workload)
    before = {name: tensor.clone() for name, tensor in program.model.state_dict().items()}
    state = torch.get_rng_state()
    outcome = attempt(workload, ["fuse_modules", "torchscript"], program=program, budget_s=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(t, before[n]) for n, t in program.model.state_dict().items())
    assert any(isinstance(m, nn.BatchNorm2d) for m in program.model.modules())
    assert [w.code for w in outcome.warnings] == ["W-live"]
    assert [made.strategy for made in outcome.attempts] == ["fuse_modules", "torchscript"]


def test_what_is_kept_is_profiled_as_the_original_was(tiny: str) -> None:
    workload = resolve(tiny)
    program = build(workload)
    done = trial.perform(Job(workload, step=Step("fuse_modules"), budget_s=0), program, lambda _: None)
    assert done.attempt is not None
    assert done.step is not None
    assert (done.timeline is not None) is done.attempt.kept
    candidate = trial.with_steps(program, (done.step,))
    line = kernels.timeline(program, candidate, Timing(0.001, (0.001, 0.001)))
    assert "aten::native_batch_norm" not in line.kernels.op
    assert set(line.kernels.module) == {"0", "2"}
    assert sum(line.kernels.dur_us) <= 1.01  # the whole step takes 1 µs, so all ops together do
    assert (line.steps, line.stand_ins, set(line.kernels.step)) == (1, True, {0})


def test_what_cannot_be_profiled_is_kept_all_the_same(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no recording inside a capture")

    monkeypatch.setattr(kernels, "timeline", fails)
    outcome = attempt(resolve(tiny), ["fuse_modules"], program=build(resolve(tiny)), budget_s=0)
    assert outcome.timeline is None
    assert outcome.attempts[0].outcome in ("faster", "equivalent", "slower", "inconclusive")


def test_strategies_are_named_and_configured() -> None:
    from fusionadvisor.errors import InputError

    assert strategies.get("FUSE_MODULES").id == "fuse_modules"
    with pytest.raises(InputError, match=r"No strategy is called 'fuse'.*fuse_modules"):
        strategies.get("fuse")
    with pytest.raises(InputError, match="takes no parameters"):
        strategies.get("fuse_modules", {"x": "1"})
    graph = strategies.get("cudagraph", {"static_outputs": "true"})
    assert graph.parameters() == {"static_outputs": "True"}
    with pytest.raises(InputError, match="static_outputs is no bool"):
        strategies.get("cudagraph", {"static_outputs": "maybe"})


NOT_A_NUMBER = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x))) * float("nan")

def build_model():
    return Model()

def example_inputs():
    return torch.randn(2, 3, 8, 8)
"""


def test_what_cannot_be_verified_is_refused_and_not_saved(tmp_path: Path) -> None:
    file = tmp_path / "nan.py"
    file.write_text(NOT_A_NUMBER)
    workload = resolve(str(file), device="cpu")
    program = build(workload)
    outcome = attempt(workload, ["fuse_modules"], program=program, budget_s=0, save=tmp_path / "out")
    (made,) = outcome.attempts
    assert (made.outcome, made.kept) == ("refused", False)
    assert made.reason == "The outputs hold no number to compare, so nothing can be verified."
    assert (made.speedup, outcome.result, outcome.steps, outcome.files) == (None, None, (), ())
    assert not (tmp_path / "out").exists()
    whole = trial.perform(Job(workload, (Step("fuse_modules"),)), program, lambda _: None)
    assert whole.speedup is None


def test_a_model_that_does_not_repeat_itself_is_not_the_strategys_fault(tmp_path: Path) -> None:
    file = tmp_path / "counts.py"
    counted = NOT_A_NUMBER.replace("super().__init__()", "super().__init__(); self.calls = 0")
    file.write_text(counted.replace("    def forward(self, x):", "    def forward(self, x):\n        self.calls += 1")
                    .replace('float("nan")', "self.calls"))  # fmt: skip
    workload = resolve(str(file), device="cpu")
    (made,) = attempt(workload, ["fuse_modules"], program=build(workload), budget_s=0).attempts
    assert (made.outcome, made.kept) == ("refused", False)
    assert made.reason.startswith("The model returns something else when it is called again with the same inputs")


def test_what_torchs_compiler_fails_at_later_is_a_refusal_in_its_words(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call compiles; verification asks for another batch size, and that one may fail."""
    from torch._dynamo.exc import Unsupported

    def fails(*_: object, **__: object) -> None:
        raise Unsupported("no lowering for aten::mystery")

    workload = resolve(tiny)
    monkeypatch.setattr(trial, "_verify", fails)
    (made,) = attempt(workload, ["fuse_modules"], program=build(workload), budget_s=0).attempts
    assert made.outcome == "refused"
    assert made.reason.startswith("torch.compile itself fails on this model: no lowering for aten::mystery.")


def test_a_recipe_that_cannot_be_verified_does_not_stay(tmp_path: Path) -> None:
    file = tmp_path / "nan.py"
    file.write_text(NOT_A_NUMBER)
    workload = resolve(str(file), device="cpu")
    trying = Trying(workload, Limits(), 0.0, lambda _: None, build(workload), steps=[Step("fuse_modules")])
    outcome = trying.outcome([Attempt("fuse_modules", "faster", kept=True)], [], tmp_path / "out")
    assert outcome.files == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nan.py"]
    assert [(a.outcome, a.kept) for a in outcome.attempts] == [("refused", False)]
    assert (outcome.steps, outcome.result) == ((), None)
    assert any(w.code == "W-recipe" and "no number to compare" in w.message for w in outcome.warnings)


POOLED = """
import torch
from torch import nn

def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))

def example_inputs():
    return torch.randn(2, 3, 64, 64)
"""


@pytest.mark.parametrize(("goal", "verdict", "kept"), [
    ("memory", "equivalent", True), ("memory", "slower", False), ("memory", "inconclusive", False),
    ("latency", "equivalent", False),
])  # fmt: skip
def test_what_holds_less_is_kept_for_memory_at_no_loss_of_speed(
    goal: Goal, verdict: bench.Verdict, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*_: object, **__: object) -> bench.Comparison:
        timing = Timing(1.0, (1.0, 1.0))
        return bench.Comparison(timing, timing, Speedup(1.0, (1.0, 1.0), (0.9, 1.1)), verdict)

    monkeypatch.setattr(bench, "compare", compare)
    path = tmp_path / "pooled.py"
    path.write_text(POOLED)
    workload = resolve(str(path), device="cpu")
    done = trial.perform(Job(workload, step=Step("inplace"), goal=goal), build(workload), lambda _: None)
    assert done.attempt is not None
    assert done.attempt.kept is kept
    own, new = (t.peak_memory_bytes for t in (done.attempt.before, done.attempt.after) if t)
    assert own is not None
    assert new is not None
    output = 2 * 16 * 64 * 64 * 4  # of the convolution, and of the activation where it has its own
    assert own == 2 * output
    assert output <= new < output + 1000  # the mean of each channel is left
