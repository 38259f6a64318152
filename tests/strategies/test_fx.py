import copy
import math
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.errors import InputError, StrategyError
from fusionadvisor.evaluate.kernels import names
from fusionadvisor.strategies import leaves
from fusionadvisor.strategies.base import Plan, Subject
from fusionadvisor.strategies.fx import FxPasses
from tests.strategies.subjects import applied, reasons, subject

fx = FxPasses()


class Does(nn.Module):
    """A model that computes one formula on the output of a layer."""

    def __init__(self, formula: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.weight, self.bias = nn.Parameter(torch.rand(8) + 0.5), nn.Parameter(torch.randn(8))
        self.formula = formula

    def forward(self, x: Tensor) -> Any:
        return self.formula(self.linear(x), self.weight, self.bias)


def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    var = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-5) * w + b


def norm_by_var(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    centred = x - torch.mean(x, dim=-1, keepdim=True)
    return b + w * (centred * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-6))


def norm_corrected(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    centred = x - x.mean((-1,), keepdim=True)
    return centred * torch.rsqrt(torch.var(centred, -1, correction=0, keepdim=True) + 1e-6)


def rms(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rms_divided(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x / torch.sqrt(1e-6 + (x * x).mean(dim=-1, keepdim=True)) * w


def rms_in_float(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(torch.square(h).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_other_way(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (torch.erf(x * 0.7071067811865476) + 1) * x * 0.5


def gelu_tanh(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def gelu_tanh_factored(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)))


def silu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def swiglu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x.sigmoid() * x * w


@pytest.mark.parametrize(
    ("formula", "op"),
    [
        (norm, "aten::native_layer_norm"), (norm_by_var, "aten::native_layer_norm"),
        (norm_corrected, "aten::native_layer_norm"), (rms, "aten::_fused_rms_norm"),
        (rms_divided, "aten::_fused_rms_norm"), (rms_in_float, "aten::_fused_rms_norm"), (gelu, "aten::gelu"),
        (gelu_other_way, "aten::gelu"), (gelu_tanh, "aten::gelu"), (gelu_tanh_factored, "aten::gelu"),
        (silu, "aten::silu"), (swiglu, "aten::silu"),
    ],
)  # fmt: skip
def test_formulas_become_one_op(formula: Callable[..., Any], op: str) -> None:
    given = subject(Does(formula).eval(), (3, 8))
    candidate, plan = applied(fx, given)
    assert len(plan.sites) == 1, reasons(plan)
    with torch.no_grad():
        ops = Counter(names(lambda: candidate(*given.calls[0].args), "cpu"))
    assert op in ops
    left = {"aten::rsqrt", "aten::sqrt", "aten::erf", "aten::tanh", "aten::sigmoid", "aten::pow"} & set(ops)
    assert not left
    assert list(candidate.state_dict()) == list(given.model.state_dict())


def std_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)


def unbiased(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-6)


def other_dim(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)


def eps_outside(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + 1e-6)


def no_mean(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + 1e-6)


def quick_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def wrong_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / 1.5))


def read_elsewhere(x: Tensor, w: Tensor, b: Tensor) -> Any:
    gate = torch.sigmoid(x)
    return x * gate, gate


def other_gate(x: Tensor, w: Tensor, b: Tensor) -> Any:
    return x * torch.sigmoid(x + 1)


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        (std_norm, ""), (unbiased, "variance is unbiased"), (other_dim, ""), (eps_outside, ""), (no_mean, ""),
        (quick_gelu, "another approximation of GELU"), (wrong_gelu, "constants are not those of GELU"),
        (read_elsewhere, "also read elsewhere"), (other_gate, ""),
    ],
)  # fmt: skip
def test_what_is_not_quite_the_formula_is_left(formula: Callable[..., Any], words: str) -> None:
    _, plan = applied(fx, subject(Does(formula).eval(), (3, 8)))
    assert not plan.sites
    assert words in reasons(plan)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Any:
        return rms(x, self.weight, self.weight)


class Untraceable(nn.Module):
    """Branches on data, so that only its parts can be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        for part in self.parts:
            x = part(x) if x.sum() < 100 else x
        return {"x": x}


def test_parts_of_an_untraceable_model() -> None:
    _, plan = applied(fx, subject(Untraceable().eval(), (3, 8)))
    assert [site.name for site in plan.sites] == ["parts.0: rms_norm", "parts.1: rms_norm"]


class Sliced(nn.Module):
    """A slice by a size that is not known while it is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(10, 8))

    def forward(self, x: Tensor) -> Any:
        y = x + self.get_buffer("table")[: x.shape[1]]
        return y * torch.sigmoid(y)


def test_a_buffer_sliced_by_a_size() -> None:
    _, plan = applied(fx, subject(Sliced().eval(), (3, 8)))
    assert len(plan.sites) == 1, plan
    assert "silu" in plan.sites[0].name


@pytest.mark.parametrize("batch", [1, 2])
def test_a_recipe_captures_for_every_size_though_it_is_loaded_with_inputs_of_one(batch: int) -> None:
    model = Sliced().eval()
    plan = fx.plan(subject(model, (3, 8), batches=(batch, batch, batch + 2)))
    (call,) = subject(model, (3, 8), batches=(batch,)).calls
    candidate = fx.rewrite(copy.deepcopy(model), Plan(plan.sites), Subject(model, (), (call,)))
    for size in (1, 2, 5):
        x = torch.randn(size, 3, 8)
        torch.testing.assert_close(candidate(x), model(x))


