"""Equal products on inputs of their own become one: found, verified in float64, and refused where they may not."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusionadvisor.flow.record import record
from fusionadvisor.recipe import Step, perform
from fusionadvisor.strategies import parts, rows
from fusionadvisor.strategies.horizontal import Horizontal
from fusionadvisor.workload.inputs import Call
from tests.strategies.subjects import applied, reasons, subject


class Experts(nn.Module):
    """Layers in a loop, each on a slice of its own."""

    def __init__(self, count: int = 4, bias: bool = True, wide: int = 6) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, wide, bias=bias) for _ in range(count))

    def forward(self, x: Tensor) -> Any:
        return torch.stack([expert(x[:, i]).sin() for i, expert in enumerate(self.experts)], dim=1)


class Around(nn.Module):
    """A model around the experts, so that nothing of them is returned."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return torch.tanh(self.inner(x))


def products(model: nn.Module, call: Call) -> list[str]:
    with torch.no_grad():
        ops = record(lambda: model(*call.args), model, call).work()
    return [op.name for op in ops if op.name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")]


def reason(model: nn.Module, *shape: int, **more: Any) -> str:
    plan = Horizontal().plan(subject(model.eval(), shape or (4, 8), **more))
    assert not plan.sites, plan.sites
    return reasons(plan)


@pytest.mark.parametrize(("bias", "after"), [(True, "aten::baddbmm"), (False, "aten::bmm")])
def test_experts_in_a_loop_become_one_product(bias: bool, after: str) -> None:
    given = subject(Around(Experts(bias=bias)).eval(), (4, 8))
    candidate, plan = applied(Horizontal(), given)
    (site,) = plan.sites
    assert site.members == tuple(f"inner.experts.{i}" for i in range(4))
    assert products(given.model, given.calls[0]) == ["aten::addmm" if bias else "aten::mm"] * 4
    assert products(candidate, given.calls[0]) == [after]


def test_slices_of_one_tensor_are_not_copied_and_others_are_stacked() -> None:
    class Towers(Experts):
        def forward(self, x: Tensor) -> Any:
            inputs = [x[:, 0], x[:, 2].cos(), x[:, 1], x[:, 3].sin()]
            outputs = [expert(y) for expert, y in zip(self.experts, inputs)]  # noqa: B905
            return torch.cat(outputs, dim=-1)

    given = subject(Around(Towers()).eval(), (4, 8))
    candidate, _ = applied(Horizontal(), given)
    assert products(candidate, given.calls[0]) == ["aten::baddbmm"]
    x = torch.arange(24.0).view(4, 3, 2)
    whole = rows.stacked(list(x.unbind(0)))
    assert whole.data_ptr() == x.data_ptr()
    for parts_ in (list(x.unbind(1)), [x[3], x[1], x[2]], [x[0], x[1], x[3]], [x[0], x[1] + 0], [x[0], x[2]]):
        assert torch.equal(rows.stacked(parts_), torch.stack(parts_))
    assert rows.stacked([x[0], x[2]]).data_ptr() == x.data_ptr()


def test_keys_go_both_ways() -> None:
    model = Around(Experts()).eval()
    candidate, plan = applied(Horizontal(), subject(model, (4, 8)))
    keys = plan.sites[0].data["keys"]
    state = model.state_dict()
    there = parts.merged_state(state, keys)
    assert {k: v.shape for k, v in there.items()} == {k: v.shape for k, v in candidate.state_dict().items()}
    candidate.load_state_dict(there)
    back = parts.original_state(candidate.state_dict(), keys)
    assert all(torch.equal(back[key], state[key]) for key in state)
    assert torch.equal(candidate.get_submodule("inner.experts.2").weight, state["inner.experts.2.weight"])  # type: ignore[arg-type]


def test_a_copy_and_a_recipe_compute_the_same() -> None:
    model = Around(Experts()).eval()
    given = subject(model, (4, 8))
    candidate, plan = applied(Horizontal(), given)
    again = perform(copy.deepcopy(model), (Step("horizontal", {}, plan.sites),), given.calls[:1], device="cpu")
    with torch.no_grad():
        for other in (again, copy.deepcopy(candidate)):
            torch.testing.assert_close(other(*given.calls[0].args), candidate(*given.calls[0].args))
    assert Horizontal().recheck(model, plan) == ""
    assert "built differently" in Horizontal().recheck(Around(Experts(wide=5)), plan)


def test_layers_in_sequentials_and_what_lies_between_keep_their_order() -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)) for _ in range(3))
            self.gate = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Any:
            weights = torch.softmax(self.gate(x.mean(1)), dim=-1)
            outputs = []
            for i in range(3):
                outputs.append(self.experts[i](x[:, i]) * weights[:, i, None])  # noqa: PERF401
            return torch.stack(outputs).sum(0)

    given = subject(Around(Mixture()).eval(), (3, 8))
    candidate, plan = applied(Horizontal(), given)
    assert sorted(len(site.members) for site in plan.sites) == [3, 3]
    assert products(candidate, given.calls[0]) == ["aten::addmm", "aten::baddbmm", "aten::baddbmm"]


