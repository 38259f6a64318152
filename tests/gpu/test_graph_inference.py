"""Capture and replay without gradients, on both backends: the graph must not be told from the model it replaces."""

import copy
import pickle
import threading
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.strategies.graphs.backend import WARM_UPS
from tests.gpu.conftest import Rig
from tests.strategies.graph_models import (
    Attention,
    BufferState,
    ConvNet,
    Item,
    LazyCache,
    Mlp,
    NumberIntoMask,
)


def convnet() -> ConvNet:
    """With statistics that a mistake would show in."""
    model = ConvNet().eval()
    with torch.no_grad():
        model.norm.running_mean.normal_()  # type: ignore[union-attr]
        model.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return model


@pytest.mark.parametrize(
    ("build", "shape"),
    [(Mlp, (4, 8)), (convnet, (2, 3, 8, 8)), (Attention, (2, 5, 8)), (LazyCache, (3, 4)), (NumberIntoMask, (3, 4))],
)
def test_replays_equal_eager_on_new_inputs(rig: Rig, build: Any, shape: tuple[int, ...]) -> None:
    model = build().eval()
    forward = rig.graphed(model)
    with torch.no_grad():
        for _ in range(3):
            x = rig.randn(*shape)
            torch.testing.assert_close(model(x), forward.eager(x), rtol=0, atol=0)
    assert (forward.counts.captured, forward.counts.replayed, forward.counts.eager) == (1, 3, {})


def test_an_output_survives_the_next_call(rig: Rig) -> None:
    model = Mlp()
    rig.graphed(model)
    with torch.no_grad():
        first = model(rig.randn(4, 8))
        kept = first.clone()
        second = model(rig.randn(4, 8))
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)


def test_static_outputs_are_overwritten_as_asked_for(rig: Rig) -> None:
    model = Mlp()
    forward = rig.graphed(model, static_outputs=True)
    with torch.no_grad():
        first = model(rig.randn(4, 8))
        x = rig.randn(4, 8)
        second = model(x)
        assert first.data_ptr() == second.data_ptr()
        assert torch.equal(first, forward.eager(x))


def test_inputs_are_left_alone(rig: Rig) -> None:
    model = Mlp()
    rig.graphed(model)
    x = rig.randn(4, 8)
    before = x.clone()
    with torch.no_grad():
        model(x)
    assert torch.equal(x, before)


def test_every_shape_gets_a_graph_up_to_the_bound(rig: Rig) -> None:
    model = Mlp()
    forward = rig.graphed(model, max_graphs=2)
    with torch.no_grad():
        for rows in (1, 2, 3, 1, 2, 3):
            x = rig.randn(rows, 8)
            assert torch.equal(model(x), forward.eager(x))
    assert (forward.counts.captured, forward.counts.replayed) == (2, 4)
    assert forward.counts.eager == {"another signature: 2 are captured already": 2}


def test_shapes_share_a_pool_without_sharing_results(rig: Rig) -> None:
    model = convnet()
    forward = rig.graphed(model)
    inputs = [rig.randn(rows, 3, 8, 8) for rows in (1, 4, 2)]
    with torch.no_grad():
        outputs = [model(x) for x in inputs + inputs[::-1]]
        for x, y in zip(inputs + inputs[::-1], outputs, strict=True):
            assert torch.equal(y, forward.eager(x))
    assert forward.counts.captured == 3


def test_dtype_stride_and_autocast_are_part_of_the_signature(rig: Rig) -> None:
    model = nn.Conv2d(4, 4, 3)
    forward = rig.graphed(model)
    x = rig.randn(2, 4, 6, 6)
    with torch.no_grad():
        model(x)
        last = model(x.to(memory_format=torch.channels_last))
        assert last.stride() == forward.eager(x.to(memory_format=torch.channels_last)).stride()
        with torch.autocast(rig.device.type, torch.bfloat16):
            low = model(x)
        assert low.dtype == torch.bfloat16
        assert torch.equal(model(x), forward.eager(x))
    assert forward.counts.captured == 3


