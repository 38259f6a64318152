"""From what a user typed to a workload, and what is said where it cannot be."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from fusionadvisor.errors import EnvironmentUnfitError, InputError
from fusionadvisor.report.model import Workload
from fusionadvisor.workload.program import build
from fusionadvisor.workload.resolve import ask, resolve

Write = Callable[..., str]

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.fc = nn.Linear(3, width)

    def forward(self, x):
        return self.fc(x)
"""
INPUTS = "\ndef example_inputs():\n    return torch.randn(2, 3)\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)

    def writing(text: str, name: str = "user_model.py") -> str:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        return name

    yield writing
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def refused(target: str, **options: object) -> InputError:
    with pytest.raises(InputError) as caught:
        resolve(target, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return caught.value


# -- models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tail", "entry", "kind", "class_name"),
    [
        ("def build_model():\n    return Net(8)\n", "build_model", "factory", "Net"),
        ("def get_model():\n    return nn.Sequential(Net())\n", "get_model", "factory", "Sequential"),
        ("def create_model(width=5):\n    return Net(width)\n", "create_model", "factory", "Net"),
        ("model = Net()\n", "model", "module", "Net"),
        ("mlp = Net()\n", "mlp", "module", "Net"),
        ("", "Net", "class", "Net"),
        ("model = Net(2)\ndef build_model():\n    return Net(8)\n", "build_model", "factory", "Net"),
        ("class Loss:\n    pass\nmodel = Net()\nteacher = Net()\n", "model", "module", "Net"),
    ],
)
def test_the_model_is_found_by_convention(write: Write, tail: str, entry: str, kind: str, class_name: str) -> None:
    workload = resolve(write(NET + tail + INPUTS))
    assert (workload.entry, workload.entry_kind, workload.model) == (entry, kind, class_name)
    assert any(entry in phrase for phrase in workload.assumed)
    assert "eval() under no_grad" in workload.assumed
    assert Path(workload.target).is_absolute()


@pytest.mark.parametrize("named", ["user_model.py:other", "user_model:other"])
def test_the_name_after_the_colon_wins(write: Write, named: str) -> None:
    write(NET + "def build_model():\n    return Net()\nother = nn.Sequential(Net(7))\n" + INPUTS)
    workload = resolve(named)
    assert (workload.entry, workload.model) == ("other", "Sequential")
    assert not any("model from" in phrase for phrase in workload.assumed)
    assert resolve("user_model.py", entry="other").entry == "other"


def test_a_module_in_a_package(write: Write) -> None:
    write("", "zoo/__init__.py")
    write(NET + INPUTS, "zoo/nets.py")
    workload = resolve("zoo.nets:Net")
    assert (workload.target, workload.entry, workload.entry_kind) == ("zoo.nets", "Net", "class")
    assert build(workload).step(build(workload).call()).shape == (2, 4)


def test_a_name_inside_another(write: Write) -> None:
    write(NET + "class Zoo:\n    small = Net(2)\n" + INPUTS)
    assert resolve("user_model.py:Zoo.small").entry == "Zoo.small"


def test_files_beside_the_target_are_imported_and_main_is_not_run(write: Write) -> None:
    write("WIDTH = 6\n", "sizes_of_mine.py")
    write(
        "from sizes_of_mine import WIDTH\n" + NET + "def build_model():\n    return Net(WIDTH)\n" + INPUTS
        + "if __name__ == '__main__':\n    raise SystemExit(9)\n"
    )  # fmt: skip
    program = build(resolve("user_model.py"))
    assert program.step(program.call()).shape == (2, 6)


def test_a_file_named_as_a_library_is_not_taken_for_it(write: Write) -> None:
    import random

    workload = resolve(write(NET + INPUTS, "random.py"))
    assert workload.model == "Net"
    assert sys.modules["random"] is random


