"""``compare``: reports and traces, in three forms."""

import json
from pathlib import Path

import pytest

from fusionadvisor.render.markdown import MARK
from fusionadvisor.report import codec
from tests.cli.conftest import Advisor, Cli
from tests.report.test_diff import EAGER, FUSED


@pytest.fixture(autouse=True)
def reports(tmp_path: Path) -> None:
    (tmp_path / "eager.json").write_text(codec.to_json(EAGER))
    (tmp_path / "fused.json").write_text(codec.to_json(FUSED))


def test_it_names_the_fusions_gained(cli: Cli) -> None:
    ran = cli("compare", "eager.json", "fused.json")
    assert (ran.code, ran.err) == (0, "")
    assert "2 fusions gained; kernels 10 → 4" in ran.out
    assert "gained  FA103 Fuse it ×2  layers.0.norm, layers.1.norm" in ran.out


def test_a_trace_is_analysed_first(cli: Cli, advisor: Advisor, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    advisor.report = FUSED
    ran = cli("compare", "eager.json", "trace.json")
    assert "2 fusions gained" in ran.out
    assert [(name, str(args[0])) for name, args, _ in advisor.asked] == [("analyze", "trace.json")]


def test_a_folder_of_traces_is_analysed(cli: Cli, advisor: Advisor, tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    advisor.report = FUSED
    assert cli("compare", "eager.json", "ranks").code == 0


def test_other_forms(cli: Cli) -> None:
    found = json.loads(cli("compare", "eager.json", "fused.json", "--format", "json").out)
    assert [change["module"] for change in found["fusions"]] == ["layers.0.norm", "layers.1.norm"]
    assert cli("compare", "eager.json", "fused.json", "--format", "markdown").out.startswith(MARK)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("absent.json", None, "There is no file absent.json."),
        ("later.json", '{"schema_version": "2.0"}', "later.json has schema version 2.0; this program reads 1.x."),
        ("half.json", '{"schema_version": "1.0", "tool": {}}', "half.json is not a complete report"),
        ("torn.json", '{"schema_version": "1.0", ', "torn.json is not JSON"),
    ],
)
def test_what_is_neither(cli: Cli, tmp_path: Path, name: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    ran = cli("compare", "eager.json", name)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1
