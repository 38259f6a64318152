"""Every sample model resolves, runs and profiles as its file stands, and is what it says it is."""

from pathlib import Path

import pytest
import torch
from torch import nn

from fusionadvisor.capture import live as capture_live
from fusionadvisor.capture.live import capture
from fusionadvisor.workload.program import Program, build
from fusionadvisor.workload.resolve import resolve

FOLDER = Path(__file__).parents[2] / "sample_models"
SAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))


def program_of(name: str, *, train: bool = False) -> Program:
    return build(resolve(str(FOLDER / f"{name}.py"), train=train, device="cpu"))


def test_the_seven_samples_are_there() -> None:
    assert SAMPLES == [
        "linear_relu", "multi_conv", "residual_block", "resnet18", "simple_mlp", "train_step", "transformer_block",
    ]  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_a_file_a_user_could_have_written(name: str) -> None:
    assert "fusionadvisor" not in (FOLDER / f"{name}.py").read_text()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_profiles_with_every_kernel_linked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_live, "LATENCY_SECONDS", 0.05)
    result = capture(program_of(name), steps=1)
    kernels = result.timeline.kernels
    assert len(kernels) > 3
    assert (kernels["flow_op"] >= 0).all()
    assert all(str(source).startswith(("sample_models/", str(FOLDER))) for source in kernels["source"])


def test_the_training_sample_trains() -> None:
    program = program_of("train_step", train=True)
    losses = [program.step(program.call(seed=1)).item() for _ in range(8)]
    assert losses[-1] < losses[0]


def test_the_residual_block_has_both_pairs() -> None:
    model = program_of("residual_block").model
    for number in (1, 2):
        conv, bn = model.get_submodule(f"conv{number}"), model.get_submodule(f"bn{number}")
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(bn, nn.BatchNorm2d)
        assert (conv.in_channels, conv.out_channels, bn.num_features) == (64, 64, 64)


def test_the_written_out_attention_is_causal_attention() -> None:
    model = program_of("transformer_block").model
    attention = model.get_submodule("attention")
    x = torch.randn(2, 16, 512)
    with torch.no_grad():
        whole = attention(x)
        start = attention(x[:, :5])
    torch.testing.assert_close(whole[:, :5], start)


def test_the_written_out_norm_is_rms_norm() -> None:
    norm = program_of("transformer_block").model.get_submodule("attention_norm")
    x = torch.randn(2, 16, 512)
    expected = torch.nn.functional.rms_norm(x, (512,), norm.weight, norm.eps)  # type: ignore[arg-type]
    torch.testing.assert_close(norm(x), expected)
