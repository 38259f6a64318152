"""Packages that bring a rule or a strategy: the example, installed as a user would, and such as are broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusionadvisor import catalog, strategies
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.cli import app
from fusionadvisor.errors import InputError
from fusionadvisor.report import condition
from fusionadvisor.rules import engine
from tests.builders import timeline

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example built and installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(EXAMPLE)], check=True)
    return folder


def run(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=installed, env=env, check=False
    )  # fmt: skip


@pytest.mark.slow
def test_the_example_passes_its_own_tests(installed: Path) -> None:
    done = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(EXAMPLE / "tests"))
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_what_it_brings_is_listed_and_explained_without_being_run(installed: Path) -> None:
    script = (
        "import sys; from fusionadvisor.cli.app import run\n"
        "codes = [run(['list', 'rules']), run(['list', 'strategies']), run(['explain', 'rr101'])]\n"
        "print(codes, 'fusionadvisor_repeats' in sys.modules, 'torch' in sys.modules)"
    )
    lines = run(installed, "-c", script).stdout.splitlines()
    rule = next(line for line in lines if line.startswith("RR101 "))
    assert rule.split("  ")[1] == "Drop the activation that is applied twice"
    assert rule.endswith("drop_repeats           fusionadvisor-repeats 0.1.0")
    strategy = next(line for line in lines if line.startswith("drop_repeats "))
    assert "RR101" in strategy
    assert "# RR101: Drop the activation that is applied twice" in lines
    assert "From fusionadvisor-repeats 0.1.0." in lines
    assert "Remedies: drop_repeats" in lines
    assert lines[-1] == "[0, 0, 0] False False"


def test_its_rule_can_be_a_gate(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="RR101"):
        condition.parse(["RR101"])
    monkeypatch.syspath_prepend(str(installed))
    assert [c.quantity.name for c in condition.parse(["rr101", "findings.RR101 > 2"])] == ["findings.RR101"] * 2
    assert catalog.url("RR101") == ""


def test_a_rule_of_the_tool_cannot_be_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(tmp_path, {"rules": "FA101 = theirs:Anything", "strategies": "auto = theirs:Anything"})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not catalog.entry("FA101").package
    assert "auto" not in strategies.ids()
    said = [w.message for w in engine.run(Facts(timeline([]))).warnings]
    assert "Rule FA101 of theirs 2.0 is left out: FA101 is a built-in id." in said


THEIRS = """
from fusionadvisor.rules.base import Rule, Looked

class Silent(Rule):
    id = "XX1"
    passed: str = "nothing silent"
    timed = True
    remedies = ("fuse_" + "modules",)  # no literal: not read

    def look(self, facts):
        return Looked()

class Renamed(Silent):
    id = "XX3"
"""
DECLARED = """XX1 = theirs:Silent
XX2 = theirs:Renamed
XX4 = theirs:Missing
XX5 = nothere.at_all:Rule
XX6 = theirs:Looked"""


def declare(folder: Path, groups: dict[str, str]) -> None:
    """Make a folder hold an installed package ``theirs`` with these entry points."""
    info = folder / "theirs-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 2.0\n")
    points = "".join(f"[fusionadvisor.{group}]\n{lines}\n" for group, lines in groups.items())
    (info / "entry_points.txt").write_text(points)


def test_broken_rules_cost_a_warning_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs.py").write_text(THEIRS)
    declare(tmp_path, {"rules": DECLARED})
    monkeypatch.syspath_prepend(str(tmp_path))
    advice = engine.run(Facts(timeline([])))
    assert [w.message for w in advice.warnings if w.code == "W10"] == [
        "Rule XX2 of theirs 2.0 is left out: it calls itself 'XX3'.",
        "Rule XX4 of theirs 2.0 cannot be loaded: AttributeError: module 'theirs' has no attribute 'Missing'.",
        "Rule XX5 of theirs 2.0 cannot be loaded: ModuleNotFoundError: No module named 'nothere'.",
        "Rule XX6 of theirs 2.0 is left out: theirs:Looked is no subclass of fusionadvisor.rules.base.Rule.",
    ]
    assert {p.rule: p.message for p in advice.passed}["XX1"] == "nothing silent"
    silent = catalog.entry("XX1")
    assert (silent.title, silent.remedies, silent.timed) == ("XX1", (), True)
    with pytest.raises(InputError, match=r"XX5 has no page: the source of nothere\.at_all:Rule is not found"):
        catalog.page("XX5")


GATED = """
from fusionadvisor.report.model import Range
from fusionadvisor.rules.base import Candidate, Looked, Rule

