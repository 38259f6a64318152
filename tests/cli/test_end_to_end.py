"""The whole program on real models and a real trace, as a user runs it."""

import json
from pathlib import Path

import pytest
import torch

from fusionadvisor.report import codec
from tests.cli.conftest import Cli
from tests.shared import SHARED

SAMPLES = Path(__file__).parents[2] / "sample_models"


def test_profile_then_apply(cli: Cli, tmp_path: Path) -> None:
    ran = cli("profile", f"{SAMPLES}/residual_block.py", "--json", "profile.json")
    assert ran.code == 0
    assert "residual_block.py:build_model → ResidualBlock" in ran.out
    assert "residual_block.py:18, 21" in ran.out
    assert "assumed: " in ran.out
    report = codec.read(tmp_path / "profile.json")
    (fold,) = [f for f in report.findings if f.rule == "FA101"]
    assert (fold.modules, fold.instances) == (("bn1", "bn2"), 2)

    ran = cli("apply", "--strategy", "fuse_modules", "--json", "apply.json", "--save", "out")
    assert ran.code == 0
    assert ran.err.startswith("last profile: residual_block.py:build_model\n")
    report = codec.read(tmp_path / "apply.json")
    (attempt,) = report.attempts
    assert attempt.sites.applied == 2
    assert attempt.kernels is not None
    assert ("aten::native_batch_norm", 2) in attempt.kernels.gone
    assert attempt.verification is not None
    assert attempt.verification.verdict == "agrees"
    assert attempt.before is not None
    assert attempt.after is not None
    assert attempt.speedup is not None
    low, high = attempt.speedup.ci95
    assert low <= attempt.speedup.median <= high
    assert "2 of 2" in ran.out
    assert "identical copies" in ran.out
    assert (tmp_path / "out" / "recipe.json").exists() is attempt.kept
    assert (report.timeline_after is not None) is attempt.kept


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without CUDA")
def test_cudagraph_without_cuda(cli: Cli) -> None:
    cli("profile", f"{SAMPLES}/linear_relu.py")
    ran = cli("apply", "--strategy", "cudagraph")
    assert ran.code == 3
    (sentence,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert "needs a CUDA device" in sentence
    assert "nothing else stands in its way" in " ".join(ran.out.split())


def test_predict_for_a_gpu_that_is_not_here(cli: Cli, tmp_path: Path) -> None:
    ran = cli("profile", f"{SAMPLES}/residual_block.py", "--gpu", "h100", "--json", "r.json")
    assert ran.code == 0
    report = codec.read(tmp_path / "r.json")
    assert report.timeline is not None
    assert (report.timeline.basis, report.timeline.stand_ins) == ("predicted", False)
    (fold,) = [f for f in report.findings if f.rule == "FA101"]
    assert fold.modules == ("bn1", "bn2")
    assert "kernels predicted for NVIDIA H100 SXM" in ran.out.splitlines()[0]
    ran = cli("profile", f"{SAMPLES}/residual_block.py", "--gpu", "nonsense")
    assert ran.code == 2
    assert "nonsense" in ran.err


@pytest.mark.parametrize("how", [("--device", "cpu"), ("--gpu", "h100")])
def test_models_that_come_whole(cli: Cli, tmp_path: Path, how: tuple[str, str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    torch.jit.save(torch.jit.script(model), "script.pt")
    torch.export.save(torch.export.export(model, (torch.randn(4, 8),)), "program.pt2")
    torch.save(model, "whole.pt")
    for name, more in (("script.pt", ["--input", "[4,8]"]), ("program.pt2", []), ("whole.pt", ["--trust"])):
        ran = cli("profile", name, *more, *how, "--json", "r.json")
        assert ran.code == 0, ran.err
        report = codec.read(tmp_path / "r.json")
        assert report.timeline is not None
        steps = report.timeline.steps
        layers = [op for op in report.timeline.kernels.op if op in ("aten::linear", "aten::addmm")]
        assert len(layers) == steps, name
        assert not any("typer" in f.source.file for f in report.findings if f.source)


def test_a_table_of_batch_sizes(cli: Cli, tmp_path: Path) -> None:
    target = f"{SAMPLES}/simple_mlp.py"
    ran = cli("profile", target, "--batch", "4, 16", "--device", "cpu", "--steps", "1", "--json", "r.json")
    assert ran.code == 0, ran.err
    lines = [line.split()[:2] for line in ran.out.splitlines() if line.startswith("  batch ")]
    assert lines == [["batch", "4"], ["batch", "16"]]
    report = codec.read(tmp_path / "r.json")
    sizes = [one.workload.batch for one in (report, *report.variants) if one.workload]
    assert sizes == [4, 16]
    ran = cli("apply", "--strategy", "inplace")  # to the first of them
    assert ran.err.startswith("last profile: simple_mlp.py")
    for given in ("4,x", "0", "4,,8", "", "-1"):
        ran = cli("profile", target, f"--batch={given}")
        assert (ran.code, ran.out) == (2, "")
        assert "is not a batch size.  Write --batch 8, or --batch 1,8,64" in ran.err


def test_one_command_gives_prefill_and_decode(cli: Cli, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=60
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    ran = cli("profile", "llama", "--entry", "generate", "--device", "cpu", "--steps", "1", "--json", "r.json")
    assert ran.code == 0, ran.err
    prefill = codec.read(tmp_path / "r.json")
    (decode,) = prefill.variants
    assert prefill.workload is not None
    assert decode.workload is not None
    assert [prefill.workload.entry, decode.workload.entry] == ["prefill", "decode"]
    assert [one.inputs[0].shape for one in (prefill.workload, decode.workload)] == [(1, 128), (1, 1)]
    assert decode.timeline is not None
    assert prefill.timeline is not None
    assert "aten::index_copy_" in decode.timeline.kernels.op  # the static cache is written in place
    assert "aten::index_copy_" not in prefill.timeline.kernels.op
    assert "per token" in ran.out
    assert ran.out.count("In full ") == 2
    ran = cli("profile", "llama", "--entry", "genrate")
    assert ran.code == 2
    assert "Did you mean 'generate'?" in ran.err


@pytest.mark.skipif(SHARED is None, reason="no traces beside this checkout")
def test_analyze_a_real_trace(cli: Cli, tmp_path: Path) -> None:
    ran = cli("analyze", f"{SHARED}/traces/tl_h100_vit_nsfw.json.gz", "--json", "r.json")
    assert ran.code == 0
    plain = json.loads((tmp_path / "r.json").read_text())
    (device,) = plain["timeline"]["devices"]
    assert device["kernels"] == 154
    assert device["busy_us"] == pytest.approx(1225.31, abs=0.1)
    assert plain["environment"]["gpu"] == "NVIDIA H100 80GB HBM3"
    assert plain["fusion"]["launch_bound"]["break_even_us"] == pytest.approx(1225.31 / 154, abs=0.01)
    assert plain["fusion"]["launch_bound"]["share"] is None
    (graph,) = [f for f in plain["findings"] if f["rule"] == "FA301"]
    assert graph["saving"]["step_us"]["likely"] is None
    assert "recorded on NVIDIA H100 80GB HBM3" in ran.out.splitlines()[0]
    assert "154 kernels" in ran.out
