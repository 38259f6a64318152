"""Comparisons of what the stations find: eager against compiled, before a fold against after, rank against rank."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fusionadvisor import advisor, recipe
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.summary import summarise
from fusionadvisor.evaluate import trial
from fusionadvisor.evaluate.trial import Job
from fusionadvisor.report import diff
from fusionadvisor.report.budget import check
from fusionadvisor.report.model import Environment, Report, Tool
from fusionadvisor.rules.engine import run
from fusionadvisor.workload.program import build
from fusionadvisor.workload.resolve import resolve
from tests.builders import H100, Call, T, call, timeline
from tests.shared import SHARED

X, ROW = T((8192, 2048)), T((8192, 1))
LAYERS = (0, 1, 2)


def analysed(calls: list[Call], **how: int) -> Report:
    """What ``analyze`` says of a trace with these kernels."""
    line = timeline(calls, **how)  # type: ignore[arg-type]
    advice = run(Facts(line))
    return Report(
        tool=Tool("fusion-advisor", "0"), created="", command="analyze", environment=Environment(gpu=H100),
        timeline=summarise(line, advice.group_of_kernel, advice.bytes_of_kernel), fusion=advice.fusion,
        findings=advice.findings, near_misses=advice.near_misses, passed=advice.passed,
        not_applicable=advice.not_applicable,
    )  # fmt: skip


def gemm(layer: int) -> Call:
    return call("aten::mm", X, T((2048, 2048)), kind="gemm", us=90.0, module=f"layers.{layer}.proj", source="m.py:9")


def eager(layer: int) -> Iterator[Call]:
    """An RMSNorm written out, in bf16 with the statistics in fp32."""
    where = {"module": f"layers.{layer}.norm", "source": "m.py:17", "us": 20.0}
    yield gemm(layer)
    yield call("aten::pow", X, "2", **where)
    yield call("aten::mean", X, "[-1]", "True", kind="reduction", **where)
    yield call("aten::add", ROW, "1e-6", **{**where, "us": 2.0})
    yield call("aten::rsqrt", ROW, **{**where, "us": 2.0})
    yield call("aten::mul", X, ROW, **where)
    yield call("aten::mul", X, T((2048,)), **where)


def compiled(layer: int) -> Iterator[Call]:
    yield gemm(layer)
    name = "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0"
    yield call(name, X, kind="fused", kernel=name, us=22.0, module=f"layers.{layer}.norm")


def test_eager_against_compiled_names_exactly_the_fusions_gained() -> None:
    before = analysed([c for layer in LAYERS for c in eager(layer)])
    after = analysed([c for layer in LAYERS for c in compiled(layer)])
    assert before.findings
    found = diff.compare(before, after)
    assert {(c.event, c.module) for c in found.fusions} == {("gained", f"layers.{layer}.norm") for layer in LAYERS}
    assert {c.rule for c in found.fusions} == {f.rule for f in before.findings if f.rule != "FA301"}
    (change,) = found.modules
    assert (change.modules, change.before, change.after) == (tuple(f"layers.{i}.norm" for i in LAYERS), 18, 3)
    assert all(kind == "layers" for kind in {m.split(".")[0] for m in change.modules})
    back = check(before, baseline=after)
    assert {p.module for b in back.breaches for p in b.places if b.what.startswith("findings.")} == {
        f"layers.{layer}.norm" for layer in LAYERS
    }


PAIR = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(32, 64)
        self.act = nn.GELU()
        self.norm = nn.LayerNorm(32)
        self.down = nn.Linear(64, 32)

    def forward(self, x):
        return self.norm(x + self.down(self.act(self.up(x))))


def compiled():
    return torch.compile(Block())


def example_inputs():
    return torch.randn(16, 32)
"""


def test_a_pair_that_torch_compiled_names_exactly_the_fusions_gained(tmp_path: Path) -> None:
    (tmp_path / "pair.py").write_text(PAIR)
    before, after = (
        advisor.profile(f"{tmp_path / 'pair.py'}:{name}", device="cpu", steps=1) for name in ("Block", "compiled")
    )
    assert after.timeline is not None
    ran = Counter(after.timeline.kernels.kind)
    assert ran == {"gemm": 2, "fused": 2}  # what the profile holds is the compiled code
    found = diff.compare(before, after)
    gained = [(c.event, c.rule, c.module, c.source and c.source.line) for c in found.fusions]
    assert ("gained", "FA102", "act", 16) in gained
    assert ("gained", "FA104", "norm", 16) in gained
    assert {event for event, *_ in gained} == {"gained"}
    assert {(rule, module) for _, rule, module, _ in gained} == {
        (f.rule, module) for f in before.findings for module in f.modules or (f.module,)
    }
    assert not after.findings
    changed = {m: (c.before, c.after) for c in found.modules for m in c.modules}
    assert changed == {"act": (1, 0), "norm": (1, 0), "": (1, 2)}
    assert [n for c in found.modules for n, _ in c.came if not n.startswith("cpp_fused_")] == []
    back = {c.event for c in diff.compare(after, before).fusions}
    assert back == {"lost"}


