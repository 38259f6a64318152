"""What is found in traces that other people recorded. Each figure was counted apart from this program."""

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fusionadvisor import trace
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.summary import summarise
from fusionadvisor.errors import InputError
from fusionadvisor.report.model import Finding, Range
from fusionadvisor.rules import engine
from fusionadvisor.rules.engine import Advice
from tests.shared import SHARED

DATA = Path(__file__).parents[1] / "data" / "traces"
QWEN = ("tl_h100_qwen15_05b", "tl_mi300_qwen15_05b")


def path_of(name: str) -> Path:
    """Where a trace is: in this checkout, or beside it; the test is skipped where it is in neither."""
    committed = DATA / f"{name}.json.gz"
    if committed.exists() or SHARED is None:
        if not committed.exists():
            pytest.skip("the recorded traces are not beside this checkout")
        return committed
    return SHARED / "traces" / committed.name


@cache
def facts(name: str) -> Facts:
    return Facts(trace.load(path_of(name)))


@cache
def advice(name: str) -> Advice:
    return engine.run(facts(name))


def found(name: str, rule: str) -> list[Finding]:
    assert [w for w in advice(name).warnings if w.code == "W10"] == []
    return [f for f in advice(name).findings if f.rule == rule]


def events(name: str, category: str) -> list[dict[str, object]]:
    """Events of a category, read with plain json."""
    plain = json.loads(gzip.decompress(path_of(name).read_bytes()))
    return [e for e in plain["traceEvents"] if e.get("cat") == category]


@pytest.mark.parametrize("name", QWEN)
def test_qwen_norms_are_found_at_every_module(name: str) -> None:
    """24 layers of two norms and a last one: 49 written-out RMSNorms, the first without a residual before it."""
    (added,), (alone,) = found(name, "FA104"), found(name, "FA105")
    assert (added.instances, alone.instances) == (48, 1)
    norms = {f"Qwen2RMSNorm#{i}" for i in range(49)}
    assert {m.rpartition("/")[2] for m in (*added.modules, *alone.modules)} == norms
    assert len(added.kernels) == 48 * 9
    assert len(alone.kernels) == 8


@pytest.mark.parametrize("name", QWEN)
def test_qwen_has_24_gates_and_a_rotary_embedding_a_layer(name: str) -> None:
    (gates,), (rotary,) = found(name, "FA106"), found(name, "FA108")
    assert gates.instances == 24
    assert rotary.instances == 24
    assert rotary.evidence[0].count("cat") == 2  # query and key together
    assert found(name, "FA107") == []  # flash attention


@pytest.mark.parametrize("name", QWEN)
def test_kernels_without_a_launch_are_counted_apart(name: str) -> None:
    launches = {e["args"]["correlation"] for e in events(name, "cuda_runtime")}  # type: ignore[index]
    orphans = [e for e in events(name, "kernel") if e["args"]["correlation"] not in launches]  # type: ignore[index]
    driver = {e["args"]["correlation"] for e in events(name, "cuda_driver")}  # type: ignore[index]
    orphans = [e for e in orphans if e["args"]["correlation"] not in driver]  # type: ignore[index]
    (said,) = (w.message for w in advice(name).warnings if w.code == "W11")
    assert said.startswith(f"{len(orphans)} kernels")


@pytest.mark.parametrize("name", QWEN)
def test_shares_are_of_all_the_trace_kernels(name: str) -> None:
    """45.4 ms of kernels on the H100, 13.7 of them launched before the recording began."""
    total = sum(float(str(e["dur"])) for e in events(name, "kernel"))
    for finding in advice(name).findings:
        assert finding.share == pytest.approx(finding.kernel_us / total, rel=1e-3)


def test_both_gpus_tell_the_same_story() -> None:
    """The same model on H100 and MI300X: the same places for every rule about structure."""
    first, second = ({f.rule: f.modules for f in advice(n).findings if f.rule in ("FA104", "FA105", "FA106", "FA108")}
                     for n in QWEN)  # fmt: skip
    assert first == second


