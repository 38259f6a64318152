"""Whether the pre-flight says of each model what CUDA would, and leaves the model alone."""

import copy
import linecache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.flow.record import record
from fusionadvisor.report.model import Mode
from fusionadvisor.strategies.base import Call, Subject
from fusionadvisor.strategies.cudagraph import CudaGraph
from fusionadvisor.strategies.preflight import Preflight
from tests.strategies.graph_models import CAPTURABLE, NOT_CAPTURABLE, Body, Branch, BufferState, Case, Mlp


def subject_of(model: nn.Module, inputs: list[Tensor], mode: Mode = "inference") -> Subject:
    model.train(mode == "training")
    graphs = []
    for x in inputs:

        def run(x: Tensor = x) -> object:
            with torch.set_grad_enabled(mode == "training"):
                return model(x)

        graphs.append(record(run, model, (x,)))

    def step(other: nn.Module, call: Call) -> object:
        return other(*call.args)

    return Subject(model, tuple(graphs), tuple(Call((x,)) for x in inputs), mode, run=step)


def subject_for(case: Case) -> Subject:
    torch.manual_seed(0)
    return subject_of(case.build(), [case.make() for _ in range(3)])


@pytest.mark.parametrize("case", CAPTURABLE, ids=lambda c: c.name)
def test_sound_models_pass(case: Case) -> None:
    verdict = Preflight(subject_for(case)).verdict()
    assert [o.sentence() for o in verdict.obstacles] == []


@pytest.mark.parametrize("case", NOT_CAPTURABLE, ids=lambda c: c.name)
def test_what_a_graph_cannot_do_is_named_with_its_line(case: Case) -> None:
    plan = CudaGraph().plan(subject_for(case))
    assert plan.sites == ()
    assert case.says in plan.refused[0].reason
    named = [r.source for r in plan.refused if r.source]
    if case.line:
        assert any(case.line in linecache.getline(s.file, s.line) for s in named)
        assert "graph_models.py:" in plan.refused[0].reason


@pytest.mark.parametrize("case", [*CAPTURABLE, *NOT_CAPTURABLE], ids=lambda c: c.name)
def test_nothing_passes_that_dynamo_breaks_on(case: Case) -> None:
    """Dynamo is more lenient (it does not mind a copy to the CPU) but knows data-dependent Python."""
    subject = subject_for(case)
    clear = Preflight(subject).verdict().clear
    torch._dynamo.reset()
    explained = torch._dynamo.explain(copy.deepcopy(subject.model))(*subject.calls[0].args)
    assert not (clear and explained.graph_break_count)


@pytest.mark.parametrize("case", [*CAPTURABLE, *NOT_CAPTURABLE], ids=lambda c: c.name)
def test_the_model_is_left_as_it_was(case: Case) -> None:
    subject = subject_for(case)
    before = {n: (t, t.clone()) for n, t in (*subject.model.named_parameters(), *subject.model.named_buffers())}
    plain = {n: v for n, v in vars(subject.model).items() if isinstance(v, int | float)}
    lists = {n: len(v) for n, v in vars(subject.model).items() if isinstance(v, list)}
    given, drawn = [c.args[0].clone() for c in subject.calls], torch.get_rng_state()
    Preflight(subject).verdict()
    after = dict((*subject.model.named_parameters(), *subject.model.named_buffers()))
    assert all(after[n] is t and torch.equal(t, content) for n, (t, content) in before.items())
    assert plain == {n: getattr(subject.model, n) for n in plain}
    assert lists == {n: len(getattr(subject.model, n)) for n in lists}
    assert all(torch.equal(c.args[0], x) for c, x in zip(subject.calls, given, strict=True))
    assert torch.equal(torch.get_rng_state(), drawn)


def test_paths_that_differ_between_inputs_are_found() -> None:
    class Quiet(nn.Module):
        """Chooses by Python, from something the dispatcher does not see."""

        choice = iter(range(100))

        def forward(self, x: Tensor) -> Any:
            return x.exp() if next(type(self).choice) % 2 else x.sin()

    reasons = [o.why for o in Preflight(subject_of(Quiet(), [torch.ones(3)] * 3)).verdict().obstacles]
    assert any("takes another path" in why for why in reasons)


def test_numbers_that_change_between_calls_are_found() -> None:
    class Clock(nn.Module):
        ticks = iter(range(100))

        def forward(self, x: Tensor) -> Any:
            return x * next(type(self).ticks)

    reasons = [o.why for o in Preflight(subject_of(Clock(), [torch.ones(3)] * 3)).verdict().obstacles]
    assert any("passes a number that changes from call to call" in why for why in reasons)


