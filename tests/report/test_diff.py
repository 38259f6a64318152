"""Two reports side by side: exactly what changed is named, and nothing that a clock or a rename did."""

from dataclasses import replace

import pytest

from fusionadvisor.report import diff
from fusionadvisor.report.diff import Comparison
from fusionadvisor.report.model import Environment, Report, TensorSpec, Workload
from tests.report.steps import GPU, K, finding, made, retimed


def norm(layer: int) -> tuple[K, ...]:
    at = f"layers.{layer}.norm"
    return (
        K(at, "aten::pow", 17, group=layer), K(at, "aten::mean", 17, "reduction", group=layer),
        K(at, "aten::rsqrt", 18, group=layer), K(at, "aten::mul", 18, group=layer),
    )  # fmt: skip


def layer(number: int, *inner: K) -> tuple[K, ...]:
    return (K(f"layers.{number}.proj", "aten::mm", 9, "gemm"), *inner)


def fused(number: int) -> K:
    return K(f"layers.{number}.norm", "aten::_fused_rms_norm", 21, "norm")


EAGER = made(
    *layer(0, *norm(0)), *layer(1, *norm(1)), findings=(finding("FA103", "layers.0.norm", "layers.1.norm", line=17),)
)
FUSED = made(*layer(0, fused(0)), *layer(1, fused(1)))


def events(found: Comparison) -> list[tuple[str, str, str, int]]:
    return [(c.event, c.rule, c.module, c.count) for c in found.fusions]


def figure(found: Comparison, name: str) -> tuple[float | None, float | None]:
    return next((f.before, f.after) for f in found.figures if f.name == name)


def test_the_same_step_on_another_day_differs_in_nothing() -> None:
    found = diff.compare(EAGER, retimed(EAGER, 3.0))
    assert (found.fusions, found.modules, found.notes) == ((), (), ())
    assert not [f for f in found.figures if not f.timed and f.before != f.after]


def test_fusions_gained_are_named_exactly() -> None:
    found = diff.compare(EAGER, FUSED)
    assert events(found) == [("gained", "FA103", "layers.0.norm", 1), ("gained", "FA103", "layers.1.norm", 1)]
    assert figure(found, "kernels") == (10, 4)
    assert figure(found, "groups") == (2, 0)
    (change,) = found.modules  # both layers changed alike
    assert change.modules == ("layers.0.norm", "layers.1.norm")
    assert (change.before, change.after) == (8, 2)
    assert change.came == (("aten::_fused_rms_norm", 1),)
    assert dict(change.gone) == {"aten::pow": 1, "aten::mean": 1, "aten::rsqrt": 1, "aten::mul": 1}


def test_fusions_lost_name_module_and_line() -> None:
    found = diff.compare(FUSED, EAGER)
    assert [c[0] for c in events(found)] == ["lost", "lost"]
    assert [(c.source.file, c.source.line) for c in found.fusions if c.source] == [("block.py", 17)] * 2
    assert found.modules[0].source is not None
    assert found.modules[0].source.line == 17
    worse = {f.name for f in found.figures if f.worse}
    assert worse == {"kernels", "launches", "groups", "findings", "findings.FA103", "unfused_us", "unfused_share",
                     "kernel_us", "saving_us"}  # fmt: skip


def test_a_folded_batch_norm_is_gained_though_its_module_runs_nothing_any_more() -> None:
    conv, bn = K("layer1.0.conv1", "aten::conv", 4, "conv"), K("layer1.0.bn1", "aten::batch_norm", 5, "norm")
    tail = K("layer1.0.relu", "aten::relu", 6)
    before = made(conv, bn, tail, findings=(finding("FA101", "layer1.0.bn1", line=5),))
    assert events(diff.compare(before, made(conv, tail))) == [("gained", "FA101", "layer1.0.bn1", 1)]


def test_a_compiled_model_aligns_with_the_eager_one() -> None:
    compiled = made(
        *(K(f"_orig_mod.layers.{i}.proj", "aten::mm", 9, "gemm") for i in (0, 1)),
        *(K(f"_orig_mod.layers.{i}.norm", "triton_red_fused_mean_mul_pow_rsqrt_0", 0, "fused") for i in (0, 1)),
    )
    found = diff.compare(EAGER, compiled)
    assert [c[0] for c in events(found)] == ["gained", "gained"]
    assert {m for c in found.modules for m in c.modules} == {"layers.0.norm", "layers.1.norm"}
    assert figure(found, "fused_share") == (0, 0.5)


