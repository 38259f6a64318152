"""Groups and stretches: what they hold, and what must always be true of them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusionadvisor.analysis.facts import Facts
from fusionadvisor.rules import engine
from fusionadvisor.trace.timeline import Timeline
from tests.builders import Call, T, call, timeline

X = T((16, 559, 1024))
F = T((16, 559, 1024), "float32")
ROW = T((16, 559, 1), "float32")
W = T((1024,))


def linear(out: int = 1024, us: float = 30.0) -> Call:
    return call(
        "aten::mm", T((8944, 1024)), T((1024, out), strides=(1, 1024)), us=us, kind="gemm", outer="aten::linear"
    )


def rms_norm() -> list[Call]:
    """A written-out RMSNorm in bf16 with its fp32 inside, as transformer libraries have it."""
    return [
        call("aten::copy_", F, X, "False", us=29.8, kind="cast", outer="aten::to"),
        call("aten::pow", F, "2", us=26.4),
        call("aten::mean", F, "[-1]", "True", us=14.8, kind="reduction"),
        call("aten::add", ROW, "1e-6", "1", us=1.6),
        call("aten::rsqrt", ROW, us=1.5),
        call("aten::mul", F, ROW, us=32.4),
        call("aten::copy_", X, F, "False", us=18.5, kind="cast", outer="aten::to"),
        call("aten::mul", W, X, us=25.2),
    ]


def test_a_norm_is_one_group_with_its_residual_add() -> None:
    """add, then eight kernels: nine nodes, 150.2 + 18.5 = 168.7 µs.

    Reads: two residual operands of 16·559·1024·2 = 18 317 312 bytes, the weight's 2048. Writes: the add's result, which
    the next residual needs (here: the mean's maker keeps it), and the norm's.
    """
    facts = Facts(timeline([linear(), call("aten::add", X, X, "1", us=18.5), *rms_norm(), linear()]))
    (group,) = facts.groups
    assert len(group.nodes) == 9
    assert group.us == pytest.approx(168.7)
    assert group.rows == 8944
    assert group.reads == 2 * 18_317_312 + 2048


def test_bytes_of_a_chain() -> None:
    """relu, then a product with a factor a channel, over 16·559·1024 bf16 = 18 317 312 bytes.

    In: the relu's input and 1024 factors, 18 317 312 + 2048. Out: the product, 18 317 312. Kept in registers: the
    relu's result, 18 317 312.
    """
    facts = Facts(timeline([linear(), call("aten::relu", X), call("aten::mul", X, W)]))
    (group,) = facts.groups
    assert (group.reads, group.writes, group.internal) == (18_319_360, 18_317_312, 18_317_312)
    assert group.external == 36_636_672


def test_a_gemm_between_two_adds_keeps_them_apart() -> None:
    """x1 = x + a; y = linear(x1); x2 = x1 + y: x2 needs the GEMM, which needs x1: one kernel would be a cycle."""
    facts = Facts(
        timeline([call("aten::relu", X, us=5), call("aten::add", X, X, "1", us=5), linear(),
                  call("aten::add", X, X, "1", us=5), call("aten::mul", X, X, us=5)])
    )  # fmt: skip
    assert [g.nodes for g in facts.groups] == [(0, 1), (3, 4)]


def test_silu_moves_past_the_up_projection() -> None:
    wide = T((16, 559, 2816))
    facts = Facts(
        timeline([linear(2816), call("aten::silu", wide, us=38), linear(2816), call("aten::mul", wide, wide, us=51)])
    )
    (group,) = facts.groups
    assert group.nodes == (1, 3)


def test_two_reductions_over_different_axes_are_two_groups() -> None:
    m = T((256, 512), "float32")
    facts = Facts(
        timeline([call("aten::relu", m), call("aten::sum", m, "[0]", "True", kind="reduction"),
                  call("aten::mul", m, T((1, 512), "float32")), call("aten::sum", m, "[1]", "True", kind="reduction")])
    )  # fmt: skip
    assert all(len(set(g.nodes) & {1, 3}) < 2 for g in facts.groups)


def test_whole_tensor_reduction_ends_a_group() -> None:
    m = T((256, 512), "float32")
    facts = Facts(
        timeline([call("aten::pow", m, "2"), call("aten::sum", m, kind="reduction"),
                  call("aten::mul", T((), "float32"), "2"), call("aten::div", m, T((), "float32"))])
    )  # fmt: skip
    assert all(not {1, 3} <= set(g.nodes) for g in facts.groups)


def test_kernels_in_a_graph_or_on_another_stream_are_not_joined() -> None:
    graphed = timeline([call("aten::relu", X, graph=1), call("aten::mul", X, X, graph=1)])
    assert Facts(graphed).groups == ()
    streams = timeline([call("aten::relu", X, stream=7), call("aten::mul", X, X, stream=8)])
    assert Facts(streams).groups == ()


def test_triton_kernels_are_fused_already() -> None:
    tl = timeline([call("triton_poi_fused_add_0", X, kind="fused"), call("triton_poi_fused_mul_1", X, kind="fused")])
    assert Facts(tl).groups == ()


def test_stretches_are_maximal_runs_on_one_stream() -> None:
    """mm, relu, mul, mm, add, add, add: runs of 2 and 3; times 2 · 4 and 3 · 4."""
    calls = [linear(), *[call("aten::mul", X, X, us=4)] * 2, linear(), *[call("aten::add", X, X, us=4)] * 3]
    found = Facts(timeline(calls)).stretches
    assert [s.kernels for s in found] == [(1, 2), (4, 5, 6)]
    assert [s.us for s in found] == pytest.approx([8.0, 12.0])


_OPS = {
    "relu": lambda us: call("aten::relu", X, us=us),
    "add": lambda us: call("aten::add", X, X, "1", us=us),
    "cast": lambda us: call("aten::copy_", F, X, us=us, kind="cast", outer="aten::to"),
    "mul32": lambda us: call("aten::mul", F, F, us=us),
    "mean": lambda us: call("aten::mean", F, "[-1]", "True", us=us, kind="reduction"),
    "norm": lambda us: call("aten::native_layer_norm", X, W, W, us=us, kind="norm"),
    "linear": lambda us: linear(us=us),
    "orphan": lambda us: call("", us=us, kind="elementwise", linked=False),
    "fused": lambda us: call("triton_poi_fused_0", X, us=us, kind="fused"),
}
_CALLS = st.lists(
    st.tuples(st.sampled_from(sorted(_OPS)), st.floats(0.5, 80), st.floats(0, 20)), min_size=1, max_size=40
).map(lambda rows: [replace(_OPS[name](us), gap_us=gap) for name, us, gap in rows])


def _shifted(tl: Timeline, ns: int) -> Timeline:
    kernels = tl.kernels.assign(start_ns=tl.kernels["start_ns"] + ns)
    kernels["launch_ns"] = kernels["launch_ns"].where(kernels["launch_ns"] < 0, kernels["launch_ns"] + ns)
    return replace(tl, kernels=kernels, steps=tuple(replace(s, start_ns=s.start_ns + ns) for s in tl.steps))


@settings(max_examples=60, deadline=None)
@given(_CALLS)
def test_conservation(calls: list[Call]) -> None:
    """Groups are disjoint, within busy time; a bound is within its group; savings are within the step."""
    facts = Facts(timeline(calls))
    rows = [k for g in facts.groups for k in g.kernels]
    assert len(rows) == len(set(rows))
    assert sum(g.us for g in facts.groups) <= facts.busy_us + 1e-6
    for group in facts.groups:
        bound = facts.bound(group.nodes)
        assert 0 <= bound.low <= (bound.likely or bound.low) <= bound.high <= group.us + 1e-9
    advice = engine.run(facts)
    assert not [w for w in advice.warnings if w.code == "W10"]
    assert sum(f.saving.step_us.high for f in advice.findings) <= facts.step_us + 1e-6
    assert sum(f.saving.gpu_us.high for f in advice.findings) <= facts.busy_us + 1e-6
    for finding in advice.findings:
        assert finding.saving.gpu_us.high <= finding.kernel_us + 1e-9


@settings(max_examples=30, deadline=None)
@given(_CALLS, st.integers(1, 10**15))
def test_advice_is_stable_under_time_shift(calls: list[Call], ns: int) -> None:
    tl = timeline(calls)
    assert engine.run(Facts(_shifted(tl, ns))).findings == engine.run(Facts(tl)).findings


@settings(max_examples=30, deadline=None)
@given(_CALLS, st.randoms(use_true_random=False))
def test_groups_do_not_depend_on_the_order_of_ops(calls: list[Call], random: object) -> None:
    """The ops table in any order, its rows renumbered: the same groups."""
    tl = timeline(calls)
    order = list(range(len(tl.ops)))
    random.shuffle(order)  # type: ignore[attr-defined]
    place = {old: new for new, old in enumerate(order)} | {-1: -1}
    ops = tl.ops.iloc[order].reset_index(drop=True)
    ops["parent"] = ops["parent"].map(place)
    kernels = tl.kernels.assign(op_id=tl.kernels["op_id"].map(place))
    shuffled = replace(tl, ops=ops, kernels=kernels)
    assert [g.kernels for g in Facts(shuffled).groups] == [g.kernels for g in Facts(tl).groups]


@settings(max_examples=30, deadline=None)
@given(_CALLS)
def test_savings_are_additive_over_steps(calls: list[Call]) -> None:
    """The same step recorded twice: per step, the same findings with the same numbers."""
    once = timeline(calls)
    twice = timeline([*calls, *(replace(c, step=1) for c in calls)])
    one, two = engine.run(Facts(once)), engine.run(Facts(twice))
    assert [(f.rule, f.instances) for f in two.findings] == [(f.rule, f.instances) for f in one.findings]
    for a, b in zip(one.findings, two.findings, strict=True):
        assert b.kernel_us == pytest.approx(a.kernel_us)
        assert b.saving.gpu_us.high == pytest.approx(a.saving.gpu_us.high)


def test_equal_steps_are_analysed_once() -> None:
    """Steps of 10 and 14 µs a kernel, the same ops: one node each, of 12 µs; a step with another op stands alone."""
    steps = [replace(call("aten::relu", X, us=us), step=i) for i, us in enumerate((10.0, 14.0))]
    steps.append(call("aten::exp", X, us=9.0, step=2))
    facts = Facts(timeline(steps))
    assert [(n.op, n.repeats, n.kernels) for n in facts.nodes] == [("relu", 2, (0, 1)), ("exp", 1, (2,))]
    assert [n.us for n in facts.nodes] == pytest.approx([12.0, 9.0])


def test_groups_of_equal_steps_are_told_apart_in_the_kernel_table() -> None:
    chain = [call("aten::relu", X), call("aten::mul", X, W)]
    facts = Facts(timeline([*chain, *(replace(c, step=1) for c in chain)]))
    column = engine.run(facts).group_of_kernel
    assert column is not None
    assert column.tolist() == [0, 0, 1, 1]


def test_nothing_flows_from_one_call_of_the_model_to_the_next() -> None:
    """add → relu, twice in one step: by shape alone the second add could read the first relu's result."""
    once = [call("aten::add", X, X, "1"), call("aten::relu", X)]
    recorded = timeline([*once, *once])
    assert [len(group.nodes) for group in Facts(recorded).groups] == [4]
    called = replace(recorded, ops=recorded.ops.assign(start_ns=[10, 20, 110, 120]), calls=(5, 105))
    assert [len(group.nodes) for group in Facts(called).groups] == [2, 2]