def test_another_batch_size_may_take_another_path() -> None:
    class ByShape(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x.exp() if x.shape[0] > 2 else x.sin()

    assert Preflight(subject_of(ByShape(), [torch.ones(2, 3), torch.ones(4, 3)])).verdict().clear


def test_a_site_is_judged_by_itself() -> None:
    subject = subject_of(Body(), [torch.randn(4, 8) for _ in range(3)])
    plan = CudaGraph(site="layers").plan(subject)
    assert [site.name for site in plan.sites] == ["layers.0", "layers.1", "layers.2"]
    assert plan.refused == ()
    assert CudaGraph(site="head").plan(subject).sites == ()


def test_a_part_that_gets_written_in_place_is_refused() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Any:
            y = x + 1
            return self.act(y) + y

    subject = subject_of(Outer(), [torch.randn(4)] * 3)
    assert Preflight(subject).verdict().clear
    assert "writes into its input" in Preflight(subject).verdict("act").obstacles[0].why


CALLS: list[int] = []


def test_globals_and_class_attributes_that_change_are_found() -> None:
    class Logs(nn.Module):
        total = 0

        def forward(self, x: Tensor) -> Any:
            CALLS.append(len(x))
            type(self).total += 1
            return x + 1

    reasons = [o.why for o in Preflight(subject_of(Logs(), [torch.ones(3)] * 3)).verdict().obstacles]
    assert any(why.startswith("changes the global 'CALLS'") for why in reasons)
    assert any(why.startswith("changes the class attribute of Logs, 'total'") for why in reasons)


def test_a_parameter_written_in_forward_is_found_and_kept() -> None:
    class Decays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Any:
            self.weight.data.mul_(0.5)
            return x * self.weight

    model = Decays()
    reasons = [o.why for o in Preflight(subject_of(model, [torch.ones(3)] * 3)).verdict().obstacles]
    assert any(why.startswith("writes the parameter weight in forward") for why in reasons)
    assert model.weight.tolist() == [1.0] * 3


def test_a_read_that_did_not_run_is_a_note() -> None:
    class Debugs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.debug = False

        def forward(self, x: Tensor) -> Any:
            if self.debug:
                self.last = x.cpu()
            return x * 2

    verdict = Preflight(subject_of(Debugs(), [torch.ones(3)] * 3)).verdict()
    assert verdict.clear
    [note] = verdict.notes
    assert "test_preflight.py:" in note
    assert ".cpu() in the source, not seen running" in note


def test_checkpointing_in_training_is_found() -> None:
    from torch.utils.checkpoint import checkpoint

    class Recomputes(Mlp):
        def forward(self, x: Tensor) -> Any:
            return self.second(checkpoint(self.first, x, use_reentrant=False))

    inputs = [torch.randn(4, 8)] * 3
    found = Preflight(subject_of(Recomputes(), inputs, "training")).verdict().obstacles
    assert any("torch.utils.checkpoint" in o.why for o in found)
    assert Preflight(subject_of(Recomputes(), inputs)).verdict().clear


def test_training_conditions() -> None:
    class Twice(Mlp):
        def forward(self, x: Tensor) -> Any:
            return self.second(self.first(x)) + self.second(self.first(-x))

    subject = subject_of(Twice(), [torch.randn(4, 8)] * 3, "training")
    assert "2 times before a backward" in Preflight(subject).verdict("second").obstacles[0].why
    assert Preflight(subject).verdict().clear

    sparse = nn.Sequential(nn.Embedding(8, 4, sparse=True))
    found = Preflight(subject_of(sparse, [torch.zeros(2, dtype=torch.long)] * 3, "training")).verdict().obstacles
    assert any("sparse gradients" in o.why for o in found)

    trained = BufferState()
    trained.mean.requires_grad_()
    found = Preflight(Subject(trained, (), (), "training")).verdict().obstacles
    assert "buffer that requires grad" in found[0].why


def test_an_unknown_site_is_bad_input() -> None:
    from fusionadvisor.errors import InputError

    with pytest.raises(InputError, match=r"no module 'laters'.*Did you mean 'layers'"):
        CudaGraph(site="laters").plan(subject_of(Body(), [torch.randn(4, 8)]))


def test_without_recordings_the_watched_run_still_speaks() -> None:
    model = Branch()
    verdict = Preflight(Subject(model, (), (Call((torch.ones(3),)),))).verdict()
    assert isinstance(verdict.obstacles, tuple)