def test_layers_added_and_removed_are_neither_lost_nor_gained() -> None:
    three = made(
        *layer(0, *norm(0)), *layer(1, *norm(1)), *layer(2, *norm(2)),
        findings=(finding("FA103", "layers.0.norm", "layers.1.norm", "layers.2.norm", line=17),),
    )  # fmt: skip
    assert events(diff.compare(EAGER, three)) == [("new", "FA103", "layers.2.norm", 1)]
    assert events(diff.compare(three, EAGER)) == [("gone", "FA103", "layers.2.norm", 1)]


def test_a_renamed_module_moved() -> None:
    renamed = [replace(k, module=k.module.replace("norm", "input_norm")) for k in (*layer(0, *norm(0)), *layer(1))]
    before = made(*layer(0, *norm(0)), *layer(1), findings=(finding("FA103", "layers.0.norm"),))
    after = made(*renamed, findings=(finding("FA103", "layers.0.input_norm"),))
    found = diff.compare(before, after)
    assert [(c.event, c.module, c.to) for c in found.fusions] == [("moved", "layers.0.norm", "layers.0.input_norm")]


def test_what_broke_comes_first() -> None:
    before = made(*layer(0, *norm(0)), *layer(1, fused(1)), findings=(finding("FA103", "layers.0.norm"),))
    after = made(*layer(0, fused(0)), *layer(1, *norm(1)), findings=(finding("FA103", "layers.1.norm"),))
    assert [c[0] for c in events(diff.compare(before, after))] == ["lost", "gained"]


def test_more_of_the_same_at_one_module_counts() -> None:
    before, after = (made(*layer(0), findings=(finding("FA102", "layers.0.proj", instances=n),)) for n in (1, 3))
    assert events(diff.compare(before, after)) == [("new", "FA102", "layers.0.proj", 2)]


def test_what_nothing_went_for_is_new_and_named_by_the_line_that_came() -> None:
    """The edit moves the lines below it: a chain that was there at line 5 is at line 7 now, the new one at line 6."""
    at = "layers.0.mlp"
    old, new = (tuple(K(at, f"aten::{op}", line) for op in ("add", "relu")) for line in (5, 7))
    added = tuple(K(at, f"aten::{op}", 6) for op in ("mul", "relu"))
    before = made(K(at, "aten::mm", 4, "gemm"), *old, findings=(finding("FA103", at, line=5),))
    after = made(
        K(at, "aten::mm", 4, "gemm"), *added, *new,
        findings=(finding("FA103", at, line=7, instances=2, kernels=(1, 2, 3, 4)),),
    )  # fmt: skip
    (change,) = diff.compare(before, after).fusions
    assert (change.event, change.count, change.source and change.source.line) == ("new", 1, 6)


def test_what_other_work_parts_is_no_fusion_gained() -> None:
    add, norm_ = K("block", "aten::add", 5), K("block.norm", "aten::native_layer_norm", 6, "norm")
    before = made(add, norm_, findings=(finding("FA104", "block.norm", line=6),))
    after = made(add, K("block", "aten::clamp", 5), norm_)
    assert events(diff.compare(before, after)) == [("gone", "FA104", "block.norm", 1)]


def test_a_kernel_replaced_in_a_child_is_lost_at_the_place_that_holds_it() -> None:
    """Written-out attention where the library's op was: its kernels run in the block, the op ran in a child."""
    written = tuple(K("block", f"aten::{op}", 8) for op in ("bmm", "softmax", "bmm"))
    before = made(K("block.attention", "aten::_flash_attention_forward", 8, "attention"))
    after = made(*written, findings=(finding("FA108", "block", line=8),))
    assert events(diff.compare(before, after)) == [("lost", "FA108", "block", 1)]


def test_what_a_graph_hides_is_not_gained() -> None:
    graphed = replace(FUSED, fusion=replace(FUSED.fusion, graphed_share=0.9))
    assert {c[0] for c in events(diff.compare(EAGER, graphed))} == {"hidden"}
    assert {c[0] for c in events(diff.compare(graphed, EAGER))} == {"hidden"}
    both = replace(EAGER, fusion=replace(EAGER.fusion, graphed_share=0.9))
    assert {c[0] for c in events(diff.compare(both, graphed))} == {"gained"}


