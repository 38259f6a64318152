"""Where there is no GPU, ops that would run kernels stand in: against a live recording of a known model."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fusionadvisor import trace
from fusionadvisor.trace.standin import rearranges
from fusionadvisor.trace.timeline import Timeline
from tests.trace.samples import four, of_category, op, read


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    inputs = torch.randn(4, 3, 8, 8)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        model(inputs).log_softmax(1).sum().backward()
    path = tmp_path_factory.mktemp("traces") / "live.json"
    recording.export_chrome_trace(str(path))
    return trace.load(path, stand_ins=True)


def test_one_stand_in_for_each_kernel_a_gpu_would_run(recorded: Timeline) -> None:
    forward = recorded.kernels[recorded.kernels["phase"] == "forward"]
    assert forward["kind"].tolist() == [
        "conv", "elementwise", "norm", "elementwise", "gemm", "softmax", "reduction", "copy",
    ]  # fmt: skip
    backward = recorded.kernels[recorded.kernels["phase"] == "backward"]
    assert backward["kind"].tolist() == ["softmax", "gemm", "gemm", "reduction", "elementwise", "norm", "conv"]


def test_backward_stand_ins_know_their_forward_op(recorded: Timeline) -> None:
    kernels = recorded.kernels
    names = {
        kernel: recorded.ops["name"][row]
        for kernel, row in zip(kernels["name"], kernels["forward_op_id"], strict=True)
        if row >= 0
    }
    assert names["aten::native_batch_norm_backward"] == "aten::native_batch_norm"
    assert names["aten::mm"] == "aten::addmm"


def test_shapes_and_types_are_those_of_the_model(recorded: Timeline) -> None:
    conv = recorded.kernels.iloc[0]
    row = recorded.ops.iloc[conv["op_id"]]
    assert row["shapes"][:3] == ((4, 3, 8, 8), (8, 3, 3, 3), (8,))
    assert row["dtypes"][:2] == ("float", "float")
    assert row["strides"][0] == (192, 64, 8, 1)


def test_they_do_not_overlap_so_nothing_counts_twice(recorded: Timeline) -> None:
    for _, thread in recorded.kernels.groupby("stream"):
        ends = thread["start_ns"] + thread["dur_ns"]
        assert (thread["start_ns"].to_numpy()[1:] >= ends.to_numpy()[:-1]).all()


def test_metadata_ops_are_no_kernels() -> None:
    views = (
        "view",
        "t",
        "transpose",
        "permute",
        "expand",
        "as_strided",
        "empty",
        "empty_strided",
        "detach",
        "resolve_conj",
    )
    events = [op(f"aten::{name}", 10 * i, 5) for i, name in enumerate(views)]
    timeline = read([*events, op("aten::mul", 500, 5)], stand_ins=True)
    assert timeline.kernels["name"].tolist() == ["aten::mul"]


def test_a_primary_op_absorbs_what_it_calls() -> None:
    events = [op("aten::addmm", 0, 50), op("aten::copy_", 5, 10), op("aten::mul", 20, 10)]
    assert read(events, stand_ins=True).kernels["name"].tolist() == ["aten::addmm"]


def test_a_composite_op_gives_way_to_its_parts() -> None:
    events = [op("aten::silu_and_mul", 0, 50), op("aten::silu", 5, 10), op("aten::mul", 20, 10)]
    assert read(events, stand_ins=True).kernels["name"].tolist() == ["aten::silu", "aten::mul"]


def test_kernels_are_preferred_where_there_are_any() -> None:
    timeline = read(four(), stand_ins=True)
    assert not timeline.stand_ins
    assert len(timeline.kernels) == len(of_category(four(), "kernel"))


def test_the_export_under_another_name_is_the_same(recorded: Timeline, tmp_path: Path) -> None:
    assert recorded.devices[0].name == "CPU"
    assert recorded.kernels["launch_id"].eq(-1).all()


def test_a_number_among_the_operands_is_no_copy(tmp_path: Path) -> None:
    x = torch.randn(64, 64)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        ((x * 2.0 + 1) / 3).pow(2)
        x.half()
    path = tmp_path / "live.json"
    recording.export_chrome_trace(str(path))
    kernels = trace.load(path, stand_ins=True).kernels
    assert kernels["name"].tolist() == ["aten::mul", "aten::add", "aten::div", "aten::pow", "aten::copy_"]


def test_an_op_that_only_makes_a_view_is_no_kernel() -> None:
    """By torch's own schemas: what it returns is its argument, or it changes its argument's shape and no more."""
    calls_what_moves = {"coalesce", "cuda", "cpu", "pin_memory", "_grad_sum_to_size", "_sparse_broadcast_to"}
    calls_what_moves |= {"_autocast_to_full_precision", "_autocast_to_reduced_precision"}
    views = set[str]()
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        packet = getattr(torch.ops.aten, name, None) if namespace == "aten" and "_test_" not in name else None
        full = f"{schema.name}.{schema.overload_name}".rstrip(".")
        if packet is None or not torch._C._dispatch_has_kernel(full):
            continue
        overload = getattr(packet, schema.overload_name or "default")
        results = [r for r in schema.returns if "Tensor" in str(r.type)]
        aliases = bool(results) and all(r.alias_info and not r.alias_info.is_write for r in results)
        if aliases or torch.Tag.inplace_view in overload.tags:
            views.add(name)
    assert {"transpose_", "numpy_T", "tensor_split"} <= views
    assert {name for name in views - calls_what_moves if not rearranges(f"aten::{name}")} == set()
    assert all(map(rearranges, ("aten::unsafe_split", "aten::cudnn_is_acceptable")))
    assert not any(map(rearranges, ("aten::clone", "aten::tril_indices", "aten::masked_fill", "aten::index")))
