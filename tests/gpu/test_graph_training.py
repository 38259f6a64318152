"""Forward and backward from graphs: gradients, accumulation, buffers and optimizer steps equal eager's."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.strategies.graphs.cuda import CudaGraphBackend
from fusionadvisor.strategies.graphs.replay import GraphedForward
from tests.gpu.conftest import Rig
from tests.strategies.graph_models import ConvNet, Mlp


def pair(rig: Rig, model: nn.Module, **options: bool | int) -> tuple[nn.Module, nn.Module, Any]:
    """The model with a graphed forward, its eager twin, and the graphed forward."""
    twin = copy.deepcopy(model).to(rig.device)
    return model, twin, rig.graphed(model, training=True, **options)


def same_gradients(model: nn.Module, twin: nn.Module) -> None:
    for (name, a), (_, b) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            assert b.grad is not None
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_steps_with_gradient_accumulation(rig: Rig, micro_batches: int, set_to_none: bool) -> None:
    model, twin, forward = pair(rig, ConvNet())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, twin)]
    for step in range(3):
        batches = [rig.randn(2, 3, 8, 8) for _ in range(micro_batches)]
        for one, optimizer in zip((model, twin), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad(set_to_none=set_to_none)
            for batch in batches:
                one(batch).square().mean().backward()
        same_gradients(model, twin)
        for optimizer in optimizers:
            optimizer.step()
        for (name, a), (_, b) in zip(model.state_dict().items(), twin.state_dict().items(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    assert forward.counts.replayed == 3 * micro_batches
    assert forward.counts.eager == {}


def test_a_gradient_kept_by_the_user_stays(rig: Rig) -> None:
    model, _, _ = pair(rig, Mlp())
    model(rig.randn(4, 8)).sum().backward()
    kept = [p.grad for p in model.parameters()]
    values = [g.clone() for g in kept if g is not None]
    model.zero_grad(set_to_none=True)
    model(rig.randn(4, 8)).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(kept, values, strict=True) if a is not None)


def test_gradients_of_inputs(rig: Rig) -> None:
    model, twin, forward = pair(rig, Mlp())
    inputs = []
    for _ in range(2):
        x = rig.randn(4, 8).requires_grad_()
        y = x.detach().clone().requires_grad_()
        model(x).square().sum().backward()
        twin(y).square().sum().backward()
        inputs.append((x, y))
    for x, y in inputs:
        assert x.grad is not None
        torch.testing.assert_close(x.grad, y.grad)
    assert forward.counts.captured == 1


def test_two_forwards_before_a_backward(rig: Rig) -> None:
    model, twin, forward = pair(rig, Mlp())
    a, b = rig.randn(4, 8), rig.randn(4, 8)
    (model(a) * model(b)).sum().backward()
    (twin(a) * twin(b)).sum().backward()
    same_gradients(model, twin)
    assert forward.counts.eager == {"an earlier forward still waits for its backward": 1}
    model(a).sum().backward()
    assert forward.counts.replayed == 2


def test_a_forward_whose_result_was_dropped_waits_for_nothing(rig: Rig) -> None:
    model, _, forward = pair(rig, Mlp())
    for _ in range(3):
        model(rig.randn(4, 8))
    assert forward.counts.eager == {}


def test_a_second_backward_raises(rig: Rig) -> None:
    model, _, _ = pair(rig, Mlp())
    loss = model(rig.randn(4, 8)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward ran twice"):
        loss.backward()


def test_double_backward_raises(rig: Rig) -> None:
    model, _, _ = pair(rig, Mlp())
    x = rig.randn(4, 8).requires_grad_()
    (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()  # type: ignore[no-untyped-call]


def test_validation_between_steps_uses_a_graph_of_its_own(rig: Rig) -> None:
    model, twin, forward = pair(rig, ConvNet())
    x = rig.randn(2, 3, 8, 8)
    for _ in range(2):
        for one in (model, twin):
            one.train()
            torch.manual_seed(0)
            one(x).sum().backward()
            one.eval()
        with torch.no_grad():
            torch.testing.assert_close(model(x), twin(x))
    same_gradients(model, twin)
    assert forward.counts.captured == 2
    assert forward.counts.eager == {}


def test_unused_parameters_keep_no_gradient(rig: Rig) -> None:
    class Partly(Mlp):
        def forward(self, x: Tensor) -> Any:
            return self.first(x)

    model, twin, _ = pair(rig, Partly())
    x = rig.randn(4, 8)
    model(x).sum().backward()
    twin(x).sum().backward()
    same_gradients(model, twin)
    assert model.get_parameter("second.weight").grad is None


def test_frozen_after_the_capture(rig: Rig) -> None:
    model, twin, forward = pair(rig, Mlp())
    x = rig.randn(4, 8)
    for freeze in (False, True):
        for one in (model, twin):
            one.get_parameter("first.weight").requires_grad_(not freeze)
            one.zero_grad()
            one(x).sum().backward()
        same_gradients(model, twin)
    assert forward.counts.recaptured == 1


def test_several_outputs_some_without_gradient(rig: Rig) -> None:
    class Many(Mlp):
        def forward(self, x: Tensor) -> Any:
            y = self.first(x)
            return {"logits": y, "top": y.argmax(-1), "detached": y.detach(), "name": "many", "nothing": None}

    model, twin, _ = pair(rig, Many())
    x = rig.randn(4, 8)
    for _ in range(2):
        got, expected = model(x), twin(x)
        assert [got[k].requires_grad for k in ("logits", "top", "detached")] == [True, False, False]
        assert (got["name"], got["nothing"]) == ("many", None)
        assert torch.equal(got["top"], expected["top"])
        got["logits"].square().sum().backward()
        expected["logits"].square().sum().backward()
    same_gradients(model, twin)


def test_under_autocast_with_its_cache(rig: Rig) -> None:
    model, twin, forward = pair(rig, Mlp())
    x = rig.randn(4, 8)
    for _ in range(2):
        for one in (model, twin):
            one.zero_grad()
            with torch.autocast(rig.device.type, torch.bfloat16):
                loss = one(x).float().square().mean()
            loss.backward()
        same_gradients(model, twin)
    assert forward.counts.eager == {}


def test_gradient_scaling_and_clipping(rig: Rig) -> None:
    model, twin, _ = pair(rig, Mlp())
    for _ in range(2):
        x = rig.randn(4, 8)
        for one in (model, twin):
            one.zero_grad()
            (one(x).square().sum() * 1024).backward()
            torch.nn.utils.clip_grad_norm_(one.parameters(), 1.0)
        same_gradients(model, twin)


@pytest.mark.gpu
def test_captures_right_after_backwards() -> None:
    """Autograd's thread lets go of a backward's tensors after ``backward`` returned, which no capture may see."""
    for _ in range(25):
        model = Mlp().cuda()
        forward = GraphedForward(model, CudaGraphBackend(), training=True)
        forward.install()
        x = torch.randn(4, 8, device="cuda")
        for _ in range(2):
            model(x).square().sum().backward()
        assert (forward.counts.captured, forward.counts.replayed) == (1, 2), forward.counts.eager
