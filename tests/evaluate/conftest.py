import sys
from pathlib import Path

import pytest

from tests.evaluate import plugins

TINY = """
import torch
from torch import nn

def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())

def example_inputs():
    return torch.randn(2, 3, 8, 8)
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A model file of a user's."""
    path = tmp_path / "tiny.py"
    path.write_text(TINY)
    return str(path)


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the plug-in strategies as an installed package declares them."""
    folder = tmp_path / "site"
    info = folder / "plugged-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    lines = [f"{kind.id} = tests.evaluate.plugins:{kind.__name__}" for kind in plugins.ALL]
    (info / "entry_points.txt").write_text("[fusionadvisor.strategies]\n" + "\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(folder))
    root = str(Path(__file__).parents[2])
    if root not in sys.path:
        monkeypatch.syspath_prepend(root)
