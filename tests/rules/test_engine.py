"""Crediting, collapsing, and what happens when a rule breaks."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fusionadvisor.analysis.facts import Facts
from fusionadvisor.report.model import NearMiss, Range
from fusionadvisor.rules import engine
from fusionadvisor.rules.base import Candidate, Looked, Rule
from fusionadvisor.trace.timeline import Recording
from fusionadvisor.workload.usercode import hooked
from tests.builders import T, call, timeline
from tests.rules import live, models
from tests.rules.cases import TOK, X, add, batch_norm, conv, idle, layer_norm, linear, relu


class Broken(Rule):
    """Fails."""

    id = "XX001"

    def look(self, facts: Facts) -> Looked:
        raise KeyError("op")


class Whole(Rule):
    """Claims every node for a saving of its own choosing."""

    def __init__(self, identifier: str, high: float, specific: bool = True) -> None:
        self.id = identifier  # type: ignore[misc]
        self.high, self.specific = high, specific

    def look(self, facts: Facts) -> Looked:
        nodes = tuple(n.index for n in facts.nodes)
        return Looked((Candidate(nodes, Range(0, None, self.high), "all", facts.nodes[0], specific=self.specific),))


def test_a_broken_rule_costs_only_itself() -> None:
    facts = Facts(timeline([conv(), batch_norm()]))
    advice = engine.run(facts, (Broken(), *engine.rules()))
    (warning,) = advice.warnings
    assert "XX001" in warning.message
    assert "KeyError" in warning.message
    assert any(f.rule == "FA101" for f in advice.findings)


def test_each_kernel_is_credited_once_and_the_loser_says_so() -> None:
    facts = Facts(timeline([call("aten::relu", TOK, us=30), call("aten::mul", TOK, TOK, us=30)]))
    advice = engine.run(facts, (Whole("XX1", 10.0), Whole("XX2", 20.0)))
    winner, loser = advice.findings
    assert (winner.rule, winner.saving.gpu_us.high, winner.overlaps) == ("XX2", 20.0, ())
    assert (loser.rule, loser.saving.gpu_us.high, loser.overlaps) == ("XX1", 0.0, ("XX2#1",))
    assert loser.footnote


def test_a_specific_rule_goes_before_a_general_one() -> None:
    facts = Facts(timeline([call("aten::relu", TOK, us=30), call("aten::mul", TOK, TOK, us=30)]))
    advice = engine.run(facts, (Whole("XX1", 50.0, specific=False), Whole("XX2", 20.0)))
    assert {f.rule: f.saving.gpu_us.high for f in advice.findings} == {"XX1": 0.0, "XX2": 20.0}


def test_totals_are_sums_over_the_real_instances() -> None:
    """Norms of 37, 11 and 5 µs: 53, not 3 × 37."""
    calls = [c for us in (37.0, 11.0, 5.0) for c in (conv(), batch_norm(us))]
    (finding,) = (f for f in engine.run(Facts(timeline(calls))).findings if f.rule == "FA101")
    assert finding.kernel_us == pytest.approx(53.0)
    assert finding.instances == 3
    assert finding.saving.gpu_us.high == pytest.approx(53.0)


def test_fold_charges_the_bias_kernel_of_an_unbiased_convolution() -> None:
    """Norm 37 µs over 32·64·56·56 bf16 = 12 845 056 bytes.

    An elementwise kernel over twice that: 25 690 112 / (0.87 · 3.35e6) = 8.8147; √(1.6² + 8.8147²) = 8.9588 µs.
    low = 37 − 8.9588 = 28.041; high = 37.
    """
    (finding,) = (f for f in engine.run(Facts(timeline([conv(), batch_norm()]))).findings if f.rule == "FA101")
    assert finding.saving.gpu_us.low == pytest.approx(28.041, abs=1e-3)
    assert finding.saving.gpu_us.high == pytest.approx(37.0)


def test_every_module_of_a_finding_has_its_own_line() -> None:
    calls = []
    for number, line in ((1, 10), (2, 20)):
        pair = conv(module=f"conv{number}"), batch_norm(module=f"bn{number}")
        calls += [replace(part, source=f"net.py:{line}") for part in pair]
    (fold,) = [f for f in engine.run(Facts(timeline(calls))).findings if f.rule == "FA101"]
    lines = {m: s.line for m, s in zip(fold.modules, fold.sources, strict=True) if s}
    assert lines == {"bn1": 10, "bn2": 20}


def test_near_misses_name_the_condition() -> None:
    gate = call("aten::mul", X, X, module="gate")
    shared = engine.run(Facts(timeline([conv(), batch_norm(), gate])))
    assert [m.reason for m in shared.near_misses if m.rule == "FA101"] == [
        "conv1 → bn1 is not folded: the result of conv1 is also read by gate"
    ]
    training = engine.run(Facts(timeline([conv(), batch_norm(training=True)])))
    assert "statistics of the batch" in training.near_misses[0].reason


def test_in_training_no_fold_is_nearly_missed() -> None:
    """With a backward pass, statistics of the batch are what is wanted."""
    backward = call("aten::threshold_backward", X, X, phase="backward")
    advice = engine.run(Facts(timeline([conv(), batch_norm(training=True), backward])))
    assert "FA101" in {n.rule for n in advice.not_applicable}
    assert not [m for m in advice.near_misses if m.rule == "FA101"]


def test_nothing_to_look_at_is_not_a_pass() -> None:
    advice = engine.run(Facts(timeline([add(TOK), relu(TOK)])))
    skipped = {n.rule: n.reason for n in advice.not_applicable}
    assert skipped["FA101"] == "no batch norm ran"
    assert "FA101" not in {p.rule for p in advice.passed}


def test_a_rule_that_found_nothing_passes() -> None:
    advice = engine.run(Facts(timeline([linear(), layer_norm(), linear()])))
    assert {"FA102", "FA201"} <= {p.rule for p in advice.passed}


def test_stand_ins_get_bounds_from_measured_times() -> None:
    """CPU ops of 60, 37 and 20 µs: the norm may vanish (37), the relu too (20); no likely value, no launches."""
    tl = timeline([conv(), batch_norm(), relu(us=20)], stand_ins=True, gpu=None)
    advice = engine.run(Facts(tl))
    saving = {f.rule: f.saving.gpu_us for f in advice.findings}
    assert saving["FA101"] == Range(0.0, None, 37.0)
    assert saving["FA102"] == Range(0.0, None, 20.0)
    assert "FA301" in {n.rule for n in advice.not_applicable}


def test_heavy_recording_has_break_even_and_no_saving() -> None:
    advice = engine.run(Facts(idle(100, 2, 50, Recording(stacks=True))))
    (finding,) = (f for f in advice.findings if f.rule == "FA301")
    assert finding.saving.step_us == Range(0.0, None, 0.0)
    assert "2.00 µs a kernel" in finding.evidence[0]
    assert advice.fusion.launch_bound.break_even_us == pytest.approx(2.0)
    assert advice.fusion.launch_bound.share is None


def test_a_prediction_says_the_break_even_and_nothing_of_idle_time() -> None:
    advice = engine.run(Facts(replace(idle(100, 2, 50, Recording()), basis="predicted")))
    (finding,) = (f for f in advice.findings if f.rule == "FA301")
    said = "the CPU's time a kernel is not known for a predicted step."
    assert finding.evidence == (f"Launch-bound if the CPU needs more than 2.00 µs a kernel; {said}",)


def test_idle_time_is_said_by_cause() -> None:
    """A hundred kernels of 2 µs every 50 µs: 99 gaps of 48, each ended by a late launch."""
    advice = engine.run(Facts(idle(100, 2, 50, Recording(stacks=True))))
    (finding,) = (f for f in advice.findings if f.rule == "FA301")
    assert any("4752.0 µs for the next launch" in sentence for sentence in finding.evidence)
    assert advice.fusion.launch_bound.idle is not None
    assert advice.fusion.launch_bound.idle.launch_us == pytest.approx(99 * 48)


def test_the_step_is_replayed_with_the_kernels_as_one() -> None:
    """Three kernels of 2 µs launched at 0, 10 and 20; the last two could save 2 of their 4 µs.

    Ends at 8.4, 18.4, 28.4. As one they are launched at 10 and end at 18.4: the step is 10 µs shorter.
    At the low end nothing is saved: one kernel of 4 µs launched at 10 ends at 20.4, 8 µs sooner.
    """

    class Two(Rule):
        """Claims the last two."""

        id = "XX3"

        def look(self, facts: Facts) -> Looked:
            return Looked((Candidate((1, 2), Range(0.0, None, 2.0), "two", facts.nodes[1]),))

    calls = [call("aten::relu", TOK, us=2, gap_us=8 if i else 0, launch_us=10.0 * i) for i in range(3)]
    (finding,) = engine.run(Facts(timeline(calls, recording=Recording())), (Two(),)).findings
    assert finding.saving.gpu_us == Range(0.0, None, 2.0)
    assert finding.saving.step_us.low == pytest.approx(8.0)
    assert finding.saving.step_us.high == pytest.approx(10.0)
    (finding,) = engine.run(Facts(timeline(calls, recording=Recording(stacks=True))), (Two(),)).findings
    assert finding.saving.step_us == Range(0.0, None, 2.0)


def test_shares_are_of_all_kernels_those_without_a_launch_too() -> None:
    """A norm of 37 µs, a convolution of 60, and 100 µs of a kernel whose launch was not recorded: 37 of 197."""
    orphan = call("", us=100.0, kind="custom", linked=False, step=-1)
    (finding,) = (f for f in engine.run(Facts(timeline([orphan, conv(), batch_norm()]))).findings if f.rule == "FA101")
    assert finding.share == pytest.approx(37 / 197)


def test_light_recording_has_a_share() -> None:
    """4633.2 µs of a window of 99 · 50 + 2 = 4952 µs."""
    advice = engine.run(Facts(idle(100, 2, 50, Recording())))
    assert advice.fusion.launch_bound.share == pytest.approx(4633.2 / 4952)


def test_fused_and_graphed_shares() -> None:
    """Triton 30, flash attention 10, add 60 from a graph: fused 40 %, graphed 60 %."""
    tl = timeline(
        [call("triton_poi_fused_add_0", TOK, us=30, kind="fused"),
         call("aten::_flash_attention_forward", TOK, us=10, kind="attention"), call("aten::add", TOK, us=60, graph=3)]
    )  # fmt: skip
    fusion = engine.run(Facts(tl)).fusion
    assert fusion.fused_share == pytest.approx(0.4)
    assert fusion.graphed_share == pytest.approx(0.6)


def test_group_of_kernel_marks_the_groups() -> None:
    advice = engine.run(Facts(timeline([linear(), call("aten::gelu", TOK), add(TOK)])))
    assert advice.group_of_kernel is not None
    assert advice.group_of_kernel.tolist() == [-1, 0, 0]


def test_every_op_moves_its_operands_once_at_its_longest_kernel() -> None:
    rows, table, picked = T((8, 4), "float32"), T((1000, 4), "float32"), T((8,), "int64")
    line = timeline(
        [
            call("aten::add", rows, rows, "1"),  # one tensor read twice or two: shapes cannot tell
            call("aten::mm", rows, T((4, 2), "float32"), kind="gemm", us=20.0),
            call("aten::embedding", table, picked, kind="embedding"),
            call("aten::add", linked=False),
        ],
        helpers={1: ("splitKreduce_kernel",)},
    )
    moved = engine.run(Facts(line)).bytes_of_kernel
    assert moved is not None
    add, gemm, helper, gather, unknown = moved.tolist()
    assert add in (2 * 128, 3 * 128)
    assert (gemm, helper) == (128 + 32 + 64, 0)
    assert gather <= 3 * 8 * 4 * 4  # what it returns, and about as much of the table; not all of it
    assert unknown == -1


def _hooked(made: Facts, path: str) -> list[NearMiss]:
    """The near misses where one module has a hook."""
    advice = engine.run(replace(made, hooked={path: "has a forward hook"}))
    assert not [f for f in advice.findings if f.rule in ("FA101", "FA102", "FA107", "FA401")]
    return list(advice.near_misses)


def test_a_hook_between_is_a_near_miss() -> None:
    fold = Facts(timeline([conv(module="conv4"), batch_norm(module="bn4")]))
    (miss,) = _hooked(fold, "conv4")
    assert (miss.rule, miss.reason) == ("FA101", "conv4 → bn4 is not folded: conv4 has a forward hook")
    epilogue = Facts(timeline([conv(module="block.conv"), relu(module="block.relu")]))
    (miss,) = _hooked(epilogue, "block.relu")
    assert (miss.rule, miss.reason) == ("FA102", "relu stays outside block.conv: block.relu has a forward hook")
    joined = engine.run(replace(epilogue, hooked={"block": "has a forward hook"}))  # it sees neither's result
    assert [f.rule for f in joined.findings] == ["FA102"]


def test_a_hook_on_live_models_is_a_near_miss() -> None:
    made = live.of(models.Act(), torch.randn(2, 8, 4, 4))
    assert "act is not done in place: act has a forward hook" in [m.reason for m in _hooked(made, "act")]

    class Scores(models.Attention):
        """Attention whose softmax is a module."""

        def __init__(self) -> None:
            super().__init__()
            self.softmax = torch.nn.Softmax(dim=-1)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.view(2, 8, 2, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
            return self.softmax(q @ k.transpose(-2, -1) / 8**0.5 + mask) @ v  # type: ignore[no-any-return]

    written = live.of(Scores(), torch.randn(2, 8, 16), torch.zeros(8, 8))
    assert [f.rule for f in engine.run(written).findings if f.rule == "FA107"]
    reasons = [m.reason for m in _hooked(written, "softmax") if m.rule == "FA107"]
    assert len(reasons) == 1
    assert reasons[0].endswith("is not fused: softmax has a forward hook")


def test_hooks_of_a_model_in_words() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    model[0].register_forward_hook(lambda *_: None)
    model[1].register_forward_pre_hook(lambda *_: None)
    assert hooked(model) == {"0": "has a forward hook", "1": "has a forward pre-hook"}


class _Readers(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x.sigmoid()


def test_readers_of_one_tensor_reread_nothing_of_their_own() -> None:
    (finding,) = (f for f in engine.run(live.of(_Readers(), torch.ones(64, 64))).findings if f.rule == "FA103")
    assert "each reads the same tensor, which one kernel reads once; 49.2 kB remain." in finding.evidence[0]


def test_a_gradient_that_reads_the_input_is_called_the_backward_pass() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.SiLU())
    x = torch.ones(4, 8)
    step = live.of_step(model, lambda: model(x).sum().backward())
    reasons = [m.reason for m in engine.run(step).near_misses if m.rule == "FA401"]
    assert reasons == ["1 is not done in place: its input is also read by the backward pass"]


class _Residual(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x * y
        return total, total.sigmoid()


def test_a_reader_of_what_was_just_written_is_not_called_a_reader_of_one_tensor() -> None:
    """64 × 64 float32 are 16 384 bytes: the product is needed elsewhere, and read again by the sigmoid."""
    made = live.of(_Residual(), torch.ones(64, 64), torch.ones(64, 64))
    (finding,) = (f for f in engine.run(made).findings if f.rule == "FA103")
    assert finding.evidence[0].startswith(
        "mul → sigmoid: reads back 16.4 kB that others need as well, which one kernel"
    )
    assert "the same tensor" not in finding.evidence[0]


class _Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.gate(x)
        for _ in range(20):
            x = x * 2
        return x if x.sum().item() > 0 else -x


def test_a_graph_waits_for_what_reads_back_and_says_where() -> None:
    wait = {"start_ns": 900_000, "dur_ns": 5_000, "name": "cudaStreamSynchronize", "kind": "stream", "op_id": 19,
            "scope": "stream", "step": 0, "source": "src/model.py:20", "module": "gate"}  # fmt: skip
    slow = [call("aten::relu", TOK, us=2.0, gap_us=30.0) for _ in range(20)]
    advice = engine.run(Facts(timeline(slow, syncs=[wait])))
    (sync,) = (f for f in advice.findings if f.rule == "FA302")
    assert sync.source
    said = "First FA302: a graph cannot hold what waits for the GPU, aten::relu at model.py:20."
    for finding in advice.findings:
        assert ("cudagraph" in finding.remedies) == (said in finding.evidence)
    assert {f.rule for f in advice.findings if said in f.evidence} == {"FA301", "FA303"}
    without = engine.run(Facts(timeline(slow)))
    assert not [s for f in without.findings for s in f.evidence if "FA302" in s]


def test_a_storm_on_the_cpu_says_what_a_graph_could_not_hold() -> None:
    made = live.of(_Reads(), torch.ones(4, 8))
    fast = made.timeline.kernels.assign(dur_ns=2_000)
    findings = engine.run(replace(made, timeline=replace(made.timeline, kernels=fast))).findings
    (storm,) = (f for f in findings if f.rule == "FA303")
    (sync,) = (f for f in findings if f.rule == "FA302")
    assert sync.source
    assert any(f"at test_engine.py:{sync.source.line}." in s and "First FA302" in s for s in storm.evidence)


def test_the_share_judged_is_of_the_ops_that_were_recorded() -> None:
    made = live.of(_Readers(), torch.ones(64, 64))
    assert engine.run(made).fusion.judged_share == 1.0
    kernels = made.timeline.kernels
    lost = kernels.assign(flow_op=[-1, *kernels["flow_op"][1:]], dur_ns=[90_000, 10_000])
    advice = engine.run(replace(made, timeline=replace(made.timeline, kernels=lost)))
    assert advice.fusion.judged_share == pytest.approx(0.1)
