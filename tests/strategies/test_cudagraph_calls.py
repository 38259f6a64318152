"""In which order the CUDA side calls torch, seen without a GPU."""

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.strategies.graphs import cuda
from fusionadvisor.strategies.graphs.backend import WARM_UPS, CaptureError
from tests.doubles.fake_cuda import FakeCuda, FakeStream, fake_cuda

DEVICE = torch.device("cpu")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    with fake_cuda(monkeypatch) as fake:
        yield fake


def test_a_capture_in_order(fake: FakeCuda) -> None:
    def run() -> str:
        fake.log.append(f"run on {fake.current.name}, gc {gc.isenabled()}")
        return "output"

    graph = cuda.CudaGraphBackend().capture(run, DEVICE, (0, 3), [torch.Generator()])
    once = "run on side1, gc False"
    assert fake.log == [
        "side1 waits for outer", "register generator", *[once] * WARM_UPS, "sync debug warn", once, "sync debug 0",
        "clear workspaces", "synchronize", "begin thread_local (0, 3) on side1", once, "end", "clear workspaces",
        "outer waits for side1",
    ]  # fmt: skip
    assert graph.outputs == "output"
    assert gc.isenabled()
    graph.release()
    assert fake.log[-2:] == ["synchronize cpu", "reset"]


def test_a_wait_in_the_last_warm_up_stops_before_the_capture(fake: FakeCuda) -> None:
    class Waits(nn.Module):
        def forward(self) -> float:
            return torch.ones(3).sum().item()

    model = Waits()
    with pytest.raises(CaptureError, match="makes the CPU wait") as raised:
        cuda.CudaGraphBackend().capture(model, DEVICE, (0, 3))
    assert raised.value.owner is model
    assert raised.value.source is not None
    assert raised.value.source.file == __file__
    assert not [entry for entry in fake.log if entry.startswith("begin")]
    assert fake.debug_mode == 0
    assert fake.current.name == "outer"


def test_other_warnings_of_the_model_are_shown(fake: FakeCuda) -> None:
    with pytest.warns(UserWarning, match="of the model's own"):
        cuda.CudaGraphBackend().capture(
            lambda: warnings.warn("of the model's own", UserWarning, stacklevel=1), DEVICE, (0, 3)
        )


def test_a_spoilt_capture_is_cleaned_up_and_its_cause_told(fake: FakeCuda) -> None:
    class Fails(nn.Module):
        def forward(self) -> float:
            return torch.ones(3).sum().item() if torch.cuda.is_current_stream_capturing() else 0.0

    model = Fails()
    with pytest.raises(CaptureError, match=r"^operation not permitted when stream is capturing") as raised:
        cuda.CudaGraphBackend().capture(model, DEVICE, (0, 3))
    assert raised.value.owner is model
    assert raised.value.source is not None
    assert fake.current.name == "outer"
    assert gc.isenabled()
    assert (fake.recording, fake.stuck) == (False, False)
    at = fake.log.index("end allocation to (0, 3)")
    assert fake.log[at : at + 3] == ["end allocation to (0, 3)", "release None (0, 3)", "synchronize cpu"]


def test_a_fault_of_the_device_is_not_hidden(fake: FakeCuda) -> None:
    def run() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side assert") as raised:
        cuda.CudaGraphBackend().capture(run, DEVICE, (0, 3))
    assert not isinstance(raised.value, CaptureError)


def test_training_goes_through_make_graphed_callables(fake: FakeCuda) -> None:
    weight = torch.ones(3, requires_grad=True)
    calls = []

    def run(*samples: Tensor) -> tuple[Tensor, ...]:
        calls.append((fake.current.name, fake.debug_mode))
        return (samples[0] * weight,)

    backend = cuda.CudaGraphBackend()
    made = backend.capture_training(run, (torch.ones(3), weight), DEVICE)
    # torch has no warm-ups of its own to do: autograd's thread would still hold their tensors when the capture begins
    assert calls == [*[("side1", 0)] * WARM_UPS, ("side1", "warn"), ("side1", 0)]
    assert [entry for entry in fake.log if entry.startswith("begin")] == ["begin global (0, 7) on side1"] * 2
    assert [weight.grad] == [None]
    made(torch.full((3,), 2.0), weight)[0].sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("training", [False, True])
def test_autograd_is_done_with_earlier_backwards_before_a_capture(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, training: bool
) -> None:
    backend, grad = cuda.CudaGraphBackend(), torch.autograd.grad

    def logged(*args: Any, **options: Any) -> tuple[Tensor, ...]:
        fake.log.append("backward")
        gradients: tuple[Tensor, ...] = grad(*args, **options)
        return gradients

    monkeypatch.setattr(torch.autograd, "grad", logged)
    weight = torch.ones(3, requires_grad=True)
    if training:
        backend.capture_training(lambda *samples: (samples[0] * weight,), (torch.ones(3), weight), DEVICE)
    else:
        with torch.inference_mode():
            backend.capture(lambda: torch.ones(1), DEVICE, (0, 3))
    begin = next(i for i, entry in enumerate(fake.log) if entry.startswith("begin"))
    assert [entry for entry in fake.log[:begin] if entry not in ("clear workspaces", "synchronize")][-1] == "backward"


def test_a_later_stream_waits_for_the_earlier_one(fake: FakeCuda) -> None:
    backend = cuda.CudaGraphBackend()
    outer = backend.follow(DEVICE, None)
    assert backend.follow(DEVICE, outer) is outer
    assert fake.log == []
    other = FakeStream()
    with torch.cuda.stream(other):  # type: ignore[arg-type]
        assert backend.follow(DEVICE, outer) is not outer
    assert fake.log == ["side1 waits for outer"]