def test_where_it_knows_no_formula_it_says_which_it_knows() -> None:
    plan = fx.plan(subject(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), (8,)))
    assert (plan.sites, plan.refused) == ((), ())
    assert plan.notes[-1].startswith("Of GELU, SiLU, layer norm and RMS norm it found no formula")


class Counts(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return silu(x, x, x) * self.calls


class Counting(nn.Module):
    """Counts its calls, and has a part that may or may not read the number."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        if x.sum() > 1e9:  # not for fx
            return x
        self.part.gain = float(self.calls)  # type: ignore[assignment]
        return self.part(x)


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * torch.sigmoid(x)


class Gain(nn.Module):
    gain = 1.0

    def forward(self, x: Tensor) -> Any:
        return x * torch.sigmoid(x) * self.gain


def test_a_part_is_rewritten_whatever_state_its_surroundings_change() -> None:
    _, plan = applied(fx, subject(Counting(Gate()).eval(), (4,)))
    assert [site.members for site in plan.sites] == [("part",)]


def test_a_part_that_reads_what_its_surroundings_change_runs_its_own_code() -> None:
    model = Counting(Gain()).eval()
    given = subject(copy.deepcopy(model), (4,))
    candidate = fx.rewrite(copy.deepcopy(model), fx.plan(given), given)
    x = torch.randn(2, 4)
    for _ in range(3):
        torch.testing.assert_close(candidate(x), model(x))
    assert leaves.counts(candidate)["part"].own == {"gain changed": 2}


class Borrows(nn.Module):
    """Calls a module that is not among its own."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.others = (other,)

    def forward(self, x: Tensor) -> Any:
        return self.others[0](x)


class Lends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.gate = nn.Linear(4, 4), Gate()
        self.borrows = Borrows(self.linear)

    def forward(self, x: Tensor) -> Any:
        return self.gate(self.borrows(x)) if x.sum() < 1e9 else x


def test_a_part_that_calls_what_is_not_its_own_is_left() -> None:
    _, plan = applied(fx, subject(Lends().eval(), (4,)))
    assert [site.members for site in plan.sites] == [("gate",)]


def test_refuses_state_hooks_and_training() -> None:
    assert "changes Python state" in fx.plan(subject(Counts().eval(), (4,))).refused[0].reason
    model = nn.Sequential(nn.Linear(4, 4), Part()).eval()
    model[0].register_forward_hook(lambda *_: None)
    assert "hook" in fx.plan(Subject(model, (), ())).blocker
    assert "training" in fx.plan(Subject(Part().train(), (), ())).blocker


PASSES = """
import torch
def twice_is_add(module):
    for node in module.graph.nodes:
        if node.target is torch.relu:
            node.target = torch.nn.functional.relu6
def nothing(module):
    return module
def scales(module):
    module.gain = torch.nn.Linear(4, 4)
    module.register_buffer("shift", torch.ones(4))
    graph, output = module.graph, module.graph.output_node()
    with graph.inserting_before(output):
        scaled = graph.call_module("gain", (output.args[0],))
        output.args = (graph.call_function(torch.add, (scaled, graph.get_attr("shift"))),)
"""


class Relu(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.relu(x)


def test_a_users_own_pass(tmp_path: Path) -> None:
    path = tmp_path / "my_passes.py"
    path.write_text(PASSES)
    own = FxPasses.configure({"passes": f"{path}:twice_is_add"})
    given = subject(Relu().eval(), (4,))
    plan = own.plan(given)
    assert plan.sites[0].name == "the model: my_passes.py:twice_is_add"
    candidate = own.rewrite(Relu().eval(), plan, given)
    assert torch.equal(candidate(torch.tensor([[9.0, -1.0]])), torch.tensor([[6.0, 0.0]]))
    with pytest.raises(InputError, match="no function 'missing'"):
        FxPasses(passes=f"{path}:missing").plan(given)
    with pytest.raises(InputError, match="There is no pass"):
        FxPasses(passes="nowhere.py:f").plan(given)


class Named(Relu):
    """It has another attribute of the name that a pass uses."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Identity()


@pytest.mark.parametrize("kind", [Relu, Named])
def test_the_module_gets_what_a_pass_adds(tmp_path: Path, kind: type[nn.Module]) -> None:
    path = tmp_path / "my_passes.py"
    path.write_text(PASSES)
    own = FxPasses(passes=f"{path}:scales")
    given = subject(kind().eval(), (4,))
    candidate: Any = own.rewrite(kind().eval(), own.plan(given), given)
    for model in (candidate, copy.deepcopy(candidate), pickle.loads(pickle.dumps(candidate))):
        model.double()
        added = next(module for module in model.modules() if isinstance(module, nn.Linear))
        x = torch.randn(2, 4, dtype=torch.float64)
        torch.testing.assert_close(model(x), added(x.relu()) + 1)


def test_formulas_are_replaced_before_a_users_own_pass(tmp_path: Path) -> None:
    path = tmp_path / "my_passes.py"
    path.write_text(PASSES)
    _, plan = applied(FxPasses(passes=f"{path}:nothing"), subject(Does(silu).eval(), (3, 8)))
    assert [site.name for site in plan.sites] == ["the model: silu", "the model: my_passes.py:nothing"]


def test_a_recipe_finds_its_sites_again_or_says_so() -> None:
    given = subject(Does(silu).eval(), (3, 8))
    plan = fx.plan(given)
    again = fx.rewrite(Does(silu).eval(), plan, Subject(given.model, (), ()))
    assert again(torch.ones(1, 8)).shape == (1, 8)
    with pytest.raises(StrategyError, match="does not find"):
        fx.rewrite(Does(other_gate).eval(), plan, Subject(given.model, (), ()))
