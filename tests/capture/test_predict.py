"""Predictions of kernel streams, against hand-derived streams and against what an H100 launched."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusionadvisor import trace
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.summary import summarise
from fusionadvisor.capture.predict import Predicted, predict, predict_model
from fusionadvisor.capture.predicted import stream as stream_module
from fusionadvisor.capture.predicted.stream import Factory
from fusionadvisor.errors import InputError
from fusionadvisor.report.codec import to_dict
from fusionadvisor.report.model import Workload
from fusionadvisor.rules.engine import run
from fusionadvisor.trace.timeline import KERNEL_COLUMNS, LAUNCH_COLUMNS, MEMORY_COLUMNS, OP_COLUMNS, SYNC_COLUMNS
from fusionadvisor.workload.resolve import ask, resolve
from tests.capture import architectures, h100, tiny
from tests.capture.worker import predict_all
from tests.shared import SHARED

SOURCES: dict[str, tuple[Factory, str]] = {
    "mlp": (Factory(tiny.mlp, tiny.rows), "h100"),
    "mlp on a100": (Factory(tiny.mlp, tiny.rows), "a100"),
    "training": (Factory(tiny.mlp, tiny.rows_and_labels, "training", tiny.step, tiny.sgd), "h100"),
    "conv": (Factory(tiny.conv, tiny.images), "h100"),
    "conv channels last": (Factory(tiny.conv, tiny.images_channels_last), "h100"),
    "flash": (Factory(tiny.Attention, partial(tiny.heads, torch.bfloat16, False)), "h100"),
    "efficient": (Factory(tiny.Attention, partial(tiny.heads, torch.float32, False)), "h100"),
    "masked attention": (Factory(tiny.Attention, partial(tiny.heads, torch.bfloat16, True)), "h100"),
    "autocast": (Factory(tiny.Autocast, tiny.rows), "h100"),
    "encoder": (Factory(tiny.encoder, tiny.sequences), "h100"),
    "encoder training": (
        Factory(tiny.encoder, tiny.sequences, "training", tiny.clipped_step, tiny.fused_adamw),
        "h100",
    ),
    "recurrent": (Factory(tiny.Recurrent, tiny.long_sequences), "h100"),
    "recurrent training": (Factory(tiny.Recurrent, tiny.long_sequences, "training", tiny.clipped_step), "h100"),
    "reads": (Factory(tiny.Reads, tiny.rows), "h100"),
    "mask": (Factory(tiny.Masked, tiny.mask), "h100"),
    "numpy": (Factory(tiny.Numpy, tiny.rows), "h100"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Predicted]:
    return predict_all(SOURCES, tmp_path_factory.mktemp("predictions"))


SAMPLES = Path(__file__).parents[2] / "sample_models"


def kernels(found: Predicted) -> list[tuple[str, str]]:
    table = found.timeline.kernels
    return list(zip(table["op"].astype(str), table["kind"].astype(str), strict=True))


def names(found: Predicted) -> list[str]:
    return [str(name) for name in found.timeline.kernels["name"]]


def ops(found: Predicted) -> list[str]:
    return [op.removeprefix("aten::") for op, _ in kernels(found)]


# -- against an H100 --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(SHARED is None, reason="the recorded traces are not here")
@pytest.mark.parametrize(("name", "counted"), [("tl_h100_vit_nsfw", 154), ("tl_h100_qwen15_05b", 1029)])
def test_kernels_are_those_an_h100_launched(name: str, counted: int) -> None:
    pytest.importorskip("transformers")
    assert SHARED is not None
    recorded = trace.load(SHARED / "traces" / f"{name}.json.gz").kernels
    linked = recorded[recorded["launch_id"] >= 0]
    assert len(linked) == counted
    build, inputs = h100.REBUILT[name]
    predicted = predict_model(build, inputs, "h100").timeline.kernels
    for column in ("op", "kind"):
        assert Counter(predicted[column].astype(str)) == Counter(linked[column].astype(str))


@pytest.mark.slow
@pytest.mark.skipif(SHARED is None, reason="the recorded traces are not here")
def test_detector_is_within_two_percent_of_an_h100() -> None:
    pytest.importorskip("transformers")
    assert SHARED is not None
    recorded = trace.load(SHARED / "traces" / "tl_h100_owlv2.json.gz").kernels
    build, inputs = h100.REBUILT["tl_h100_owlv2"]
    predicted = predict_model(build, inputs, "h100").timeline.kernels
    assert abs(h100.OWLV2_CALLS * len(predicted) - len(recorded)) <= 0.02 * len(recorded)


@pytest.mark.slow
def test_architectures_are_predicted_forward_and_training(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    some = ("llama", "mixtral", "gpt2", "bert", "t5", "mamba", "vit", "swin", "resnet", "wav2vec2")
    sources = {(f"{n} {t}"): (architectures.source(n, training=t), "h100") for n in some for t in (False, True)}
    predicted = predict_all(sources, tmp_path)
    assert [w for p in predicted.values() for w in p.warnings if "stand-in for" in w.message] == []
    for name in some:
        forward, training = (predicted[f"{name} {t}"].timeline.kernels for t in (False, True))
        assert 0 < len(forward) < len(training)
        assert set(training["phase"]) == {"forward", "backward", "optimizer"}


@pytest.mark.slow
@pytest.mark.skipif(SHARED is None, reason="the recorded traces are not here")
def test_times_of_a_trace_that_was_left_out() -> None:
    from benchmarks import prediction

    found = prediction.leave_one_out()
    errors = found["all"]["median_abs_error"]
    assert errors["memory-bound"] <= 0.15
    assert errors["gemm"] <= 0.12
    assert all(abs(found[slug]["total_off"]) <= 0.2 for slug in prediction.EAGER)


# -- by hand ----------------------------------------------------------------------------------------------------


def test_inference_of_linear_layers(found: dict[str, Predicted]) -> None:
    mlp = found["mlp"]
    assert ops(mlp) == ["addmm", "relu", "addmm", "_log_softmax"]
    assert mlp.timeline.basis == "predicted"
    assert list(mlp.timeline.kernels["module"].astype(str)) == ["first", "", "second", ""]
    line = tiny.line_of("F.log_softmax(")
    assert {str(s).rpartition("/")[2] for s in mlp.timeline.kernels["source"]} == {f"tiny.py:{line}"}


def test_training_adds_backward_and_optimizer(found: dict[str, Predicted]) -> None:
    table = found["training"].timeline.kernels
    by_phase = {
        str(phase): [str(op).removeprefix("aten::") for op in rows["op"]]
        for phase, rows in table.groupby("phase", observed=True)
    }
    assert by_phase["forward"] == ["addmm", "relu", "addmm", "_log_softmax", "nll_loss_forward"]
    backward = Counter(by_phase["backward"])
    # of each layer the weight's gradient, of the second the input's too; a sum for each bias
    assert (backward["mm"], backward["sum"], backward["threshold_backward"]) == (3, 2, 1)
    assert by_phase["optimizer"] == ["_foreach_add_"]


def test_convolutions_turn_the_layout_they_get(found: dict[str, Predicted]) -> None:
    # half precision, channels first: input and weight are turned, the result is turned back
    turned = ["nchwToNhwc", "nchwToNhwc", "fprop<bfloat16>", "nhwcToNchw"]
    assert names(found["conv"])[:4] == turned
    assert names(found["conv channels last"])[:1] == ["fprop<bfloat16>"]
    assert names(found["conv"])[4:] == names(found["conv channels last"])[1:]
    # bias, then batch norm by ATen as cuDNN takes no bfloat16, then the activation
    assert [kind for _, kind in kernels(found["conv"])[4:]] == ["elementwise", "norm", "norm", "elementwise"]


def test_attention_is_chosen_as_on_cuda(found: dict[str, Predicted]) -> None:
    assert ops(found["flash"]) == ["_flash_attention_forward"]
    assert ops(found["efficient"]) == ["_efficient_attention_forward"]
    assert ops(found["masked attention"]) == ["fill_", "fill_", "where", "_efficient_attention_forward"]


def test_autocast_casts_as_on_cuda(found: dict[str, Predicted]) -> None:
    # input, weight and bias of the first layer, weight and bias of the second; the softmax runs in float32
    assert ops(found["autocast"]) == [
        "copy_", "copy_", "copy_", "addmm", "relu", "copy_", "copy_", "addmm", "copy_", "_softmax",
    ]  # fmt: skip
    assert [k for o, k in kernels(found["autocast"]) if o == "aten::copy_"] == ["cast"] * 6


def test_transformer_layers_take_their_fast_path_in_eval_alone(found: dict[str, Predicted]) -> None:
    assert {op.name for op in found["encoder"].flow.ops if not op.view} == {"aten::_transformer_encoder_layer_fwd"}
    training = Counter(ops(found["encoder training"]))
    assert training["_flash_attention_forward"] == 1
    assert training["_flash_attention_backward"] == 3
    assert training["native_layer_norm"] == 2


def test_clipping_and_fused_optimizers_walk_all_parameters_at_once(found: dict[str, Predicted]) -> None:
    walks = Counter(op for op in ops(found["encoder training"]) if op.startswith(("_foreach_", "_fused_")))
    # the norms of all gradients take a walk and a clean-up, their scaling one, the step counts one, the optimizer one
    assert walks == {"_foreach_norm": 2, "_foreach_mul_": 1, "_foreach_add_": 1, "_fused_adamw_": 1}


def test_recurrent_layers_are_one_op_of_cudnn(found: dict[str, Predicted]) -> None:
    assert Counter(ops(found["recurrent"]))["_cudnn_rnn"] == 4  # of each layer a product and a persistent kernel
    assert Counter(ops(found["recurrent training"]))["_cudnn_rnn_backward"] == 8


def test_mixed_precision_of_the_workload_holds_on_the_gpu() -> None:
    predicted = predict(resolve(str(SAMPLES / "linear_relu.py"), amp="bf16"), "h100")
    products = [v for op in predicted.flow.ops if op.name == "aten::addmm" for v in op.writes]
    assert {predicted.flow.values[v].dtype for v in products} == {"bfloat16"}
    assert {predicted.flow.values[v].device for v in products} == {"cuda:0"}


def test_reading_a_value_is_a_sync_with_its_line(found: dict[str, Predicted]) -> None:
    syncs = found["reads"].timeline.syncs
    assert [str(s).rpartition(":")[2] for s in syncs["source"]] == [str(tiny.line_of("item()"))]
    assert any("_local_scalar_dense" in w.message for w in found["reads"].warnings)


def test_values_that_follow_from_the_inputs_are_followed(found: dict[str, Predicted]) -> None:
    masked = found["mask"]
    assert not any("assumed" in w.message for w in masked.warnings)
    # three of four positions of the mask are set
    assert masked.flow.values[masked.flow.outputs[0]].shape == (3, 8)


def test_what_cannot_run_without_memory_runs_on_the_cpu_and_says_so(found: dict[str, Predicted]) -> None:
    assert ops(found["numpy"]) == ["addmm"]
    assert any("does not run on a stand-in" in w.message for w in found["numpy"].warnings)


def test_gpus_differ(found: dict[str, Predicted]) -> None:
    other = found["mlp on a100"]
    assert other.uncalibrated_share == 1.0
    assert other.timeline.devices[0].name == "NVIDIA A100 80GB SXM"
    low, high = found["flash"].kernel_us.low, found["flash"].kernel_us.high
    assert 0 < low < high


def test_tables_have_the_columns_of_a_recording_and_rules_run_on_them() -> None:
    predicted = predict(resolve(str(SAMPLES / "residual_block.py")), "h100")
    timeline = predicted.timeline
    for table, columns in (
        (timeline.kernels, KERNEL_COLUMNS), (timeline.launches, LAUNCH_COLUMNS), (timeline.ops, OP_COLUMNS),
        (timeline.memory, MEMORY_COLUMNS), (timeline.syncs, SYNC_COLUMNS),
    ):  # fmt: skip
        assert {name: str(kind) for name, kind in table.dtypes.items()} == columns
    starts, ends = timeline.kernels["start_ns"], timeline.kernels["start_ns"] + timeline.kernels["dur_ns"]
    assert (starts.iloc[1:].to_numpy() >= ends.iloc[:-1].to_numpy()).all()
    advice = run(Facts(timeline, predicted.flow))
    folded = [f for f in advice.findings if f.rule == "FA101"]
    assert sorted(m for f in folded for m in f.modules) == ["bn1", "bn2"]
    assert "not predicted" in advice.fusion.launch_bound.reason


def test_same_versions_same_bytes() -> None:
    def text() -> str:
        predicted = predict(resolve(str(SAMPLES / "train_step.py"), train=True), "h100")
        advice = run(Facts(predicted.timeline, predicted.flow))
        summary = summarise(predicted.timeline, advice.group_of_kernel, advice.bytes_of_kernel)
        findings = [to_dict(f) for f in advice.findings]
        return json.dumps([to_dict(summary), findings, to_dict(predicted.kernel_us)])

    assert text() == text()


# -- batches that would not fit here -------------------------------------------------------------------------------

BATCHES = """
import torch
from torch import nn

