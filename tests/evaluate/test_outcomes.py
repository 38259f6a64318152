"""What each strategy does to each sample model on the CPU; ``measured`` stands for any of four verdicts.

Training in channels-last diverges here: the CPU's backward of a batch norm in that layout is correct and hundreds of
times further from float64 than in the default one.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fusionadvisor.catalog import STRATEGIES
from fusionadvisor.evaluate import saving, trial, worker
from fusionadvisor.evaluate.search import attempt
from fusionadvisor.evaluate.trial import Job
from fusionadvisor.evaluate.worker import Limits
from fusionadvisor.recipe import FILE, Step
from fusionadvisor.workload.program import Program, build
from fusionadvisor.workload.resolve import resolve
from tests.strategies.subjects import randomise

SAMPLES = Path(__file__).parents[2] / "sample_models"
TABLE = Path(__file__).with_name("outcomes.tsv")
KEPT = {
    "simple_mlp": "torchscript", "linear_relu": "inplace", "multi_conv": "channels_last",
    "residual_block": "fuse_modules", "resnet18": "fuse_modules", "transformer_block": "fx",
    "train_step": "fuse_modules",
}  # fmt: skip
"""What the recipe of each sample does."""


@dataclass(frozen=True)
class Row:
    sample: str
    mode: str
    strategy: str
    outcome: str
    before: str
    after: str
    words: str


def rows() -> Iterator[Row]:
    with TABLE.open() as file:
        for row in csv.reader(file, delimiter="\t"):
            if row[0] != "sample":
                yield Row(*row)


@pytest.fixture(scope="module")
def programs() -> dict[tuple[str, str], Program]:
    return {}


def program_of(row: Row, programs: dict[tuple[str, str], Program]) -> Program:
    key = row.sample, row.mode
    if key not in programs:
        program = build(resolve(str(SAMPLES / f"{row.sample}.py"), device="cpu", train=row.mode == "training"))
        randomise(program.model)
        programs[key] = program
    return programs[key]


def test_the_table_is_complete() -> None:
    known = {entry.id for entry in STRATEGIES}
    samples = {path.stem for path in SAMPLES.glob("*.py")}
    table = {(row.sample, row.strategy) for row in rows()}
    assert {sample for sample, _ in table} <= samples
    for sample in {sample for sample, _ in table}:
        assert {strategy for s, strategy in table if s == sample} <= known


@pytest.mark.slow
@pytest.mark.parametrize("row", list(rows()), ids=lambda row: f"{row.sample}-{row.mode}-{row.strategy}")
def test_outcome(row: Row, programs: dict[tuple[str, str], Program]) -> None:
    program = program_of(row, programs)
    state = {name: tensor.clone() for name, tensor in program.model.state_dict().items()}
    call = program.call()
    inputs = [tensor.clone() for _, tensor in call.tensors()]
    made = attempt(program.workload, [row.strategy], program=program, budget_s=0).attempts[0]
    measured = made.outcome in ("faster", "equivalent", "slower", "inconclusive")
    assert ("measured" if measured else made.outcome) == row.outcome, made.reason
    assert made.reason or made.outcome == "faster"
    assert row.words in made.reason
    if row.before != "-":
        assert made.kernels is not None
        assert str(made.kernels.before) == row.before
        assert str(made.kernels.after) == row.after
    if measured:
        assert made.verification is not None
        assert made.verification.verdict == "agrees"
        assert made.verification.inputs >= (4 if program.batchable else 3)
        assert made.speedup is not None
    if row.mode == "inference":
        assert all(torch.equal(tensor, state[name]) for name, tensor in program.model.state_dict().items())
        assert all(torch.equal(a, b) for a, (_, b) in zip(inputs, program.call().tensors(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("sample", sorted(KEPT))
def test_recipe_round_trip_in_a_fresh_process(sample: str, tmp_path: Path) -> None:
    workload = resolve(str(SAMPLES / f"{sample}.py"), device="cpu")
    program = build(workload)
    tried = trial.perform(Job(workload, step=Step(KEPT[sample]), budget_s=0), program, lambda _: None)
    assert tried.step is not None
    assert tried.step.sites
    candidate = trial.with_steps(program, (tried.step,))
    call = program.call()
    files, _ = saving.write(tmp_path, workload, (tried.step,), program.model, candidate, call, None, None)
    assert str(tmp_path / FILE) in files
    ended = worker.run(Job(workload, recipe=str(tmp_path / FILE)), Limits())
    assert ended.how == "done", ended.reason
    assert not ended.done.failure
    assert ended.done.verification is not None
    assert ended.done.verification.verdict == "agrees"