def test_batch_norm_time_is_the_sum_of_its_kernels() -> None:
    """ResNet training under checkpointing: forward 4.0 ms, statistics counters 0.67, backward 3.94, by plain sums."""
    name = "tl_mi300_resnet_actckpt"
    kernels = events(name, "kernel")
    forward = re.compile(
        "batch_norm_(collect_statistics|transform_input)|unrolled_elementwise_kernel<.*batch_norm_calc"
    )
    counters = re.compile("unrolled.*long")
    backward = re.compile("batch_norm_backward")

    def total(pattern: re.Pattern[str]) -> float:
        return sum(float(str(e["dur"])) for e in kernels if pattern.search(str(e["name"]))) / 1e3

    ours = facts(name).timeline.kernels
    names, ms = ours["name"].astype(str), ours["dur_ns"] / 1e6
    for pattern, expected in ((forward, 4.0), (counters, 0.67), (backward, 3.94)):
        rows = [bool(pattern.search(n)) for n in names]
        assert ms[rows].sum() == pytest.approx(total(pattern), abs=1e-3)
        assert total(pattern) == pytest.approx(expected, abs=0.05)
    normed = [n for n in facts(name).nodes if n.kind == "norm"]
    orphans = ours[(ours["kind"] == "norm") & (ours["op_id"] < 0)]["dur_ns"].sum() / 1e6
    assert sum(n.us for n in normed) / 1e3 <= total(forward) + total(backward) + orphans


def test_the_report_says_that_time_too() -> None:
    """4.0 + 0.67 + 3.94 = 8.61 ms of kernels with batch_norm in their name, a quarter of them without a launch."""
    name = "tl_mi300_resnet_actckpt"
    spent: list[tuple[str, float, Any]] = [
        (str(e["name"]), float(str(e["dur"])), e["args"]) for e in events(name, "kernel")
    ]
    normed = [(us, args["correlation"]) for kernel, us, args in spent if "batch_norm" in kernel]
    total = sum(us for us, _ in normed)
    assert total == pytest.approx(8606, abs=60)
    ours = advice(name)
    summary = summarise(facts(name).timeline, ours.group_of_kernel, ours.bytes_of_kernel)
    (norms,) = (kind for kind in summary.by_kind if kind.kind == "norm")
    assert norms.kernels == len(normed)
    assert norms.gpu_us == pytest.approx(total, abs=1e-3)
    launched = {e["args"]["correlation"] for e in events(name, "cuda_runtime")}  # type: ignore[index]
    linked = sum(us for us, correlation in normed if correlation in launched)
    assert sum(a.gpu_us for a in summary.aggregates if "batch_norm" in a.op) == pytest.approx(linked, abs=1e-3)
    found_at = {k for f in ours.findings for k in f.kernels}
    kinds = facts(name).timeline.kernels["kind"].astype(str).tolist()
    us = facts(name).timeline.kernels["dur_ns"].to_numpy() / 1e3
    assert sum(float(us[k]) for k in found_at if kinds[k] == "norm") <= linked + 1e-3


def test_no_category_exceeds_the_kernels() -> None:
    """OWLv2: 551 ms of kernels; attention alone was reported at 736 ms by a tool that counted modules twice."""
    kernel_us = sum(float(str(e["dur"])) for e in events("tl_h100_owlv2", "kernel"))
    assert kernel_us == pytest.approx(551_000, rel=0.01)
    assert sum(f.kernel_us for f in advice("tl_h100_owlv2").findings if not f.overlaps and not f.footnote) <= kernel_us
    assert sum(f.saving.gpu_us.high for f in advice("tl_h100_owlv2").findings) <= kernel_us
    for finding in advice("tl_h100_owlv2").findings:
        assert finding.kernel_us <= kernel_us
        assert finding.saving.gpu_us.high <= finding.kernel_us + 1e-6


