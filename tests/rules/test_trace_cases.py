"""Small recorded traces, each with one thing that shapes and order alone would get wrong."""

from functools import cache
from pathlib import Path

import pytest

from fusionadvisor import advisor, trace
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.report.model import Finding, Report
from fusionadvisor.rules.launch import FallenBack
from tests.builders import T, call, timeline

CASES = Path(__file__).parents[1] / "data" / "traces" / "cases"


@cache
def facts(name: str) -> Facts:
    return Facts(trace.load(CASES / f"{name}.json.gz"))


@cache
def report(name: str) -> Report:
    return advisor.analyze(CASES / name)


def of(name: str, rule: str) -> list[Finding]:
    return [f for f in report(name).findings if f.rule == rule]


def grouped(name: str) -> list[list[str]]:
    """The ops of each group, in order."""
    return [[facts(name).nodes[i].op for i in group.nodes] for group in facts(name).groups]


@pytest.mark.parametrize("name", ["chain_across_c10d_all_reduce", "chain_across_functional_all_reduce"])
def test_a_collective_ends_a_chain(name: str) -> None:
    assert grouped(name) == [["mul", "relu"], ["add", "relu"]]


def test_unlinked_kernels_end_a_chain() -> None:
    """add → gelu after a convolution, in two batches; kernels whose op was not recorded lie between."""
    assert grouped("add_gelu_two_batches") == [["add", "gelu"], ["add", "gelu"]]


def test_a_norm_over_channels_and_what_follows_it_far_away() -> None:
    """LayerNorm2d written out, then GELU; a transposed convolution; add → GELU: two groups, neither jumps."""
    name = "far_reread_layernorm2d"
    norm = ["mean", "sub", "pow", "mean", "sub", "add", "sqrt", "div", "mul", "add", "gelu"]
    assert grouped(name)[:2] == [norm, ["add", "gelu"]]
    (finding,) = of(f"{name}.json.gz", "FA105")
    assert finding.evidence[0].startswith("LayerNorm by hand: 10 kernels")
    assert finding.remedies == ("compile",)
    for group in facts(name).groups:
        assert all(b - a <= 24 for a, b in zip(group.nodes, group.nodes[1:], strict=False)), grouped(name)


def test_an_embedding_lookup_of_another_library_is_in_no_chain() -> None:
    assert grouped("tbe_embedding_in_pointwise_chain") == []


def test_layers_one_after_the_other_are_no_siblings() -> None:
    """Each layer's projection reads what an op of another library wrote in place."""
    assert of("vllm_serial_layers_as_siblings.json.gz", "FA201") == []


def test_a_tanh_gelu_with_its_gate() -> None:
    """0.5 x (1 + tanh(0.797 (x + 0.0447 x³))) times a second projection: nine kernels."""
    (finding,) = of("t5_gelu_new_not_fa106.json.gz", "FA106")
    assert finding.evidence[0].startswith("tanh GELU by hand gate: 9 kernels")


def test_a_pageable_copy_is_a_wait() -> None:
    """Three nonzero and two copies: cudaMemcpyAsync to pageable memory returned when the device had finished.

    682, 1265 and 426 µs in the copies of nonzero; each ends 13, 5 and 4 µs later with the synchronization after it.
    """
    (waited,) = (f for f in of("dtoh_pageable_wait.json.gz", "FA302") if "nonzero" in f.evidence[0])
    assert waited.evidence[0].startswith("aten::nonzero 3 × a step; the CPU waited 2386.0 µs for the GPU")
    assert waited.saving.step_us.high > 0
    assert report("dtoh_pageable_wait.json.gz").fusion.syncs == 6


@pytest.mark.parametrize(
    "around", ["Torch-Compiled Region", "CompiledFunction", "CompiledFxGraph", "triton_poi_fused_0"]
)
def test_a_region_without_a_number_is_compiled(around: str) -> None:
    """A fused kernel inside a region that older releases do not number, and two ops beside it."""
    x = T((64, 64))
    inside = call("aten::mul", x, x, outer=around)
    looked = FallenBack().look(Facts(timeline([inside, call("aten::relu", x), call("aten::exp", x)])))
    (found,) = looked.candidates
    assert str(found.evidence[0]).startswith("2 ops (67 % of kernel time) ran outside the compiled regions")


def test_a_checkpoint_counts_on_the_backward_thread() -> None:
    """Both threads have an op of number 5: the backward of GELU belongs to the one of its own thread."""
    line = facts("checkpoint_autograd_thread").timeline
    backward = line.kernels[line.kernels["name"] == "gelu_bwd"].iloc[0]
    assert (backward["module"], backward["phase"]) == ("Block#0", "backward")
    assert line.ops["name"].iloc[backward["forward_op_id"]] == "aten::gelu"


def test_two_ranks_in_one_file_are_told_apart() -> None:
    """40 kernels of 9.25 µs in a step of 560: busy 66 %. Taken for one device it would be 86 %."""
    found = report("two_ranks_in_one_file.json.gz")
    assert [(r.rank, r.kernels, r.windows) for r in found.ranks] == [(0, 120, 1), (1, 120, 1)]
    assert found.timeline is not None
    assert found.timeline.busy_us / found.timeline.step_us == pytest.approx(370 / 560, abs=0.001)
    assert found.fusion.launch_bound.break_even_us == pytest.approx(9.25)


@pytest.mark.parametrize(
    ("name", "expected"), [("cycles_of_one_rank", [(0, 3)]), ("cycles_of_two_ranks", [(0, 2), (1, 2)])]
)
def test_cycles_of_a_rank_are_its_further_windows(name: str, expected: list[tuple[int, int]]) -> None:
    assert [(r.rank, r.windows) for r in report(name).ranks] == expected


def test_the_remedy_of_a_pageable_copy_fits_its_direction() -> None:
    """Five copies to the host of 2 µs each: a pinned buffer there, not a pinned batch."""
    (found,) = of("dtoh_pageable_wait.json.gz", "FA405")
    assert found.snippet.startswith("host = torch.empty(y.shape, dtype=y.dtype, pin_memory=True)")
    assert found.saving.step_us.high <= 10.0
