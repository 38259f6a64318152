import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, weight_norm

from fusionadvisor.strategies.base import Call, Subject
from fusionadvisor.strategies.folding import FoldedNorm
from fusionadvisor.strategies.fuse_modules import FuseModules
from tests.strategies.subjects import applied, randomise, reasons, subject, subject_of

fuse = FuseModules()
Image = tuple[int, int, int]
IMAGE: Image = (4, 7, 7)


def norms(model: nn.Module) -> int:
    """Batch norms that run; a guarded pair keeps its original as ``unfolded``."""
    named = (name for name, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    return sum("unfolded" not in name for name in named)


class Block(nn.Module):
    """Two pairs, as most people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 4, 1)
        self.bn2 = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Any:
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.conv2(out)
        out = self.bn2(out)
        out += x
        return torch.relu(out)


def folds(model: nn.Module, sites: int, *shapes: tuple[int, ...]) -> nn.Module:
    randomise(model).eval()
    candidate, plan = applied(fuse, subject(model, *(shapes or (IMAGE,))))
    assert len(plan.sites) == sites, reasons(plan)
    assert norms(candidate) == norms(model) - sites
    return candidate


def refuses(model: nn.Module, *words: str, shapes: tuple[tuple[int, ...], ...] = (IMAGE,), **more: Any) -> None:
    randomise(model)
    if not more.pop("keep_mode", False):
        model.eval()
    plan = fuse.plan(subject(model, *shapes, **more))
    assert not plan.sites
    for word in words:
        assert word in reasons(plan), reasons(plan)


def test_folds_pairs_and_names_them() -> None:
    model = randomise(Block()).eval()
    candidate, plan = applied(fuse, subject(model, IMAGE))
    assert [site.name for site in plan.sites] == ["conv1 → bn1", "conv2 → bn2"]
    assert isinstance(candidate.bn1, FoldedNorm)
    assert plan.refused == ()
    assert fuse.recheck(model, plan) == ""


def test_a_folded_model_cannot_go_back_to_training() -> None:
    candidate = folds(Block(), 2)
    candidate.eval()
    with pytest.raises(RuntimeError, match="fold again"):
        candidate.train()


def test_containers() -> None:
    inner = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Identity(), nn.BatchNorm2d(4), nn.ReLU())
    folds(nn.Sequential(inner, nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))), 2)


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(3))
        self.bns = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(3))
        self.blocks = nn.ModuleDict({"a": nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))})

    def forward(self, x: Tensor) -> Any:
        for conv, bn in zip(self.convs, self.bns, strict=True):
            x = bn(conv(x))
        x = self.blocks["a"](x)
        if x.sum() > 0:
            x = x * 2
        return {"features": x, "pooled": (x.mean((2, 3)),)}


class Indexed(Lists):
    def forward(self, x: Tensor) -> Any:
        for i in range(3):
            x = self.convs[i](x)
            x = self.bns[i](x)
        while x.abs().max() < 1:
            x = x * 2
        return {"x": self.blocks["a"](x)}


@pytest.mark.parametrize("kind", [Lists, Indexed])
def test_folds_in_lists_of_a_model_that_branches_on_data(kind: type[Lists]) -> None:
    folds(kind(), 4)


def test_transposed_and_other_dimensions() -> None:
    folds(nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), nn.BatchNorm2d(6)), 1)
    folds(nn.Sequential(nn.ConvTranspose1d(4, 8, 4, stride=2, padding=1, bias=False), nn.BatchNorm1d(8)), 1, (4, 9))
    folds(nn.Sequential(nn.Conv3d(4, 4, 3, groups=4), nn.BatchNorm3d(4, affine=False)), 1, (4, 5, 5, 5))
    folds(nn.Sequential(nn.Conv1d(4, 8, 3, padding="same"), nn.BatchNorm1d(8, momentum=None)), 1, (4, 9))
    folds(nn.Sequential(nn.Linear(5, 3, bias=False), nn.BatchNorm1d(3)), 1, (5,))


def test_norm_before_the_layer() -> None:
    folds(nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, groups=2, stride=2)), 1)
    folds(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)), 1, (5,))
    refuses(nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, padding=1)), "1 pads its input")
    refuses(nn.Sequential(nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 6, 3)), "1 is transposed")


def test_half_precision_folds_no_worse_than_the_model_itself() -> None:
    folds(Block().bfloat16(), 2)
    folds(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)).half(), 1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    bias=st.booleans(), groups=st.sampled_from([1, 2, 4]), stride=st.sampled_from([1, 2]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), affine=st.booleans(),
    eps=st.sampled_from([1e-5, 1e-3, 0.1]), transposed=st.booleans(), before=st.booleans(),
)  # fmt: skip
def test_agrees_with_float64(
    bias: bool, groups: int, stride: int, dtype: torch.dtype, affine: bool, eps: float, transposed: bool, before: bool
) -> None:
    kind = nn.ConvTranspose2d if transposed and not before else nn.Conv2d
    layer = kind(4, 8, 3, stride=stride, groups=groups, bias=bias)
    norm = nn.BatchNorm2d(4 if before else 8, eps=eps, affine=affine)
    folds(nn.Sequential(*((norm, layer) if before else (layer, norm))).to(dtype), 1)


# What must be left alone: each kind in at least two shapes. ---------------------------------------------------------


class OtherConsumer(Block):
    def forward(self, x: Tensor) -> Any:
        y = self.conv1(x)
        return self.bn1(y) + y


class ReturnedToo(Block):
    def forward(self, x: Tensor) -> Any:
        y = self.conv1(x)
        return self.bn1(y), y[:, :1]


class Kept(Block):
    def forward(self, x: Tensor) -> Any:
        self.last = self.conv1(x)
        return self.bn1(self.last)


def test_the_output_of_the_convolution_is_used_elsewhere() -> None:
    refuses(OtherConsumer(), "output of conv1 is also read by aten::add")
    refuses(ReturnedToo(), "output of conv1 is also returned")
    refuses(Kept(), "conv1")


class Twice(Block):
    def forward(self, x: Tensor) -> Any:
        return self.bn1(self.conv1(x)) + self.conv1(x * 2)


class TwicePaired(Block):
    def forward(self, x: Tensor) -> Any:
        return self.bn1(self.conv1(x)) + self.bn1(self.conv1(x * 2))


class SharedNorm(Block):
    def forward(self, x: Tensor) -> Any:
        return self.bn2(self.conv2(self.bn1(self.conv1(x)))) + self.bn2(x)


def test_modules_called_more_than_once() -> None:
    refuses(Twice(), "conv1 is called 2 times")
    refuses(TwicePaired(), "2 times")
    plan = fuse.plan(subject(randomise(SharedNorm()).eval(), IMAGE))
    assert [site.name for site in plan.sites] == ["conv1 → bn1"]
    assert "bn2 is called 2 times" in reasons(plan)


def tied(model: Block) -> Block:
    model.other = nn.Conv2d(4, 6, 3)
    model.other.weight = model.conv1.weight
    return model


def aliased(model: Block) -> Block:
    model.alias = model.conv1
    return model


def sliced(model: Block) -> Block:
    model.register_buffer("view", model.conv1.weight.detach()[:2])
    return model


class ReadsWeight(Block):
    def forward(self, x: Tensor) -> Any:
        return self.bn1(self.conv1(x)) * self.conv1.weight.norm()


class ReadsStatistics(Block):
    def forward(self, x: Tensor) -> Any:
        return self.bn1(self.conv1(x)) + self.bn1.get_buffer("running_mean").mean()


def test_shared_and_elsewhere_read_tensors() -> None:
    assert len(fuse.plan(subject(randomise(aliased(Block())).eval(), IMAGE)).sites) == 2  # called once all the same
    for change, words in ((tied, "shares its memory with"), (sliced, "view")):
        plan = fuse.plan(subject(randomise(change(Block())).eval(), IMAGE))
        assert [site.name for site in plan.sites] == ["conv2 → bn2"]
        assert words in reasons(plan)
    refuses(ReadsWeight(), "conv1.weight is also read by")
    refuses(ReadsStatistics(), "bn1.running_mean is also read by")


def spy(module: nn.Module, *_: Any) -> None: ...


def test_hooks_are_named() -> None:
    for where, how in itertools.product(("0", "1"), ("register_forward_hook", "register_forward_pre_hook")):
        model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        getattr(model.get_submodule(where), how)(spy)
        refuses(model, f"{where} has a forward", "spy, test_fuse_modules.py:")


def test_parametrizations_and_their_older_forms() -> None:
    make = (parametrizations.weight_norm, parametrizations.spectral_norm, weight_norm,
            lambda m: prune.l1_unstructured(m, "weight", 0.5))  # type: ignore[no-untyped-call]  # fmt: skip
    for change in make:
        model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        model[0] = change(model[0])
        refuses(model, "0 has a ")


class Padded(nn.Conv2d):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).abs()


class Frozen(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Any:
        return x * 2


def test_subclasses_and_instance_forwards() -> None:
    refuses(nn.Sequential(Padded(4, 4, 1), nn.BatchNorm2d(4)), "0 is a subclass, Padded")
    refuses(nn.Sequential(nn.Conv2d(4, 4, 1), Frozen(4)), "1 is a subclass, Frozen")
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    model[0].forward = lambda x: x * 2
    refuses(model, "0 has a forward of its own")


def test_training_and_missing_statistics() -> None:
    refuses(Block().train(), "training mode", keep_mode=True)
    refuses(Block(), "inference only", mode="training")
    refuses(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)), "1 keeps no running")


def test_a_norm_over_another_dimension() -> None:
    refuses(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), "3-D tensor", shapes=((4, 5),))
    refuses(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 5)), "3-D tensor", shapes=((5, 5),))


# Paths that no recording took. --------------------------------------------------------------------------------------


class SkipsNorm(Block):
    def forward(self, x: Tensor) -> Any:
        y = self.conv1(x)
        if x.mean() < 1e6:
            y = self.bn1(y)
        return y


class UsesConvAlone(Block):
    def forward(self, x: Tensor) -> Any:
        if x.mean() > 1e6:
            return torch.tanh(self.conv1(x))
        return self.bn1(self.conv1(x))


class ReusesLater(Block):
    def forward(self, x: Tensor) -> Any:
        y = self.conv1(x)
        z: Tensor = self.bn1(y)
        return z + y if x.mean() > 1e6 else z


class ByGetattr(Block):
    def __init__(self) -> None:
        super().__init__()
        self.conv3 = nn.Conv2d(4, 6, 3)

    def forward(self, x: Tensor) -> Any:
        name = "conv1" if x.mean() > 1e6 else "conv3"
        return self.bn1(self.conv1(x)) + getattr(self, name)(x).mean()


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Any:
        return self.body[0](x) if x.mean() > 1e6 else self.body(x)


class Reaches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Any:
        return helper(self.block, x) if x.mean() > 1e6 else self.block(x)


def helper(block: Block, x: Tensor) -> Any:
    return block.conv1(x)


@pytest.mark.parametrize("kind", [SkipsNorm, UsesConvAlone, ReusesLater, ByGetattr, Outer])
def test_a_path_not_taken_is_not_assumed_away(kind: type[nn.Module]) -> None:
    refuses(kind(), "test_fuse_modules.py:")


def test_another_module_may_reach_in() -> None:
    plan = fuse.plan(subject(randomise(Reaches()).eval(), IMAGE))
    assert [site.name for site in plan.sites] == ["block.conv2 → block.bn2"]
    assert "(helper) may return the output of block.conv1 without block.bn1" in reasons(plan)


class WritesInputLater(Block):
    def forward(self, x: Tensor) -> Any:
        x = x * 1
        y = self.bn2(x)
        x.add_(1)
        return self.conv1(y)


class WritesInputSometimes(Block):
    def forward(self, x: Tensor) -> Any:
        x = x * 1
        y = self.bn2(x)
        if x.mean() > 1e6:
            x.add_(1)
        return self.conv1(y)


@pytest.mark.parametrize("kind", [WritesInputLater, WritesInputSometimes])
def test_a_norm_folded_forwards_leaves_an_alias_that_nobody_may_write(kind: type[Block]) -> None:
    model = kind()
    model.conv1.padding = (0, 0)
    model.conv1._reversed_padding_repeated_twice = [0] * 4
    refuses(model, "bn2")


class Switch(nn.Module):
    """Takes one of two pairs, by what is in the input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm_a = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.b, self.norm_b = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Any:
        if x[0, 0, 0, 0] > 0:
            return {"a": self.norm_a(self.a(x))}
        y = self.b(x)
        return {"b": self.norm_b(y)}


def test_folds_a_pair_on_a_path_that_only_some_inputs_take() -> None:
    model = randomise(Switch()).eval()
    x = torch.rand(2, 4, 7, 7)
    given = subject_of(model, (Call((x,)), Call((-x,)), Call((x * 2,))))
    candidate, plan = applied(fuse, given)
    assert len(plan.sites) == 2
    assert norms(candidate) == 0


class Reversed(Block):
    def __init__(self) -> None:
        super().__init__()
        self.conv3, self.bn3 = nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Any:
        return self.bn3(self.conv3(torch.relu(self.conv1(x))))


def test_an_activation_between_is_no_pair() -> None:
    model = randomise(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.BatchNorm2d(4))).eval()
    plan = fuse.plan(subject(model, IMAGE))
    assert not plan.sites
    assert not plan.refused
    folds(Reversed(), 1)