def build_model():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())

def example_inputs():
    return torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
"""


def test_a_batch_is_predicted_by_its_shape(tmp_path: Path) -> None:
    """Its inputs would take 77 GB here."""
    (tmp_path / "net.py").write_text(BATCHES)
    predicted = predict(ask(str(tmp_path / "net.py"), batch=100_000_000, here=False), "h100")
    (spec,) = predicted.inputs
    assert (spec.shape, spec.layout) == ((100_000_000, 3, 8, 8), "channels_last")
    assert predicted.kernel_us.low > 2 * 4 * 100_000_000 * 3 * 64 / 3350e3  # µs to read and write them once


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"batch": 10**14}, "A batch of 100,000,000,000,000 takes at least 100 TB, which no GPU has the memory for"),
        ({"batch": 10**9}, r"The inputs \(input=float32\[1000000000,3,8,8\]\) take 768 GB, which no GPU"),
        ({"batch": 200_000_000}, r"One tensor of the step, float32\[200000000,8,6,6\], takes 230 GB, which no GPU"),
        ({"inputs": ["float32[300000000,3,16,16]"]}, "take 922 GB, which no GPU has the memory for"),
    ],
)
def test_a_batch_that_no_gpu_holds_is_refused(tmp_path: Path, asked: dict[str, Any], said: str) -> None:
    (tmp_path / "net.py").write_text(BATCHES)
    with pytest.raises(InputError, match=said):
        predict(ask(str(tmp_path / "net.py"), here=False, **asked), "h100")


def test_a_batch_too_large_for_the_cpu_is_not_run_there(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        BATCHES.replace("nn.ReLU()", "Numpy()").replace(
            "def build",
            """
