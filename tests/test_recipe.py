"""A recipe does again what was kept, on the model it was made for and on no other."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor import recipe, strategies
from fusionadvisor.errors import InputError, StrategyError
from fusionadvisor.evaluate import saving
from fusionadvisor.files import sha256
from fusionadvisor.recipe import Recipe, Step, apply_recipe
from fusionadvisor.report.codec import from_dict, to_dict
from fusionadvisor.report.model import Speedup, Verification, Workload
from fusionadvisor.strategies.base import Call
from fusionadvisor.strategies.folding import FoldedNorm
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.inputs import spec_of
from tests.strategies.subjects import assert_same, randomise, subject


class Small(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Any:
        # comments and docstrings are no part of a recipe
        return torch.relu(self.bn(self.conv(x)))


X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def small(seed: int = 0) -> Small:
    torch.manual_seed(seed)
    model = Small()
    randomise(model, seed)
    return model.eval()


def kept(model: nn.Module, name: str = "fuse_modules") -> tuple[Step, ...]:
    plan = strategies.get(name).plan(subject(model, (3, 6, 6)))
    assert plan.sites
    return (Step(name, {}, plan.sites),)


def written(folder: Path, model: nn.Module, name: str = "fuse_modules") -> tuple[Recipe, tuple[str, ...]]:
    steps = kept(model, name)
    candidate = recipe.perform(duplicate(model), steps, (Call((X,)),), device="cpu")
    workload = Workload("small.py", model=type(model).__name__, inputs=(spec_of("x", X),))
    files, _ = saving.write(
        folder, workload, steps, model, candidate, Call((X,)),
        Speedup(1.25, (1.2, 1.3), (0.98, 1.02)), Verification("agrees", inputs=4),
    )  # fmt: skip
    return recipe.read(folder / recipe.FILE), files


def run(model: nn.Module, call: Call) -> object:
    with torch.no_grad():
        return model(*call.args)


def test_round_trip_through_files(tmp_path: Path) -> None:
    model = small()
    made, files = written(tmp_path, model)
    assert {Path(name).name for name in files} == {"recipe.json", "load_optimized.py", "weights.pt", "model.pt2"}
    assert from_dict(Recipe, json.loads(json.dumps(to_dict(made)))) == made
    assert made.measured == {
        "speedup": "1.250x (95 %: 1.200-1.300)", "two equal copies": "0.980-1.020x", "outputs": "agrees on 4 inputs"
    }  # fmt: skip
    assert made.keys["conv.weight"] == "changed"
    assert made.keys["bn.running_mean"] == "removed"
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimized = apply_recipe(model, tmp_path / recipe.FILE, example_inputs=X)
    assert isinstance(optimized.get_submodule("bn"), FoldedNorm)
    assert isinstance(model.bn, nn.BatchNorm2d)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert_same(model, optimized, (Call((X,)), Call((X[:1],))))


def test_other_weights_of_the_same_model_are_folded_anew(tmp_path: Path) -> None:
    made, _ = written(tmp_path, small(0))
    other = small(1)
    assert_same(other, apply_recipe(other, made), (Call((X,)),))


def test_artefacts_are_verified_after_loading(tmp_path: Path) -> None:
    model = small()
    made, _ = written(tmp_path, model)
    calls = (Call((X,)), Call((X[:1],)))
    assert saving.load(tmp_path / recipe.FILE, model, calls, run, "cpu").verdict == "agrees"
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    weights["conv.weight"][0] += 1
    torch.save(weights, tmp_path / "weights.pt")
    with pytest.raises(StrategyError, match=r"weights\.pt is not the file that was verified with this recipe\."):
        saving.load(tmp_path / recipe.FILE, model, calls, run, "cpu")
    digest = sha256(tmp_path / "weights.pt")  # as if it had been written so
    recipe.save(tmp_path, replace(made, files=made.files | {"weights.pt": digest}))
    with pytest.raises(StrategyError, match=r"weights\.pt does not hold what was verified"):
        saving.load(tmp_path / recipe.FILE, model, calls, run, "cpu")


@pytest.mark.parametrize(("name", "load"), [("weights.pt", "load_with_weights"), ("model.pt2", "load_exported")])
def test_the_loader_refuses_an_artefact_that_was_changed(tmp_path: Path, name: str, load: str) -> None:
    model = small()
    written(tmp_path, model)
    loader = loaded(tmp_path / recipe.LOADER)
    given = (model,) if name == "weights.pt" else ()
    with torch.no_grad():
        assert torch.allclose(getattr(loader, load)(*given)(X), model(X), atol=1e-5)
    with (tmp_path / name).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(RuntimeError, match=f"{name} is not the file that was verified with this recipe"):
        getattr(loader, load)(*given)


def test_a_torchscript_archive_loads(tmp_path: Path) -> None:
    model = small()
    _, files = written(tmp_path, model, "torchscript")
    assert {Path(name).name for name in files} == {"recipe.json", "load_optimized.py", "model.ts"}
    assert saving.load(tmp_path / recipe.FILE, model, (Call((X,)),), run, "cpu").verdict == "agrees"


class Locked(Small):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x: Tensor) -> Any:
        with self.lock:
            return torch.relu(self.bn(self.conv(x)))


class WeightNormed(Small):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.weight_norm(nn.Conv2d(3, 3, 1))

    def forward(self, x: Tensor) -> Any:
        return torch.relu(self.bn(self.conv(self.first(x))))


def extractor() -> nn.Module:
    """What a feature extractor is made of: nodes of a captured graph as outputs, and the class under its own name."""
    model = Small()
    graph = torch.fx.Tracer().trace(model)
    output = next(node for node in graph.nodes if node.op == "output")
    output.args = ({"features": output.args[0]},)
    return torch.fx.GraphModule(model, graph, "Extractor")


class Twice(nn.Module):
    """A block under two paths."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Small()
        self.blocks = nn.ModuleList([self.block])

    def forward(self, x: Tensor) -> Any:
        return self.block(x)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:The tensor attribute")
