"""A path that no recording took, in every form that code has for it."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.strategies.folding import GuardedNorm
from fusionadvisor.strategies.fuse_modules import FuseModules
from tests.strategies import hidden_paths as paths
from tests.strategies.subjects import applied, randomise, reasons, subject

fuse = FuseModules()
NARROW, WIDE = (3, 16, 16), (3, 64, 64)


def agree(model: nn.Module, candidate: nn.Module, *inputs: Tensor, name: str = "forward") -> None:
    with torch.no_grad():
        for x in inputs:
            torch.testing.assert_close(getattr(candidate, name)(x), getattr(model, name)(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", paths.WRONG_IF_FOLDED)
def test_a_hidden_path_is_named(kind: type[nn.Module]) -> None:
    plan = fuse.plan(subject(randomise(kind()).eval(), NARROW))
    assert not plan.sites
    assert "hidden_" in reasons(plan), reasons(plan)


@pytest.mark.parametrize("kind", paths.FOLDED)
def test_what_hides_nothing_folds(kind: type[paths.Pair]) -> None:
    model = randomise(kind()).eval()
    candidate, plan = applied(fuse, subject(model, NARROW))
    assert len(plan.sites) == 1, reasons(plan)
    agree(model, candidate, torch.randn(2, *NARROW), torch.randn(2, *WIDE))
    for name in kind.methods:
        agree(model, candidate, torch.randn(2, *NARROW), name=name)


def test_a_flag_set_from_outside_brings_the_original_back() -> None:
    model: Any = randomise(paths.Flagged()).eval()
    candidate, plan = applied(fuse, subject(model, NARROW))
    assert "runs as before where raw is set otherwise" in plan.sites[0].detail
    folded: Any = copy.deepcopy(candidate)
    x = torch.randn(2, *NARROW)
    model.raw = folded.raw = True
    agree(model, folded, x)
    assert isinstance(folded.norm, GuardedNorm)
    assert folded.conv.guard.misses == 1
    model.raw = folded.raw = False
    agree(model, folded, x)


class NormAct(nn.BatchNorm2d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, x: Tensor) -> Any:
        x = nn.functional.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum or 0.0,
            self.eps,
        )
        return self.act(self.drop(x))


class Frozen(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Any:
        own: tuple[Any, ...] = self.weight, self.bias, self.running_var, self.running_mean
        weight, bias, var, mean = (t.reshape(1, -1, 1, 1) for t in own)
        scale = weight * (var + 1e-5).rsqrt()
        return x * scale + (bias - mean * scale)


class Squares(Frozen):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + x * x


class Norms(nn.Module):
    def __init__(self, *norms: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in norms)
        self.norms = nn.ModuleList(norms)

    def forward(self, x: Tensor) -> Any:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x))
        return x


def test_norms_of_other_classes_fold() -> None:
    model = randomise(Norms(NormAct(4), Frozen(4), nn.SyncBatchNorm(4))).eval()
    candidate, plan = applied(fuse, subject(model, (4, 8, 8)))
    assert len(plan.sites) == 3, reasons(plan)
    agree(model, candidate, torch.randn(3, 4, 9, 7))
    with pytest.raises(RuntimeError, match="fold again"):
        candidate.train()


def test_a_norm_that_is_not_affine_stays() -> None:
    plan = fuse.plan(subject(randomise(Norms(Squares(4))).eval(), (4, 8, 8)))
    assert "Squares, that may compute something else" in reasons(plan)


class Rows(nn.Module):
    """A linear layer and a norm over its features, as point clouds and tokens have them."""

    def __init__(self, how: str, out: int = 16) -> None:
        super().__init__()
        self.how, self.fc, self.norm = how, nn.Linear(8, out), nn.BatchNorm1d(out)

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        if self.how == "flatten":
            return self.norm(y.flatten(0, 1)).reshape_as(y)
        if self.how == "view":
            return self.norm(y.view(-1, y.shape[-1])).view_as(y)
        return self.norm(y.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("how", ["flatten", "view", "transpose"])
def test_a_view_between_a_linear_layer_and_its_norm(how: str) -> None:
    model = randomise(Rows(how)).eval()
    candidate, plan = applied(fuse, subject(model, (10, 8)))
    assert len(plan.sites) == 1, reasons(plan)
    agree(model, candidate, torch.randn(3, 7, 8), torch.randn(1, 1, 8))


def test_another_rank_brings_the_original_back() -> None:
    model = randomise(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))).eval()
    candidate, plan = applied(fuse, subject(model, (4,)))
    assert len(plan.sites) == 1
    agree(
        model, candidate, torch.randn(5, 4), torch.randn(5, 4, 4)
    )  # the second normalises dimension 1, not the features


class Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.drop, self.norm = nn.Conv2d(3, 8, 3), nn.Dropout(0.1), nn.BatchNorm2d(8)
        self.rest = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Dropout2d(0.1), nn.BatchNorm2d(8), nn.Identity(), nn.ReLU())

    def forward(self, x: Tensor) -> Any:
        return self.rest(self.norm(self.drop(self.a(x))))


def test_dropout_between_folds_and_cannot_be_switched_on_alone() -> None:
    model: Any = randomise(Between()).eval()
    candidate: Any
    candidate, plan = applied(fuse, subject(model, (3, 16, 16)))
    assert len(plan.sites) == 2, reasons(plan)
    agree(model, candidate, torch.randn(1, 3, 11, 9))
    with pytest.raises(RuntimeError, match="fold again"):
        candidate.drop.train()


class Skip(nn.Module):
    def __init__(self, down: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.down, self.up = down, up

    def forward(self, x: Tensor) -> Any:
        return self.up(self.down(x)) + x


class Nested(nn.Module):
    """Blocks under two paths, called once."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = Norms(nn.BatchNorm2d(4)), Norms(nn.BatchNorm2d(4))
        self.skip = Skip(self.down, self.up)

    def forward(self, x: Tensor) -> Any:
        return self.skip(x)


def test_a_block_under_two_paths_folds() -> None:
    model: Any = randomise(Nested()).eval()
    candidate: Any
    candidate, plan = applied(fuse, subject(model, (4, 8, 8)))
    assert len(plan.sites) == 2, reasons(plan)
    agree(model, candidate, torch.randn(2, 4, 9, 9))
    assert candidate.skip.down is candidate.down