class Numpy(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() + 1)

def build""",
            1,
        )
    )
    with pytest.raises(InputError, match=r"does not run on a stand-in .* are too large to run it on the CPU instead"):
        predict(ask(str(tmp_path / "net.py"), batch=1_000_000, here=False), "h100")


# -- models that would not fit here ----------------------------------------------------------------------------

BILLIONS = """
import torch
from torch import nn

def build_model():
    return nn.Sequential(nn.Embedding(32000, 16384), *[nn.Linear(16384, 16384) for _ in range(26)])

def example_inputs():
    return torch.randint(0, 32000, (2, 64))
"""
_RSS = (
    "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; "
    "print('kB', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)"
)


def profiled(target: Path, *words: str) -> tuple[int, str, str, int]:
    """Exit code, outputs and the largest resident memory, in bytes, of the command or a process that it started."""
    command = [sys.executable, "-m", "fusionadvisor", "profile", str(target), "--gpu", "h100", *words]
    done = subprocess.run(
        [sys.executable, "-c", _RSS, *command], capture_output=True, text=True, check=False, cwd=target.parent,
        timeout=240, env={**os.environ, "PYTHONPATH": str(SAMPLES.parent), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    *said, used = done.stderr.splitlines()
    return done.returncode, done.stdout, "\n".join(said), int(used.removeprefix("kB ")) * 1024


def test_seven_billion_parameters_are_predicted_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_text(BILLIONS)
    code, out, err, used = profiled(tmp_path / "big.py", "--format", "json")
    assert code == 0, err
    assert used < 1e9  # the weights alone are 30 GB
    report = json.loads(out)
    assert report["predicted"]["kernels"] == 1 + 26
    # of a layer's weight, bias, input and output in float32; of the embedding its rows, and as much again for its table
    # and indices, as of any gather, twice
    layer = 4 * (16384**2 + 16384 + 2 * 128 * 16384)
    assert report["predicted"]["bytes"] == 26 * layer + 3 * 4 * 128 * 16384
    assert report["workload"]["model"] == "Sequential"
    assert report["workload"]["inputs"][0]["shape"] == [2, 64]
    assert "no CUDA device here: runs on the CPU" not in report["workload"]["assumed"]


def test_a_folder_with_a_config_alone_is_predicted(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(architectures=["LlamaForCausalLM"], torch_dtype="bfloat16", num_hidden_layers=30)
    config.save_pretrained(tmp_path / "llama")
    code, out, err, used = profiled(tmp_path / "llama", "--entry", "decode", "--batch", "4", "--format", "json")
    assert code == 0, err
    assert used < 1e9
    report = json.loads(out)
    assert [spec["shape"] for spec in report["workload"]["inputs"]] == [[4, 1], [1]]
    assert report["fusion"]["syncs"] == 0
    reads = report["predicted"]["bytes"]
    weights = 2 * (30 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096)
    assert weights < reads < 1.5 * weights  # a decoding step reads every weight once


def test_inputs_that_do_not_fit_a_large_model_are_told_as_of_a_small_one(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_text(BILLIONS.replace("randint(0, 32000, ", "randn("))
    code, _, err, used = profiled(tmp_path / "big.py")
    assert code == 2
    assert "Sequential.0 fails with the inputs input=float32[2,64]" in err
    assert "Give inputs that fit" in err
    assert used < 1e9


def test_weights_are_checked_by_name_and_shape_without_reading_them(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    torch.save(model.half().state_dict(), tmp_path / "w.pt")
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef build_model(n=2):\n    "
        "return nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(n)])\n"
    )
    for name in ("w.safetensors", "w.pt"):
        predicted = predict(ask(str(tmp_path / name), model=f"{tmp_path}/net.py", here=False), "h100")
        assert predicted.workload is not None
        assert f"2 of 2 weights from {name}" in predicted.workload.assumed
        assert len(predicted.timeline.kernels) == 2
        with pytest.raises(InputError, match="2 of 3 weights; missing"):
            predict(ask(str(tmp_path / name), model=f"{tmp_path}/net.py", model_args=["n=3"], here=False), "h100")


def test_what_cannot_be_built_without_memory_is_built_for_real_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "LARGEST_ON_CPU", 10_000)
    source = Factory(tiny.mlp, tiny.rows)
    try:
        raise RuntimeError("it calls NumPy")
    except RuntimeError as error:
        failure = error
    with stream_module._limited(source, failure):
        nn.Linear(40, 40)
    with (
        pytest.raises(InputError, match=r"without memory for its weights \(.*it calls NumPy\)"),
        stream_module._limited(source, failure),
    ):
        nn.Linear(64, 64)
    nn.Linear(64, 64)  # the limit is lifted


MOVES = """
from torch import nn

