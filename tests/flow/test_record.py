"""The recorder, on models of many shapes, against flows derived by hand and against the numbers themselves."""

import copy
import importlib
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusionadvisor.errors import InputError
from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.flow.record import record
from fusionadvisor.workload.inputs import Call
from tests.flow.replay import replay


def run_of(model: nn.Module, *args: Any, grad: bool = False, **kwargs: Any) -> Callable[[], Any]:
    def run() -> Any:
        with torch.set_grad_enabled(grad):
            return model(*args, **kwargs)

    return run


def recorded(model: nn.Module, *args: Any, grad: bool = False) -> FlowGraph:
    return record(run_of(model, *args, grad=grad), model, args)


def work(graph: FlowGraph) -> list[str]:
    return [op.name.removeprefix("aten::") for op in graph.work() if not op.name.startswith("aten::empty")]


def only(graph: FlowGraph, name: str) -> Any:
    (op,) = [op for op in graph.ops if op.name == f"aten::{name}"]
    return op


class Function(nn.Module):
    """A module whose forward is a function of it and its arguments."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


# -- values ------------------------------------------------------------------------------------------------------


def test_a_chain_hands_each_value_to_the_next_op() -> None:
    model = Function(lambda self, x: torch.sigmoid(self.fc(x)) * 2.0, fc=nn.Linear(3, 4))
    x = torch.randn(2, 3)
    graph = recorded(model, x)
    assert work(graph) == ["addmm", "sigmoid", "mul"]
    addmm, sigmoid, mul = graph.work()
    assert addmm.operands.keys() == {"self", "mat1", "mat2"}
    assert addmm.operands["mat1"] == graph.inputs
    assert sigmoid.reads == addmm.writes
    assert mul.reads == sigmoid.writes
    assert mul.arguments["other"] == 2.0
    assert graph.outputs == mul.writes
    bias = graph.values[addmm.operands["self"][0]]
    assert (bias.role, bias.name, bias.shape) == ("parameter", "fc.bias", (4,))
    given = graph.values[graph.inputs[0]]
    assert (given.role, given.shape, given.dtype, given.strides) == ("input", (2, 3), "float32", (3, 1))


def test_a_transposed_weight_is_a_view_on_the_parameters_storage() -> None:
    model = nn.Linear(3, 4)
    graph = recorded(model, torch.randn(2, 3))
    t = only(graph, "t")
    assert t.view
    weight, turned = graph.values[t.reads[0]], graph.values[t.writes[0]]
    assert weight.name == "weight"
    assert turned.storage == weight.storage
    assert turned.strides == (1, 3)
    assert [op.name for op in graph.readers(weight.id)] == ["aten::addmm"]


def test_an_op_in_place_makes_a_new_state_on_the_same_storage() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y.relu_()
        return y * 2

    graph = recorded(Function(forward), torch.randn(3))
    add, relu, mul = graph.ops
    assert relu.reads == relu.mutates == add.writes
    assert relu.writes != add.writes
    assert graph.values[relu.writes[0]].storage == graph.values[add.writes[0]].storage
    assert mul.reads == relu.writes
    assert not relu.view


def test_a_write_through_a_view_is_seen_by_the_next_reader_of_the_base() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y[0].mul_(2)
        return y.exp()

    graph = recorded(Function(forward), torch.randn(3, 4))
    mul, exp = only(graph, "mul_"), only(graph, "exp")
    assert graph.producer(exp.reads[0]) == mul
    assert exp.reads[0] != only(graph, "add").writes[0]


def test_a_write_to_one_half_leaves_the_other_halfs_state_alone() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        left, right = y[:2], y[2:]
        left.mul_(2)
        return right.exp()

    graph = recorded(Function(forward), torch.randn(4, 4))
    source = graph.producer(only(graph, "exp").reads[0])
    assert source is not None
    assert source.name == "aten::slice"


def test_views_move_no_data_and_copies_do() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view(4, 6).transpose(0, 1).reshape(2, 12).unsqueeze(0)

    graph = recorded(Function(forward), torch.randn(2, 12))
    assert [op.name for op in graph.ops if not op.view] == ["aten::clone"]
    assert graph.producer(graph.outputs[0]) == only(graph, "unsqueeze")


def test_chunks_are_views_of_one_value() -> None:
    model = Function(lambda self, x: torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), -1))
    graph = recorded(model, torch.randn(2, 8))
    assert work(graph) == ["neg", "cat"]
    cat = only(graph, "cat")
    assert len(cat.operands["tensors"]) == 2
    assert graph.values[cat.operands["tensors"][1]].storage == graph.values[graph.inputs[0]].storage
    assert graph.values[cat.operands["tensors"][1]].offset == 0
    assert graph.values[only(graph, "neg").reads[0]].offset == 4


def test_an_address_used_again_is_another_storage() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(50):
            x = x + 1  # each step frees what the one before made, so addresses come back
        return x

    graph = recorded(Function(forward), torch.randn(1000))
    assert len({graph.values[op.writes[0]].storage for op in graph.ops}) == 50
    for before, after in zip(graph.ops, graph.ops[1:], strict=False):
        assert after.reads == before.writes


def test_nothing_is_kept_alive() -> None:
    import weakref

    made: list[weakref.ref[torch.Tensor]] = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        made.append(weakref.ref(y))
        z = y * 2
        del y
        assert made[0]() is None
        return z

    graph = recorded(Function(forward), torch.randn(3))
    assert len(graph.ops) == 2


def test_a_tensor_made_outside_is_a_constant() -> None:
    outside = torch.randn(3)
    graph = recorded(Function(lambda self, x: x + outside), torch.randn(3))
    assert graph.values[graph.ops[0].reads[1]].role == "constant"


def test_outputs_in_dicts_and_dataclasses_are_found() -> None:
    model = Function(lambda self, x: {"a": [x + 1], "b": (x * 2, {"c": x - 3}), "n": 5})
    graph = recorded(model, torch.randn(3))
    assert [graph.producer(v).name for v in graph.outputs] == ["aten::add", "aten::mul", "aten::sub"]  # type: ignore[union-attr]


def test_what_is_kept_on_the_module_escapes() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.cache = x * 2
        return self.cache.sum() + x.mean()  # type: ignore[no-any-return]

    graph = recorded(Function(forward), torch.randn(3))
    assert graph.held == only(graph, "mul").writes
    assert graph.escapes(only(graph, "mul").writes[0])
    assert not graph.escapes(only(graph, "mean").writes[0])


# -- modules -----------------------------------------------------------------------------------------------------


def test_ops_know_their_module_their_line_and_the_call() -> None:
    residual_block = importlib.import_module("sample_models.residual_block")
    model = residual_block.build_model().eval()
    x = torch.randn(2, 64, 8, 8)
    graph = recorded(model, x)
    ops = [
        (op.name.removeprefix("aten::"), op.module, op.call, op.source.line if op.source else 0) for op in graph.work()
    ]
    lines = Path(str(residual_block.__file__)).read_text().splitlines()
    line = {text.strip(): number for number, text in enumerate(lines, 1)}
    assert [op for op in ops if op[0] != "empty"] == [
        ("convolution", "conv1", 0, line["out = self.conv1(x)"]),
        ("native_batch_norm", "bn1", 0, line["out = self.bn1(out)"]),
        ("relu", "relu", 0, line["out = self.relu(out)"]),
        ("convolution", "conv2", 0, line["out = self.conv2(out)"]),
        ("native_batch_norm", "bn2", 0, line["out = self.bn2(out)"]),
        ("add", "", 0, line["out = out + x"]),
        ("relu", "relu", 1, line["return self.relu(out)"]),
    ]
    assert all(op.source and op.source.file == residual_block.__file__ for op in graph.ops)
    first, second = graph.calls_of("relu")
    assert (first.call, second.call) == (0, 1)
    assert second.inputs == only(graph, "add").writes
    assert second.outputs == graph.outputs


def test_a_module_under_two_paths_is_known_by_the_first() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    graph = recorded(model, torch.randn(2, 4))
    assert graph.aliases == {"2": "0"}
    assert [op.module for op in graph.ops if op.name == "aten::addmm"] == ["0", "0"]
    assert [op.call for op in graph.ops if op.name == "aten::addmm"] == [0, 1]
    assert len(graph.calls_of("2")) == 2


def test_nested_modules_nest_and_the_inside_of_a_call_is_its_ops() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    graph = recorded(model, torch.randn(2, 4))
    paths = [(call.module, call.parent) for call in graph.calls]
    assert paths == [("", ""), ("0", ""), ("0.0", "0"), ("0.1", "0"), ("1", "")]
    inner = graph.calls_of("0")[0]
    assert [op.name for op in graph.ops[inner.first_op : inner.end_op]] == ["aten::t", "aten::addmm", "aten::relu"]
    assert {op.index for op in graph.within("0")} == set(range(inner.first_op, inner.end_op))


def test_keyword_arguments_of_a_submodule_are_inputs_of_its_call() -> None:
    class Scale(nn.Module):
        def forward(self, x: torch.Tensor, *, by: torch.Tensor) -> torch.Tensor:
            return x * by

    model = Function(lambda self, x: self.scale(x, by=x.exp()), scale=Scale())
    graph = recorded(model, torch.randn(3))
    assert graph.calls_of("scale")[0].inputs == (graph.inputs[0], only(graph, "exp").writes[0])


def test_a_module_made_during_forward_belongs_to_its_caller() -> None:
    model = Function(lambda self, x: nn.ReLU()(x))
    graph = recorded(model, torch.randn(3))
    assert [op.module for op in graph.ops] == [""]
    assert [call.module for call in graph.calls] == [""]


def test_a_module_that_raises_and_is_caught_is_left() -> None:
    class Breaks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.breaks(x)  # type: ignore[no-any-return]
        except ValueError:
            return x.exp()

    graph = recorded(Function(forward, breaks=Breaks()), torch.randn(3))
    assert only(graph, "exp").module == ""
    assert graph.calls_of("breaks")[0].outputs == ()


def test_a_module_that_holds_its_parent_does_not_loop() -> None:
    model = Function(lambda self, x: self.child(x), child=nn.ReLU())
    model.get_submodule("child").add_module("up", model)
    graph = recorded(model, torch.randn(3))
    assert graph.ops[0].module == "child"


def test_the_graph_follows_the_branch_that_was_taken() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x.exp() if x.sum() > 0 else x.neg()

    model = Function(forward)
    assert "exp" in work(recorded(model, torch.ones(3)))
    graph = recorded(model, -torch.ones(3))
    assert "neg" in work(graph)
    assert [op.name for op in graph.ops if op.sync] == ["aten::_local_scalar_dense"]


def test_inference_mode_records_the_same_ops_as_no_grad() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    x = torch.randn(2, 3, 8, 8)

    def inference() -> torch.Tensor:
        with torch.inference_mode():
            return model(x)  # type: ignore[no-any-return]

    assert work(record(inference, model, x)) == work(recorded(model, x))


# -- training ----------------------------------------------------------------------------------------------------


def training(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    return step


def test_backward_ops_belong_to_the_module_and_line_of_their_forward() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 8)
            self.second = nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            x = torch.tanh(x)
            return self.second(x)  # type: ignore[no-any-return]

    model = Net()
    graph = record(training(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(3, 4)), model)
    backward = [op for op in graph.ops if op.phase == "backward"]
    assert {op.module for op in backward if op.name == "aten::mm"} == {"first", "second"}
    forward = {op.module: op.source for op in graph.ops if op.phase == "forward" and op.name == "aten::addmm"}
    for op in backward:
        if op.name == "aten::mm":
            assert op.source == forward[op.module]
    tanh, gradient = only(graph, "tanh"), only(graph, "tanh_backward")
    assert gradient.source == tanh.source
    assert gradient.phase == "backward"
    assert graph.values[tanh.writes[0]].storage in {graph.values[v].storage for v in gradient.reads}


def test_the_optimizer_is_its_own_phase_and_writes_the_parameters() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    graph = record(training(model, optimizer, torch.randn(3, 4)), model)
    written = {graph.values[v].name for op in graph.ops if op.phase == "optimizer" for v in op.mutates}
    assert written == {"weight", "bias"}
    assert [op.phase for op in graph.ops] == sorted(
        (op.phase for op in graph.ops), key=["forward", "backward", "optimizer"].index
    )


def test_gradients_reach_the_optimizer() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    graph = record(training(model, optimizer, torch.randn(3, 4)), model)
    update = next(op for op in graph.ops if op.phase == "optimizer" and op.operands.get("other"))
    gradient = update.operands["other"][0]
    source = graph.producer(gradient)
    assert source is not None
    assert source.phase == "backward"


def test_checkpointed_forward_is_repeated_in_the_backward_of_its_module() -> None:
    from torch.utils.checkpoint import checkpoint

    model = Function(
        lambda self, x: checkpoint(self.body, x, use_reentrant=False), body=nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    )
    x = torch.randn(2, 4, requires_grad=True)

    def run() -> None:
        model(x).sum().backward()

    graph = record(run, model, x)
    again = [op for op in graph.ops if op.name == "aten::tanh"]
    assert [(op.phase, op.module) for op in again] == [("forward", "body.1"), ("backward", "body.1")]


def test_a_custom_function_owns_its_backward() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.sin()

    class Uses(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Double.apply(x)  # type: ignore[no-any-return, no-untyped-call]

    model = Function(lambda self, x: self.uses(self.fc(x)).sum(), fc=nn.Linear(3, 3), uses=Uses())
    x = torch.randn(2, 3)
    graph = record(lambda: model(x).backward(), model, x)
    assert only(graph, "sin").module == "uses"
    assert only(graph, "sin").phase == "backward"


def test_batch_norm_in_training_writes_its_statistics() -> None:
    model = nn.BatchNorm1d(4)
    graph = recorded(model, torch.randn(8, 4))
    norm = only(graph, "native_batch_norm")
    assert [graph.values[v].name for v in norm.mutates] == ["running_mean", "running_var"]
    assert recorded(model.eval(), torch.randn(8, 4)).ops[-1].mutates == ()


# -- nothing changes ---------------------------------------------------------------------------------------------


def test_everything_a_training_step_changes_is_put_back() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.randn(2, 3, 8, 8)
    training(model, optimizer, x)()  # so that there is optimizer state and there are gradients
    before = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    gradients = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters() if p.grad is not None}
    flags = [m.training for m in model.modules()]
    random_state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]

    def step() -> torch.Tensor:
        model.eval()
        model.train()
        random.random()
        np.random.rand()
        return training(model, optimizer, x)()

    call, init = nn.Module.__call__, nn.Module.__init__
    graph = record(step, model, x)
    assert len(graph.ops) > 50
    assert nn.Module.__call__ is call
    assert nn.Module.__init__ is init
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    after = optimizer.state_dict()
    assert after["param_groups"] == state["param_groups"]
    for index, entries in state["state"].items():
        for key, value in entries.items():
            assert torch.equal(after["state"][index][key], value), key
    for name, parameter in model.named_parameters():
        assert parameter.grad is gradients[name][0]
        assert torch.equal(gradients[name][0], gradients[name][1])
    assert [m.training for m in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), random_state[0])
    assert random.getstate() == random_state[1]
    assert np.array_equal(np.random.get_state()[1], random_state[2])  # type: ignore[index]


def test_a_first_step_leaves_no_optimizer_state() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    record(training(model, optimizer, torch.randn(3, 4)), model)
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())


def test_an_input_written_in_place_is_put_back() -> None:
    x = torch.randn(5)
    before = x.clone()
    graph = recorded(Function(lambda self, x: x.mul_(3)), x)
    assert torch.equal(x, before)
    assert graph.values[graph.ops[0].mutates[0]].role == "input"


def test_a_buffer_that_is_replaced_is_put_back() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count: torch.Tensor
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = self.count + 1
            return x + self.count

    model = Counts()
    own = model.count
    recorded(model, torch.randn(3))
    assert model.count is own


def test_it_is_put_back_when_the_run_raises() -> None:
    model = nn.BatchNorm1d(3)

    def run() -> None:
        model(torch.randn(4, 3))
        raise KeyError("theirs")

    call = nn.Module.__call__
    with pytest.raises(KeyError, match="theirs"):
        record(run, model)
    assert torch.equal(model.running_mean, torch.zeros(3))  # type: ignore[arg-type]
    assert nn.Module.__call__ is call


def test_hooks_run_once_stay_and_are_part_of_the_call() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    seen: list[int] = []

    def hook(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return output.neg()

    model[0].register_forward_hook(hook)
    hooks = dict(model[0]._forward_hooks)
    graph = recorded(model, torch.randn(2, 3))
    assert seen == [1]
    assert dict(model[0]._forward_hooks) == hooks
    assert only(graph, "neg").module == "0"
    assert graph.calls_of("0")[0].outputs == only(graph, "neg").writes


def test_the_recorded_run_computes_what_an_unrecorded_one_does() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU())
    x = torch.randn(4, 8)
    results: list[torch.Tensor] = []

    def run() -> None:
        results.append(model(x))

    torch.manual_seed(3)
    run()
    torch.manual_seed(3)
    record(run, model, x)
    assert torch.equal(results[0], results[1])


# -- kinds of tensors --------------------------------------------------------------------------------------------


def test_a_strided_nested_tensor_is_refused_in_words() -> None:
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    with pytest.raises(InputError, match="nested tensor"):
        recorded(Function(lambda self, x: x + 1), nested)


def test_a_nested_tensor_made_within_is_refused_in_words() -> None:
    """The encoder makes one of a padding mask, in evaluation mode."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()

    def padded(self: nn.Module, x: torch.Tensor) -> Any:
        return encoder(x, src_key_padding_mask=x[..., 0] > 2)

    with torch.no_grad(), pytest.raises(InputError, match="nested tensor"):
        recorded(Function(padded), torch.randn(2, 5, 8))


