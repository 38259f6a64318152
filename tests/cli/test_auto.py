"""``apply --strategy auto`` on the command line: its budget and goal, and an exit code that nothing dropped spoils."""

import pytest

from tests.cli.conftest import Advisor, Cli
from tests.render.samples import CPU_PROFILE, REFUSED


@pytest.mark.parametrize(
    ("given", "seconds"), [("120s", 120.0), ("5m", 300.0), ("90", 90.0), ("0.5H", 1800.0), (None, None)]
)
def test_the_budget_is_read(cli: Cli, advisor: Advisor, given: str | None, seconds: float | None) -> None:
    advisor.report = CPU_PROFILE
    cli("profile", "block.py")
    cli("apply", "--strategy", "auto", "--goal", "memory", *(("--budget", given) if given else ()))
    name, (_, names), options = advisor.asked[-1]
    assert (name, names) == ("optimize", ["auto"])
    assert (options["budget_s"], options["goal"]) == (seconds, "memory")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("auto,inplace",), "auto cannot be combined with other strategies."),
        (("auto", "--budget", "soon"), "--budget 'soon' is not a time."),
        (("auto", "--budget", "-3s"), "--budget '-3s' is not a time."),
        (("auto", "--budget", "nan"), "--budget 'nan' is not a time."),
        (("inplace", "--budget", "3s"), "--budget and --goal need --strategy auto."),
        (("inplace", "--goal", "memory"), "--budget and --goal need --strategy auto."),
        (("auto", "--set", "auto.x=1"), "names a strategy that is not applied."),
        (("auto", "--site", "layers"), "cannot be confined to a module."),
        (("auto", "--goal", "speed"), "--goal"),
    ],
)
def test_what_does_not_fit_is_said(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    ran = cli("apply", "x.py", "--strategy", *arguments)
    assert ran.code == 2
    assert words in ran.err


def test_what_was_dropped_is_no_failure(cli: Cli, advisor: Advisor) -> None:
    cli("profile", "x.py")
    advisor.report = REFUSED
    assert cli("apply", "--strategy", "auto").code == 0
    assert cli("apply", "--strategy", "fuse_modules").code == 4


def test_it_is_listed_and_explained(cli: Cli) -> None:
    assert "auto " in cli("list", "strategies").out
    assert "--budget" in cli("explain", "auto").out