@pytest.mark.parametrize(
    ("build", "strategy"),
    [
        (Locked, "fuse_modules"), (WeightNormed, "fuse_modules"), (extractor, "fuse_modules"),
        (extractor, "channels_last"), (Twice, "channels_last"), (Twice, "torchscript"), (Locked, "channels_last"),
    ],
)  # fmt: skip
def test_a_recipe_loads_on_a_fresh_model_whatever_it_is_made_of(
    tmp_path: Path, build: Callable[[], nn.Module], strategy: str
) -> None:
    model = randomise(build()).eval()
    written(tmp_path, model, strategy)
    assert saving.load(tmp_path / recipe.FILE, model, (Call((X,)), Call((X[:1],))), run, "cpu").verdict == "agrees"
    fresh = randomise(build(), 1).eval()  # never run, and not under no_grad
    assert_same(fresh, apply_recipe(fresh, tmp_path / recipe.FILE, example_inputs=X), (Call((X,)),))


def test_what_the_optimised_model_cannot_is_in_the_recipe(tmp_path: Path) -> None:
    made, _ = written(tmp_path, small())
    assert list(made.limits) == ["train"]
    assert "train the original model and fold again" in made.limits["train"]


PRODUCTION = """
import importlib.util, sys
import torch
from torch import nn
spec = importlib.util.spec_from_file_location("theirs", sys.argv[2]); theirs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(theirs)
sys.path.insert(0, sys.argv[1])
from load_optimized import load_exported, load_optimized, load_with_weights
model = theirs.Net().eval()
model.load_state_dict(torch.load(sys.argv[3], weights_only=True))
x = torch.ones(2, 3, 6, 6)
with torch.no_grad():
    want = model(x)
    for made in (load_optimized(model, x), load_with_weights(theirs.Net().eval()), load_exported()):
        assert torch.allclose(made(x), want, atol=1e-5), made
tools = {"pandas", "rich", "typer", "msgspec", "jinja2"} & set(sys.modules)
assert not tools, tools
"""
NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))
"""


def loaded(path: Path) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("theirs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["theirs"] = module
    spec.loader.exec_module(module)
    return module


def test_production_needs_torch_alone(tmp_path: Path) -> None:
    source = tmp_path / "net.py"
    source.write_text(NET)
    model = randomise(loaded(source).Net()).eval()
    torch.save(model.state_dict(), tmp_path / "weights_of_mine.pt")
    written(tmp_path / "out", model)
    done = subprocess.run(
        [sys.executable, "-c", PRODUCTION, str(tmp_path / "out"), str(source), str(tmp_path / "weights_of_mine.pt")],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_changed_model_is_refused_in_words(tmp_path: Path) -> None:
    source = tmp_path / "net.py"
    source.write_text(NET)
    made, _ = written(tmp_path / "out", loaded(source).Net().eval())
    source.write_text(NET.replace("nn.Conv2d(3, 4, 3)", "nn.Conv2d(3, 4, 5)"))
    with pytest.raises(StrategyError, match=r"^conv is Conv2d, weight float32\[4, 3, 5, 5\]"):
        apply_recipe(loaded(source).Net().eval(), made)
    source.write_text(NET + "        # a comment\n")
    apply_recipe(loaded(source).Net().eval(), made)
    source.write_text(NET.replace("self.conv(x)))", "self.conv(x) + 1))"))
    with pytest.raises(StrategyError, match="source of Net is not what it was"):
        apply_recipe(loaded(source).Net().eval(), made)
    source.write_text(NET.replace("nn.BatchNorm2d(4)", "nn.BatchNorm2d(4); self.extra = nn.ReLU()"))
    with pytest.raises(StrategyError, match="extra is ReLU; when the recipe was made it was not there"):
        apply_recipe(loaded(source).Net().eval(), made)


def test_what_makes_a_site_illegal_here_is_refused(tmp_path: Path) -> None:
    made, _ = written(tmp_path, small())
    with pytest.raises(StrategyError, match="bn is in training mode"):
        apply_recipe(small().train(), made)
    hooked = small()
    hooked.conv.register_forward_hook(lambda *_: None)
    with pytest.raises(StrategyError, match="hook"):
        apply_recipe(hooked, replace(made, code=""))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (torch.zeros(2, 3, 7, 7), r"Input x is float32\[2, 3, 7, 7\]"),
        (torch.zeros(2, 3, 6, 6, dtype=torch.float64), "float64"),
        (torch.zeros(3, 6, 6), r"float32\[3, 6, 6\]"),
        ((X, X), "1 input tensors; 2 were given"),
    ],
)
def test_a_changed_shape_is_refused_in_words(tmp_path: Path, inputs: Any, words: str) -> None:
    made, _ = written(tmp_path, small())
    with pytest.raises(InputError, match=words):
        apply_recipe(small(), made, example_inputs=inputs)
    apply_recipe(small(), made, example_inputs=torch.zeros(5, 3, 6, 6))


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with pytest.raises(InputError, match="No such file"):
        recipe.read(path)
    for text, words in (
        ("{", "not a recipe"),
        ("[]", "not a recipe"),
        ('{"format": "9"}', "format 9"),
        ("{}", "format"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            recipe.read(path)


def test_a_folder_of_the_users_is_not_written_to(tmp_path: Path) -> None:
    recipe.check_folder(tmp_path / "new")
    (tmp_path / recipe.LOADER).write_text("mine")
    with pytest.raises(InputError, match=f"holds {recipe.LOADER} and no recipe"):
        recipe.check_folder(tmp_path)
    (tmp_path / recipe.FILE).write_text("mine too")
    with pytest.raises(InputError, match="not a recipe"):
        recipe.check_folder(tmp_path)
    with pytest.raises(InputError, match="not a folder"):
        recipe.check_folder(tmp_path / recipe.FILE)
    recipe.save(tmp_path / "earlier", recipe.Recipe(()))
    recipe.check_folder(tmp_path / "earlier")
