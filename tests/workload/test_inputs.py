"""Fresh inputs of the same kind: shapes, dtypes, ranges, structure; batch sizes; live models."""

from collections import namedtuple
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from fusionadvisor.errors import InputError
from fusionadvisor.report.model import Workload
from fusionadvisor.workload.inputs import DRAWS, Call, layout_of, parse_specs, redraw, tensors_in
from fusionadvisor.workload.program import Program, live
from fusionadvisor.workload.source import find_source
from fusionadvisor.workload.target import Target

Pair = namedtuple("Pair", "left right")


@dataclass
class State:
    h: torch.Tensor
    n: int


class Takes(nn.Module):
    def forward(self, x: Any, mask: Any = None, **more: Any) -> torch.Tensor:
        return sum(t.float().sum(-1) for _, t in tensors_in((x, mask, more)))  # type: ignore[return-value]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_call_keeps_structure_and_names_every_tensor() -> None:
    call = Call.of({"x": [Pair(torch.ones(1), State(torch.zeros(2), 3))], "n": 7})
    assert [name for name, _ in call.tensors()] == ["x.0.left", "x.0.right.h"]
    doubled = call.map(lambda _, t: t + 1)
    (pair,) = doubled.kwargs["x"]
    assert isinstance(pair, Pair)
    assert (pair.right.n, doubled.kwargs["n"]) == (3, 7)
    assert torch.equal(pair.right.h, torch.ones(2))
    assert torch.equal(call.kwargs["x"][0].right.h, torch.zeros(2))


def test_a_large_batch_is_drawn_a_few_times_and_repeats() -> None:
    drawn: list[torch.Tensor] = []

    def example_inputs() -> torch.Tensor:
        drawn.append(torch.randn(2, 3))
        return drawn[-1]

    call = live(Takes(), example_inputs).call(batch=1001)
    (rows,) = call.args
    assert rows.shape == (1001, 3)
    assert len(rows.unique(dim=0)) == 2 * DRAWS
    assert torch.equal(rows[2 * DRAWS : 4 * DRAWS], rows[: 2 * DRAWS])
    assert len(drawn) < 3 * DRAWS


def test_positional_tensors_take_the_forwards_names() -> None:
    call = Call.of((torch.ones(1), (torch.ones(2), torch.ones(3))))
    assert [name for name, _ in call.tensors(("x", "state"))] == ["x", "state.0", "state.1"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(64, 8),
        torch.rand(64, 8) * 5,
        torch.zeros(64, 8),
        torch.randint(3, 900, (64, 8)),
        torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last),
        torch.randn(8, 64).t(),
        torch.randn(64, 8).bfloat16(),
        torch.randn(64, 8, dtype=torch.complex64),
        torch.randint(-5, 5, (64, 8), dtype=torch.int8),
    ],
)
def test_fresh_values_of_the_same_kind(tensor: torch.Tensor) -> None:
    fresh = redraw("x", tensor, generator())
    assert (fresh.shape, fresh.dtype, fresh.stride()) == (tensor.shape, tensor.dtype, tensor.stride())
    assert layout_of(fresh) == layout_of(tensor)
    assert not torch.equal(fresh, tensor)
    assert torch.equal(fresh, redraw("x", tensor, generator()))
    if not tensor.is_complex() and tensor.min() != tensor.max():
        low, high = (tensor.min(), tensor.max())
        spread = 0 if not tensor.is_floating_point() or low >= 0 else (high - low).abs()
        assert fresh.min() >= low - spread if low < 0 or not tensor.is_floating_point() else fresh.min() >= 0
        assert fresh.max() <= high + spread


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("x", torch.arange(16).expand(4, 16)),
        ("attention_mask", torch.ones(4, 16)),
        ("x", torch.full((8, 8), float("-inf")).triu(1)),
        ("x", torch.eye(8)),
        ("x", torch.tensor([True, False])),
        ("lengths", torch.tensor(17)),
        ("x", torch.eye(4).to_sparse()),
    ],
)
def test_structure_is_left_as_it_is(name: str, tensor: torch.Tensor) -> None:
    assert redraw(name, tensor, generator()) is tensor


