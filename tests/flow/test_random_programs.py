"""Random programs of views, writes in place and copies: the recorded graph computes what the program does."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.flow.record import record
from tests.flow.replay import replay

Step = Callable[[list[torch.Tensor], int, int], torch.Tensor | None]

STEPS: tuple[Step, ...] = (
    lambda ts, a, b: ts[a] + 1.5,
    lambda ts, a, b: ts[a] * ts[b].sum(),
    lambda ts, a, b: ts[a].exp().tanh(),
    lambda ts, a, b: ts[a].t(),
    lambda ts, a, b: ts[a][1:],
    lambda ts, a, b: ts[a][:, ::2],
    lambda ts, a, b: ts[a].view(-1) if ts[a].is_contiguous() else ts[a].reshape(-1),
    lambda ts, a, b: ts[a].clone(),
    lambda ts, a, b: ts[a].detach(),
    lambda ts, a, b: ts[a].data,
    lambda ts, a, b: torch.cat([ts[a].reshape(-1), ts[b].reshape(-1)])[:16].view(4, -1),
    lambda ts, a, b: ts[a].add_(1.0),
    lambda ts, a, b: ts[a].mul_(0.5),
    lambda ts, a, b: ts[a].zero_(),
    lambda ts, a, b: ts[a].copy_(torch.full_like(ts[a], 0.25)),
    lambda ts, a, b: ts[a].relu_(),
    lambda ts, a, b: ts[a].add_(ts[b].mean()),
    lambda ts, a, b: torch.sigmoid(ts[b], out=torch.empty_like(ts[b])),
    lambda ts, a, b: ts[a][0].fill_(3.0),
    lambda ts, a, b: ts[a].data.sub_(0.125),
)

programs = st.lists(
    st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=12
)


class Runs(nn.Module):
    def __init__(self, program: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.program = program
        self.register_buffer("held", torch.linspace(-1, 1, 16).view(4, 4))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        tensors: list[Any] = [x, self.held]
        for step, a, b in self.program:
            candidates = [t for t in tensors if t.dim() == 2 and min(t.shape) > 1] or [x]
            made = STEPS[step](candidates, a % len(candidates), b % len(candidates))
            if made is not None:
                tensors.append(made)
        return tensors


def graph_of(model: nn.Module, x: torch.Tensor) -> FlowGraph:
    def run() -> Any:
        with torch.no_grad():
            return model(x)

    return record(run, model, (x,))


@settings(max_examples=150, deadline=None)
@given(programs)
def test_a_recorded_program_computes_the_same_again(program: list[tuple[int, int, int]]) -> None:
    model, x = Runs(program), torch.linspace(-2, 2, 16).view(4, 4)
    before, held = x.clone(), model.get_buffer("held").clone()
    graph = graph_of(model, x)
    assert torch.equal(x, before)
    assert torch.equal(model.get_buffer("held"), held)
    roles = {"x": x.clone(), "held": held.clone()}
    first = {v.name: v.id for v in reversed(graph.values) if v.role in ("input", "buffer")}
    results = replay(graph, {first[name]: roles[name] for name in first})
    with torch.no_grad():
        expected = list(dict.fromkeys(model(x.clone())))
    got = [results[v] for v in graph.outputs]
    assert len(got) <= len(expected)
    for tensor in got:
        assert any(tensor.shape == other.shape and torch.equal(tensor, other) for other in expected)
    for tensor in expected:
        assert any(tensor.shape == other.shape and torch.equal(tensor, other) for other in got)


@settings(max_examples=100, deadline=None)
@given(programs)
def test_a_value_never_changes_under_its_readers(program: list[tuple[int, int, int]]) -> None:
    """Between what makes a value and what reads it, no op writes to memory the two share."""
    graph = graph_of(Runs(program), torch.linspace(-2, 2, 16).view(4, 4))
    for op in graph.ops:
        for value in op.reads:
            made = graph.producer(value)
            since = made.index if made else -1
            for other in graph.ops[since + 1 : op.index]:
                assert not any(_overlap(graph, value, written) for written in other.mutates), (op.index, value)


def _overlap(graph: FlowGraph, one: int, other: int) -> bool:
    a, b = graph.values[one], graph.values[other]
    if a.storage != b.storage:
        return False
    return bool(_elements(a) & _elements(b))


def _elements(value: Any) -> set[int]:
    index = torch.zeros(value.shape, dtype=torch.int64)
    for axis, (size, stride) in enumerate(zip(value.shape, value.strides, strict=True)):
        shape = [1] * len(value.shape)
        shape[axis] = size
        index = index + (torch.arange(size) * stride).view(shape)
    return {value.offset + i for i in index.flatten().tolist()}