def test_products_without_layers_and_functional_ones() -> None:
    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 8, 5))
            self.v, self.b = nn.Parameter(torch.randn(4, 5, 8)), nn.Parameter(torch.randn(4, 5))

        def forward(self, x: Tensor) -> Any:
            one = torch.stack([x[:, i] @ self.w[i] for i in range(4)])
            two = torch.stack([F.linear(x[:, i].cos(), self.v[i], self.b[i]) for i in range(4)])
            return one + two

    given = subject(Around(Raw()).eval(), (4, 8))
    candidate, plan = applied(Horizontal(), given)
    assert [site.data["keys"] for site in plan.sites] == [{}, {}]
    assert [site.members for site in plan.sites] == [("inner",), ("inner",)]
    assert products(candidate, given.calls[0]) == ["aten::bmm", "aten::baddbmm"]
    again = perform(copy.deepcopy(given.model), (Step("horizontal", {}, plan.sites),), given.calls[:1], device="cpu")
    with torch.no_grad():
        torch.testing.assert_close(again(*given.calls[0].args), candidate(*given.calls[0].args))


def test_one_layer_called_several_times_reads_all_inputs_at_once() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Any:
            return torch.cat([self.layer(x[:, i]).sin() for i in range(4)], dim=-1)

    given = subject(Around(Shared()).eval(), (4, 8))
    candidate, plan = applied(Horizontal(), given)
    assert plan.sites[0].members == ("inner.layer",)
    assert products(candidate, given.calls[0]) == ["aten::addmm"]
    assert candidate.state_dict().keys() == given.model.state_dict().keys()