def test_autocast_weights_cast_before_the_capture_are_not_borrowed(rig: Rig) -> None:
    """The cast weights in autocast's cache are freed when the context ends; a graph that read them would be lost."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    forward = rig.graphed(model)
    x = rig.randn(4, 8)
    for _ in range(2):
        with torch.no_grad(), torch.autocast(rig.device.type, torch.bfloat16):
            forward.eager(x)
            assert torch.equal(model(x), forward.eager(x))
    assert forward.counts.captured == 1


def test_autocast_within_the_model_and_around_it(rig: Rig) -> None:
    """The outer context keeps the cache alive from the warm-ups to the capture, and frees it afterwards."""

    class Inner(Mlp):
        def forward(self, x: Tensor) -> Any:
            with torch.autocast(x.device.type, torch.bfloat16):
                return self.second(self.first(x))

    model = Inner()
    forward = rig.graphed(model)
    x = rig.randn(4, 8)
    for _ in range(2):
        with torch.no_grad(), torch.autocast(rig.device.type, enabled=False):
            assert torch.equal(model(x), forward.eager(x))
            assert torch.is_autocast_cache_enabled()
    assert (forward.counts.captured, forward.counts.eager) == (1, {})


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def test_trees_of_arguments_and_results(rig: Rig) -> None:
    class Tree(nn.Module):
        def forward(self, pair: Pair, scale: float = 1.0, *, extra: dict[str, list[Tensor]]) -> Any:
            total = pair.left * scale + sum(extra["more"])
            return {"pair": Pair(total, pair.right), "list": [total + 1, None, "text"], "scale": scale}

    model = Tree()
    forward = rig.graphed(model)
    with torch.no_grad():
        for scale in (2.0, 2.0, 3.0):
            pair, extra = Pair(rig.randn(3), rig.randn(2)), {"more": [rig.randn(3), rig.randn(3)]}
            got, expected = model(pair, scale, extra=extra), forward.eager(pair, scale, extra=extra)
            assert isinstance(got["pair"], Pair)
            assert got["list"][1:] == [None, "text"]
            assert got["scale"] == scale
            assert torch.equal(got["pair"].left, expected["pair"].left)
            assert torch.equal(got["pair"].right, expected["pair"].right)
            assert torch.equal(got["list"][0], expected["list"][0])
    assert forward.counts.captured == 2


@pytest.mark.parametrize("change", ["data", "parameter", "submodule", "buffer"])
def test_what_was_reassigned_is_seen(rig: Rig, change: str) -> None:
    model = convnet()
    forward = rig.graphed(model)
    x = rig.randn(2, 3, 8, 8)
    with torch.no_grad():
        before = model(x)
        if change == "data":
            model.head.weight.data = rig.randn(4, 8)
        elif change == "parameter":
            model.head.weight = nn.Parameter(rig.randn(4, 8))
        elif change == "submodule":
            model.head = nn.Linear(8, 4).to(rig.device)
        else:
            model.norm.running_mean = rig.randn(8)
        after = model(x)
        assert not torch.equal(before, after)
        assert torch.equal(after, forward.eager(x))
    assert forward.counts.recaptured == 1


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.unread = 2.0, 0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_a_plain_value_that_the_code_reads_is_seen(rig: Rig) -> None:
    model = Scaled()
    forward = rig.graphed(model)
    x = rig.randn(3)
    with torch.no_grad():
        model(x)
        model.unread = 1
        model(x)
        assert forward.counts.recaptured == 0
        model.scale = 3.0
        assert torch.equal(model(x), x * 3.0)
    with torch.inference_mode():
        assert torch.equal(model(x), x * 3.0)
    assert (forward.counts.recaptured, forward.counts.eager) == (1, {})


def test_parameters_changed_in_place_need_no_new_capture(rig: Rig) -> None:
    model = Mlp()
    forward = rig.graphed(model)
    x = rig.randn(4, 8)
    with torch.no_grad():
        before = model(x)
        model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
        after = model(x)
        assert not torch.equal(before, after)
        assert torch.equal(after, forward.eager(x))
    assert (forward.counts.captured, forward.counts.recaptured) == (1, 0)


def test_a_parameter_reassigned_in_every_call_ends_in_eager(rig: Rig) -> None:
    model = Mlp()
    forward = rig.graphed(model, max_graphs=2)
    x = rig.randn(4, 8)
    with torch.no_grad():
        for _ in range(5):
            model.first.weight.data = rig.randn(16, 8)
            assert torch.equal(model(x), forward.eager(x))
    assert forward.counts.recaptured == 2
    assert sum(forward.counts.eager.values()) == 2


def test_a_training_flag_flipped_below_is_seen(rig: Rig) -> None:
    model = convnet()
    forward = rig.graphed(model)
    x = rig.randn(2, 3, 8, 8)
    with torch.no_grad():
        model(x)
        model.drop.train()
        torch.manual_seed(1)
        dropped = model(x)
        torch.manual_seed(1)
        assert torch.equal(dropped, forward.eager(x))
    assert forward.counts.captured == 2


def test_a_hook_registered_later_is_heeded(rig: Rig) -> None:
    model = Mlp()
    forward = rig.graphed(model)
    x = rig.randn(4, 8)
    with torch.no_grad():
        before = model(x)
        model.first.register_forward_hook(lambda module, args, out: out * 2)
        assert not torch.equal(model(x), before)
    assert forward.counts.eager == {"a hook was registered after the capture": 1}


def test_a_hook_on_the_model_itself_runs_around_the_graph(rig: Rig) -> None:
    model = Mlp()
    forward = rig.graphed(model)
    x = rig.randn(4, 8)
    with torch.no_grad():
        before = model(x)
        model.register_forward_hook(lambda module, args, out: out * 2)
        assert torch.equal(model(x), before * 2)
    assert forward.counts.replayed == 2


def test_gradients_are_never_cut_off(rig: Rig) -> None:
    model = Mlp()
    forward = rig.graphed(model)
    out = model(rig.randn(4, 8))
    assert out.requires_grad
    assert [reason for reason in forward.counts.eager if "gradients are being recorded" in reason]


def test_inference_mode(rig: Rig) -> None:
    model = Mlp()
    forward = rig.graphed(model)
    for _ in range(2):
        x = rig.randn(4, 8)
        with torch.inference_mode():
            assert torch.equal(model(x), forward.eager(x))
        with torch.no_grad():
            assert torch.equal(model(x), forward.eager(x))
    assert forward.counts.captured == 2


def test_random_numbers_after_a_capture_in_inference_mode(rig: Rig) -> None:
    model = nn.Dropout(0.5).train()
    forward = rig.graphed(model)
    x = rig.randn(64)
    with torch.inference_mode():
        model(x)
    with torch.no_grad():
        torch.manual_seed(4)
        got = model(x)
        torch.manual_seed(4)
        assert torch.equal(got, forward.eager(x))


def test_random_numbers_are_those_of_eager_and_new_each_time(rig: Rig) -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)).train()
    forward = rig.graphed(model)
    x = rig.randn(4, 8)
    with torch.no_grad():
        torch.manual_seed(3)
        eager = [forward.eager(x) for _ in range(3)]
        torch.manual_seed(3)
        replayed = [model(x) for _ in range(3)]
    assert not torch.equal(replayed[0], replayed[1])
    for a, b in zip(eager, replayed, strict=True):
        assert torch.equal(a, b)


def test_a_generator_of_the_models_own_moves_on(rig: Rig) -> None:
    class Noise(nn.Module):
        def __init__(self, device: torch.device) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.generator = torch.Generator(device).manual_seed(5)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight + torch.empty_like(x).normal_(generator=self.generator)

    model, twin = Noise(rig.device), Noise(rig.device).to(rig.device)
    rig.graphed(model)
    x = rig.randn(3)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(model(x), twin(x))


def test_warming_up_leaves_buffers_and_random_state_alone(rig: Rig) -> None:
    model, twin = BufferState(), BufferState().to(rig.device)
    rig.graphed(model)
    with torch.no_grad():
        for _ in range(3):
            x = rig.randn(4, 8)
            assert torch.equal(model(x), twin(x))
    assert torch.equal(model.mean, twin.mean)


def test_a_failed_capture_says_where_and_leaves_the_model_usable(rig: Rig) -> None:
    model = nn.Sequential(Mlp(), Item(), nn.Dropout(0.5)).train()
    forward = rig.graphed(model)
    with torch.no_grad():
        for _ in range(2):
            x = rig.randn(4, 8)
            torch.manual_seed(2)
            got = model(x)
            torch.manual_seed(2)
            assert torch.equal(got, forward.eager(x))
    [(reason, times)] = forward.counts.eager.items()
    assert times == 2
    assert "graph_models.py:" in reason
    assert "(1)" in reason
    assert forward.counts.captured == 0
    healthy = Mlp()
    again = rig.graphed(healthy)
    with torch.no_grad():
        assert torch.equal(healthy(x), again.eager(x))
    assert again.counts.captured == 1


def test_an_error_of_the_models_own_is_the_users(rig: Rig) -> None:
    model = Mlp()
    rig.graphed(model)
    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(rig.randn(4, 7))
    with torch.no_grad():
        assert model(rig.randn(4, 8)).shape == (4, 4)


def test_opaque_arguments_and_results_run_eagerly(rig: Rig) -> None:
    class Box:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    class Unboxes(nn.Module):
        def forward(self, box: Box) -> Tensor:
            return box.value * 2

    class Boxes(nn.Module):
        def forward(self, x: Tensor) -> Box:
            return Box(x * 2)

    x = rig.randn(3)
    takes, gives = Unboxes(), Boxes()
    taking, giving = rig.graphed(takes), rig.graphed(gives)
    with torch.no_grad():
        assert torch.equal(takes(Box(x)), x * 2)
        assert torch.equal(gives(x).value, x * 2)
    assert "which may hold anything" in next(iter(taking.counts.eager))
    assert "returns a Box" in next(iter(giving.counts.eager))


def test_concurrent_callers_get_their_own_results(rig: Rig) -> None:
    model = Mlp()
    forward = rig.graphed(model)
    inputs = [rig.randn(4, 8) for _ in range(4)]
    with torch.no_grad():
        expected = [forward.eager(x) for x in inputs]
        model(inputs[0])
    got: list[list[Tensor]] = [[], [], [], []]

    def caller(index: int) -> None:
        stream = torch.cuda.stream(torch.cuda.Stream()) if rig.on_cuda else torch.no_grad()  # type: ignore[no-untyped-call]
        with stream, torch.no_grad():
            got[index].extend(model(inputs[index]) for _ in range(20))
            if rig.on_cuda:
                torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(y, expected[i]) for i in range(4) for y in got[i])
    assert forward.counts.replayed == 81


def test_a_copy_and_a_pickle_of_the_model_capture_for_themselves(rig: Rig) -> None:
    model = Mlp()
    rig.graphed(model)
    x = rig.randn(4, 8)
    with torch.no_grad():
        expected = model(x)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert vars(twin)["forward"].module is twin
            assert torch.equal(twin(x), expected)
            twin.first.weight.zero_()
            assert not torch.equal(twin(x), expected)
            assert vars(twin)["forward"].counts.captured == 1
        assert torch.equal(model(x), expected)


def test_removing_gives_the_model_back(rig: Rig) -> None:
    model = Mlp()
    forward = rig.graphed(model)
    x = rig.randn(4, 8)
    with torch.no_grad():
        expected = model(x)
        forward.remove()
        assert "forward" not in vars(model)
        assert torch.equal(model(x), expected)
    assert list(model.state_dict()) == ["first.weight", "first.bias", "second.weight", "second.bias"]


def test_forward_runs_in_warm_ups_and_capture_only(rig: Rig) -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).calls += 1
            return x * 2

    model = Counting()
    rig.graphed(model)
    with torch.no_grad():
        for _ in range(5):
            model(rig.randn(3))
    assert Counting.calls == WARM_UPS + 2
