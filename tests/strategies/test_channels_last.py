from typing import Any

import torch
from torch import Tensor, nn

from fusionadvisor.strategies.channels_last import ChannelsLast
from tests.strategies.subjects import applied, randomise, reasons, subject

strategy = ChannelsLast()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 25, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.flat(torch.relu(self.bn(self.conv(x)))))

    def flat(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class Views(Net):
    def flat(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1)


class Strided(Net):
    def flat(self, x: Tensor) -> Tensor:
        return x.as_strided((x.shape[0], 200), (200, 1))


class Later(Net):
    def flat(self, x: Tensor) -> Tensor:
        return (x * 2).view(x.shape[0], -1)


def test_converts_the_weights_and_agrees() -> None:
    candidate, plan = applied(strategy, subject(randomise(Net()).eval(), (4, 7, 7)))
    weight = candidate.get_parameter("conv.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert candidate.get_submodule("conv")(torch.randn(2, 4, 7, 7)).is_contiguous(memory_format=torch.channels_last)
    assert plan.sites[0].members == ("conv",)
    assert strategy.recheck(Net(), plan) == ""
    assert "no 2-D convolution" in strategy.recheck(nn.Sequential(nn.ReLU()), plan)


def test_a_view_is_refused_with_its_line() -> None:
    for kind in (Views, Later):
        plan = strategy.plan(subject(randomise(kind()).eval(), (4, 7, 7)))
        assert not plan.sites
        assert "In channels-last it fails at test_channels_last.py:" in reasons(plan)
        source = plan.refused[0].source
        assert source is not None
        with open(source.file) as file:
            assert ".view(x.shape[0], -1)" in file.read().splitlines()[source.line - 1]


def test_what_would_silently_see_other_elements_is_refused() -> None:
    plan = strategy.plan(subject(randomise(Strided()).eval(), (4, 7, 7)))
    assert not plan.sites
    assert "aten::as_strided goes by the order in memory" in reasons(plan)


def test_without_a_convolution_there_is_nothing_to_do() -> None:
    plan = strategy.plan(subject(nn.Sequential(nn.Linear(4, 4)).eval(), (4,)))
    assert plan.sites == ()
    assert "no 2-D convolution" in plan.notes[0]


class Video(nn.Module):
    """A 3-D stem, then 2-D convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv3d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return torch.relu(self.conv(torch.relu(self.stem(x)).mean(2)))


def test_three_dimensional_convolutions_beside_two_dimensional_ones() -> None:
    candidate, plan = applied(ChannelsLast(), subject(Video().eval(), (3, 4, 8, 8)))
    assert [site.members for site in plan.sites] == [("conv",)]
    assert candidate.conv.weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[union-attr,operator]
