"""What only a CUDA device can show: that the pre-flight and CUDA agree, pools, failed captures, streams, devices."""

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.strategies.graphs.cuda import CudaGraphBackend
from fusionadvisor.strategies.graphs.replay import GraphedForward
from tests.strategies.graph_models import CAPTURABLE, NOT_CAPTURABLE, Case, ConvNet, Item, Mlp

pytestmark = pytest.mark.gpu


def graphed(model: nn.Module, **options: Any) -> GraphedForward:
    forward = GraphedForward(model.cuda(), CudaGraphBackend(), **options)
    forward.install()
    return forward


@pytest.fixture(autouse=True)
def _stream_and_allocator_left_in_order() -> Iterator[None]:
    """Whatever a test did: the default stream is current, memory and random numbers can be had, captures work."""
    torch.manual_seed(0)
    yield
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.rand(10, device="cuda").sum().item()
    model = Mlp()
    forward = graphed(model)
    with torch.no_grad():
        x = torch.randn(4, 8, device="cuda")
        torch.testing.assert_close(model(x), forward.eager(x))
    assert forward.counts.captured == 1, forward.counts.eager


@pytest.mark.parametrize("case", CAPTURABLE, ids=lambda c: c.name)
def test_what_passes_the_preflight_is_captured(case: Case) -> None:
    model = case.build().eval()
    forward = graphed(model)
    with torch.no_grad():
        for _ in range(3):
            model(case.make().cuda())
    assert (forward.counts.captured, forward.counts.eager) == (1, {})


WAITING = [
    case
    for case in NOT_CAPTURABLE
    if case.name
    in {"Item", "Branch", "Nonzero", "MaskIndex", "CpuRead", "Numpy", "Tolist", "PythonData", "CpuFactory", "ListIndex",
        "RepeatInterleave", "OneHotOfUnknownSize", "AllClose"}
]  # fmt: skip


@pytest.mark.parametrize("case", WAITING, ids=lambda c: c.name)
def test_what_waits_is_named_with_its_line_and_runs_eagerly(case: Case) -> None:
    model = case.build().eval()
    forward = graphed(model)
    with torch.no_grad():
        x = case.make().cuda()
        try:
            expected = forward.eager(x)
        except (RuntimeError, TypeError) as error:
            pytest.skip(f"does not run on CUDA at all: {error}")
        got = model(x)
    assert isinstance(got, Tensor)
    torch.testing.assert_close(got, expected)
    [reason] = forward.counts.eager
    assert "graph_models.py:" in reason


def test_a_capture_spoilt_midway_is_cleaned_up() -> None:
    """A wait that only a capture meets: the last warm-up does not see it."""

    class Sly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Any:
            y = self.drop(x) @ x.t()
            if torch.cuda.is_current_stream_capturing():
                return y * y.sum().item()
            return y

    earlier = nn.Dropout(0.5).train()
    captured = graphed(earlier)
    model = Sly().train()
    forward = graphed(model)
    x = torch.randn(8, 8, device="cuda")
    with torch.no_grad():
        earlier(x)
        torch.manual_seed(1)
        got = model(x)
        torch.manual_seed(1)
        torch.testing.assert_close(got, forward.eager(x))
    [reason] = forward.counts.eager
    assert "test_cuda_graphs.py:" in reason
    assert "captur" in reason
    with torch.no_grad():
        torch.manual_seed(2)
        replayed = earlier(x)
        torch.manual_seed(2)
        assert torch.equal(replayed, captured.eager(x))
    assert captured.counts.replayed == 2


def test_an_error_of_python_midway_is_cleaned_up() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Any:
            if torch.cuda.is_current_stream_capturing():
                raise ValueError("only when capturing")
            return x * 2

    model = Raises()
    forward = graphed(model)
    x = torch.randn(8, device="cuda")
    with torch.no_grad():
        assert torch.equal(model(x), x * 2)
    assert "only when capturing" in next(iter(forward.counts.eager))


def test_a_failed_training_capture_is_cleaned_up() -> None:
    model = nn.Sequential(Mlp(), Item())
    forward = graphed(model, training=True)
    x = torch.randn(4, 8, device="cuda")
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert "graph_models.py:" in next(iter(forward.counts.eager))