# ---- time ----

ONE_MS = made(*norm(0), latency=(0.99, 1.0, 1.01))
A100 = replace(GPU, gpu="NVIDIA A100-SXM4-80GB")


@pytest.mark.parametrize(
    ("before", "after", "verdict", "said"),
    [
        (ONE_MS, made(*norm(0), latency=(1.0, 1.02, 1.04)), "no proven difference", ""),
        (ONE_MS, made(*norm(0), latency=(1.1, 1.2, 1.3)), "slower", ""),
        (ONE_MS, made(*norm(0), latency=(0.5, 0.6, 0.7)), "faster", ""),
        (ONE_MS, made(*norm(0), latency=(2, 2, 2), environment=A100), "unknown", "GPUs differ"),
        (
            made(*norm(0), latency=(1, 1, 1), stand_ins=True, environment=Environment()),
            made(*norm(0), latency=(2, 2, 2), stand_ins=True, environment=Environment()),
            "unknown", "CPU times of two sessions",
        ),
        (made(*norm(0), basis="recorded"), made(*norm(0), basis="recorded"), "unknown", "no interval"),
        (made(*norm(0), basis="recorded"), made(*norm(0), basis="predicted"), "unknown", "one is recorded"),
        (made(*norm(0), basis="predicted"), made(*norm(0), *norm(1), basis="predicted"), "slower", ""),
        (made(*norm(0), basis="predicted"), made(*norm(0), basis="predicted"), "no proven difference", ""),
    ],
)  # fmt: skip
def test_time_is_judged_only_by_intervals_of_like_measurements(
    before: Report, after: Report, verdict: str, said: str
) -> None:
    time = diff.compare(before, after).time
    assert time is not None
    assert time.verdict == verdict
    assert said in time.reason


def test_the_interval_of_the_ratio_holds_both_intervals() -> None:
    time = diff.compare(made(*norm(0), latency=(0.9, 1.0, 1.1)), made(*norm(0), latency=(1.8, 2.0, 2.2))).time
    assert time is not None
    assert time.ratio == pytest.approx(2.0)
    assert time.ci95 == pytest.approx((1.8 / 1.1, 2.2 / 0.9))


# ---- what else differs ----


def work(*shape: int) -> Workload:
    return Workload("block.py", inputs=(TensorSpec("x", shape, "float32"),))


def test_other_machine_versions_and_inputs_are_said() -> None:
    other = replace(
        EAGER,
        environment=replace(A100, torch="2.14.0"),
        workload=work(4, 64),
        tool=replace(EAGER.tool, version="0.2.0"),
    )
    assert diff.compare(replace(EAGER, workload=work(8, 64)), other).notes == (
        "GPU: NVIDIA H100 80GB HBM3 → NVIDIA A100-SXM4-80GB.",
        "torch: 2.13.0 → 2.14.0.",
        "fusion-advisor: 0.1.0 → 0.2.0.",
        "Inputs: [8,64] float32 contiguous → [4,64] float32 contiguous.",
    )


def test_predictions_for_two_gpus_are_told_apart_by_their_devices() -> None:
    here = Environment(torch="2.13.0")
    h100, a100 = (made(*norm(0), basis="predicted", environment=replace(here, gpu=name)) for name in ("H100", "A100"))
    found = diff.compare(replace(h100, environment=here), replace(a100, environment=here))
    assert (found.before.gpu, found.after.gpu, found.notes) == ("H100", "A100", ("GPU: H100 → A100.",))
    assert found.time is not None
    assert found.time.verdict == "unknown"


def test_ops_of_a_cpu_do_not_compare_with_kernels_of_a_gpu() -> None:
    found = diff.compare(EAGER, made(*norm(0), stand_ins=True, environment=Environment()))
    assert found.modules == ()
    assert "Kernel counts do not compare" in found.notes[0]


def test_two_ranks_of_one_job_are_known() -> None:
    zero, one = made(*norm(0), rank=0), made(*norm(0), K("", "nccl", kind="collective"), rank=1)
    assert diff.compare(zero, one).ranks
    assert not diff.compare(zero, replace(zero)).ranks
    assert not diff.compare(zero, made(*layer(3), rank=1)).ranks  # other work: not one job
    assert not diff.compare(EAGER, one).ranks
