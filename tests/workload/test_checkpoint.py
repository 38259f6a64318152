"""Checkpoints of every kind: the right model, the wrong one, missing weights; damage; and nothing runs untrusted."""

import json
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fusionadvisor.errors import InputError
from fusionadvisor.report.model import Workload
from fusionadvisor.workload.pickles import unsafe_names
from fusionadvisor.workload.program import build
from fusionadvisor.workload.resolve import resolve
from fusionadvisor.workload.weights import fit

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4, classes=2):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.Linear(width, classes)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))

class Wider(Net):
    def __init__(self):
        super().__init__(width=5)

class Deeper(Net):
    def __init__(self):
        super().__init__()
        self.third = nn.Linear(2, 2)

class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 3, 3)

class HalfNet(Net):
    def __init__(self):
        super().__init__()
        self.half()

def on_meta():
    with torch.device("meta"):
        return Net()

def example_inputs():
    return torch.randn(6, 3)
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nn.Module]:
    """The model the checkpoints here are saved from, as the user's file models.py has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    Path("models.py").write_text(MODELS)
    import importlib

    torch.manual_seed(123)
    model: nn.Module = importlib.import_module("models").Net()
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.uniform_(0.5, 2)
    yield model.eval()
    sys.modules.pop("models", None)


def refused(target: str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        resolve(target, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def runs_as(workload: Workload, model: nn.Module) -> None:
    program = build(workload)
    x = torch.randn(5, 3)
    with torch.no_grad():
        torch.testing.assert_close(program.model(x), model(x))


def prefixed(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: value for name, value in state.items()}


def save_safetensors(state: dict[str, torch.Tensor], path: str) -> None:
    from safetensors.torch import save_file

    save_file(state, path)


def save_sharded(state: dict[str, torch.Tensor], folder: str, save: Callable[[Any, str], None], suffix: str) -> None:
    Path(folder).mkdir()
    names = list(state)
    shards = {f"model-{i}{suffix}": names[i::2] for i in range(2)}
    for shard, held in shards.items():
        save({name: state[name] for name in held}, f"{folder}/{shard}")
    index = {"weight_map": {name: shard for shard, held in shards.items() for name in held}}
    Path(folder, f"model{suffix}.index.json").write_text(json.dumps(index))


FORMATS: dict[str, Callable[[dict[str, torch.Tensor]], str]] = {}


def saves(name: str) -> Callable[[Callable[[dict[str, torch.Tensor]], None]], None]:
    def keep(save: Callable[[dict[str, torch.Tensor]], None]) -> None:
        def saved(state: dict[str, torch.Tensor]) -> str:
            save(state)
            return name

        FORMATS[name] = saved

    return keep


saves("plain.pt")(lambda state: torch.save(state, "plain.pt"))
saves("legacy.pth")(lambda state: torch.save(state, "legacy.pth", _use_new_zipfile_serialization=False))
saves("pytorch_model.bin")(lambda state: torch.save(OrderedDict(state), "pytorch_model.bin"))
saves("weights.safetensors")(lambda state: save_safetensors(state, "weights.safetensors"))
saves("wrongly_named.pt")(lambda state: save_safetensors(state, "wrongly_named.pt"))
saves("shards")(lambda state: save_sharded(state, "shards", save_safetensors, ".safetensors"))
saves("bins")(lambda state: save_sharded(state, "bins", torch.save, ".bin"))
saves("lightning.ckpt")(
    lambda state: torch.save(
        {"epoch": 3, "state_dict": prefixed(state, "model."), "optimizer_states": []}, "lightning.ckpt"
    )
)
saves("ddp.pt")(lambda state: torch.save({"model": prefixed(state, "module.")}, "ddp.pt"))
saves("compiled.pt")(lambda state: torch.save(prefixed(state, "_orig_mod."), "compiled.pt"))
saves("stacked.pt")(lambda state: torch.save(prefixed(state, "module._orig_mod.module."), "stacked.pt"))
saves("inner.pt")(
    lambda state: torch.save({k.replace("first.", "first._orig_mod."): v for k, v in state.items()}, "inner.pt")
)
saves("nested.pt")(lambda state: torch.save({"checkpoint": {"model_state_dict": state}, "step": 7}, "nested.pt"))
saves("ema.pt")(lambda state: torch.save({"ema": {"shadow": prefixed(state, "module.")}, "step": 7}, "ema.pt"))
saves("gan.pt")(
    lambda state: torch.save({"discriminator": {"body.weight": torch.ones(9)}, "generator": state}, "gan.pt")
)


@pytest.mark.parametrize("name", FORMATS)
def test_the_right_model_gets_its_weights(net: nn.Module, name: str) -> None:
    workload = resolve(FORMATS[name](dict(net.state_dict())), model="models.py:Net")
    assert (workload.entry_kind, workload.model, workload.entry) == ("checkpoint", "Net", "Net")
    assert any(f"9 of 9 weights from {name}" in phrase for phrase in workload.assumed), workload.assumed
    runs_as(workload, net)
    runs_as(workload, net)  # built again from its fields


@pytest.mark.parametrize("name", FORMATS)
def test_the_wrong_model_is_refused(net: nn.Module, name: str) -> None:
    path = FORMATS[name](dict(net.state_dict()))
    said = refused(path, model="models.py:Other")
    assert f"weights in {name} (" in said or "does not fit Other" in said
    said = refused(path, model="models.py:Wider")
    assert "first.weight is [4,3] in the file and [5,3] in the model" in said
    assert "--model-arg" in said


@pytest.mark.parametrize("name", FORMATS)
def test_missing_weights_are_named_and_counted(net: nn.Module, name: str) -> None:
    state = dict(net.state_dict())
    said = refused(FORMATS[name](state), model="models.py:Deeper")
    assert "9 of 11 weights; missing: third.weight, third.bias" in said


@pytest.mark.parametrize("name", FORMATS)
def test_weights_left_over_are_named(net: nn.Module, name: str) -> None:
    state = {**net.state_dict(), "first.extra": torch.ones(1)}
    assert "left over: first.extra" in refused(FORMATS[name](state), model="models.py:Net")


@pytest.mark.parametrize("name", FORMATS)
def test_without_a_model_the_weights_are_shown(net: nn.Module, name: str) -> None:
    said = refused(FORMATS[name](dict(net.state_dict())))
    assert "9 weights (" in said
    assert "--model" in said


def test_nothing_matched_says_both_sides(net: nn.Module) -> None:
    torch.save({"encoder.w": torch.ones(2)}, "a.pt")
    said = refused("a.pt", model="models.py:Net")
    assert "None of the 1 weights in a.pt (encoder.w) is one of Net's 9 (first.weight" in said


@pytest.mark.parametrize("around", ["", "model.", "module.", "weight.", "a.b."])
def test_nothing_matched_counts_all_that_was_saved(net: nn.Module, around: str) -> None:
    other = nn.ModuleDict({f"block{i}": nn.ParameterDict({"w": torch.ones(2), "b": torch.ones(2)}) for i in range(4)})
    torch.save({f"{around}{name}": tensor for name, tensor in other.state_dict().items()}, "a.pt")
    assert "None of the 8 weights in a.pt (" in refused("a.pt", model="models.py:Net")


@pytest.mark.parametrize("saved", [{}, {"a": 1}, [1, 2], 3, {"state_dict": {}}])
def test_a_checkpoint_without_tensors(net: nn.Module, saved: Any) -> None:
    torch.save(saved, "a.pt")
    assert "holds no tensors" in refused("a.pt", model="models.py:Net")


def test_old_files_lack_counters_and_tied_weights_are_saved_once(net: nn.Module) -> None:
    state = {name: value for name, value in net.state_dict().items() if "num_batches" not in name}
    torch.save(state, "old.pt")
    runs_as(resolve("old.pt", model="models.py:Net"), net)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    kept = {name: value for name, value in tied.state_dict().items() if name != "1.weight"}
    assert fit(tied, kept, "tied.pt") == ("3 of 4 weights from tied.pt",)


def test_other_tensors_beside_a_prefix_are_left_out_and_said(net: nn.Module) -> None:
    torch.save({"state_dict": {**prefixed(net.state_dict(), "net."), "loss.weight": torch.ones(2)}}, "a.ckpt")
    workload = resolve("a.ckpt", model="models.py:Net")
    assert "1 tensors beside them left out" in workload.assumed
    assert any("under 'state_dict' without the prefix 'net.'" in phrase for phrase in workload.assumed)
    runs_as(workload, net)


def test_a_cast_is_said(net: nn.Module) -> None:
    torch.save(net.half().state_dict(), "half.pt")
    workload = resolve("half.pt", model="models.py:Net")
    assert "weights cast from float16 to the model's float32" in workload.assumed
    assert build(workload).model.get_parameter("first.weight").dtype is torch.float32


def test_a_model_on_the_meta_device_gets_memory(net: nn.Module) -> None:
    torch.save(net.state_dict(), "a.pt")
    workload = resolve("a.pt", model="models.py:on_meta")
    runs_as(workload, net)
    with torch.device("meta"):
        model = nn.Linear(2, 2)
        model.register_buffer("table", torch.zeros(3), persistent=False)
    with pytest.raises(InputError, match="meta device"):
        fit(model, {"weight": torch.ones(2, 2), "bias": torch.ones(2)}, "a.pt")


def test_model_arguments_build_the_right_size(net: nn.Module) -> None:
    torch.save(net.state_dict(), "a.pt")
    wide = "models.py:Net"
    assert "classes" in refused("a.pt", model=wide, model_args=["clases=3"])
    assert "[2,4] in the file and [7,4] in the model" in refused("a.pt", model=wide, model_args=["classes=7"])
    assert "cannot be read" in refused("a.pt", model=wide, model_args=["classes"])
    runs_as(resolve("a.pt", model=wide, model_args=["classes=2", "width=4"]), net)


def test_what_a_checkpoint_says_its_model_was_built_with_is_used_and_said(net: nn.Module) -> None:
    kept = {"epoch": 3, "state_dict": net.state_dict(), "hyper_parameters": {"width": 4, "classes": 2, "lr": 0.1}}
    torch.save(kept, "a.ckpt")
    Path("sized.py").write_text(MODELS.replace("width=4, classes=2", "width, classes=9").replace("super().__init__()\n"
                                "        self.third", "super().__init__(4)\n        self.third"))  # fmt: skip
    workload = resolve("a.ckpt", model="sized.py:Net")
    assert "width=4, classes=2 as saved in it" in workload.assumed  # and no lr, which it does not take
    runs_as(workload, net)
    said = refused("a.ckpt", model="sized.py:Net", model_args=["width=5"])  # what is given goes first
    assert "first.weight is [4,3] in the file and [5,3] in the model" in said
    torch.save(net.state_dict(), "bare.pt")
    assert "Pass --model-arg width=VALUE, or define" in refused("bare.pt", model="sized.py:Net")


def test_what_does_not_fit_names_the_arguments_that_size_the_model(net: nn.Module) -> None:
    torch.save(net.state_dict(), "a.pt")
    said = refused("a.pt", model="models.py:Net", model_args=["classes=7"])
    assert said.endswith("--model-arg NAME=VALUE, with NAME one of width, classes.")
    torch.save({**net.state_dict(), "fourth.weight": torch.ones(1)}, "deep.pt")
    said = refused("deep.pt", model="models.py:Net")
    assert "or build it as deep as it was: --model-arg NAME=VALUE, with NAME one of width, classes." in said
    assert "--model-arg" not in refused("deep.pt", model="models.py:Deeper")  # it takes no arguments


# -- models that come whole --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["scripted.pt", "scripted.ts"])
def test_a_torchscript_archive_under_any_name(net: nn.Module, name: str) -> None:
    torch.jit.save(torch.jit.script(net), name)
    assert 'Pass --input "x=' in refused(name)
    workload = resolve(name, inputs=["[6,3]"])
    assert "model from a TorchScript archive" in workload.assumed
    runs_as(workload, net)
    assert "Leave --model" in refused(name, inputs=["[6,3]"], model="models.py:Net")


@pytest.mark.parametrize("name", ["program.pt2", "program.pt"])
def test_an_exported_program_brings_its_inputs(net: nn.Module, name: str) -> None:
    torch.export.save(torch.export.export(net, (torch.randn(6, 3),)), "program.pt2")
    Path("program.pt2").rename(name)
    workload = resolve(name)
    assert [spec.shape for spec in workload.inputs] == [(6, 3)]
    program, x = build(workload), torch.randn(6, 3)
    with torch.no_grad():
        torch.testing.assert_close(program.model(x), net(x))
    assert not program.batchable
    assert "cannot be trained" in refused(name, train=True)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickled_module_needs_trust_and_says_what_it_would_run(net: nn.Module, legacy: bool) -> None:
    torch.save(net, "whole.pt", _use_new_zipfile_serialization=not legacy)
    said = refused("whole.pt")
    assert "loading it would run models.Net, torch.nn.modules.linear.Linear" in said
    assert "--trust" in said
    workload = resolve("whole.pt", trust=True)
    assert workload.entry_kind == "archive"
    runs_as(workload, net)


def test_a_pickled_module_in_a_dict_gives_its_weights_when_trusted(net: nn.Module) -> None:
    torch.save({"model": net, "epoch": 3}, "whole.pt")
    assert "models.Net" in refused("whole.pt", model="models.py:Net")
    runs_as(resolve("whole.pt", model="models.py:Net", trust=True), net)


def test_a_class_that_is_not_there_is_named(net: nn.Module) -> None:
    torch.save(net, "whole.pt")
    del sys.modules["models"]
    Path("models.py").unlink()
    sys.path[:] = [entry for entry in sys.path if entry != str(Path.cwd())]
    said = refused("whole.pt", trust=True)
    assert "whole.pt was saved with the module models, which cannot be imported here" in said
    assert "--model models.py" in said
    Path("elsewhere").mkdir()
    Path("elsewhere/models.py").write_text(MODELS)
    assert "models.Net" in refused("whole.pt", model="elsewhere/models.py")  # not without trust
    workload = resolve("whole.pt", trust=True, model="elsewhere/models.py")
    assert "model from a pickled module, its classes from models.py" in workload.assumed
    runs_as(workload, net)
    runs_as(workload, net)


def test_a_class_of_the_script_that_saved_it_is_found_in_the_file_given(net: nn.Module) -> None:
    script = MODELS + "\nif __name__ == '__main__':\n    torch.manual_seed(4)\n    torch.save(Net(), 'whole.pt')\n"
    Path("script.py").write_text(script)
    subprocess.run([sys.executable, "script.py"], check=True)
    assert "loading it would run __main__.Net" in refused("whole.pt")
    said = refused("whole.pt", trust=True)
    assert "whole.pt was saved by a script that defines Net itself.  Give that script" in said
    workload = resolve("whole.pt", trust=True, model="script.py")
    assert workload.model == "Net"
    assert build(workload).model.get_parameter("first.weight").shape == (4, 3)
    Path("other.py").write_text("x = 1\n")
    assert "defines Net itself" in refused("whole.pt", trust=True, model="other.py")


# -- nothing runs untrusted --------------------------------------------------------------------------------------


class Malice:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def plain_pickle(value: Any, name: str, protocol: int) -> None:
    Path(name).write_bytes(pickle.dumps(value, protocol=protocol))


def hidden_in_exported(value: Any, name: str) -> None:
    """An exported program whose constant is a pickle of the oldest protocol, which no magic number betrays."""
    torch.export.save(torch.export.export(nn.Linear(3, 3), (torch.randn(2, 3),)), "good.pt2")
    with zipfile.ZipFile("good.pt2") as good, zipfile.ZipFile(name, "w") as bad:
        for member in good.namelist():
            content = good.read(member)
            if member.endswith("model_constants_config.json"):
                entry = {"path_name": "evil", "is_param": False, "use_pickle": True, "tensor_meta": None}
                content = json.dumps({"config": {"c": entry}}).encode()
            bad.writestr(member, content)
        bad.writestr(f"{good.namelist()[0].split('/')[0]}/data/constants/evil", pickle.dumps(value, protocol=0))


WAYS: dict[str, Callable[[Any], None]] = {
    "zip.pt": lambda value: torch.save({"state_dict": value}, "zip.pt"),
    "legacy.pt": lambda value: torch.save([value], "legacy.pt", _use_new_zipfile_serialization=False),
    "proto2.bin": lambda value: plain_pickle(value, "proto2.bin", 2),
    "proto4.ckpt": lambda value: plain_pickle({"w": value}, "proto4.ckpt", 4),
    "hidden.pt2": lambda value: hidden_in_exported(value, "hidden.pt2"),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_malicious_file_never_runs_without_trust(net: nn.Module, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "was_here"
    WAYS[name](Malice(marker))
    said = refused(name, model=None if name.endswith("pt2") else "models.py:Net")
    assert not marker.exists()
    assert "would run" in said
    assert "Path.touch" in said or "getattr" in said
    assert "--trust" in said


def test_what_a_pickle_would_run_is_listed_without_running_it(tmp_path: Path) -> None:
    marker = tmp_path / "was_here"
    for protocol in range(6):
        path = tmp_path / f"{protocol}.pkl"
        path.write_bytes(pickle.dumps(Malice(marker), protocol=protocol))
        assert any("touch" in name or "getattr" in name for name in unsafe_names(path)), protocol
    assert not marker.exists()


def test_a_name_put_together_while_loading_is_never_safe(tmp_path: Path) -> None:
    # the last two strings are a safe name, the two that are used come from the memo
    used, shown = b"\x8c\x05posix\x94\x8c\x06system\x94", b"\x8c\x0bcollections\x8c\x0bOrderedDict00"
    hidden = b"\x80\x04" + used + shown + b"h\x00h\x01\x93\x8c\x02id\x85R."
    path = tmp_path / "hidden.pkl"
    path.write_bytes(hidden)
    assert unsafe_names(path)


def test_plain_weights_need_no_trust(net: nn.Module) -> None:
    torch.save({"a": net.state_dict(), "b": [torch.ones(2).half(), OrderedDict()], "c": {"lr": 1e-3}}, "a.pt")
    assert unsafe_names(Path("a.pt")) == []


# -- damage and other formats ------------------------------------------------------------------------------------


def cut(path: str, keep: float) -> str:
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: int(len(content) * keep)])
    return path


@pytest.mark.parametrize("keep", [0.9, 0.5, 0.02])
@pytest.mark.parametrize("name", ["plain.pt", "legacy.pth", "weights.safetensors"])
def test_a_file_that_is_cut_off(net: nn.Module, name: str, keep: float) -> None:
    path = cut(FORMATS[name](dict(net.state_dict())), keep)
    said = refused(path, model="models.py:Net")
    assert any(word in said for word in ("cut off", "damaged", "is not a Python file or a checkpoint")), said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty (0 bytes)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n", "Git LFS pointer (66 bytes)"),
        (b"<!DOCTYPE html>\n<html>", "HTML page"),
        (b"\xef\xbb\xbf  <HTML><head>", "HTML page"),
        (b'<?xml version="1.0"?>\n<html xmlns="x">', "HTML page"),
        (b"\x89HDF\r\n\x1a\n0000", "HDF5"),
        (b"GGUF\x03\x00\x00\x00", "GGUF"),
        (b"\x1c\x00\x00\x00TFL3", "TensorFlow Lite"),
        (b"\x93NUMPY\x01\x00", "NumPy array"),
        (b"\x08\x07\x12\x07pytorch\x1a\x052.1.0", "ONNX model"),
        (b"%PDF-1.7", "PDF"),
        (b'{"weight_map": {"a": "b"}}', "index of a sharded checkpoint"),
        (b'{"traceEvents": []}', "fusion-advisor analyze"),
        (b"\x00\x01\x02\x03rubbish", "not a Python file or a checkpoint"),
    ],
)
def test_what_is_no_checkpoint_is_named(net: nn.Module, content: bytes, said: str) -> None:
    for name in ("weights.pt", "model.bin"):
        Path(name).write_bytes(content)
        assert said in refused(name, model="models.py:Net")
        assert said in refused(name)


def test_zip_files_of_something_else(net: nn.Module) -> None:
    np.savez("arrays.npz", a=np.ones(3))
    assert "NumPy arrays" in refused("arrays.npz")
    with zipfile.ZipFile("keras.pt", "w") as archive:
        archive.writestr("model.weights.h5", b"")
    assert "Keras" in refused("keras.pt")
    with zipfile.ZipFile("stuff.zip", "w") as archive:
        archive.writestr("readme.txt", b"")
    assert "a zip file" in refused("stuff.zip")


def test_a_missing_shard_is_named(net: nn.Module) -> None:
    path = FORMATS["shards"](dict(net.state_dict()))
    Path("shards/model-1.safetensors").unlink()
    said = refused(path, model="models.py:Net")
    assert "lists model-1.safetensors, which is not there (1 of 2 shards missing)" in said
    Path("shards/model-0.safetensors").unlink()
    assert "lists model-0.safetensors and 1 more, which are not there" in refused(path, model="models.py:Net")


def test_a_shard_without_what_its_index_promises(net: nn.Module) -> None:
    path = FORMATS["bins"](dict(net.state_dict()))
    torch.save({}, "bins/model-1.bin")
    assert "model-1.bin does not hold first.bias" in refused(path, model="models.py:Net")


def test_an_index_that_is_none(net: nn.Module) -> None:
    Path("folder").mkdir()
    Path("folder/model.safetensors.index.json").write_text("{}")
    assert "is no index of shards" in refused("folder", model="models.py:Net")


def test_checkpoints_are_never_written_to(net: nn.Module) -> None:
    for name, save in FORMATS.items():
        path = save(dict(net.state_dict()))
        files = [Path(path)] if Path(path).is_file() else sorted(Path(path).iterdir())
        before = [(file, file.read_bytes(), file.stat().st_mtime_ns) for file in files]
        program = build(resolve(path, model="models.py:Net", train=True))
        program.step(program.call())
        assert [(file, file.read_bytes(), file.stat().st_mtime_ns) for file in files] == before, name


# -- files of inputs ---------------------------------------------------------------------------------------------


def test_inputs_from_files(net: nn.Module) -> None:
    x = torch.randn(7, 3)
    torch.save(x, "tensor.pt")
    torch.save((x,), "tuple.pt")
    torch.save({"x": x}, "dict.pt")
    np.savez("positional.npz", x.numpy())
    np.savez("named.npz", x=x.numpy())
    save_safetensors({"x": x}, "named.safetensors")
    for name in ("tensor.pt", "tuple.pt", "dict.pt", "positional.npz", "named.npz", "named.safetensors"):
        program = build(resolve("models.py:Net", inputs=[name]))
        ((path, tensor),) = program.call().tensors(("x",))
        assert (path, torch.equal(tensor, x)) == ("x", True), name
        ((_, fewer),) = program.call(seed=1, batch=3).tensors()
        assert fewer.shape == (3, 3)
    torch.save(nn.Linear(3, 3), "whole.pt")
    assert "would run" in refused("models.py:Net", inputs=["whole.pt"])
    assert "does not exist" in refused("models.py:Net", inputs=["none.pt"])
    assert "stands for all inputs" in refused("models.py:Net", inputs=["tensor.pt", "[2]"])
    Path("broken.npz").write_bytes(b"PK\x03\x04 nothing")
    assert "no .npz" in refused("models.py:Net", inputs=["broken.npz"])


def test_batch_and_autocast_are_part_of_the_workload(net: nn.Module) -> None:
    workload = resolve("models.py:Net", batch=11, amp="bf16")
    program = build(workload)
    assert [spec.shape for spec in workload.inputs] == [(11, 3)]
    assert program.step(program.call()).dtype is torch.bfloat16
    assert "eval() under no_grad, autocast to bfloat16" in workload.assumed
    assert program.call(batch=2).args[0].shape == (2, 3)
    assert "no dtype for autocast" in refused("models.py:Net", amp="int8")


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("nn.Sequential(nn.Linear(5, 3), nn.ReLU())", "float32[8,5]"),
        ("nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())", "float32[8,3,224,224]"),
        ("nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 26 * 26, 2))", "float32[8,1,28,28]"),
        ("nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))", "int64[8,128]"),
        ("nn.LSTM(12, 6)", "float32[8,32,12]"),
        ("nn.Linear(5, 3).bfloat16()", "bfloat16[8,5]"),
    ],
)
def test_inputs_are_guessed_from_the_first_layer_and_said(net: nn.Module, text: str, guess: str) -> None:
    Path("bare.py").write_text(f"import torch\nfrom torch import nn\nmodel = {text}\n")
    workload = resolve("bare.py")
    assert any(f"{guess}, guessed from" in phrase for phrase in workload.assumed), workload.assumed
    again = build(workload)
    assert again.specs(again.call()) == workload.inputs
    assert build(workload).specs(build(workload).call()) == workload.inputs