def test_says_what_brings_nothing_on_the_cpu() -> None:
    plan = fuse.plan(subject(nn.Sequential(nn.Linear(5, 4), nn.ReLU()).eval(), (5,)))
    assert plan.sites == ()
    assert "0 → 1" in plan.notes[0]
    assert "on the CPU" in plan.notes[0]


def test_wrapped_compiled_and_scripted_models_are_refused() -> None:
    model = Block().eval()
    assert "TorchScript" in fuse.plan(Subject(torch.jit.script(nn.Sequential(nn.ReLU())), (), ())).blocker
    assert "DataParallel" in fuse.plan(subject(nn.DataParallel(model), IMAGE)).blocker
    given = subject(model, IMAGE)
    model.compile()
    assert "compiled" in fuse.plan(given).blocker


def test_recheck_refuses_a_model_that_is_built_differently() -> None:
    plan = fuse.plan(subject(randomise(Block()).eval(), IMAGE))
    other = Block().eval()
    other.conv1 = nn.Conv2d(4, 8, 3)
    assert "built differently" in fuse.recheck(other, plan)
    assert "training mode" in fuse.recheck(Block(), plan)
    assert "not in this model" in fuse.recheck(nn.Sequential().eval(), plan)


class Switching(nn.Module):
    """Puts a part of itself into training mode while it runs, and perhaps back."""

    def __init__(self, back: bool) -> None:
        super().__init__()
        self.conv, self.b, self.back = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), back

    def forward(self, x: Tensor) -> Tensor:
        self.b.train()
        y: Tensor = self.b(self.conv(x))
        if self.back:
            self.b.eval()
        return y


