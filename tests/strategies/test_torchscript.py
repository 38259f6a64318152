from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.errors import StrategyError
from fusionadvisor.strategies.base import Call, Subject
from fusionadvisor.strategies.torchscript import TorchScript
from tests.strategies.subjects import applied, randomise, reasons, subject, subject_of

script = TorchScript()


class Unscriptable(nn.Module):
    """Keyword arguments as a dict are beyond the scripting compiler, and not beyond the tracer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor, **options: Any) -> Any:
        return {"y": self.bn(self.conv(x)), "z": x + 1}


def test_scripts_where_it_can_and_freezes() -> None:
    model = randomise(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())).eval()
    candidate, plan = applied(script, subject(model, (4, 7, 7)))
    assert plan.sites[0].data == {"how": "script"}
    assert "deprecated" in plan.notes[0]
    assert isinstance(candidate, torch.jit.ScriptModule)
    assert not list(candidate.parameters())


def test_traces_where_scripting_fails_and_says_why() -> None:
    given = subject(randomise(Unscriptable()).eval(), (4, 7, 7))
    _, plan = applied(script, given)
    assert plan.sites[0].data == {"how": "trace"}
    assert "scripting failed" in plan.notes[1]
    with pytest.raises(StrategyError, match="example_inputs"):
        script.rewrite(Unscriptable().eval(), plan, Subject(given.model, (), ()))


def test_traces_keyword_arguments() -> None:
    model = randomise(Unscriptable()).eval()
    calls = tuple(Call((), {"x": torch.randn(2, 4, 7, 7)}) for _ in range(3))
    _, plan = applied(script, subject_of(model, calls))
    assert plan.sites[0].detail == "traced"


class Branches(Unscriptable):
    def forward(self, x: Tensor, **options: Any) -> Any:
        return self.conv(x) if x.sum() > 0 else self.bn(self.conv(x))


class SameBranch(Unscriptable):
    def forward(self, x: Tensor, **options: Any) -> Any:
        return self.conv(x) if x.abs().sum() > 0 else x


class ByShape(Unscriptable):
    def forward(self, x: Tensor, **options: Any) -> Any:
        return self.conv(x) if x.shape[0] > 1 else self.bn(self.conv(x))


class Counts(Unscriptable):
    calls = 0

    def forward(self, x: Tensor, **options: Any) -> Any:
        self.calls += 1
        return self.conv(x) if self.calls % 2 else self.bn(self.conv(x))


class Iterates(Unscriptable):
    def forward(self, x: Tensor, **options: Any) -> Any:
        for part in x.unbind(0):
            x = x + part
        return x[: int(x.shape[0])]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Branches, "reads a value back"),
        (SameBranch, "reads a value back"),
        (ByShape, "would hold what the first input gave at test_torchscript.py:"),
        (Counts, "changes Python state"),
        (Iterates, "Different inputs run different ops"),
    ],
)
def test_refuses_what_a_trace_would_get_wrong(kind: type[nn.Module], words: str) -> None:
    plan = script.plan(subject(randomise(kind()).eval(), (4, 7, 7)))
    assert not plan.sites
    assert words in reasons(plan)


def test_refuses_non_tensor_arguments_to_a_trace() -> None:
    class Scaled(Unscriptable):
        def forward(self, x: Tensor, scale: float = 1.0, **options: Any) -> Any:
            return x * scale

    plan = script.plan(subject_of(Scaled().eval(), (Call((torch.ones(2), 3.0)),)))
    assert "An argument is a float" in plan.blocker


def test_refuses_hooks_training_and_lambda_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    model[0].register_forward_hook(lambda *_: None)
    assert "0 has a forward hook" in script.plan(subject(model, (4,))).blocker
    assert "training" in script.plan(subject(nn.Sequential(nn.Dropout()).train(), (4,))).blocker
    assert "training" in script.plan(subject(nn.Sequential(nn.ReLU()), (4,), mode="training")).blocker
    assert "training" in script.recheck(nn.Sequential().train(), script.plan(subject(nn.ReLU().eval(), (4,))))