class Late(Rule):
    id = "XX1"

    def look(self, facts):
        node = facts.nodes[facts.groups[0].nodes[0]]
        return Looked((Candidate((node.index,), Range(0.0, None, 0.0), "late", node, specific=False),))

class Raises(Rule):
    id = "XX2"

    def look(self, facts):
        raise KeyError("oops")

class Skips(Rule):
    id = "XX3"

    def look(self, facts):
        return Looked(skipped="nothing of the kind ran")
"""


@pytest.mark.parametrize(
    ("condition", "code", "said"),
    [
        ("XX1", 1, "--fail-on: findings.XX1: 1, must be at most 0"),  # though another finding has its kernels
        ("XX2", 2, "'XX2' cannot be judged: Rule XX2 failed and was left out: KeyError: 'oops'.  Let the rule run"),
        ("findings.XX2>0", 2, "'findings.XX2>0' cannot be judged: Rule XX2 failed"),
        ("XX3", 0, ""),
        ("XX4", 2, "'XX4' cannot be judged: Rule XX4 of theirs 2.0 cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_gate_names_a_rule_that_found_little_failed_or_had_nothing_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    condition: str, code: int, said: str,
) -> None:  # fmt: skip
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    (tmp_path / "theirs.py").write_text(GATED)
    points = "XX1 = theirs:Late\nXX2 = theirs:Raises\nXX3 = theirs:Skips\nXX4 = nothere.at_all:Rule"
    declare(tmp_path, {"rules": points})
    monkeypatch.syspath_prepend(str(tmp_path))
    trace = ROOT / "tests" / "data" / "traces" / "tl_h100_vit_nsfw.json.gz"
    (tmp_path / "pyproject.toml").write_text(f"[tool.fusion-advisor.budget]\nfail-on = ['{condition}']\n")
    monkeypatch.chdir(tmp_path)
    assert app.run(["analyze", str(trace), "--fail-on", condition, "--json", "r.json"]) == code
    assert said in capfd.readouterr().err
    assert app.run(["check", "r.json"]) == code
    assert said.removeprefix("--fail-on: ") in capfd.readouterr().err


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (
            "theirs:Nothing",
            "AttributeError: module 'theirs' has no attribute 'Nothing'.  Mend or uninstall theirs 2.0.",
        ),
        ("theirs:Plain", "theirs:Plain is no subclass of fusionadvisor.strategies.base.Strategy."),
        ("theirs:Other", "Strategy mine of theirs 2.0 calls itself 'other'."),
        ("broken:Other", "SyntaxError"),
    ],
)
def test_a_broken_strategy_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, words: str
) -> None:
    from fusionadvisor.strategies.inplace import InPlace

    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    (tmp_path / "theirs.py").write_text(
        f"from {InPlace.__module__} import InPlace\n"
        "class Plain: pass\nclass Other(InPlace):\n    id = 'other'\n    def __init__(self): self.unused = 1\n"
    )
    (tmp_path / "broken.py").write_text("class Other(:\n")
    declare(tmp_path, {"strategies": f"mine = {point}"})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "mine" in strategies.ids()
    with pytest.raises(InputError) as caught:
        strategies.get("MINE")
    assert words in str(caught.value)


def test_a_strategy_under_a_built_in_id_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    declare(tmp_path, {"strategies": "fx = theirs:Mine"})
    monkeypatch.syspath_prepend(str(tmp_path))
    said = "Strategy fx of theirs 2.0 is left out: fx is a built-in id."
    assert catalog.refused_strategies() == (said,)
    assert app.run(["list", "strategies"]) == 0
    assert capfd.readouterr().err == f"warning: {said}\n"
    assert strategies.get("fx").order == 20


def test_a_search_goes_on_without_a_broken_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.evaluate.test_auto import hunt, world

    declare(tmp_path, {"strategies": "mine = nothere:Mine"})
    monkeypatch.syspath_prepend(str(tmp_path))
    attempts = hunt(world(gains={"inplace": 1.2}))
    assert attempts["inplace"].kept
    assert attempts["mine"].reason.startswith("Dropped: Strategy mine of theirs 2.0 cannot be loaded: ModuleNotFound")
