"""The program: commands, exit codes, and the one place where errors become sentences.

Exit codes: 0 done, 1 a gate failed, 2 usage or bad input, 3 this machine cannot, 4 a strategy that was asked for was
refused, crashed or diverged, 70 an error in this program (EX_SOFTWARE of sysexits.h), 130 interrupted.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, TextIO, cast

import typer
import typer.core

from fusionadvisor import __version__
from fusionadvisor.cli.analyze import analyze
from fusionadvisor.cli.apply import apply
from fusionadvisor.cli.check import check
from fusionadvisor.cli.compare import compare
from fusionadvisor.cli.doctor import doctor
from fusionadvisor.cli.examples import EXIT_CODES, epilog, paragraphs
from fusionadvisor.cli.explain import explain
from fusionadvisor.cli.listing import list_
from fusionadvisor.cli.output import INTERRUPTED, NO_ROOM, fail, silence, unwritten, write
from fusionadvisor.cli.profile import profile
from fusionadvisor.cli.run import run_
from fusionadvisor.errors import EnvironmentUnfitError, FusionAdvisorError, InputError, did_you_mean
from fusionadvisor.interrupts import twice

INTERNAL_ERROR = 70

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Of click, or of the copy of it inside newer typer releases: the public subclass is the way to either."""

_COMPLETION = ("--install-completion", "--show-completion")
_COMPLETING = "_FUSION_ADVISOR_COMPLETE"
"""Set by the shell that asks what to offer."""
_CHOICE = re.compile(r"'(?P<given>[^']*)' is not one of (?P<known>'.*')")

app = typer.Typer(
    name="fusion-advisor",
    epilog=f"{epilog('')}\n\n{EXIT_CODES}",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"fusion-advisor {__version__}\n")
        raise typer.Exit


@app.callback()
def fusion_advisor(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", metavar="", help="Show tracebacks; allowed at any position.")
    ] = False,
) -> None:
    """Find unfused GPU kernels in a PyTorch model or trace, fuse what can be fused, verify and measure it."""


_COMMANDS: tuple[tuple[str, Callable[..., int]], ...] = (
    ("profile", profile),
    ("analyze", analyze),
    ("apply", apply),
    ("run", run_),
    ("compare", compare),
    ("check", check),
    ("list", list_),
    ("explain", explain),
    ("doctor", doctor),
)
for _name, _function in _COMMANDS:
    app.command(_name, help=paragraphs(_function.__doc__ or ""), epilog=epilog(_name))(_function)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; nothing it raises escapes, unless ``--debug`` is given."""
    if sys.stderr is None:  # closed by `2>&-`: there is nobody to tell
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        return _tell(InputError("Standard output is closed.", "Redirect it to a file or to /dev/null."))
    _tolerate(sys.stdout, sys.stderr)
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    debug = "--debug" in arguments
    arguments = [word for word in arguments if word != "--debug"]
    try:
        try:
            with twice():
                code = _command(arguments)
        finally:
            write("")  # what the parser printed by itself
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            silence()  # the parser found nobody reading its help, and gave up with a code of its own
            return 0
        return cast(int, ended.code or 0)  # how completion ends
    except Exception as error:
        if debug:
            raise
        return _tell(error)
    if code == INTERRUPTED:
        sys.stderr.write("interrupted\n")
    return code


def _tolerate(*streams: TextIO) -> None:
    """Let a terminal with a narrow encoding show the code of a sign it lacks, instead of failing."""
    for stream in streams:
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _command(arguments: list[str]) -> int:
    from fusionadvisor.cli import settings

    command = cast(typer.core.TyperGroup, typer.main.get_command(app))
    options = {
        name: {option.removeprefix("--"): p.name or "" for p in one.params for option in p.opts if option[:2] == "--"}
        for name, one in command.commands.items()
    }
    asks = {"--help", "-h", "--version", *_COMPLETION} & {*arguments} or _COMPLETING in os.environ
    defaults = {} if asks else settings.load(Path.cwd()).defaults(options)
    code = command.main(arguments, prog_name="fusion-advisor", standalone_mode=False, default_map=defaults)
    if code and {*_COMPLETION} & {*arguments}:
        raise EnvironmentUnfitError("The shell could not be recognised.", "Start it from bash, zsh or fish.")
    return cast(int, code or 0)


def _usage(error: Exception) -> InputError:
    """Say what the parser found wrong in this program's words: what, and what was probably meant."""
    context = getattr(error, "ctx", None)
    see = f"See: {context.command_path if context else 'fusion-advisor'} --help"
    said = cast(str, error.format_message()).rstrip(".")  # type: ignore[attr-defined]
    if option := getattr(error, "option_name", None):
        known = [name for p in context.command.params for name in p.opts] if context else []
        close = did_you_mean(option, known)
        return InputError(f"There is no option {option}.", close if close.startswith("Did") else see)
    said = said.replace("Value error, ", "")
    if choice := _CHOICE.search(said):
        return InputError(f"{said}.", did_you_mean(choice["given"], re.findall(r"'([^']*)'", choice["known"])))
    return InputError(said, see)


def _tell(error: Exception) -> int:
    from fusionadvisor.render.text import clean

    if isinstance(error, FusionAdvisorError):
        return fail(error)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        silence()
        return fail(unwritten(error))
    if isinstance(error, UsageError):
        return fail(_usage(error))
    said = clean(str(error))
    sys.stderr.write(f"internal error: {type(error).__name__}: {said}; run again with --debug for the traceback\n")
    return INTERNAL_ERROR
