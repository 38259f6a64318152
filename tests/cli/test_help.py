"""What ``--help`` says: every option in its panel with its default, and examples that can be typed."""

import re
import shlex

import pytest
import typer

from fusionadvisor.cli.app import app
from fusionadvisor.cli.examples import EXAMPLES
from fusionadvisor.cli.options import HOW, OUT, RUN
from tests.cli.conftest import Cli

GROUP = typer.main.get_command(app)
COMMANDS = sorted(set(EXAMPLES) - {""})


def test_every_command_has_examples() -> None:
    assert sorted(GROUP.commands) == COMMANDS  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_parse(command: str) -> None:
    for line, what in EXAMPLES[command]:
        name, *words = shlex.split(line)
        assert name == command
        GROUP.commands[name].make_context(name, words)  # type: ignore[attr-defined]
        assert what


def test_the_first_examples_parse_too() -> None:
    for line, _ in EXAMPLES[""]:
        name, *words = shlex.split(line)
        GROUP.commands[name].make_context(name, words)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_a_panel_and_explained(cli: Cli, command: str) -> None:
    for param in GROUP.commands[command].params:  # type: ignore[attr-defined]
        if isinstance(param, typer.core.TyperOption):
            assert param.rich_help_panel in (RUN, HOW, OUT), param.opts
            assert param.help
    said = cli(command, "--help").out
    assert "Examples:" in said
    for line, what in EXAMPLES[command]:
        assert re.search(rf"^ +fusion-advisor {re.escape(line)} *\n +{re.escape(what)} *$", said, re.M)


def test_defaults_are_shown(cli: Cli) -> None:
    said = " ".join(cli("apply", "--help").out.split())
    assert re.search(r"--timeout .* Time limit of one attempt, .* \[default: 300\.0\]", said)
    assert re.search(r"--goal .* \[default: latency\]", said)


def test_the_whole_help_names_the_exit_codes(cli: Cli) -> None:
    assert "4 a strategy that you asked for was refused" in " ".join(cli("--help").out.split())


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("profile", "x.py", "--jsno", "y"), "There is no option --jsno.  Did you mean '--json'?"),
        (("--versoin",), "Did you mean '--version'?"),
        (("apply", "x.py", "--strtegy", "fx"), "Did you mean '--strategy'?"),
        (("profile", "--zzz"), "There is no option --zzz.  See: fusion-advisor profile --help"),
        (("profile", "x.py", "--format", "jsn"), "'jsn' is not one of 'text', 'json'.  Did you mean 'json'?"),
        (("compar", "a", "b"), "Did you mean 'compare'?"),
        (("explain", "FA1O1"), "Did you mean 'FA101'?"),
        (("apply", "x.py", "--strategy", "fx,compil"), "Did you mean 'compile'?"),
    ],
)  # fmt: skip
def test_a_slip_is_told_what_was_meant(cli: Cli, words: tuple[str, ...], meant: str) -> None:
    ran = cli(*words)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert meant in ran.err