def test_one_layer_falling_back_to_eager_is_found_among_those_that_did_not() -> None:
    before = analysed([c for layer in LAYERS for c in compiled(layer)])
    after = analysed([*compiled(0), *eager(1), *compiled(2)])
    broken = check(after, baseline=before)
    places = {p.module for b in broken.breaches for p in b.places}
    assert places == {"layers.1.norm"}
    assert {p.source.line for b in broken.breaches for p in b.places if p.source} == {17}


FOLDED = """

def folded():
    from fusionadvisor.recipe import apply_recipe

    return apply_recipe(ResidualBlock().eval(), "{recipe}")
"""


def test_before_and_after_fuse_modules_names_exactly_the_batch_norms(tmp_path: Path) -> None:
    original = (Path(__file__).parents[1] / "sample_models" / "residual_block.py").read_text()
    target = tmp_path / "block.py"
    target.write_text(original)
    workload = resolve(f"{target}:ResidualBlock", device="cpu")
    program = build(workload)
    done = trial.perform(Job(workload, step=recipe.Step("fuse_modules"), budget_s=0), program, lambda _: None)
    assert done.step is not None
    modules, code = recipe.fingerprint(program.model)
    recipe.save(tmp_path, recipe.Recipe((done.step,), "ResidualBlock", modules=modules, code=code))
    target.write_text(original + FOLDED.format(recipe=tmp_path / recipe.FILE))

    before, after = (advisor.profile(f"{target}:{name}", device="cpu", steps=1) for name in ("ResidualBlock", "folded"))
    found = diff.compare(before, after)
    events = [(c.event, c.rule, c.module, c.source and c.source.line) for c in found.fusions]
    # after bn1 the activation was alone; after bn2 the addition still stands before it
    assert events == [("gained", "FA101", "bn1", 18), ("gained", "FA101", "bn2", 21), ("gained", "FA103", "relu", 19)]
    changed = {m: (c.before, c.after, c.gone, c.came) for c in found.modules for m in c.modules}
    assert changed == dict.fromkeys(("bn1", "bn2"), (1, 0, (("aten::native_batch_norm", 1),), ()))
    assert check(after, baseline=before).breaches == ()


@pytest.mark.skipif(SHARED is None, reason="the shared traces are not here")
@pytest.mark.parametrize(
    ("first", "second", "ranks"),
    [
        ("astra_a100_megatron_tp8_r0", "astra_a100_megatron_tp8_r3", (0, 3)),
        ("hta_sampled_rank0", "hta_sampled_rank1", (0, 1)),
        ("param_v100_dlrm_w0", "param_v100_dlrm_w3", (0, 3)),
    ],
)
def test_two_ranks_of_one_job_are_said_to_be(first: str, second: str, ranks: tuple[int, int]) -> None:
    assert SHARED is not None
    reports = [advisor.analyze(SHARED / "traces" / f"{name}.json.gz") for name in (first, second)]
    found = diff.compare(*reports)
    assert found.ranks
    assert (found.before.rank, found.after.rank) == ranks


@pytest.mark.skipif(SHARED is None, reason="the shared traces are not here")
def test_the_same_model_on_two_gpus_differs_in_its_convolution_only() -> None:
    assert SHARED is not None
    nvidia, amd = (advisor.analyze(SHARED / "traces" / f"tl_{gpu}_vit_nsfw.json.gz") for gpu in ("h100", "mi300"))
    found = diff.compare(nvidia, amd)
    assert found.fusions == ()
    (change,) = found.modules
    assert change.modules[0].endswith("Conv2d#0")
    assert (change.before, change.after) == (5, 6)  # MIOpen runs one kernel more than cuDNN
    assert found.time is not None
    assert (found.time.verdict, found.time.reason.startswith("the GPUs differ")) == ("unknown", True)


@pytest.mark.skipif(SHARED is None, reason="the shared traces are not here")
def test_syncs_removed_are_counted() -> None:
    assert SHARED is not None
    before, after = (advisor.analyze(SHARED / "traces" / f"ao_b200_{n}_ep_moe.json.gz") for n in ("ref", "syncless"))
    syncs = next(f for f in diff.compare(before, after).figures if f.name == "syncs")
    assert (syncs.before, syncs.after) == (21, 1)


def test_the_report_of_an_apply_is_read_as_before_it() -> None:
    plain = analysed(list(eager(0)))
    applied = replace(plain, command="apply")
    note = "The {} is of an apply: it is read as the step profiled before anything was applied."
    assert note.format("first") in diff.compare(applied, plain).notes
    assert note.format("second") in diff.compare(plain, applied).notes
    assert not diff.compare(plain, plain).notes