@pytest.mark.parametrize("back", [False, True])
def test_a_norm_that_forward_puts_into_training_mode_stays(back: bool) -> None:
    refuses(Switching(back), "forward switches b to training mode while it runs")


def _documented(text: str) -> Any:
    """A decorator whose own code keeps a module's parts in hand: it runs when the class is made, not in forward."""

    def wrap(function: Any) -> Any:
        function.__doc__ = [text for _ in vars(function)] or text
        return function

    return wrap


class Documented(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

    @_documented("what it does")  # type: ignore[untyped-decorator]
    def forward(self, x: Tensor) -> Any:
        return self.bn(self.conv(x))


def test_code_of_decorators_is_not_code_of_forward() -> None:
    folds(Documented(), 1)


def _padded(x: Tensor, conv: Any) -> Tensor:
    return nn.functional.pad(x, (conv.kernel_size[0] // 2,) * 4)


def _scaled(x: Tensor, conv: Any) -> Tensor:
    if x.mean() > 50:
        x = x * conv.weight.mean()
    return x


class Pads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Any:
        x = _padded(x, self.conv)
        x = self.conv(x)
        return self.bn(x)


class Scales(Pads):
    def forward(self, x: Tensor) -> Any:
        x = _scaled(x, self.conv)
        x = self.conv(x)
        return self.bn(x)


def test_a_function_may_ask_a_layer_for_its_hyper_parameters() -> None:
    folds(Pads(), 1)
    refuses(Scales(), "(_scaled) reads a weight of conv")


class Optional(nn.Module):
    """Asks whether there is a norm; one of its kind may have it taken away."""

    def __init__(self, drops: bool) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.drops = drops

    def forward(self, x: Tensor) -> Any:
        x = self.conv(x)
        if self.bn is not None:
            x = self.bn(x)
        return x


class Drops(Optional):
    def forward(self, x: Tensor) -> Any:
        if x.mean() > 50:
            self.bn = None  # type: ignore[assignment]
        return super().forward(x)


def test_a_norm_that_is_always_there_is_no_branch() -> None:
    folds(Optional(False), 1)
    folds(nn.Sequential(Optional(False), Optional(False)), 2)
    refuses(Drops(True), "(Drops.forward) changes conv")


class Reshaped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        h = self.fc(x)
        return self.last(torch.relu(self.bn(h.view(-1, 8)))).view(x.shape)


class Regrouped(Reshaped):
    def forward(self, x: Tensor) -> Any:
        return self.bn(self.fc(x).view(-1, 8, 4)).view(x.shape)


def test_a_view_between_a_layer_and_its_norm() -> None:
    folds(Reshaped(), 1, (5, 8))
    refuses(Regrouped(), "(Regrouped.forward) uses the output of fc in view", shapes=((8, 8),))
