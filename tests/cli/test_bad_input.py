"""What people type by mistake, through the real command line: one sentence what, one what to do, exit 2."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

FILES = {
    "nomodel.py": "def helper(): return 1\n",
    "several.py": "from torch import nn\nclass A(nn.Module): pass\nclass B(nn.Module): pass\n",
    "broken.py": "import torch\ndef f():\n    import not_there_at_all\nf()\n",
    "syntax.py": "def x(:\n",
    "raises.py": "def build_model():\n    raise ValueError('no config given')\n",
    "exits.py": "import sys\nsys.exit(3)\n",
    "shapes.py": (
        "import torch\nfrom torch import nn\n"
        "def build_model(): return nn.Sequential(nn.Linear(8, 4), nn.ReLU())\n"
        "def example_inputs(): return torch.randn(2, 9)\n"
    ),
    "key.py": (
        "import torch\nfrom torch import nn\n"
        "class M(nn.Module):\n    def forward(self, x):\n        return {}['missing thing']\n"
        "def example_inputs(): return torch.randn(2, 3)\n"
    ),
    "noinputs.py": "from torch import nn\nclass M(nn.Module):\n    def forward(self, x, mask): return x * mask\n",
    "empty.json": "",
    "object.json": '{"a": 1}',
    "text.json": "hello",
    "list.json": "[1, 2]",
    "cut.json": "[1, 2",
    "numbers.json": '{"traceEvents": [1, 2]}',
    "none.json": '{"traceEvents": []}',
    "page.json": "<!doctype html><html></html>",
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("profile missing.py", "missing.py does not exist."),
        ("profile shape.py", "Did you mean 'shapes.py'?"),
        ("profile folder", "folder is a directory."),
        ("profile nomodel.py", "(its functions: helper)"),
        ("profile several.py", "A, B."),
        ("profile several.py", "Name one: several.py:B,"),
        ("profile key.py", "x=float32[2,3]: key.py:5: KeyError: 'missing thing'.  --debug shows"),
        ("profile shapes.py", "Give inputs that fit"),
        ("profile shapes.py --input input=float32[2,8] --gpu h1000", "Did you mean 'H100'?"),
        ("profile several.py:C", "several.py has no 'C'."),
        ("profile broken.py", "broken.py:3: ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("profile syntax.py", "syntax.py:1: SyntaxError"),
        ("profile raises.py", "raises.py:2: ValueError: no config given"),
        ("profile exits.py", "exits.py:2: it ended the program with exit code 3"),
        ("profile shapes.py", "(2x9 and 8x4)"),
        ("profile shapes.py --input bogus", "'bogus' cannot be read"),
        ("profile shapes.py --input x=float99[2,8]", "'float99' is no dtype."),
        ("profile shapes.py --device tpu", "'tpu' is no device."),
        ("profile noinputs.py", "(its forward takes x, mask)"),
        ("profile nomodule:thing", "no file or module 'nomodule'"),
        ("profile torch.nn:Linear", "needs arguments to be built: in_features, out_features"),
        ("apply missing.py --strategy fuse_modules", "missing.py does not exist."),
        ("analyze missing.json", "There is no file missing.json."),
        ("analyze empty.json", "empty.json is empty."),
        ("compare empty.json nope.json", "empty.json is empty."),
        ("compare nope.json empty.json", "There is no file nope.json.  Check the path."),
        ("check nope.json --fail-on syncs>0", "There is no file nope.json.  Check the path."),
        ("analyze object.json", "has no list of traceEvents"),
        ("analyze text.json", "is not a trace"),
        ("analyze list.json", "list.json is neither a report nor a trace"),
        ("check list.json --fail-on kernels>3", "list.json is neither a report nor a trace"),
        ("analyze numbers.json", "numbers.json is neither a report nor a trace"),
        ("analyze cut.json", "the file is cut off"),
        ("profile nothere.pt", "nothere.pt does not exist."),
        ("profile nothere.pt --model shapes.py", "nothere.pt does not exist."),
        ("profile nothere.safetensors --model shapes.py", "nothere.safetensors does not exist."),
        ("profile shapes.py --model shapes.py", "--model is for checkpoints, and shapes.py is none."),
        ("profile folder/nothere.bin --model shapes.py", "folder/nothere.bin does not exist."),
        ("analyze none.json", "list of events is empty"),
        ("analyze page.json", "is a web page"),
        ("analyze folder", "folder holds no trace with GPU events"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(cli: Cli, tmp_path: Path, arguments: str, said: str) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    ran = cli(*arguments.split())
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("error: ")
    assert "Traceback" not in ran.err
    assert not (tmp_path / ".fusion-advisor").exists()


def test_an_empty_name_is_no_folder(cli: Cli, tmp_path: Path) -> None:
    ran = cli("analyze", "")
    assert (ran.code, ran.err) == (
        2, "error: The name of a trace is empty.  Give a file, a folder, or - for standard input.\n",
    )  # fmt: skip


def test_a_message_of_several_lines_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(
        "from torch import nn\n\ndef build_model():\n    raise ValueError('my own.\\nmy  second\\n\\nthird: "
        + "x" * 300
        + "')\n"
    )
    ran = cli("profile", "raises.py", "--gpu", "none")
    assert ran.err.count("\n") == 1
    assert "ValueError: my own. my  second third: xxx" in ran.err
    assert len(ran.err) < 400


def test_a_repeat_is_said_to_be_dropped(cli: Cli, tmp_path: Path) -> None:
    ran = cli("profile", "nothere.py", "--batch", "1,01, 2")
    assert ran.err.startswith("warning: --batch names 1 2 times; it is used once.\nerror: ")
    ran = cli("apply", "nothere.py", "--strategy", "fuse_modules,inplace,Fuse_Modules")
    assert ran.err.startswith("warning: --strategy names fuse_modules 2 times; it is used once.\nerror: ")