def test_shapes_share_memory() -> None:
    """Ten shapes in one pool take far less than ten times what one takes."""

    def taken(sizes: list[int]) -> int:
        gc.collect()
        torch.cuda.empty_cache()
        # each graph keeps its own input and output: small ones, beside what lies between them
        model = nn.Sequential(nn.Linear(16, 4096), nn.GELU(), nn.GELU(), nn.GELU(), nn.Linear(4096, 16))
        forward = graphed(model, max_graphs=16)
        before = torch.cuda.memory_reserved()
        with torch.no_grad():
            for size in sizes:
                model(torch.randn(size, 16, device="cuda"))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        used = torch.cuda.memory_reserved() - before
        assert forward.counts.captured == len(sizes)
        forward.remove()
        return used

    one = taken([1024])
    ten = taken([1024 - 16 * i for i in range(10)])
    assert ten < 2 * one


def test_released_graphs_give_their_memory_back() -> None:
    model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024))
    forward = graphed(model)
    x = torch.randn(8192, 1024, device="cuda")
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with torch.no_grad():
        model(x)
        assert torch.cuda.memory_reserved() > before
        forward.reset()
        gc.collect()
        torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + 2 * 2**21 + 2 * 8 * 2**20  # a segment, cuBLAS workspaces


def test_two_models_on_two_streams() -> None:
    """Graphs of different models may run at the same time: they share no workspace and no memory."""
    models = [nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)) for _ in range(2)]
    forwards = [graphed(model) for model in models]
    inputs = [torch.randn(256, 512, device="cuda") for _ in models]
    with torch.no_grad():
        expected = [model(x).clone() for model, x in zip(models, inputs, strict=True)]
        for forward, x, y in zip(forwards, inputs, expected, strict=True):
            torch.testing.assert_close(y, forward.eager(x))
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():  # type: ignore[no-untyped-call]
            outputs = [models[index](inputs[index]) for _ in range(200)]
            torch.cuda.current_stream().synchronize()
            wrong.extend(index for y in outputs if not torch.equal(y, expected[index]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_streams_of_one_model_follow_each_other() -> None:
    """A second stream must not overwrite the static input before the first one's replay has read it."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
    forward = graphed(model)
    inputs = [torch.randn(1024, 1024, device="cuda") for _ in range(4)]
    with torch.no_grad():
        expected = [forward.eager(x) for x in inputs]
        model(inputs[0])
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in inputs]  # type: ignore[no-untyped-call]
        outputs = []
        for stream, x in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                outputs.append(model(x))
        torch.cuda.synchronize()
    for got, y in zip(outputs, expected, strict=True):
        torch.testing.assert_close(got, y)


def test_captured_while_another_thread_allocates_and_waits() -> None:
    """A data loader's thread may go on: captures are of this thread."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def busy() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                while not stop.is_set():
                    torch.empty(int(torch.randint(1, 2**20, ())), device="cuda").fill_(1).sum().item()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        model = ConvNet().eval()
        forward = graphed(model)
        with torch.no_grad():
            for size in (8, 16, 24):
                model(torch.randn(2, 3, size, size, device="cuda"))
    finally:
        stop.set()
        thread.join()
    assert errors == []
    assert forward.counts.captured == 3, forward.counts.eager


def test_a_model_on_another_device_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    model = ConvNet().to("cuda:1")
    for training in (False, True):
        model.train(training)
        forward = GraphedForward(model, CudaGraphBackend(), training=True)
        forward.install()
        x = torch.randn(2, 3, 8, 8, device="cuda:1")
        with torch.set_grad_enabled(training):
            got = model(x)
        assert got.device == x.device
        assert torch.cuda.current_device() == 0
        assert forward.counts.captured == 1, forward.counts.eager
        forward.remove()


def test_cudnn_benchmark_searches_before_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    model = ConvNet().eval()
    forward = graphed(model)
    x = torch.randn(2, 3, 32, 32, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(model(x), forward.eager(x))
    assert (forward.counts.captured, forward.counts.eager) == (1, {})


def test_a_replay_launches_the_same_kernels_at_once() -> None:
    from torch.profiler import ProfilerActivity, profile

    def kernels(run: Any) -> tuple[list[str], int]:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            run()
            torch.cuda.synchronize()
        events = recorded.events() or []
        on_device = sorted(
            e.name for e in events if e.device_type.name == "CUDA" and not e.name.startswith(("Memcpy", "Memset"))
        )
        return on_device, sum(e.name.startswith("cudaGraphLaunch") for e in events)

    model = ConvNet().eval()
    forward = graphed(model, static_outputs=True)
    x = torch.randn(2, 3, 8, 8, device="cuda")
    with torch.no_grad():
        model(x)
        eager, _ = kernels(lambda: forward.eager(x))
        replayed, launches = kernels(lambda: model(x))
    assert launches == 1
    assert replayed
    assert len(replayed) >= len(eager)