def test_a_wrapper_subclass_is_recorded_by_the_tensors_inside() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(torch.randn(3), torch.randn(3))  # type: ignore[no-untyped-call]
    graph = recorded(Function(lambda self, x: x.exp()), x)
    assert work(graph) == ["exp", "exp"]
    assert [op.reads for op in graph.ops if op.name == "aten::exp"] == [(graph.inputs[0],), (graph.inputs[1],)]


def test_a_subclass_without_dispatch_is_a_tensor() -> None:
    class Named(torch.Tensor):
        pass

    x = torch.randn(3).as_subclass(Named)
    graph = recorded(Function(lambda self, x: x.exp() + 1), x)
    assert work(graph) == ["exp", "add"]
    assert only(graph, "exp").reads == graph.inputs


def test_sparse_tensors_are_values() -> None:
    sparse = torch.eye(3).to_sparse()
    graph = recorded(Function(lambda self, x: torch.sparse.mm(sparse, x)), torch.randn(3, 2))
    assert "addmm" in "".join(work(graph)) or "mm" in "".join(work(graph))
    assert graph.producer(graph.outputs[0]) is not None


def test_vmap_is_recorded_as_the_batched_ops() -> None:
    model = Function(lambda self, x: torch.vmap(self.fc)(x), fc=nn.Linear(3, 2))
    graph = recorded(model, torch.randn(5, 3))
    assert graph.producer(graph.outputs[0]) is not None


