"""What dynamo captures is told as it is: breaks with their lines, recompiles, the recompile limit."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo import trace_rules

from fusionadvisor import strategies
from fusionadvisor.errors import InputError, StrategyError
from fusionadvisor.evaluate import kernels
from fusionadvisor.strategies import compile as module
from fusionadvisor.strategies.base import Plan
from fusionadvisor.strategies.compile import Compile, copy_outputs, repeated
from tests.strategies.subjects import applied, subject

LINES = Path(__file__).read_text().splitlines()


def line(mark: str) -> int:
    return next(number for number, text in enumerate(LINES, 1) if text.endswith(f"# {mark}"))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(self.norm(x))) * self.index


class Layers(nn.Module):
    def __init__(self, count: int, numbered: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.layers = nn.ModuleList(Block(i if numbered else 1) for i in range(count))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return x


class Branches(nn.Module):
    def __init__(self, bias: float) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        nn.init.zeros_(self.linear.weight)
        nn.init.constant_(self.linear.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if x.sum() > 0:  # branch
            x = x + 1
        torch._dynamo.graph_break()  # asked for
        return x * 2


def test_a_model_without_breaks_is_one_graph() -> None:
    plan = Compile().plan(subject(Layers(2, False), (8,)))
    assert [site.name for site in plan.sites] == ["the model"]
    assert plan.graph_breaks == 0
    assert not plan.refused


def test_a_plain_sequential_is_captured_too() -> None:
    stack = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    assert trace_rules.check(stack.forward)  # else `compile()` of the module itself would do
    given = subject(stack, (8,), batches=(2, 2, 2))
    plan = Compile().plan(given)
    assert not plan.refused
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    module.compile_at(stack, backend=backend)
    call = given.calls[0].args
    assert torch.equal(stack(*call), stack.forward(*call))  # type: ignore[no-untyped-call]
    assert len(graphs) == 1


def test_a_forward_that_is_an_object_can_be_planned() -> None:
    class Forward:
        def __init__(self, layer: nn.Module) -> None:
            self.layer = layer

        def __call__(self, x: Tensor) -> Tensor:
            return torch.relu(self.layer(x))

    block = Block(1)
    block.forward = Forward(block.linear)  # type: ignore[method-assign]  # as what a strategy captured is
    assert not Compile().plan(subject(block, (8,), batches=(2, 2, 2))).refused


def test_breaks_are_counted_and_named_with_their_lines() -> None:
    plan = Compile().plan(subject(Branches(1.0), (8,), batches=(2, 2, 2)))
    assert plan.graph_breaks == 2
    places = {(r.source.line, r.reason) for r in plan.refused if r.source}
    assert {number for number, _ in places} == {line("branch"), line("asked for")}
    assert any("a condition reads a tensor's value" in reason for _, reason in places)


def test_a_break_before_any_op_is_counted_too() -> None:
    plan = Compile().plan(subject(Branches(-1.0), (8,), batches=(2, 2, 2)))
    assert plan.graph_breaks == 2
    assert "Call to `torch._dynamo.graph_break()`" in " ".join(r.reason for r in plan.refused)


def test_a_batch_of_another_size_is_a_recompile() -> None:
    plan = Compile().plan(subject(Layers(2, False), (8,), batches=(2, 2, 2, 3)))
    assert any("1 recompile on forward" in note and "size mismatch" in note for note in plan.notes)
    alike = Compile().plan(subject(Layers(2, False), (8,), batches=(2, 2, 2)))
    assert not any("recompile" in note for note in alike.notes)
    dynamic = Compile(dynamic="true").plan(subject(Layers(2, False), (8,), batches=(2, 2, 2, 3)))
    assert not any("recompile" in note for note in dynamic.notes)


def test_repeated_blocks_are_found_and_compiled_alone() -> None:
    model = Layers(3, False)
    assert repeated(model) == ["layers.0", "layers.1", "layers.2"]
    plan = Compile(regions="auto").plan(subject(model, (8,)))
    assert [site.members for site in plan.sites] == [("layers.0",), ("layers.1",), ("layers.2",)]
    made = Compile(regions="auto").rewrite(Layers(3, False), plan, subject(model, (8,)))
    compiled = [path for path, m in made.named_modules() if m._compiled_call_impl is not None]
    assert compiled == ["layers.0", "layers.1", "layers.2"]
    assert made.state_dict().keys() == model.state_dict().keys()


def test_the_recompile_limit_is_said() -> None:
    """Each block has another number in it, and torch gives up after eight of them."""
    limit = torch._dynamo.config.recompile_limit
    plan = Compile(regions="auto").plan(subject(Layers(limit + 2, True), (8,), batches=(2, 2, 2)))
    assert any("recompile limit and runs uncompiled" in note for note in plan.notes)
    few = Compile(regions="auto").plan(subject(Layers(3, True), (8,), batches=(2, 2, 2)))
    assert not any("recompile limit" in note for note in few.notes)


def test_reduce_overhead_does_nothing_on_the_cpu() -> None:
    plan = Compile(mode="reduce-overhead").plan(subject(Layers(1, False), (8,)))
    assert any("does nothing that default does not" in note for note in plan.notes)


def test_nothing_repeats() -> None:
    plan = Compile(regions="auto").plan(subject(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (8,)))
    assert plan == Plan(notes=("No block repeats in this model.",))


def test_no_compiler_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def missing() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    plan = Compile().plan(subject(nn.Linear(8, 8), (8,)))
    assert plan.blocker == "torch.compile needs a C++ compiler on the CPU, and there is none: install g++, or set CXX."


def test_a_compiled_model_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    given = subject(model, (8,))
    model.compile(backend="eager")
    assert "is compiled already" in Compile().plan(given).blocker


@pytest.mark.parametrize(
    ("parameters", "words"),
    [({"mode": "reduce"}, "mode is not 'reduce'"), ({"dynamic": "maybe"}, "dynamic is not 'maybe'")],
)
def test_parameters_are_checked(parameters: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        strategies.get("compile", parameters)


def test_an_unknown_region_is_named() -> None:
    with pytest.raises(InputError, match=r"no module 'layer\.0'"):
        Compile(regions="layer.0").plan(subject(Layers(2, False), (8,)))


def test_old_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.utils._triton

    monkeypatch.setattr(torch.utils._triton, "has_triton_package", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (6, 1))
    assert "this one has 6.1" in module._unequipped("cuda")


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(torch.relu(self.linear(x)), 0.5, self.training)


def test_only_steps_that_draw_keep_the_ops_that_draw() -> None:
    training = subject(Dropping().train(), (8,), batches=(2, 2, 2), mode="training")
    assert Compile().plan(training).sites[0].data["draws"]
    assert any("Random numbers" in note for note in Compile().plan(training).notes)
    assert not Compile().plan(subject(Dropping().eval(), (8,), batches=(2, 2, 2))).sites[0].data["draws"]


@pytest.mark.slow
def test_a_compiled_dropout_draws_what_the_uncompiled_one_draws() -> None:
    model = Dropping().train()
    given = subject(model, (8,), batches=(16, 16, 16), mode="training")
    candidate = Compile().rewrite(copy.deepcopy(model), Compile().plan(given), given)
    for call in given.calls:
        torch.manual_seed(5)
        own = model(*call.args)
        torch.manual_seed(5)
        torch.testing.assert_close(candidate(*call.args), own)


@pytest.mark.slow
def test_generated_code_computes_the_same_and_counts_kernels() -> None:
    given = subject(Block(1), (8,), batches=(2, 2, 2))
    candidate, plan = applied(Compile(), given)
    assert plan.graph_breaks == 0
    assert candidate._compiled_call_impl is not None
    with torch.no_grad():
        run = kernels.names(lambda: candidate(*given.calls[0].args), "cpu")
        assert any(name.startswith("cpp_fused") for name in run)
        assert run == kernels.names(lambda: candidate(*given.calls[0].args), "cpu")


class Forbidden(nn.Module):
    """Calls what torch's compiler asserts that nobody calls in what it compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        cache = torch.zeros(8)
        torch._dynamo.mark_static_address(cache)
        y: Tensor = self.linear(x) + cache
        return y


def test_what_torch_refuses_to_trace_is_refused_when_it_is_planned() -> None:
    plan = Compile().plan(subject(Forbidden(), (8,), batches=(2,)))
    assert plan.blocker.startswith("torch.compile itself fails on this model: Attempt to trace forbidden callable")


def test_what_torch_itself_fails_at_is_refused_in_its_words() -> None:
    def broken(*_: object) -> None:
        raise KeyError("buf14")

    stack = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    module.compile_at(stack, backend=broken)
    with pytest.raises(StrategyError, match=r"itself fails on this model: .*buf14"):
        Compile().first_call(lambda: stack(torch.randn(2, 8)))


def test_the_outputs_of_graphs_are_copied() -> None:
    model = nn.Linear(2, 2)
    written_anew = torch.zeros(2)
    model._compiled_call_impl = lambda x: (written_anew.copy_(x), "no tensor")
    copy_outputs(model)
    first, text = model(torch.ones(2))
    model(torch.full((2,), 2.0))
    assert (first.tolist(), text) == ([1.0, 1.0], "no tensor")
