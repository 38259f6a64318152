"""Real traces against facts counted independently with plain json: a few always, all where they are at hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from fusionadvisor import trace
from fusionadvisor.errors import InputError
from fusionadvisor.trace.measures import (
    busy_us,
    graphed_share,
    kernel_us,
    kind_share,
    linked_share,
    orphan_kernels,
    span_us,
)
from fusionadvisor.trace.timeline import (
    KERNEL_COLUMNS,
    LAUNCH_COLUMNS,
    MEMORY_COLUMNS,
    OP_COLUMNS,
    SYNC_COLUMNS,
    Timeline,
)
from tests.shared import SHARED

HERE = Path(__file__).parents[1] / "data/traces"
FACTS: dict[str, Any] = json.loads((HERE / "FACTS.json").read_text())
TRUTH: dict[str, Any] = json.loads((SHARED / "traces/TRUTH.json").read_text()) if SHARED else {}
needs_corpus = pytest.mark.skipif(not TRUTH, reason="the corpus of real traces is not here")


def check(timeline: Timeline, facts: dict[str, Any]) -> None:
    assert timeline.lost == ()
    assert len(timeline.kernels) == facts["n_kernels"]
    assert len(timeline.memory) == facts["n_gpu_memcpy"] + facts["n_gpu_memset"]
    assert int((~timeline.launches["graph"]).sum()) == facts["n_launch_events"]
    assert int(timeline.launches["graph"].sum()) == facts["n_graph_launch"]
    linked = facts["kernels_linked_to_runtime_event"]
    assert int((timeline.kernels["launch_id"] >= 0).sum()) == linked
    assert orphan_kernels(timeline) == facts["n_kernels"] - linked
    assert {info.index for info in timeline.devices} == {int(index) for index in facts["devices"]}
    for index, device in facts["devices"].items():
        assert busy_us(timeline, int(index)) == pytest.approx(device["busy_us"], rel=1e-6, abs=0.1)
        assert span_us(timeline, int(index)) == pytest.approx(device["span_us"], rel=1e-6, abs=0.1)
        assert int((timeline.kernels["device"] == int(index)).sum()) == device["kernels"]
        assert busy_us(timeline, int(index)) <= span_us(timeline, int(index))
    summed = sum(device["sum_kernel_dur_us"] for device in facts["devices"].values())
    assert kernel_us(timeline) == pytest.approx(summed, rel=1e-6)


def check_tables(timeline: Timeline) -> None:
    """What every timeline promises: columns and types, order, rows that exist, times that make sense."""
    for table, columns in (
        (timeline.kernels, KERNEL_COLUMNS),
        (timeline.memory, MEMORY_COLUMNS),
        (timeline.launches, LAUNCH_COLUMNS),
        (timeline.ops, OP_COLUMNS),
        (timeline.syncs, SYNC_COLUMNS),
    ):
        assert {name: str(dtype) for name, dtype in table.dtypes.items()} == columns
        assert (table["start_ns"] >= 0).all()
        assert (table["dur_ns"] >= 0).all()
    kernels, ops = timeline.kernels, timeline.ops
    assert kernels.sort_values(["device", "start_ns"], kind="stable").index.equals(kernels.index)
    for column, length in (("op_id", len(ops)), ("forward_op_id", len(ops)), ("launch_id", len(timeline.launches))):
        assert kernels[column].between(-1, length - 1).all()
    assert kernels["step"].between(-1, len(timeline.steps) - 1).all()
    linked = kernels[kernels["op_id"] >= 0]
    assert linked["op"].tolist() == ops["name"].iloc[linked["op_id"]].tolist()
    launched = kernels[kernels["launch_id"] >= 0]
    assert launched["launch_ns"].tolist() == timeline.launches["start_ns"].iloc[launched["launch_id"]].tolist()
    assert (ops["parent"] < ops.index).all()


@pytest.mark.parametrize("name", FACTS)
def test_committed_traces(name: str) -> None:
    timeline = trace.load(HERE / f"{name}.json.gz")
    check(timeline, FACTS[name])
    check_tables(timeline)


def test_what_one_of_them_says() -> None:
    timeline = trace.load(HERE / "tl_h100_vit_nsfw.json.gz")
    assert (len(timeline.kernels), round(busy_us(timeline), 1)) == (154, 1225.3)
    assert timeline.devices[0].name == "NVIDIA H100 80GB HBM3"
    assert timeline.devices[0].multiprocessors == 132
    assert timeline.versions == {"cuda": "12.4", "driver": "12.9"}
    assert not timeline.recording.light
    assert [step.name for step in timeline.steps] == ["ProfilerStep#6"]
    attention = timeline.kernels[timeline.kernels["kind"] == "attention"]
    assert len(attention) == 12
    assert set(attention["op"]) == {"aten::_flash_attention_forward"}
    path = "ViTModel#0/ViTEncoder#0/ViTLayer#{0}/ViTSdpaAttention#{0}/ViTSdpaSelfAttention#{0}"
    assert attention["module"].tolist() == [path.format(layer) for layer in range(12)]
    assert set(attention["source"]) == {"transformers/models/vit/modeling_vit.py:252"}
    assert "154" in repr(timeline)
    assert "attention" in timeline._repr_html_()


def test_a_graph_replay_is_attributed_to_its_launch() -> None:
    timeline = trace.load(HERE / "tl_mi_vllm_decode_full.json.gz")
    assert timeline.devices[0].index == 2
    assert timeline.devices[0].name is None
    assert (timeline.kernels["graph_id"] == 0).sum() == 421
    assert graphed_share(timeline) > 0.95


@needs_corpus
@pytest.mark.parametrize("name", TRUTH)
def test_every_trace_of_the_corpus(name: str) -> None:
    assert SHARED
    path = SHARED / "traces" / f"{name}.json.gz"
    if not TRUTH[name]["devices"]:
        with pytest.raises(InputError, match="no GPU events"):
            trace.load(path)
        return
    timeline = trace.load(path)
    check(timeline, TRUTH[name])
    check_tables(timeline)


@needs_corpus
def test_orphans_are_counted_apart_and_the_share_is_said() -> None:
    assert SHARED
    timeline = trace.load(SHARED / "traces/tl_h100_qwen15_05b.json.gz")
    assert orphan_kernels(timeline) == 436
    attributed = timeline.kernels[timeline.kernels["op"] != ""]
    assert len(attributed) == 1029
    assert linked_share(timeline) == pytest.approx(attributed["dur_ns"].sum() / 1e3 / kernel_us(timeline))


@needs_corpus
def test_overlap_makes_busy_less_than_the_sum() -> None:
    assert SHARED
    timeline = trace.load(SHARED / "traces/tl_b300_deepseek_r1_decode.json.gz")
    assert busy_us(timeline) < kernel_us(timeline)


@needs_corpus
def test_little_kernel_time_has_no_kind() -> None:
    assert SHARED
    custom = total = 0.0
    for name in TRUTH:
        if TRUTH[name]["n_kernels"] > 1:
            timeline = trace.load(SHARED / "traces" / f"{name}.json.gz")
            assert kind_share(timeline, "custom") < 0.06, name
            custom += kind_share(timeline, "custom") * kernel_us(timeline)
            total += kernel_us(timeline)
    assert custom / total < 0.001


@needs_corpus
@pytest.mark.parametrize("name", ["hta_rank_non_gpu", "hta_no_distinfo", "pippy_cpu_ref", "hta_mtia_inference"])
def test_cpu_traces_read_with_stand_ins(name: str) -> None:
    assert SHARED
    timeline = trace.load(SHARED / "traces" / f"{name}.json.gz", stand_ins=True)
    assert timeline.stand_ins
    assert len(timeline.kernels) > 0
    check_tables(timeline)