class Moves(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x.to(self.layer.weight.device))
"""


def test_an_input_that_stays_on_the_cpu_is_copied_where_the_model_moves_it(tmp_path: Path) -> None:
    target = tmp_path / "moves.py"
    target.write_text(MOVES)

    def copies(spec: str) -> list[str]:
        found = predict(ask(str(target), inputs=[spec], here=False), "h100").timeline.memory
        return [str(name) for name in found["name"]]

    assert copies("x=f32[4,8]") == []
    assert copies("x=f32[4,8]@cpu") == ["Memcpy HtoD (Pageable -> Device)"]


# -- refusals ---------------------------------------------------------------------------------------------------


def test_an_unknown_gpu_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="Known: V100"):
        predict_model(tiny.mlp, tiny.rows, "rtx9090")
    with pytest.raises(InputError, match="only the kernels of NVIDIA GPUs"):
        predict_model(tiny.mlp, tiny.rows, "mi300x")


def test_a_live_model_is_refused() -> None:
    with pytest.raises(InputError, match="predict_model"):
        predict(Workload(target="", entry_kind="live"), "h100")


def test_a_function_no_process_can_import_is_refused() -> None:
    here: Callable[[], nn.Module] = lambda: nn.Linear(2, 2)  # noqa: E731
    with pytest.raises(InputError, match="top of a module"):
        predict_model(here, tiny.rows, "h100")


def test_a_model_that_fails_everywhere_is_an_error_of_one_sentence() -> None:
    with pytest.raises(InputError, match=r"Mlp.first fails with the inputs x=float32\[16,63\]"):
        predict_model(tiny.mlp, tiny.wrong, "h100")
    # and this process has not become one with a fake device
    assert not torch.accelerator.is_available()


def test_a_model_too_large_for_the_cpu_is_not_run_there() -> None:
    with pytest.raises(InputError, match="too large to run it on the CPU"):
        predict_model(tiny.LargeNumpy, tiny.rows, "h100")
