"""Where graphs are tested: the double on every machine, CUDA where there is a device."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fusionadvisor.strategies.graphs.backend import GraphBackend
from fusionadvisor.strategies.graphs.cuda import CudaGraphBackend
from fusionadvisor.strategies.graphs.replay import GraphedForward
from tests.doubles.cpu_graph import CpuGraphBackend
from tests.doubles.fake_cuda import fake_cuda

FAKE = "FAKECUDA" in os.environ


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; torch.cuda.is_available() is False here")
    if FAKE and (mark := item.get_closest_marker("silicon")):
        pytest.skip(f"needs a real GPU: {mark.args[0]}")


@pytest.fixture(autouse=True)
def everything_was_computed() -> Iterator[None]:
    """On the fake device: a test that rests on what nobody computed proves nothing."""
    ops, core = (sys.modules.get(f"fakecuda_compute.{name}") for name in ("ops", "core"))
    if ops is None or core is None:
        yield
        return
    ops.refused.clear()
    core.uncomputed()
    yield
    assert ops.refused == []
    assert core.uncomputed() == ""


@dataclass(frozen=True)
class Rig:
    """A backend and the device it captures on."""

    backend: GraphBackend
    device: torch.device

    @property
    def on_cuda(self) -> bool:
        return self.device.type == "cuda"

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.device)

    def graphed(self, model: nn.Module, **options: bool | int) -> GraphedForward:
        """Install a graphed forward on the model, which is moved to the device."""
        model.to(self.device)
        forward = GraphedForward(model, self.backend, **options)  # type: ignore[arg-type]
        forward.install()
        return forward


@pytest.fixture(params=["double", "torch's code on the double", pytest.param("cuda", marks=pytest.mark.gpu)])
def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    torch.manual_seed(0)
    if request.param == "cuda":
        yield Rig(CudaGraphBackend(), torch.device("cuda", torch.cuda.current_device()))
    elif request.param == "double":
        yield Rig(CpuGraphBackend(), torch.device("cpu"))
    else:
        with fake_cuda(monkeypatch) as fake:
            yield Rig(CudaGraphBackend(), torch.device("cpu"))
            assert fake.current is fake.outer
            assert (fake.debug_mode, fake.recording, fake.stuck) == (0, False, False)
            assert torch.cuda.graph.default_capture_stream == "theirs"
