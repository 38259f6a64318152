"""A folder holds one whole recipe at any time, and of the user's what the recipe runs."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionadvisor import recipe
from fusionadvisor.errors import FusionAdvisorError, InputError, StrategyError
from fusionadvisor.evaluate import saving
from fusionadvisor.evaluate.search import Trying
from fusionadvisor.evaluate.trial import Done, Job
from fusionadvisor.evaluate.worker import Ended, Limits
from fusionadvisor.files import sha256
from fusionadvisor.recipe import Recipe, Step, apply_recipe
from fusionadvisor.report.model import Attempt, Verification, Workload
from fusionadvisor.strategies.base import Call
from fusionadvisor.strategies.fx import FxPasses
from fusionadvisor.workload.inputs import spec_of
from tests.strategies.subjects import subject

WRITER = """
import sys, hashlib
from pathlib import Path
from fusionadvisor import recipe
folder = Path(sys.argv[1])
for number in range(1000):
    with recipe.draft(folder) as beside:
        content = str(number).encode() * 100_000
        (beside / "weights.pt").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        recipe.save(beside, recipe.Recipe((), artefacts={"weights.pt": "x"}, files={"weights.pt": digest}))
        recipe.publish(beside, folder)
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_one_whole_recipe(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    for delay in range(8):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, folder], env=environment, stdout=subprocess.PIPE)
        assert writer.stdout
        writer.stdout.readline()
        time.sleep(delay * 0.0005)  # each time elsewhere in the next write
        writer.kill()
        writer.wait()
        writer.stdout.close()
        made = recipe.read(folder / recipe.FILE)
        recipe.check_file(made, folder, "weights.pt")
        assert {path.name for path in folder.iterdir()} == {recipe.FILE, recipe.LOADER, "weights.pt"}
    with recipe.draft(folder):  # sweeps what the killed ones left
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("atomic", [True, False], ids=["in one step", "in two"])
def test_a_recipe_takes_the_place_of_an_earlier_one_as_a_whole(
    tmp_path: Path, atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not atomic:
        monkeypatch.setattr("fusionadvisor.files._exchanged", lambda *_: False)
    folder, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(folder)
    recipe.save(folder, Recipe((), artefacts={"model.ts": "archive"}))
    (folder / "model.ts").write_text("earlier")
    folder.chmod(0o750)
    with recipe.draft(link) as beside:
        recipe.save(beside, Recipe((), model="Later"))
        recipe.publish(beside, link)
    assert recipe.read(link / recipe.FILE).model == "Later"
    assert not (folder / "model.ts").exists()
    assert folder.stat().st_mode & 0o777 == 0o750
    assert link.is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link"}


def test_files_beside_an_earlier_recipe_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    recipe.save(folder, Recipe(()))
    (folder / "__pycache__").mkdir()
    recipe.check_folder(folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds notes\.txt, which is not of the recipe in it, and is not"):
        recipe.check_folder(folder)
    (folder / "notes.txt").unlink()
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="cannot be replaced as a whole"):
        recipe.check_folder(Path())


class Saving(Trying):
    """Writes a recipe, and answers as told when it is loaded."""

    loading = Ended("crashed", reason="The process died of SIGKILL.")

    def do(self, job: Job, name: str) -> Ended:
        if job.save is None:
            return self.loading
        return Ended("done", Done(files=recipe.save(Path(job.save), Recipe((), model="Later"))))


def test_a_second_run_that_fails_leaves_the_first_recipe(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    recipe.save(folder, Recipe((), model="Earlier"))
    attempts = [Attempt("fx", "faster", True), Attempt("sdpa", "slower")]
    trying = Saving(Workload(target="x.py"), Limits(), 1.0, lambda _: None, steps=[Step("fx")])
    outcome = trying.outcome(attempts, [], folder)
    assert recipe.read(folder / recipe.FILE).model == "Earlier"
    assert outcome.files == ()
    assert [(a.outcome, a.kept) for a in outcome.attempts] == [("refused", False), ("slower", False)]
    assert "did not hold in a fresh process and was not kept: The process died" in outcome.attempts[0].reason
    trying.loading = Ended("done", Done(verification=Verification("agrees")))
    trying.steps = [Step("fx")]
    outcome = trying.outcome(attempts, [], folder)
    assert outcome.files == (str(folder / recipe.FILE), str(folder / recipe.LOADER))
    assert recipe.read(folder / recipe.FILE).model == "Later"
    assert outcome.attempts[0].kept
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# what is the user's ---------------------------------------------------------------------------------------------------

PASS = """
import torch
from helpers import table
from helpers.deep import REPLACED

def halve(graph):
    from late import stamp
    stamp()
    for node in graph.graph.nodes:
        if node.target in REPLACED:
            node.target = table.NEW
    graph.recompile()
"""
HELPERS = {
    "helpers/__init__.py": "",
    "helpers/table.py": "import torch\nfrom . import deep\nNEW = torch.relu",
    "helpers/deep.py": "import torch\nfrom ..helpers import table\nREPLACED = (torch.sigmoid,)".replace(
        "..helpers", "."
    ),
    "late.py": "from pathlib import Path\ndef stamp():\n    (Path(__file__).parent / 'ran').touch()",
    "json.py": "raise RuntimeError('the standard library comes first')",
    "not_imported.py": "",
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return torch.sigmoid(self.fc(x).relu())


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A recipe with a pass of the user's, whose own folder is gone."""
    theirs = tmp_path / "theirs"
    for name, text in {**HELPERS, "my_passes.py": PASS}.items():
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_text(text)
    torch.manual_seed(0)
    model = Net().eval()
    own = FxPasses(passes=f"{theirs}/my_passes.py:halve")
    plan = own.plan(subject(model, (4,)))
    steps = (Step("fx", own.parameters(), plan.sites),)
    candidate = recipe.perform(Net().eval(), steps, (Call((X,)),), device="cpu")
    workload = Workload("net.py", model="Net", inputs=(spec_of("x", X),))
    saving.write(tmp_path / "out", workload, steps, model, candidate, Call((X,)), None, None)
    (tmp_path / "out" / "code" / "ran").unlink(missing_ok=True)
    shutil.rmtree(theirs)
    return tmp_path / "out"


def test_a_recipe_holds_what_a_pass_imports_from_beside_it_and_nothing_else(saved: Path) -> None:
    made = recipe.read(saved / recipe.FILE)
    code = {name for name in made.files if name.startswith("code/")}
    assert code == {f"code/{name}" for name in (*HELPERS, "my_passes.py") if name not in ("json.py", "not_imported.py")}
    assert made.steps[0].parameters == {"passes": "code/my_passes.py:halve"}
    assert all(sha256(saved / name) == digest for name, digest in made.files.items())
    model = Net().eval()
    optimized = apply_recipe(model, saved / recipe.FILE)
    assert torch.equal(optimized(X), torch.relu(model.fc(X)))
    assert (saved / "code" / "ran").exists()
    assert not {"helpers", "late", "my_passes"} & set(sys.modules)
    assert not list(saved.rglob("*.pyc"))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("my_passes.py", "raise SystemExit", r"my_passes\.py is not the file that was verified with this recipe\."),
        ("helpers/table.py", "raise SystemExit", r"table\.py is not the file that was verified"),
        ("late.py", None, r"late\.py is missing\."),
        ("torchvision.py", "raise SystemExit", r"torchvision\.py is not of the recipe beside it\."),
    ],
)
def test_a_changed_file_is_refused_before_anything_runs(saved: Path, name: str, text: str | None, words: str) -> None:
    path = saved / "code" / name
    path.write_text(text) if text else path.unlink()
    with pytest.raises(StrategyError, match=words):
        apply_recipe(Net().eval(), saved / recipe.FILE)
    assert not (saved / "code" / "ran").exists()


def test_nothing_of_it_runs_on_another_model_or_other_sites(saved: Path) -> None:
    made = recipe.read(saved / recipe.FILE)
    with pytest.raises(StrategyError, match="made for Net"):
        apply_recipe(nn.Sequential(), saved / recipe.FILE)
    (step,) = made.steps
    more = replace(step, sites=(*step.sites, replace(step.sites[0], name="the model: silu")))
    recipe.save(saved, replace(made, steps=(more,)))
    with pytest.raises(StrategyError, match="fx does not find the model: silu in this model"):
        apply_recipe(Net().eval(), saved / recipe.FILE)
    assert not (saved / "code" / "ran").exists()


@pytest.mark.parametrize(
    "where", ["/etc/passwd:x", "../theirs/my_passes.py:halve", "weights.pt:x", "my_passes.py:halve"]
)
def test_a_recipe_runs_no_file_from_elsewhere(saved: Path, where: str) -> None:
    made = recipe.read(saved / recipe.FILE)
    steps = (replace(made.steps[0], parameters={"passes": where}),)
    recipe.save(saved, replace(made, steps=steps, files=made.files | {"weights.pt": "0"}))
    for given in (saved / recipe.FILE, made):
        with pytest.raises(FusionAdvisorError, match="no copy of it is in a recipe here"):
            apply_recipe(Net().eval(), given)


def test_what_a_pass_may_load_by_name_is_said(tmp_path: Path) -> None:
    path = tmp_path / "my_passes.py"
    path.write_text("import importlib\ndef own(graph):\n    importlib.import_module('other')\n")
    _, files, notes = recipe.with_code((Step("fx", {"passes": f"{path}:own"}),))
    assert list(files) == ["code/my_passes.py"]
    assert notes == ("my_passes.py:3 (import_module) may load files by name: such files are not in the recipe.",)
