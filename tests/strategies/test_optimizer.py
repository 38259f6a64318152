"""The fused and foreach forms of an optimizer train a model as its loop over the parameters does."""

import copy
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad, clip_grad_norm_
from torch.optim import SGD, Adam, AdamW, Optimizer

from fusionadvisor import strategies
from fusionadvisor.errors import InputError
from fusionadvisor.flow.record import record
from fusionadvisor.strategies.base import Call, Plan, Subject
from fusionadvisor.strategies.optimizer import LOOPS_ON_CPU, FusedOptimizer, configure
from fusionadvisor.workload.training import OPTIONS, Training, clipping_at_once
from tests.strategies.subjects import reasons


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.norm(self.first(x))))
        return out


def step(model: nn.Module, optimizer: Optimizer, x: Tensor, clip: bool = False, to_zero: bool = False) -> Tensor:
    optimizer.zero_grad(set_to_none=not to_zero)
    loss: Tensor = model(x).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    if clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
    optimizer.step()
    return loss.detach()


def trained(optimizer: Optimizer, model: nn.Module, **more: Any) -> Subject:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    graphs = tuple(record(lambda: step(model, optimizer, x, **more), model, Call((x,))) for _ in range(2))
    return Subject(model, graphs, (Call((x,)),), "training", optimizer=optimizer)


CLASSES: list[tuple[type[Optimizer], dict[str, Any], str]] = [
    (SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}, "fused"),
    (Adam, {"lr": 1e-3, "amsgrad": True}, "fused"),
    (AdamW, {"lr": 1e-3, "foreach": False}, "fused"),
    (torch.optim.Adagrad, {"lr": 1e-2}, "fused"),
    (torch.optim.RMSprop, {"lr": 1e-3}, "foreach"),
    (torch.optim.NAdam, {"lr": 1e-3}, "foreach"),
]


@pytest.mark.parametrize(("kind", "settings", "form"), CLASSES, ids=lambda v: getattr(v, "__name__", ""))
def test_fifty_steps_agree_with_the_loop_in_float64(kind: Any, settings: dict[str, Any], form: str) -> None:
    model = Net()
    plan = FusedOptimizer().plan(trained(kind(model.parameters(), **settings), model))
    assert [site.detail.split()[-1] for site in plan.sites] == [form], reasons(plan)

    torch.manual_seed(3)
    loop, exact, fused = Net(), Net().double(), FusedOptimizer().rewrite(Net(), plan, Subject(Net(), (), ()))
    own = kind(loop.parameters(), **settings)
    truth = kind(exact.parameters(), **settings)
    new = configure(kind(fused.parameters(), **settings), fused)
    assert new.param_groups[0][form]
    for number in range(50):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(number))
        step(loop, own, x)
        step(exact, truth, x.double())
        step(fused, new, x)
    assert not torch.equal(fused.first.weight, Net().first.weight)  # type: ignore[arg-type, union-attr]
    for a, b, c in zip(loop.parameters(), fused.parameters(), exact.parameters(), strict=True):
        floor = 1e-5 * c.detach().abs().max().clamp(min=1)
        assert (b.double() - c).abs().max() <= 3 * (a.double() - c).abs().max() + floor


def test_a_training_runs_the_form_its_model_names_and_copies_keep_it() -> None:
    training = Training(None, None, lambda m: AdamW(m.parameters(), foreach=False), ())
    model = Net()
    model.__dict__[OPTIONS] = {"fused": True, "foreach": False}
    for each in (model, copy.deepcopy(model)):
        assert training.optimizer(each).param_groups[0]["fused"] is True
    assert training.optimizer(Net()).param_groups[0]["fused"] is None


def test_steps_are_undone() -> None:
    training = Training(None, None, lambda m: AdamW(m.parameters(), lr=0.1), ())
    model = Net()
    before = copy.deepcopy(model.state_dict())
    with training.undone(model):
        training.step(model, Call((torch.randn(5, 6),)), nullcontext)
        assert not torch.equal(model.first.weight, before["first.weight"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert training.optimizer_in_use(model) is None


def test_inference_has_no_optimizer() -> None:
    assert "inference has none" in FusedOptimizer().plan(Subject(Net(), (), ())).blocker


def test_without_an_optimizer_there_is_nothing_to_change() -> None:
    assert "was not given an optimizer" in FusedOptimizer().plan(Subject(Net(), (), (), "training")).blocker


class Own(SGD):
    pass


def test_a_class_of_the_users_is_left_alone() -> None:
    model = Net()
    plan = FusedOptimizer().plan(trained(Own(model.parameters(), lr=0.1), model))
    assert not plan.sites
    assert "Own is not torch.optim's own" in reasons(plan)


def test_a_class_without_the_forms_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(4, 3, sparse=True))
    optimizer = torch.optim.SparseAdam(model.parameters())
    plan = FusedOptimizer().plan(Subject(model, (), (), "training", optimizer=optimizer))
    assert "SparseAdam has no fused form." in reasons(plan)
    assert "SparseAdam has no foreach form." in reasons(plan)


@pytest.mark.parametrize(("kind", "form"), [(SGD, "foreach"), (Adam, None)])
def test_sparse_gradients_are_asked_of_each_form(kind: type[Optimizer], form: str | None) -> None:
    model = nn.Embedding(4, 3, sparse=True)
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]

    def run(model: nn.Module, call: Call) -> Tensor:  # before the first step nothing shows that they are sparse
        model.zero_grad()
        loss: Tensor = model(*call.args).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    calls = (Call((torch.tensor([1]),)),)
    plan = FusedOptimizer().plan(Subject(model, (), calls, "training", run=run, optimizer=optimizer))
    assert [site.detail.split()[-1] for site in plan.sites] == ([form] if form else [])
    assert "sparse gradients" in reasons(plan)
    assert model.weight.grad is None