# -- inputs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("def example_inputs():\n    return torch.randn(2, 3)\n", [(2, 3)]),
        ("def get_inputs():\n    return (torch.randn(2, 3),)\n", [(2, 3)]),
        ("inputs = torch.randn(5, 3)\n", [(5, 3)]),
        ("sample_inputs = {'x': torch.randn(5, 3)}\n", [(5, 3)]),
        ("def sample_inputs():\n    return {'x': torch.randn(1, 3)}\n", [(1, 3)]),
    ],
)
def test_inputs_are_found_by_convention(write: Write, text: str, shapes: list[tuple[int, ...]]) -> None:
    workload = resolve(write(NET + text))
    assert [spec.shape for spec in workload.inputs] == shapes
    assert [spec.name for spec in workload.inputs] == ["x"]
    assert any("inputs from" in phrase for phrase in workload.assumed)


@pytest.mark.parametrize(
    ("text", "name", "shape", "dtype"),
    [
        ("x=float32[8,3]", "x", (8, 3), "float32"),
        ("float32[8, 3]", "x", (8, 3), "float32"),
        ("[8,3]", "x", (8, 3), "float32"),
        ("x = f32 [ 8 , 3 ]", "x", (8, 3), "float32"),
        ("x=f64[2,2,3]", "x", (2, 2, 3), "float64"),
    ],
)
def test_input_specifications(write: Write, text: str, name: str, shape: tuple[int, ...], dtype: str) -> None:
    write(NET + "def build_model():\n    return Net().double()\n" if "64" in text else NET)
    (spec,) = resolve("user_model.py", inputs=[text]).inputs
    assert (spec.name, spec.shape, spec.dtype) == (name, shape, dtype)


EMBED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def forward(self, ids, scale=None, *, offset=None):
        y = self.table(ids)
        y = y if scale is None else y * scale
        return y if offset is None else y + offset