def test_other_shapes_and_gradients_are_computed_alone() -> None:
    model = Around(Experts()).double().eval()
    candidate, _ = applied(Horizontal(), subject(model, (4, 8)))
    x = torch.randn(2, 4, 8, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(candidate(x), model(x))
    own, new = (torch.autograd.grad(m(x).sum(), x)[0] for m in (model, candidate))
    torch.testing.assert_close(own, new)
    one, two = torch.randn(2, 8), torch.randn(3, 8)
    weights, biases = torch.randn(2, 5, 8), torch.randn(2, 5)
    with torch.no_grad():
        for made, x_, i in zip(rows.linears([one, two], weights, biases), (one, two), (0, 1), strict=True):
            torch.testing.assert_close(made, F.linear(x_, weights[i], biases[i]))
        made, _ = rows.products([one, two], [weights[0].T, weights[1].T])
        torch.testing.assert_close(made, one @ weights[0].T)
        empty = rows.linears([one[:0], one[:0]], weights, None)
    assert [y.shape for y in empty] == [(0, 5), (0, 5)]


class Chain(Experts):
    """Each needs the one before it."""

    def __init__(self) -> None:
        super().__init__(wide=8)

    def forward(self, x: Tensor) -> Any:
        y = x[:, 0]
        for expert in self.experts:
            y = expert(y).sin()
        return y


class Writes(Experts):
    def forward(self, x: Tensor) -> Any:
        return torch.stack([expert(x[:, i]).relu_() for i, expert in enumerate(self.experts)])


class Draws(Experts):
    def forward(self, x: Tensor) -> Any:
        return torch.stack([F.dropout(expert(x[:, i]), 0.5, True) for i, expert in enumerate(self.experts)])


class Branches(Experts):
    def forward(self, x: Tensor) -> Any:
        if x.mean() > 9:
            x = -x
        return torch.stack([expert(x[:, i]).sin() for i, expert in enumerate(self.experts)])


class Length(Experts):
    def forward(self, x: Tensor) -> Any:
        return torch.stack([expert(y).sin() for expert, y in zip(self.experts, x.unbind(1))])  # noqa: B905


class Kept(Experts):
    def forward(self, x: Tensor) -> Any:
        self.last = [expert(x[:, i]) for i, expert in enumerate(self.experts)]
        return torch.stack(self.last)


class Memory(Experts):
    def forward(self, x: Tensor) -> Any:
        return torch.stack([expert(x[:, i]).data for i, expert in enumerate(self.experts)])


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Between(Experts):
    def __init__(self) -> None:
        super().__init__()
        self.count = Counting()

    def forward(self, x: Tensor) -> Any:
        return torch.stack([expert(self.count(x[:, i])) for i, expert in enumerate(self.experts)])


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        (Writes(), "aten::relu_ (line"),
        (Draws(), "draws random numbers"),
        (Branches(), "may do something else another time"),
        (Length(), "cannot be captured"),
        (Kept(), "is returned or kept"),
        (Memory(), "uses .data"),
        (Between(), "inner.count is called between the products"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refusals_name_the_place_and_the_reason(inner: nn.Module, words: str) -> None:
    assert words.removeprefix("inner.") in reason(Around(inner))


def test_layers_that_need_each_other_are_no_candidates() -> None:
    assert reason(Around(Chain())) == ""
    assert reason(Around(Experts(2))) == ""  # two are not fewer kernels


def watch(*_: object) -> None:
    """A hook."""


def test_layers_unfit_for_it() -> None:
    tied = Experts()
    tied.experts[1].weight = tied.experts[0].weight
    assert "shares its memory with" in reason(Around(tied))
    hooked = Experts()
    hooked.experts[2].register_forward_hook(watch)
    assert "experts.2 has a forward hook" in reason(Around(hooked))
    outer = Experts()
    outer.register_forward_pre_hook(watch)
    assert "inner has a forward" in reason(Around(outer))

    class Reads(Around):
        def forward(self, x: Tensor) -> Any:
            return self.inner(x) + self.inner.experts[0].weight.sum()  # type: ignore[index, union-attr]

    assert "also read by" in reason(Reads(Experts()))
    assert "fills a GPU by itself" in reason(Around(Experts(wide=1 << 16)), 4, 8, batches=(20, 20, 20, 21))
    assert "returned or kept" in reason(Returned())
    assert len(applied(Horizontal(), subject(Outside(Experts()).eval(), (4, 8)))[1].sites) == 1


class Returned(Experts):
    def forward(self, x: Tensor) -> Any:
        return [expert(x[:, i]) for i, expert in enumerate(self.experts)]


class Outside(Around):
    """Also calls the layers of another module one by one, and they compute alone."""

    def forward(self, x: Tensor) -> Any:
        total = self.inner(x).sum()
        for i, expert in enumerate(self.inner.experts):  # type: ignore[arg-type]
            total = total + expert(x[:, i]).sin()
        return total
