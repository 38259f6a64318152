"""The program as a whole: exit codes, errors as sentences, what goes where."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fusionadvisor
from fusionadvisor.cli import app
from fusionadvisor.errors import EnvironmentUnfitError
from fusionadvisor.render.markdown import MARK
from fusionadvisor.report import codec
from fusionadvisor.report.model import Notice
from tests.cli.conftest import Advisor, Cli
from tests.render.samples import APPLY, CPU_PROFILE, NOT_TRIED, REFUSED

ROOT = Path(__file__).parents[2]


def test_version(cli: Cli) -> None:
    ran = cli("--version")
    assert (ran.code, ran.out) == (0, f"fusion-advisor {fusionadvisor.__version__}\n")


def test_without_arguments_it_helps(cli: Cli) -> None:
    assert cli().out == cli("--help").out
    assert all(name in cli().out for name in ("profile", "analyze", "apply", "list", "explain", "doctor"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("profil", "x.py"), "Did you mean 'profile'?"),
        (("profile",), "Missing argument 'TARGET'"),
        (("profile", "--bogus"), "There is no option --bogus"),
        (("profile", "x.py", "--steps", "0"), "--steps"),
        (("profile", "x.py", "--format", "xml"), "xml"),
        (("list", "strategys"), "Did you mean 'strategies'?"),
        (("explain", "FA1O1"), "Did you mean 'FA101'?"),
        (("explain", "fuse_module"), "Did you mean 'fuse_modules'?"),
        (("apply",), "Add --strategy"),
        (("apply", "--strategy", ","), "Add --strategy"),
        (("apply", "--strategy", "cudagraphs"), "Did you mean 'cudagraph'?"),
        (("apply", "--strategy", "cudagraph"), "No model has been profiled in this folder."),
    ],
)
def test_usage_errors_are_one_sentence_and_exit_2(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    ran = cli(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_an_expected_error_carries_its_code_and_hint(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: list[str]) -> int:
        raise EnvironmentUnfitError("No CUDA device\x1b[31m here.", "Use a machine that has one.")

    monkeypatch.setattr(app, "_command", refuse)
    ran = cli("doctor")
    assert (ran.code, ran.err) == (3, "error: No CUDA device here.  Use a machine that has one.\n")


def test_an_unexpected_error_is_one_line_unless_debugging(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_(_: list[str]) -> int:
        raise ZeroDivisionError("twice\nover")

    monkeypatch.setattr(app, "_command", break_)
    ran = cli("doctor")
    assert ran.code == app.INTERNAL_ERROR
    assert ran.err == "internal error: ZeroDivisionError: twice over; run again with --debug for the traceback\n"
    with pytest.raises(ZeroDivisionError):
        cli("doctor", "--debug")


def test_interruption_exits_130(cli: Cli, advisor: Advisor, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["fusionadvisor.advisor"], "profile", interrupt)
    ran = cli("profile", "x.py")
    assert (ran.code, ran.out, ran.err) == (130, "", "interrupted\n")


def test_json_on_stdout_is_pure(cli: Cli, advisor: Advisor) -> None:
    advisor.report = replace(CPU_PROFILE, warnings=(Notice("W01", "Mind\x1b[2J this."),))
    ran = cli("profile", "x.py", "--format", "json")
    assert codec.from_json(ran.out) == advisor.report
    assert "what the user's own code prints\n" in ran.err
    assert "warning: Mind this.\n" in ran.err


def test_text_on_stdout_without_what_the_model_prints(cli: Cli, advisor: Advisor) -> None:
    ran = cli("analyze", "x.json")
    assert "saving (estimate)" in ran.out
    assert "own code prints" not in ran.out


def test_json_file(cli: Cli, advisor: Advisor, tmp_path: Path) -> None:
    ran = cli("profile", "x.py", "--json", "r.json")
    assert ran.code == 0
    assert "Saved     r.json" in ran.out
    assert codec.read(tmp_path / "r.json").findings == CPU_PROFILE.findings
    assert cli("profile", "x.py", "--json", "r.json").code == 0  # its own report may be replaced
    assert sorted(p.name for p in tmp_path.iterdir()) == [".fusion-advisor", "r.json"]


def test_json_file_of_somebody_else_is_kept(cli: Cli, advisor: Advisor, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text('{"mine": true}')
    ran = cli("profile", "x.py", "--json", "notes.json")
    assert ran.code == 2
    assert "not a fusion-advisor report" in ran.err
    assert advisor.asked == []  # found out before any work was done
    assert json.loads((tmp_path / "notes.json").read_text()) == {"mine": True}
    assert cli("profile", "x.py", "--json", "notes.json", "--force").code == 0
    assert codec.read(tmp_path / "notes.json").command == "profile"


@pytest.mark.parametrize(
    ("file", "said"),
    [("no/such/r.json", "does not exist"), (".", "is a folder"), ("/proc/r.json", "cannot be written")],
)
def test_json_file_that_cannot_be(cli: Cli, advisor: Advisor, file: str, said: str) -> None:
    ran = cli("analyze", "x.json", "--json", file)
    assert ran.code == 2
    assert said in ran.err
    assert ran.out == ""


def test_job_summary_is_added_to(cli: Cli, advisor: Advisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# What another command said\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert cli("profile", "x.py", "--markdown", str(summary)).code == 0
    assert summary.read_text().startswith("# What another command said\n<!-- fusion-advisor report -->\n")
    other = tmp_path / "notes.md"
    other.write_text("mine")
    assert cli("profile", "x.py", "--markdown", str(other)).code == 2
    assert other.read_text() == "mine"
    assert cli("profile", "x.py", "--markdown", "new.md").code == 0
    assert cli("profile", "x.py", "--markdown", "new.md").code == 0
    assert (tmp_path / "new.md").read_text().count(MARK) == 1


def test_apply_takes_the_last_profile_and_never_its_trust(cli: Cli, advisor: Advisor, tmp_path: Path) -> None:
    assert CPU_PROFILE.workload is not None
    advisor.report = replace(CPU_PROFILE, workload=replace(CPU_PROFILE.workload, trust=True))
    cli("profile", "block.py", "--trust")
    assert advisor.asked[-1][2]["trust"] is True
    assert json.loads((tmp_path / ".fusion-advisor/last.json").read_text())["workload"]["trust"] is False
    advisor.report = APPLY
    ran = cli("apply", "--strategy", "fuse_modules, CudaGraph")
    assert ran.code == 0
    assert ran.err.startswith("last profile: block.py:build_model\n")
    name, (workload, strategies), _ = advisor.asked[-1]
    assert (name, strategies) == ("optimize", ["fuse_modules", "cudagraph"])
    assert workload == CPU_PROFILE.workload


def test_damaged_last_profile(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / ".fusion-advisor").mkdir()
    (tmp_path / ".fusion-advisor/last.json").write_text('{"workload": {"target": 3}}')
    ran = cli("apply", "--strategy", "cudagraph")
    assert ran.code == 2
    assert "last.json is damaged" in ran.err


def test_profile_in_a_folder_that_cannot_be_written_still_reports(cli: Cli, advisor: Advisor, tmp_path: Path) -> None:
    (tmp_path / ".fusion-advisor").write_text("a file where the folder would be")
    ran = cli("profile", "x.py")
    assert ran.code == 0
    assert "warning: `apply` will need its target as an argument" in ran.err
    assert "Findings" in ran.out


def test_apply_says_what_could_not_be_had(cli: Cli, advisor: Advisor) -> None:
    cli("profile", "x.py")
    advisor.report = NOT_TRIED
    ran = cli("apply", "--strategy", "cudagraph")
    assert ran.code == 3
    sentence = "It needs a CUDA device; checked without one: nothing else stands in its way."
    assert f"error: cudagraph was not tried. {sentence}\n" in ran.err
    assert "captured on two inputs" in ran.out
    advisor.report = REFUSED
    assert cli("apply", "--strategy", "fuse_modules").code == 4
    advisor.report = replace(REFUSED, attempts=NOT_TRIED.attempts + REFUSED.attempts)
    assert cli("apply", "--strategy", "cudagraph,fuse_modules").code == 4
    late = replace(NOT_TRIED.attempts[0], strategy="fuse_modules", reason="torchscript is kept.")
    advisor.report = replace(NOT_TRIED, attempts=(late,))
    assert cli("apply", "--strategy", "fuse_modules").code == 4  # no lack of this machine's


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m fusionadvisor list rules | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_that_cannot_show_it_gets_ascii() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "fusionadvisor", "apply", "--strategy", "größe"],
        capture_output=True, text=True, cwd=ROOT, check=False, env=env,
    )  # fmt: skip
    assert done.returncode == 2
    assert r"No strategy is called 'gr\xf6\xdfe'" in done.stderr


@pytest.mark.parametrize("form", ["sarif", "perfetto", "csv", "html", "markdown"])
def test_every_form_is_written_and_only_over_its_own(cli: Cli, advisor: Advisor, tmp_path: Path, form: str) -> None:
    file = tmp_path / f"r.{form}"
    assert cli("profile", "x.py", f"--{form}", str(file)).code == 0
    first = file.read_bytes()
    assert first
    assert cli("analyze", "x.json", f"--{form}", str(file)).code == 0
    assert file.read_bytes().split(b"Saved")[0] == first.split(b"Saved")[0]
    file.write_text('{"mine": true}')
    assert cli("apply", "x.py", "--strategy", "cudagraph", f"--{form}", str(file)).code == 2
    assert file.read_text() == '{"mine": true}'


def test_parameters_of_strategies(cli: Cli, advisor: Advisor) -> None:
    cli("profile", "x.py")
    advisor.report = APPLY
    ran = cli("apply", "-s", "fuse_modules,cudagraph", "--site", "decoder.layers", "--set", "cudagraph.max_graphs = 4")
    assert ran.code == 0
    assert advisor.asked[-1][2]["parameters"] == {"cudagraph": {"site": "decoder.layers", "max_graphs": "4"}}
    for arguments, said in [
        (("--set", "cudagraph.max_graf=4"), "Did you mean 'max_graphs'?"),
        (("--set", "cudagraph.max_graphs=many"), "many"),
        (("--set", "torchscript.x=1"), "is not applied"),
        (("--set", "max_graphs=1"), "is not understood"),
    ]:
        ran = cli("apply", "-s", "cudagraph", *arguments)
        assert ran.code == 2
        assert said in ran.err
    assert "cannot be confined" in cli("apply", "-s", "fuse_modules", "--site", "x").err


@pytest.mark.parametrize(
    "arguments",
    [
        ("profile", "x.py", "--json", "same", "--html", "./same"),
        ("analyze", "x.json", "--csv", "same", "--sarif", "same", "--force"),
        ("apply", "x.py", "-s", "compile", "--markdown", "same", "--perfetto", "same"),
        ("run", "x.py", "--trace", "same", "--json", "same"),
        ("check", "x.json", "--baseline", "same", "--update-baseline", "--markdown", "same"),
    ],
)
def test_two_outputs_of_one_name_are_refused_before_any_work(
    cli: Cli, advisor: Advisor, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "both name" in ran.err
    assert advisor.asked == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["list rules", "explain FA101", "--help", "--version"])
def test_output_without_room_is_one_sentence(arguments: str, unbuffered: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m fusionadvisor {arguments} >/dev/full"], capture_output=True, text=True,
        cwd=ROOT, check=False, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "error: The output cannot be written: No space left on device.  Write it to a disk that has room.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("list rules >&-", 2, "error: Standard output is closed.  Redirect it to a file or to /dev/null.\n"),
        ("explain FA999 2>&-", 2, ""),
        ("explain FA101 2>&- >/dev/null", 0, ""),
        ("analyze - <&-", 2, "error: standard input is empty."),
    ],
)
def test_closed_streams_are_no_internal_error(arguments: str, code: int, said: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m fusionadvisor {arguments}"], capture_output=True, text=True, cwd=ROOT,
        check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr.startswith(said)
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("arguments", ["--help", "--version", "profile --help", "list rules", "explain FA101"])
def test_a_reader_that_went_away_is_no_error(arguments: str) -> None:
    there, here = os.pipe()
    os.close(there)
    done = subprocess.run(
        [sys.executable, "-m", "fusionadvisor", *arguments.split()], stdout=here, stderr=subprocess.PIPE, text=True,
        cwd=ROOT, check=False,
    )  # fmt: skip
    os.close(here)
    assert (done.returncode, done.stderr) == (0, "")


def test_paths_can_be_read_where_the_locale_has_no_letters_for_them(tmp_path: Path) -> None:
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "fusionadvisor", "analyze", "größe.json"], capture_output=True, cwd=tmp_path,
        check=False, env=env,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(rb"error: There is no file gr\xf6\xdfe.json.")


def test_apply_without_a_strategy_names_what_the_last_profile_recommends(cli: Cli, advisor: Advisor) -> None:
    assert cli("profile", "x.py").code == 0
    ran = cli("apply")
    assert ran.code == 2
    assert "the last profile recommends fuse_modules, compile, torchscript." in ran.err
    assert "Add --strategy fuse_modules" in ran.err
    assert "one or more of" in cli("apply", "other.py").err  # of which nothing is known