def test_a_function_that_draws_is_drawn_again_and_a_value_redrawn() -> None:
    drawing = live(Takes(), lambda: (torch.randint(0, 3, (50, 4)), torch.ones(50, 4)))
    ids = [drawing.call(seed).args[0] for seed in range(3)]
    assert not torch.equal(ids[0], ids[1])
    assert all(int(i.max()) == 2 and int(i.min()) == 0 for i in ids)
    assert torch.equal(drawing.call(1).args[1], torch.ones(50, 4))  # named mask by the forward
    fixed = live(Takes(), torch.randn(50, 4))
    assert torch.equal(fixed.call(0).args[0], fixed.call(0).args[0])
    assert not torch.equal(fixed.call(0).args[0], fixed.call(1).args[0])


def test_a_batch_of_another_size_has_fresh_rows_everywhere_it_should() -> None:
    table = torch.randn(7, 3)
    program = live(Takes(), lambda: {"x": torch.randn(4, 3), "mask": torch.ones(4, 3), "table": table})
    for size in (1, 4, 9):
        call = program.call(seed=2, batch=size)
        assert call.kwargs["x"].shape == (size, 3)
        assert call.kwargs["mask"].shape == (size, 3)
        assert call.kwargs["table"].shape == (7, 3)
        assert len({tuple(row) for row in call.kwargs["x"].tolist()}) == size


def test_channels_last_survives_another_batch_size() -> None:
    program = live(Takes(), torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last))
    assert layout_of(program.call(batch=5).args[0]) == "channels_last"


def test_batchable_is_what_the_model_can_do() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(4, 6) + 1

    class Mixes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(0)

    assert live(nn.Linear(6, 2), torch.randn(4, 6)).batchable
    assert not live(Fixed(), torch.randn(4, 6)).batchable
    assert live(Mixes(), torch.randn(4, 6)).batchable
    scalar = live(nn.Identity(), torch.tensor(1.0))
    assert not scalar.batchable
    with pytest.raises(InputError, match="input has no batch dimension"):
        scalar.call(batch=2)


def test_a_device_of_its_own_is_part_of_a_specification() -> None:
    texts = ["x=f32[4,2]@cpu", "ids=int64[4]<10 @cuda:1", "y=f32[1,3,8,8] channels_last@cpu", "z=[3]"]
    assert [spec.device for spec in parse_specs(texts)] == ["cpu", "cuda:1", "cpu", ""]
    assert parse_specs(texts)[1].high == 9
    for text in ("x=f32[4]@", "x=f32[4]@cpu@cpu", "x@cpu=f32[4]"):
        with pytest.raises(InputError, match="cannot be read"):
            parse_specs([text])


def test_inputs_apart_stay_where_they_are_and_the_others_go_with_the_model() -> None:
    class Moves(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.cpu() + y

    workload = Workload("", device="meta", inputs=parse_specs(["x=f32[4]", "y=f32[4]@cpu"]), inputs_from="--input")
    target = Target("", "", ModuleType("m"))
    source, _, _ = find_source(workload, target, Moves())
    call = Program(workload, Moves(), source).call()
    assert [tensor.device.type for tensor in call.args] == ["meta", "cpu"]
    here = Program(workload, Moves(), source, place="cpu").call()
    assert [tensor.device.type for tensor in here.args] == ["cpu", "cpu"]


def test_a_live_model_is_put_in_its_mode_and_stays_where_it_is() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    program = live(model, torch.randn(2, 3))
    assert program.model is model
    assert not model.training
    assert (program.workload.entry_kind, program.workload.model, program.workload.device) == (
        "live",
        "Sequential",
        "cpu",
    )
    assert [spec.shape for spec in program.workload.inputs] == [(2, 3)]


def test_another_models_exceptions_pass_through() -> None:
    class Breaks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("theirs")

    program = live(nn.Linear(3, 3), torch.randn(2, 3))
    with pytest.raises(KeyError):
        program.step(program.call(), Breaks())
