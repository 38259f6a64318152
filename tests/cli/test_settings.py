"""Defaults from ``[tool.fusion-advisor]`` of a project's pyproject.toml."""

from pathlib import Path

import pytest

from tests.cli.conftest import Advisor, Cli


def project(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)


def test_options_of_a_command(cli: Cli, advisor: Advisor, tmp_path: Path) -> None:
    project(tmp_path, '[tool.fusion-advisor.profile]\nsteps = 7\ninput = ["x=float32[2,3]"]\nfail-on = ["FA101"]\n')
    assert cli("profile", "x.py").code == 1
    assert advisor.asked[-1][2]["steps"] == 7
    assert list(advisor.asked[-1][2]["inputs"]) == ["x=float32[2,3]"]
    cli("profile", "x.py", "--steps", "3")
    assert advisor.asked[-1][2]["steps"] == 3  # what is typed wins
    assert cli("analyze", "x.json").code == 0  # another command's are its own


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.fusion-advisor.profile]\nstep = 7\n", "Did you mean 'steps'?"),
        ("[tool.fusion-advisor.profile]\ntrust = true\n", "cannot be set in a file"),
        ("[tool.fusion-advisor]\nprofile = 3\n", "is not a table"),
        ("[tool.fusion-advisor", "cannot be read"),
    ],
)
def test_what_is_wrong_in_it(cli: Cli, advisor: Advisor, tmp_path: Path, text: str, said: str) -> None:
    project(tmp_path, text)
    ran = cli("profile", "x.py")
    assert ran.code == 2
    assert said in ran.err
    assert advisor.asked == []
