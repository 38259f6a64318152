"""Reductions over nothing: no boxes, no keys, no tokens."""

from pathlib import Path

import pytest

from fusionadvisor import advisor

MODEL = """
import torch
from torch import nn

class Reduces(nn.Module):
    def forward(self, x):
        return {what}

def build_model():
    return Reduces()

def example_inputs():
    return torch.randn(4, 8)
"""


@pytest.mark.parametrize("what", [
    "x.sum() + x[:, :0].softmax(-1).sum()",
    "x + x[:, :0].sum(-1, keepdim=True)",
    "x + nn.functional.layer_norm(x[:0], (8,)).sum()",
])  # fmt: skip
def test_a_dimension_of_size_zero_is_no_division_by_zero(what: str, tmp_path: Path) -> None:
    (tmp_path / "reduces.py").write_text(MODEL.format(what=what))
    report = advisor.profile(tmp_path / "reduces.py", device="cpu", steps=2)
    assert report.timeline is not None
    assert report.timeline.kernels