def test_complex_parameters_run_foreach() -> None:
    weight = nn.Parameter(torch.randn(4, dtype=torch.complex64))
    model = nn.ParameterList([weight])
    plan = FusedOptimizer().plan(Subject(model, (), (), "training", optimizer=Adam([weight])))
    assert [site.detail.split()[-1] for site in plan.sites] == ["foreach"]
    assert "floating point" in reasons(plan)


def test_differentiable_is_refused() -> None:
    dense = Net()
    optimizer: Optimizer = Adam(dense.parameters(), differentiable=True)
    plan = FusedOptimizer().plan(Subject(dense, (), (), "training", optimizer=optimizer))
    assert "is differentiable" in reasons(plan)


def test_what_is_fused_already_is_said() -> None:
    model = Net()
    optimizer = AdamW(model.parameters(), fused=True)
    plan = FusedOptimizer().plan(Subject(model, (), (), "training", optimizer=optimizer))
    assert plan == Plan(notes=("AdamW runs fused already.",))


def clipping_step(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss: Tensor = model(x).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    clip_grad_norm_(model.parameters(), 0.05, foreach=False)
    optimizer.step()
    return loss.detach()


def zeroing_step(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    return step(model, optimizer, x, to_zero=True)


def by_hand_step(model: nn.Module, optimizer: Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(torch.clamp(0.05 / norm, max=1.0))
    nn.utils.clip_grad_value_(model.parameters(), 0.01, foreach=False)
    optimizer.step()


def recorded(run: Any) -> tuple[Training, Net, Subject]:
    training, model = Training(run, None, lambda m: SGD(m.parameters(), lr=0.1), ()), Net()
    call = Call((torch.randn(5, 6, generator=torch.Generator().manual_seed(1)),))
    graph = record(lambda: training.step(model, call, nullcontext), model, call)
    return training, model, Subject(model, (graph,), (call,), "training", optimizer=training.optimizer_in_use(model))


def test_clipping_one_by_one_runs_all_at_once_and_trains_the_same() -> None:
    training, model, given = recorded(clipping_step)
    plan = FusedOptimizer().plan(given)
    _, clip = plan.sites
    assert clip.detail.startswith("clip_grad_norm_ of 6 gradients at test_optimizer.py:")
    assert plan.notes == (LOOPS_ON_CPU,)
    assert not FusedOptimizer().plan(replace(given, device="cuda")).notes
    only = replace(plan, sites=(clip,))
    candidate = FusedOptimizer().rewrite(copy.deepcopy(model), only, given)
    exact = copy.deepcopy(model).double()
    for number in range(50):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(number))
        for each, input_ in ((model, x), (candidate, x), (exact, x.double())):
            training.step(each, Call((input_,)), nullcontext)
    for a, b, c in zip(model.parameters(), candidate.parameters(), exact.parameters(), strict=True):
        assert (b.double() - c).abs().max() <= 3 * (a.double() - c).abs().max() + 1e-6
    call = given.calls[0]
    own, new = (
        Counter(op.name for op in record(lambda m=m: training.step(m, call, nullcontext), m, call).ops)  # type: ignore[misc]
        for m in (model, copy.deepcopy(candidate))
    )
    assert own["aten::linalg_vector_norm"] == 7  # one a gradient, and that of the norms
    assert new["aten::linalg_vector_norm"] == 1
    assert new["aten::_foreach_norm"] == new["aten::_foreach_mul_"] == 1


def test_clipping_is_as_torch_has_it_after_a_step_that_failed() -> None:
    before = clip_grad._get_total_norm
    with pytest.raises(RuntimeError), clipping_at_once():
        raise RuntimeError
    assert clip_grad._get_total_norm is before


def test_loops_written_by_hand_are_named_with_the_reason_why_they_stay() -> None:
    plan = FusedOptimizer().plan(recorded(by_hand_step)[2])
    assert [site.name for site in plan.sites] == ["SGD"]
    words = " ".join(plan.notes)
    assert "takes the norm of each gradient" in words
    assert "clips gradients value by value" in words
    assert words.count("belongs to neither the model nor the optimizer") == len(plan.notes)
    training, _, given = recorded(zeroing_step)
    assert not FusedOptimizer().plan(given).notes  # the first step finds nothing to fill
    given = replace(given, run=lambda model, call: training.step(model, call, nullcontext))
    (note,) = FusedOptimizer().plan(given).notes
    assert note.startswith("test_optimizer.py:")
    assert "fills gradients with zeros one by one" in note
    model = Net()
    quiet = FusedOptimizer().plan(trained(SGD(model.parameters(), lr=0.1), model))
    assert not quiet.notes


def test_clipping_is_changed_where_the_update_is_fused_already() -> None:
    model = Net()
    optimizer = AdamW(model.parameters(), fused=True)
    plan = FusedOptimizer().plan(trained(optimizer, model, clip=True))
    assert [site.name.split()[0] for site in plan.sites] == ["clip_grad_norm_"]
    assert plan.notes == ("AdamW runs fused already.", LOOPS_ON_CPU)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(InputError, match="form is not 'fastest'"):
        strategies.get("optimizer", {"form": "fastest"})