@pytest.mark.parametrize(
    "name", ["kineto_r50_v100_2021_nw0", "kineto_r50_v100_list_nw0", "kineto_r50_v100_autogradapi_nw0"]
)
def test_for_loop_sgd(name: str) -> None:
    """161 parameters: 3 kernels each and a first one, a run of 484."""
    path_of(name)
    assert SHARED is not None
    truth = json.loads((SHARED / "traces" / "TRUTH.json").read_text())[name]
    assert truth["longest_elementwise_run"]["aten"]["kernels_only"] == 484
    assert max(len(s.kernels) for s in facts(name).stretches) == 484
    finding = found(name, "FA204")[0]
    assert finding.saving.gpu_us.high > 0
    assert not finding.footnote
    run = re.search(r"consecutive fusible kernels here is (\d+)", " ".join(finding.evidence))
    assert run is not None
    assert int(run[1]) == 484 or facts(name).timeline.steps_from == "repetition"  # there, steps cut a run in two


def test_launch_bound_in_a_light_recording() -> None:
    name = "hta_gp100_gpu_user_annotation"
    (finding,) = found(name, "FA301")
    launch = advice(name).fusion.launch_bound
    assert launch.break_even_us == pytest.approx(2.2, abs=0.05)
    assert facts(name).busy_us / facts(name).step_us == pytest.approx(0.029, abs=0.001)
    assert finding.saving.step_us.likely is not None
    assert finding.saving.step_us.high <= facts(name).step_us - facts(name).busy_us


def test_break_even_only_in_a_heavy_recording() -> None:
    (finding,) = found("tl_h100_vit_nsfw", "FA301")
    assert finding.saving.step_us == Range(0.0, None, 0.0)
    launch = advice("tl_h100_vit_nsfw").fusion.launch_bound
    assert launch.break_even_us == pytest.approx(7.95, abs=0.01)
    assert launch.share is None


def test_a_busy_gpu_is_not_launch_bound() -> None:
    assert found("tl_mi300_compile_triton", "FA301") == []


@pytest.mark.parametrize(
    ("name", "fused", "graphed"),
    [
        ("tl_mi300_compile_triton", 0.3, 0.0), ("luatil_3060_compiled", 0.2, 0.0), ("luatil_3060_graph_05", 0.2, 0.8),
        ("ao_a100_vit_bf16_graph", 0.4, 0.9), ("tl_b300_deepseek_r1_decode", 0.2, 0.9),
    ],
)  # fmt: skip
def test_what_is_fused_or_graphed_is_said_and_left_alone(name: str, fused: float, graphed: float) -> None:
    fusion = advice(name).fusion
    assert fused <= fusion.fused_share <= 1
    assert graphed <= fusion.graphed_share <= 1
    kinds = facts(name).timeline.kernels["kind"].astype(str)
    for finding in found(name, "FA103"):
        assert "fused" not in set(kinds.iloc[list(finding.kernels)])


@pytest.mark.parametrize("name", ["tl_h100_vit_nsfw", "tl_mi300_vit_nsfw", *QWEN])
def test_flash_attention_is_not_written_out_attention(name: str) -> None:
    assert found(name, "FA107") == []


def test_every_trace_is_judged_within_its_step() -> None:
    """No rule fails on any of them, and savings stay within the step."""
    judged = 0
    for path in sorted((SHARED / "traces" if SHARED else DATA).glob("*.json.gz")):
        try:
            facts(path.name.removesuffix(".json.gz"))
        except InputError:
            continue
        name = path.name.removesuffix(".json.gz")
        given = advice(name)
        assert [w.message for w in given.warnings if w.code == "W10"] == [], name
        assert sum(f.saving.step_us.high for f in given.findings) <= facts(name).step_us * (1 + 1e-9), name
        judged += 1
    assert judged >= (50 if SHARED else 4)
