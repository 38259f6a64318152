import copy
import gc
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusionadvisor.flow.record import record
from fusionadvisor.recipe import Step, perform
from fusionadvisor.strategies import parts
from fusionadvisor.strategies.fuse_modules import FuseModules
from fusionadvisor.strategies.horizontal import Horizontal
from fusionadvisor.strategies.sums import Summed
from fusionadvisor.workload.inputs import Call
from fusionadvisor.workload.program import build
from fusionadvisor.workload.resolve import resolve
from tests.strategies.subjects import applied, randomise, reasons, subject, subject_of


class Qkv(nn.Module):
    """Grouped-query widths, one bias missing."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8, **more), nn.Linear(8, 4, bias=False), nn.Linear(8, 4, **more)

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        return q.sin() + torch.cat((k.cos(), v.tanh()), dim=-1)


class Skipping(Qkv):
    """What torch.fx cannot trace: the data decide which layers run, and the input may change between them."""

    def forward(self, x: Tensor) -> Any:
        x = x * 1
        y = self.q(x).sin()
        if x.mean() > 5:
            x.mul_(2)
        if x.mean() < -5:
            return y
        return y + torch.cat((self.k(x).cos(), self.v(x).tanh()), dim=-1)


class Plain(nn.Module):
    def __init__(self, one: nn.Module, two: nn.Module) -> None:
        super().__init__()
        self.one, self.two = one, two

    def forward(self, x: Tensor) -> Any:
        return self.one(x).sin() * self.two(x).cos().mean()


class Sum(Plain):
    def forward(self, x: Tensor) -> Any:
        return torch.relu(self.one(x) + (x + self.two(x)))


class Odd(nn.Linear):
    pass


def gemms(model: nn.Module, call: Call) -> list[str]:
    with torch.no_grad():
        ops = record(lambda: model(*call.args), model, call).work()
    return [op.name for op in ops if op.name in ("aten::addmm", "aten::mm", "aten::convolution", "aten::add")]


def plan_reasons(model: nn.Module, *shapes: tuple[int, ...], **more: Any) -> str:
    plan = Horizontal().plan(subject(model.eval(), *(shapes or ((8,),)), **more))
    assert not plan.sites
    return reasons(plan)


def test_query_key_value_become_one_product() -> None:
    given = subject(Qkv().eval(), (5, 8))
    candidate, plan = applied(Horizontal(), given)
    assert [site.members for site in plan.sites] == [("q", "k", "v")]
    assert gemms(given.model, given.calls[0]) == ["aten::addmm", "aten::mm", "aten::addmm", "aten::add"]
    assert gemms(candidate, given.calls[0]) == ["aten::addmm", "aten::add"]


def test_an_untraceable_model_is_right_on_paths_that_were_not_recorded() -> None:
    model = Skipping().double().eval()
    with pytest.raises(Exception, match="control flow"):
        torch.fx.symbolic_trace(model)
    candidate, plan = applied(Horizontal(), subject(model, (8,)))
    assert len(plan.sites) == 1
    with torch.no_grad():
        for shift in (0.0, 10.0, -10.0, 0.0, 10.0):
            x = torch.randn(3, 8, dtype=torch.float64) + shift
            torch.testing.assert_close(candidate(x), model(x))


def test_nothing_waits_after_a_call() -> None:
    model = Skipping().eval()
    candidate, _ = applied(Horizontal(), subject(model, (8,)))
    waiting = candidate.get_submodule("q").handout._waiting  # type: ignore[union-attr]
    with torch.no_grad():
        candidate(torch.randn(3, 8))
        assert not waiting
        candidate(torch.randn(3, 8) - 10)  # nobody takes k and v, but their input dies
        gc.collect()
        assert not waiting


def test_a_changed_input_or_weight_is_computed_again() -> None:
    model = Qkv().eval()
    candidate, _ = applied(Horizontal(), subject(model, (8,)))
    q, k = candidate.get_submodule("q"), candidate.get_submodule("k")
    x, same = torch.randn(3, 8), torch.randn(3, 8)
    with torch.no_grad():
        q(x)
        x.add_(1)
        torch.testing.assert_close(k(x), model.k(x))
        q(x)
        torch.testing.assert_close(k(same), model.k(same))
        q(x)
        q.merged.weight.mul_(2)  # type: ignore[operator, union-attr]
        torch.testing.assert_close(k(x), 2 * model.k(x))


def test_threads_do_not_take_each_others_parts() -> None:
    model = Qkv().double().eval()
    candidate, _ = applied(Horizontal(), subject(model, (8,)))
    wrong: list[float] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(50):
                x = torch.randn(3, 8, generator=generator, dtype=torch.float64)
                error = float((candidate(x) - model(x)).abs().max())
                if error > 1e-12:
                    wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_gradients_and_inference_mode() -> None:
    model = Qkv().double().eval()
    candidate, plan = applied(Horizontal(), subject(model, (8,)))
    x = torch.randn(3, 8, dtype=torch.float64)
    model(x).sum().backward()
    candidate(x).sum().backward()
    for old, (new, start, count) in plan.sites[0].data["keys"].items():
        gradient = candidate.get_parameter(new).grad
        assert gradient is not None
        torch.testing.assert_close(gradient[start : start + count], model.get_parameter(old).grad)
    with torch.inference_mode():
        torch.testing.assert_close(candidate(x), model(x))


def test_state_dicts_go_both_ways() -> None:
    model, other = Qkv().eval(), Qkv().eval()
    candidate, plan = applied(Horizontal(), subject(model, (8,)))
    keys = plan.sites[0].data["keys"]
    candidate.load_state_dict(parts.merged_state(other.state_dict(), keys))
    x = torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(candidate(x), other(x))
    back = parts.original_state(candidate.state_dict(), keys)
    assert back.keys() == other.state_dict().keys()
    assert all(torch.equal(back[key], tensor) for key, tensor in other.state_dict().items())


def test_a_recipe_does_it_again_and_checks_first() -> None:
    model = Qkv().eval()
    plan = Horizontal().plan(subject(model, (8,)))
    made = perform(copy.deepcopy(model), [Step("horizontal", {}, plan.sites)], device="cpu")
    x = torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x))
    hooked = copy.deepcopy(model)
    hooked.k.register_forward_hook(lambda *_: None)
    assert "hook" in Horizontal().recheck(hooked, plan)
    narrower = copy.deepcopy(model)
    narrower.k = nn.Linear(8, 2)
    assert "built differently" in Horizontal().recheck(narrower, plan)
    del narrower.k
    assert "not in this model" in Horizontal().recheck(narrower, plan)


def test_a_copy_of_the_merged_model_stands_alone() -> None:
    model = Qkv().eval()
    candidate, _ = applied(Horizontal(), subject(model, (8,)))
    other = copy.deepcopy(candidate).double()
    x = torch.randn(3, 8, dtype=torch.float64)
    with torch.no_grad():
        candidate.get_parameter("q.merged.weight").zero_()
        torch.testing.assert_close(other(x), copy.deepcopy(model).double()(x))


@pytest.mark.parametrize(
    "make", [lambda: nn.Conv1d(4, 3, 3), lambda: nn.Conv2d(4, 3, 3, stride=2, padding=1),
             lambda: nn.Conv2d(4, 3, 3, padding="same", padding_mode="reflect"), lambda: nn.Conv3d(4, 3, 1)]
)  # fmt: skip
def test_convolutions_of_one_geometry(make: Any) -> None:
    model = Plain(make(), make()).eval()
    dims = make().weight.dim() - 2
    candidate, plan = applied(Horizontal(), subject(model, (4, *[6] * dims)))
    assert len(plan.sites) == 1
    assert isinstance(candidate.get_submodule("two"), parts.Part)


def test_the_sample_model_becomes_one_convolution() -> None:
    program = build(resolve("sample_models/multi_conv.py"))
    call = program.call()
    given = subject_of(program.model, (call, program.call(1), program.call(2, batch=1)))
    candidate, plan = applied(Horizontal(), given)
    assert [site.data["how"] for site in plan.sites] == ["summed"]
    assert sorted(gemms(program.model, call)) == ["aten::add"] * 2 + ["aten::convolution"] * 3
    assert gemms(candidate, call) == ["aten::convolution"]
    exact = sum(program.model.get_parameter(f"conv{i}.weight").double() for i in (1, 2, 3))
    torch.testing.assert_close(candidate.get_parameter("conv1.weight").double(), exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda **more: nn.Linear(8, 8, **more), (8,)),
     (lambda **more: nn.Conv2d(4, 4, 3, padding=1, groups=2, **more), (4, 5, 5))],
)  # fmt: skip
def test_sums_keep_what_else_is_added(make: Any, shape: tuple[int, ...]) -> None:
    given = subject(Sum(make(), make(bias=False)).eval(), shape)
    candidate, plan = applied(Horizontal(), given)
    assert [site.data["how"] for site in plan.sites] == ["summed"]
    assert isinstance(candidate.get_submodule("two"), Summed)
    assert gemms(candidate, given.calls[0])[1:] == ["aten::add"]


def test_a_summed_layer_cannot_train() -> None:
    class Added(Plain):
        def forward(self, x: Tensor) -> Any:
            return self.one(x) + self.two(x)

    candidate, _ = applied(Horizontal(), subject(Added(nn.Linear(8, 8), nn.Linear(8, 8)).eval(), (8,)))
    with pytest.raises(RuntimeError, match="summed into one"):
        candidate.train()


def test_a_sum_that_is_not_always_taken_is_left() -> None:
    class Sometimes(Plain):
        def forward(self, x: Tensor) -> Any:
            if x.shape[0] > 100:
                return self.one(x)
            return self.one(x) + self.two(x)

    model = Sometimes(nn.Linear(8, 8), nn.Linear(8, 8)).double().eval()
    candidate, plan = applied(Horizontal(), subject(model, (8,)))
    assert [site.data["how"] for site in plan.sites] == ["side by side"]
    x = torch.randn(101, 8, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(candidate(x), model(x))


def test_refusals_name_the_module_and_the_reason() -> None:
    hooked = Plain(nn.Linear(8, 8), nn.Linear(8, 8))
    hooked.two.register_forward_hook(lambda *_: None)
    assert "two has a forward hook" in plan_reasons(hooked)
    tied = Plain(nn.Linear(8, 8), nn.Linear(8, 8))
    tied.two.weight = tied.one.weight
    assert "shares its memory with" in plan_reasons(tied)
    assert "two is a subclass, Odd" in plan_reasons(Plain(nn.Linear(8, 8), Odd(8, 8)))
    kernels = Plain(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1))
    assert "kernel_size (1, 1) where one has (3, 3)" in plan_reasons(kernels, (4, 5, 5))
    grouped = Plain(nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 4, 1, groups=2))
    assert "grouped convolution" in plan_reasons(grouped, (4, 5, 5))
    normed = Plain(nn.Linear(8, 8), nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
    assert "parametrization" in plan_reasons(normed)


def test_what_is_done_with_the_layers_or_their_outputs() -> None:
    class Returned(Plain):
        def forward(self, x: Tensor) -> Any:
            return self.one(x), self.two(x).sin()

    class Viewed(Plain):
        def forward(self, x: Tensor) -> Any:
            return self.one(x).view(-1).sin() + self.two(x).sum()

    class Unseen(Plain):
        def forward(self, x: Tensor) -> Any:
            y, z = self.one(x), self.two(x)
            if x.mean() > 50:
                y = y.view(-1)
            return y.sin() * z.cos().mean()

    class MadeWhole(Plain):
        def forward(self, x: Tensor) -> Any:
            y, z = self.one(x), self.two(x)
            if x.mean() > 50:
                w = y.contiguous()
                if x.mean() > 60:
                    w = w.view(-1)
                w = self.doubled(y).view(-1, 2)
                return w.view(-1) + x.view(-1)
            return y.sin() * z.cos().mean()

        def doubled(self, y: Tensor) -> Tensor:
            return y * 2

    class Sometimes(Plain):
        def forward(self, x: Tensor) -> Any:
            y, z = self.one(x), self.two(x)
            if x.mean() > 50:
                w = y.contiguous()
                if x.mean() > 60:
                    w = y
                y = w.view(-1)
            return y.sin() * z.cos().mean()

    class Read(Plain):
        def forward(self, x: Tensor) -> Any:
            y = self.one(x).sin() + self.two(x).cos()
            return F.linear(y, self.one.weight)  # type: ignore[arg-type]

    class Overwritten(Plain):
        def forward(self, x: Tensor) -> Any:
            x = x * 1
            y = self.one(x).sin()
            x.mul_(2)
            return y * self.two(x).cos()

    pair = nn.Linear(8, 8), nn.Linear(8, 8)
    assert "returned or kept" in plan_reasons(Returned(*pair))
    assert "viewed (line" in plan_reasons(Viewed(*pair))
    assert "which no input reached" in plan_reasons(Unseen(*pair))
    assert "which no input reached" in plan_reasons(Sometimes(*pair))
    assert len(Horizontal().plan(subject(MadeWhole(*pair).eval(), (8,))).sites) == 1
    assert "also read by" in plan_reasons(Read(*pair))
    assert plan_reasons(Overwritten(*pair)) == ""  # they read different values: no candidates at all


def test_adapters_are_left_alone() -> None:
    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base_layer, self.lora_A = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Any:
            return self.base_layer(x) + self.lora_A(x)

    assert "belongs to an adapter" in plan_reasons(Adapter())


def test_training_is_refused() -> None:
    plan = Horizontal().plan(subject(Qkv(), (8,), mode="training"))
    assert "optimizer holds the separate weights" in plan.blocker


def test_half_precision() -> None:
    candidate, plan = applied(Horizontal(), subject(Qkv().to(torch.bfloat16).eval(), (8,)))
    assert len(plan.sites) == 1
    assert candidate.get_parameter("q.merged.weight").dtype == torch.bfloat16


def test_folding_before_and_after() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c1, self.c2 = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)
            self.n1, self.n2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Any:
            return self.n1(self.c1(x)).sin() + self.n2(self.c2(x)).cos()

    model = randomise(Normed()).eval()
    folded, _ = applied(FuseModules(), subject(model, (4, 5, 5)))
    merged, plan = applied(Horizontal(), subject(folded, (4, 5, 5)))
    assert len(plan.sites) == 1
    merged, plan = applied(Horizontal(), subject(model, (4, 5, 5)))
    assert len(plan.sites) == 1
    left = FuseModules().plan(subject(merged, (4, 5, 5)))
    assert not left.sites  # the layers that were merged are no convolutions any more
