"""The strategy as the search uses it: plan on recordings, rewrite a copy, refuse in words."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor import catalog
from fusionadvisor.errors import EnvironmentUnfitError, StrategyError
from fusionadvisor.strategies.base import Plan, Site, Subject
from fusionadvisor.strategies.cudagraph import CudaGraph, counts
from fusionadvisor.strategies.graphs.replay import GraphedForward
from tests.doubles.cpu_graph import CpuGraphBackend
from tests.strategies.graph_models import Body, ConvNet, Item
from tests.strategies.test_preflight import subject_of


def rewritten(strategy: CudaGraph, subject: Subject) -> nn.Module:
    plan = strategy.plan(subject)
    assert (plan.blocker, plan.refused) == ("", ())
    return strategy.install(copy.deepcopy(subject.model), plan, subject, CpuGraphBackend())


def test_the_whole_model_is_captured_at_once_and_not_changed() -> None:
    subject = subject_of(ConvNet(), [torch.randn(2, 3, 8, 8) for _ in range(3)])
    before = {k: v.clone() for k, v in subject.model.state_dict().items()}
    model = rewritten(CudaGraph(), subject)
    assert type(model) is ConvNet
    assert counts(model)[""].captured == 1
    with torch.no_grad():
        for call in subject.calls:
            assert torch.equal(model(*call.args), subject.model(*call.args))
    assert counts(model)[""].replayed == 4
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert "forward" not in vars(subject.model)


def test_training_is_captured_with_its_statistics_untouched() -> None:
    subject = subject_of(ConvNet(), [torch.randn(2, 3, 8, 8) for _ in range(3)], "training")
    model = rewritten(CudaGraph(), subject)
    twin = copy.deepcopy(subject.model)
    x = subject.calls[1].args[0]
    for one in (model, twin):
        torch.manual_seed(0)
        one(x).sum().backward()
    for (name, a), (_, b) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)
    for (name, a), (_, b) in zip(model.state_dict().items(), twin.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


def test_parts_are_captured_around_what_cannot_be() -> None:
    subject = subject_of(Body(), [torch.randn(4, 8) for _ in range(3)])
    model = rewritten(CudaGraph(site="layers"), subject)
    with torch.no_grad():
        for call in subject.calls:
            assert torch.equal(model(*call.args), subject.model(*call.args))
    assert list(counts(model)) == ["layers.0", "layers.1", "layers.2"]
    assert [c.replayed for c in counts(model).values()] == [4, 4, 4]


def test_a_capture_that_fails_after_all_is_a_refusal_and_undone() -> None:
    model = Item()
    subject = subject_of(model, [torch.randn(3)])
    plan = Plan((Site("Item", ("",), data={"path": "", "training": False}),))
    with pytest.raises(StrategyError, match=r"graph_models.py:\d+ .*_local_scalar_dense"):
        CudaGraph().install(model, plan, subject, CpuGraphBackend())
    assert "forward" not in vars(model)


def test_without_cuda_the_plan_is_made_and_the_rewrite_is_not() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    subject = subject_of(ConvNet(), [torch.randn(2, 3, 8, 8)])
    plan = CudaGraph().plan(subject)
    assert [site.name for site in plan.sites] == ["ConvNet"]
    with pytest.raises(EnvironmentUnfitError, match="needs a CUDA device"):
        CudaGraph().rewrite(copy.deepcopy(subject.model), plan, subject)


def test_a_recipe_rewrites_without_recordings_or_calls() -> None:
    subject = subject_of(ConvNet(), [torch.randn(2, 3, 8, 8)])
    plan = CudaGraph().plan(subject)
    bare = Subject(subject.model, (), ())
    model = CudaGraph().install(copy.deepcopy(subject.model), plan, bare, CpuGraphBackend())
    assert counts(model)[""].captured == 0
    with torch.no_grad():
        x = subject.calls[0].args[0]
        assert torch.equal(model(x), subject.model(x))
    assert counts(model)[""].captured == 1


def test_static_outputs_and_the_bound_are_passed_on() -> None:
    subject = subject_of(ConvNet(), [torch.randn(2, 3, 8, 8)])
    model = rewritten(CudaGraph(static_outputs=True, max_graphs=2), subject)
    forward: Any = vars(model)["forward"]
    assert isinstance(forward, GraphedForward)
    assert (forward.static_outputs, forward.max_graphs) == (True, 2)


def test_a_refusal_offers_the_part_that_can_be_captured() -> None:
    subject = subject_of(Body(), [torch.randn(4, 8) for _ in range(3)])
    reason = CudaGraph().plan(subject).refused[0].reason
    assert reason.startswith("tests/strategies/graph_models.py:")
    assert reason.endswith("Keep it on the GPU, or graph layers only: --site layers.")


def test_ops_of_others_are_noted() -> None:
    @torch.library.custom_op("fatest::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    class Custom(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return twice(x)

    plan = CudaGraph().plan(subject_of(Custom(), [torch.ones(3)]))
    assert plan.notes == ("fatest::twice is not torch's own: whether it waits for the GPU is not known here.",)


def test_the_page_has_its_sections() -> None:
    page = catalog.page("cudagraph")
    for heading in ("What it does", "When it helps", "When it refuses", "Example"):
        assert f"## {heading}\n" in page