"""


def test_ids_stay_below_their_bound_or_the_embedding(write: Write) -> None:
    write(EMBED)
    program = build(resolve("user_model.py", inputs=["ids=i64[4,200]<7"]))
    ids = program.call(3).args[0]
    assert ids.dtype is torch.int64
    assert (int(ids.min()), int(ids.max())) == (0, 6)
    guessed = build(resolve("user_model.py", inputs=["int64[4,500]"])).call(1).args[0]
    assert 40 < int(guessed.max()) < 50


def test_inputs_out_of_order_go_by_name(write: Write) -> None:
    write(EMBED)
    program = build(resolve("user_model.py", inputs=["ids=int64[2,5]<50", "offset=float32[1]"]))
    call = program.call()
    assert len(call.args) == 1
    assert list(call.kwargs) == ["offset"]
    assert [spec.name for spec in program.workload.inputs] == ["ids", "offset"]


@pytest.mark.parametrize("text", ["x=float32", "x:float32[2]", "float32[a]", "[", "x=float32[2]<b"])
def test_an_input_that_does_not_read(write: Write, text: str) -> None:
    assert "cannot be read" in refused(write(NET), inputs=[text]).what


def test_an_unknown_dtype_suggests_one(write: Write) -> None:
    error = refused(write(NET), inputs=["x=flaot32[2,3]"])
    assert "'flaot32' is no dtype" in error.what
    assert "float32" in error.hint


# -- bad targets -------------------------------------------------------------------------------------------------


def test_a_missing_file_suggests_its_neighbour(write: Write) -> None:
    write(NET + INPUTS)
    error = refused("user_modle.py")
    assert error.what == "user_modle.py does not exist."
    assert error.hint == "Did you mean 'user_model.py'?"


@pytest.mark.parametrize("target", ["nowhere/model.py", "no.such.module:Net", "what is this"])
def test_a_target_that_is_not_there(write: Write, target: str) -> None:
    error = refused(target)
    assert "does not exist" in error.what or "There is no file or module" in error.what


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("trace.json", b'{"traceEvents": []}', "analyze trace.json"),
        ("trace.json.gz", b"\x1f\x8b\x08\x00", "analyze trace.json.gz"),
        ("weights.pt", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
        ("page.pt", b"\n<!DOCTYPE html><html><body>sign in</body></html>", "HTML page"),
        ("empty.py", b"", "empty"),
        ("notes.txt", b"hello", "not a Python file"),
    ],
)
def test_files_that_are_no_model(write: Write, tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert said in str(refused(name))


def test_a_directory_lists_its_files(write: Write, tmp_path: Path) -> None:
    write(NET, "pkg/one.py")
    error = refused("pkg")
    assert "is a directory" in error.what
    assert "one.py" in error.hint


def test_no_model_lists_the_candidates(write: Write) -> None:
    error = refused(write("def make_net():\n    pass\n"))
    assert "holds no model" in error.what
    assert "make_net" in error.what


def test_several_models_are_listed(write: Write) -> None:
    error = refused(write(NET + "class Other(nn.Module):\n    pass\n" + INPUTS))
    assert "Net, Other" in error.what
    assert "user_model.py:" in error.hint
    error = refused(write(NET + "a = Net()\nb = Net()\n" + INPUTS))
    assert "a, b" in error.what


def test_an_unknown_name_suggests_the_known(write: Write) -> None:
    error = refused(write(NET + INPUTS) + ":Nett")
    assert "has no 'Nett'" in error.what
    assert "'Net'" in error.hint


def test_a_class_that_needs_arguments_names_them(write: Write) -> None:
    error = refused(write(NET.replace("width=4", "width, depth, act=None") + INPUTS))
    assert "needs arguments to be built: width, depth" in error.what


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import not_installed_anywhere\n", "user_model.py:1: ModuleNotFoundError"),
        ("x = 1\n\ndef f(:\n", "user_model.py:3: SyntaxError"),
        ("import torch\nraise ValueError('first line\\nsecond')\n", "user_model.py:2: ValueError: first line"),
        ("import sys\nsys.exit(3)\n", "exit code 3"),
        ("def f():\n    return {}['k']\nf()\n", "user_model.py:2: KeyError"),
        ("import torch\ntorch.randn(2) @ torch.randn(3)\n", "user_model.py:2: RuntimeError"),
        (NET + "def build_model():\n    return Net(-1)\n", "user_model.py:8: RuntimeError"),
        (NET + "def build_model():\n    return Net, 3\n", "returned a tuple, not an nn.Module"),
        (NET + "def example_inputs():\n    return torch.zeros(2).view(3)\n", "user_model.py:13: RuntimeError"),
        (NET + "def example_inputs():\n    pass\n", "returned None"),
        ("model = 3\n", "holds no model"),
    ],
)
def test_errors_in_the_users_code_name_their_line(write: Write, text: str, said: str) -> None:
    assert said in str(refused(write(text)))


def test_a_file_that_fails_leaves_no_module_behind(write: Write) -> None:
    refused(write("raise ValueError\n", "half_loaded.py"))
    assert "half_loaded" not in sys.modules


def test_inputs_that_do_not_fit_name_the_module_and_the_shapes(write: Write) -> None:
    write(NET + "def build_model():\n    return nn.Sequential(Net(), nn.ReLU())\n")
    error = refused("user_model.py", inputs=["[2,5]"])
    assert "Sequential.0.fc fails with the inputs" in error.what
    assert "float32[2,5]" in error.what
    assert "mat1 and mat2" in error.what


def test_no_inputs_says_what_forward_takes(write: Write) -> None:
    error = refused(write(NET.replace("def forward(self, x)", "def forward(self, x, y)")))
    assert "forward takes x, y" in error.what
    assert '--input "x=' in error.hint


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_here_is_the_environments_fault(write: Write) -> None:
    with pytest.raises(EnvironmentUnfitError, match="CUDA"):
        resolve(write(NET + INPUTS), device="cuda")
    assert "is no device" in refused("user_model.py", device="gpu7").what
    with pytest.raises(EnvironmentUnfitError, match=r"--input 'x=f32\[2,3\]@cuda': this torch"):
        resolve("user_model.py", inputs=["x=f32[2,3]@cuda"])
    assert refused("user_model.py", inputs=["[2,3]@gpu7"]).what == "--input '[2,3]@gpu7': 'gpu7' is no device."
    assert ask("user_model.py", inputs=["x=f32[2,3]@cuda"], here=False).inputs[0].device == "cuda"


FIXED = """
import torch
from torch import nn