def test_an_unused_lazy_module_is_left_alone() -> None:
    model = Function(lambda self, x: x + 1, lazy=nn.LazyLinear(3))
    assert work(recorded(model, torch.randn(3))) == ["add"]


# -- the numbers -------------------------------------------------------------------------------------------------


def in_place_soup(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    top, bottom = y.chunk(2)
    top += bottom
    z = y.t()
    y[:, 0].fill_(7)
    w = z * 2
    bottom.mul_(w.t()[2:])
    out = torch.empty_like(y)
    torch.add(y, z.t(), out=out)
    return out.view(-1)[1:].exp_().sum() + y.sum()


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.gru = nn.GRUCell(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(x)
        for _ in range(3):
            h = self.gru(self.norm(self.a(x)) + h, h)
        attention = F.scaled_dot_product_attention(h[None], x[None], h[None])
        return torch.where(attention[0] > 0, h, x).softmax(-1)


def sample(name: str) -> tuple[nn.Module, Any]:
    module = importlib.import_module(f"sample_models.{name}")
    make = next(getattr(module, f) for f in ("build_model", "get_model", "create_model") if hasattr(module, f))
    give = module.example_inputs if hasattr(module, "example_inputs") else module.get_inputs
    return make().eval(), Call.of(give())


@pytest.mark.parametrize("name", ["soup", "gated", "lstm", "resnet18", "transformer_block", "multi_conv"])
def test_running_the_graph_again_gives_the_models_output(name: str) -> None:
    """The strongest check there is: a wrong value, order, alias or argument would change the numbers."""
    torch.manual_seed(0)
    model: nn.Module
    if name == "soup":
        model, call = Function(in_place_soup), Call((torch.randn(4, 4),))
    elif name == "gated":
        model, call = Gated().eval(), Call((torch.randn(5, 8),))
    elif name == "lstm":
        model, call = Function(lambda self, x: self.lstm(x)[0], lstm=nn.LSTM(6, 5, 2)), Call((torch.randn(7, 2, 6),))
    else:
        model, call = sample(name)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        expected = model(*call.args, **call.kwargs)
        graph = record(run_of(model, *call.args, **call.kwargs), model, call)
        tensors = {id_: t for id_, (_, t) in zip(graph.inputs, call.tensors(), strict=True)}
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        tensors |= {v.id: named[v.name] for v in graph.values if v.role in ("parameter", "buffer")}
        again = replay(graph, tensors)[graph.outputs[0]]
    torch.testing.assert_close(again, expected, rtol=0, atol=0)


def test_a_compiled_part_is_recorded_op_by_op() -> None:
    part = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled: Any = torch.compile(part, backend="eager")
    model = nn.Sequential(compiled, nn.Linear(4, 2))
    x = torch.randn(2, 4)
    model(x)
    assert work(recorded(model, x)) == ["addmm", "relu", "addmm"]


def test_recording_inference_does_not_load_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from fusionadvisor.flow.record import record\n"
        "model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()).eval()\n"
        "x = torch.randn(2, 3)\n"
        "with torch.no_grad():\n"
        "    assert len(record(lambda: model(x), model, x).ops) == 3\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_modules_that_the_run_switches_are_named_and_put_back() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Dropout(), nn.Identity())
            self.flag, self.other = nn.Dropout(), nn.Dropout()

        def forward(self, x: torch.Tensor) -> Any:
            self.part.train()
            self.part.eval()
            self.flag.training = True
            self.other.eval()
            return self.other(self.flag(self.part(x)))

    model = Model().eval()
    train = nn.Module.train
    graph = recorded(model, torch.ones(3))
    assert graph.switched == ("part", "part.0", "part.1", "flag")
    assert not any(module.training for module in model.modules())
    assert nn.Module.train is train


def test_a_frozen_script_has_no_mode() -> None:
    model = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()))
    x = torch.randn(2, 4)
    with torch.no_grad():
        graph = record(lambda: model(x), model, (x,))
    assert graph.work()
