"""What the tutorial's page says: each exercise has its command, and what it calls off is off."""

import re
from pathlib import Path

import torch
from torch import nn

from fusionadvisor.evaluate.kernels import names

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ fusion-advisor (.+)$", PAGE, re.M)


def test_there_is_a_command_for_every_exercise() -> None:
    strategies = {"fuse_modules", "torchscript", "horizontal", "cudagraph", "fx", "inplace"}
    assert strategies == {c.partition("--strategy ")[2] for c in COMMANDS if c.startswith("apply")}
    assert any(c.startswith("profile") for c in COMMANDS)


def test_its_models_are_there() -> None:
    for command in COMMANDS:
        assert (ROOT / command.split()[1]).is_file()


def test_what_is_called_off_is_off() -> None:
    import torch.nn.utils.fusion as fusion

    assert not hasattr(fusion, "fuse_modules")
    assert hasattr(fusion, "fuse_conv_bn_eval")
    assert hasattr(fusion, "fuse_linear_bn_eval")
    conv, x = nn.Conv2d(3, 4, 3).eval(), torch.randn(1, 3, 8, 8)

    def apart() -> torch.Tensor:
        y = conv(x)
        return torch.relu(y)

    def chained() -> torch.Tensor:
        return x.add(1).mul(2).relu()

    def one_by_one() -> torch.Tensor:
        y = x.add(1)
        z = y.mul(2)
        return z.relu()

    with torch.no_grad():
        assert names(lambda: torch.relu(conv(x)), "cpu") == names(apart, "cpu")
        assert names(chained, "cpu") == names(one_by_one, "cpu")
        assert len(names(chained, "cpu")) == 3