class Fixed(nn.Module):
    def forward(self, x, mask, scale):
        return x.view(4, 6) * mask.view(4, 1) * scale

def example_inputs():
    return torch.randn(4, 6), torch.ones(4), torch.tensor(2.0)
"""


def test_a_batch_size_that_cannot_be_changed_names_the_inputs(write: Write) -> None:
    error = refused(write(FIXED), batch=16)
    assert "Fixed does not run at batch 16: the batch dimension of x [4,6], mask [4] cannot be changed" in error.what
    assert "user_model.py:7: RuntimeError: shape '[4, 6]' is invalid" in error.what
    assert error.hint == "Leave --batch out: it runs at 4."
    error = refused(write(FIXED.replace("torch.randn(4, 6)", "torch.randn(4, 7)")), batch=16)
    assert "fails with the inputs x=float32[16,7]" in error.what  # not the batch's fault
    scalar = (
        NET.replace("return self.fc(x)", "return x + 1") + "\ndef example_inputs():\n    return torch.tensor(1.0)\n"
    )
    assert "x has no batch dimension" in refused(write(scalar), batch=2).what


# -- programs ----------------------------------------------------------------------------------------------------


def test_a_workload_builds_the_same_program_again(write: Write) -> None:
    workload = resolve(write(NET + "def build_model():\n    return Net(8)\n" + INPUTS), seed=5)
    one, other = build(workload), build(workload)
    assert one.model is not other.model
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(one.call().args[0], other.call().args[0])
    assert torch.equal(one.call(4).args[0], other.call(4).args[0])
    assert torch.equal(one.step(one.call()), other.step(other.call()))
    assert not one.step(one.call()).requires_grad
    assert not any(m.training for m in one.model.modules())


def test_a_workload_builds_the_same_program_in_another_process(write: Write) -> None:
    import json
    import os
    import subprocess

    from fusionadvisor.report.codec import to_dict

    workload = resolve(write(NET + INPUTS), seed=5)
    code = (
        "import json, sys\n"
        "from fusionadvisor.report.codec import from_dict\n"
        "from fusionadvisor.report.model import Workload\n"
        "from fusionadvisor.workload.program import build\n"
        "p = build(from_dict(Workload, json.load(sys.stdin)))\n"
        "print(p.step(p.call(2)).double().sum().item())\n"
    )
    root = Path(__file__).parents[2]
    answer = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(to_dict(workload)), capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    program = build(workload)
    assert float(answer.stdout) == program.step(program.call(2)).double().sum().item()


def test_loading_leaves_the_random_state_alone(write: Write) -> None:
    write("import torch\ntorch.manual_seed(1)\n" + NET + INPUTS)
    torch.manual_seed(77)
    expected = torch.get_rng_state()
    program = build(resolve("user_model.py"))
    program.call(3)
    assert torch.equal(torch.get_rng_state(), expected)


def test_a_module_level_model_is_copied(write: Write) -> None:
    workload = resolve(write(NET + "model = Net()\n" + INPUTS))
    program = build(workload)
    assert program.model is not sys.modules["user_model"].model
    assert isinstance(program.model, nn.Module)


def test_a_workload_of_a_live_model_cannot_be_built() -> None:
    with pytest.raises(InputError, match="live model"):
        build(Workload(target="", entry_kind="live"))
