"""The strategy through a whole trial: planned, verified and measured as on a GPU, with the double in CUDA's place."""

from pathlib import Path

import pytest
from torch import nn

from fusionadvisor.evaluate import trial
from fusionadvisor.recipe import Step
from fusionadvisor.strategies.base import Plan, Subject
from fusionadvisor.strategies.cudagraph import CudaGraph, counts
from fusionadvisor.workload.program import build
from fusionadvisor.workload.resolve import resolve
from tests.doubles.cpu_graph import CpuGraphBackend

SAMPLES = Path(__file__).parents[2] / "sample_models"


@pytest.mark.parametrize(("name", "train"), [("simple_mlp", False), ("transformer_block", False), ("train_step", True)])
def test_samples_verify_from_graphs(monkeypatch: pytest.MonkeyPatch, name: str, train: bool) -> None:
    made: list[nn.Module] = []

    def rewrite(self: CudaGraph, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        made.append(self.install(model, plan, subject, CpuGraphBackend()))
        return made[-1]

    monkeypatch.setattr(CudaGraph, "rewrite", rewrite)
    monkeypatch.setattr(CudaGraph, "needs_cuda", False)
    workload = resolve(str(SAMPLES / f"{name}.py"), train=train)
    done = trial.perform(trial.Job(workload, (), Step("cudagraph"), 0.2), build(workload), lambda _: None)
    assert done.attempt is not None
    assert done.attempt.verification is not None
    assert done.attempt.verification.verdict == "agrees", done.attempt.reason
    [count] = counts(made[0]).values()
    assert count.eager == {}
    assert count.replayed >= 4
