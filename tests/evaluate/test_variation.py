"""Inputs that mean something are not drawn anew, and sizes that take another branch are tried."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.evaluate import trial
from fusionadvisor.evaluate.trial import Job
from fusionadvisor.evaluate.variation import Variation
from fusionadvisor.evaluate.verify import verify
from fusionadvisor.recipe import Step
from fusionadvisor.strategies.base import Call
from fusionadvisor.workload.program import Program, build, live
from fusionadvisor.workload.resolve import resolve

SEEDS = (11, 12, 13)


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        messages = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return torch.relu(self.layer(messages))


class Gather(Graph):
    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        found: Tensor = torch.relu(self.layer(x))[source]
        return found


class Split(Graph):
    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        return torch.cat([torch.relu(self.layer(part)) for part in torch.split(x, sizes.tolist())])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        found: Tensor = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]
        return found


class Whitened(nn.Module):
    def forward(self, x: Tensor, covariance: Tensor) -> Tensor:
        found: Tensor = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), x.T, upper=False)
        return found


class Log(nn.Module):
    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        return x * torch.log(shift.min() - 1)


def program(model: nn.Module, *inputs: Tensor) -> Program:
    return live(model.eval(), inputs)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (program(Graph(), torch.randn(40, 8), torch.randint(0, 40, (2, 160))), ()),
        (program(Gather(), torch.randn(100, 8), torch.arange(100).flip(0)), ()),
        (program(Split(), torch.randn(10, 8), torch.tensor([3, 7])), ("sizes",)),
        (program(Recurrent(), torch.randn(3, 6, 8), torch.tensor([6, 4, 2])), ("lengths",)),
        (
            program(Whitened(), torch.randn(5, 3), torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])),
            ("covariance",),
        ),
        (program(Log(), torch.randn(4), torch.tensor([2.0, 5.0, 4.0])), ("shift",)),
    ],
    ids=lambda value: type(value.model).__name__ if isinstance(value, Program) else "",
)
def test_a_value_that_the_original_does_not_take_otherwise_is_kept(given: Program, kept: tuple[str, ...]) -> None:
    variation = Variation(given)
    calls = variation.calls(SEEDS, sizes=True)
    assert len(calls) >= len(SEEDS)
    assert tuple(variation.kept) == kept
    assert len(variation.notes) == len(kept)
    assert all(
        name in note and "keeps your own values" in note for name, note in zip(kept, variation.notes, strict=True)
    )
    for call in calls:
        given.step(call)  # takes them all
    if not kept:
        assert not torch.equal(calls[0].args[0], calls[1].args[0])


def test_other_sizes_and_layouts_are_tried_where_the_original_takes_them() -> None:
    given = program(nn.Conv2d(3, 4, 3, padding=1), torch.randn(4, 3, 8, 6))
    calls = Variation(given).calls(SEEDS, sizes=True)
    shapes = [tuple(call.args[0].shape) for call in calls]
    assert shapes == [(4, 3, 8, 6)] * 3 + [(n, 3, 8, 6) for n in (2, 5, 1, 0)] + [
        (4, 3, 7, 6), (4, 3, 8, 5), (4, 3, 8, 6),
    ]  # fmt: skip
    assert calls[-1].args[0].is_contiguous(memory_format=torch.channels_last)
    picky = program(nn.Linear(6, 6), torch.randn(4, 6))
    assert {c.args[0].shape[-1] for c in Variation(picky).calls(SEEDS, sizes=True)} == {6}


def test_a_branch_of_odd_sizes_is_verified() -> None:
    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.shape[-1] % 2 else x * 1

    class Right(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 1

    given = program(Right(), torch.randn(4, 6))
    variation = Variation(given)

    def run(model: nn.Module, call: Call) -> object:
        return given.step(call, model)

    assert verify(given.model, Wrong(), variation.calls(SEEDS), run).verdict == "agrees"
    assert verify(given.model, Wrong(), variation.calls(SEEDS, sizes=True), run).verdict == "diverges"


FILE = """
import torch
from torch import nn

class Sizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.activation = nn.Linear(8, 8), nn.ReLU()

    def forward(self, x, sizes):
        return torch.cat([self.activation(self.layer(part)) for part in torch.split(x, sizes.tolist())])

def build_model():
    torch.manual_seed(0)
    return Sizes()

def example_inputs():
    return torch.randn(10, 8), torch.tensor([3, 7])
"""


def test_no_strategy_is_charged_with_values_that_the_original_does_not_take(tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text(FILE)
    workload = resolve(str(tmp_path / "sizes.py"), device="cpu")
    done = trial.perform(Job(workload, step=Step("inplace"), budget_s=0.1), build(workload), lambda _: None)
    assert not done.failure
    assert done.attempt is not None
    assert done.attempt.verification is not None
    assert done.attempt.verification.verdict == "agrees"
    assert any("sizes keeps your own values" in note for note in done.attempt.notes)
