"""Where results go: text or JSON to standard output, JSON to a file, progress to a terminal's standard error."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fusionadvisor.cli import gate
from fusionadvisor.cli.gate import Condition
from fusionadvisor.cli.options import Format
from fusionadvisor.errors import FusionAdvisorError, InputError
from fusionadvisor.files import append, write_atomically
from fusionadvisor.render.text import clean
from fusionadvisor.report import codec

if TYPE_CHECKING:
    from rich.console import Console

    from fusionadvisor.report.model import Report

PIPE_WIDTH = 100
"""Columns of a report that is not printed on a terminal."""


def _json(report: "Report") -> str:
    return codec.to_json(report)


def _markdown(report: "Report") -> str:
    from fusionadvisor.render import markdown

    return markdown.compose(report)


def _is_json_report(path: Path) -> bool:
    try:
        codec.read(path)
    except InputError:
        return False
    return True


def _html(report: "Report") -> str:
    from fusionadvisor.render import html

    return html.compose(report)


def _begins(path: Path, mark: str) -> bool:
    with path.open("rb") as file:
        return file.read(len(mark)) == mark.encode()


def _is_markdown_report(path: Path) -> bool:
    from fusionadvisor.render.markdown import MARK

    return _begins(path, MARK)


def _is_html_report(path: Path) -> bool:
    from fusionadvisor.render.html import MARK

    return _begins(path, MARK)


@dataclass(frozen=True, slots=True)
class Kind:
    """A form of the report that goes to a file."""

    option: str
    compose: Callable[["Report"], str]
    own: Callable[[Path], bool]
    """Whether a file is one that this tool wrote in this form."""


KINDS = {
    "json": Kind("--json", _json, _is_json_report),
    "markdown": Kind("--markdown", _markdown, _is_markdown_report),
    "html": Kind("--html", _html, _is_html_report),
}


@dataclass(frozen=True, slots=True)
class Output:
    """What a command was asked to write. Made before the work starts, so that a bad file name costs nothing."""

    format: Format = Format.text
    files: tuple[tuple[Kind, Path], ...] = ()
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def checked(
        cls, format: Format, *, force: bool = False, fail_on: Sequence[str] | None = None, **files: Path | None
    ) -> "Output":
        """Return the outputs, after making sure that each file can be written and is the tool's own or new.

        Args:
            format: What goes to standard output.
            force: Overwrite files that this tool did not write.
            fail_on: Conditions that end the command with exit code 1.
            **files: Where a form of :data:`KINDS` is written, None for nowhere.

        Raises:
            InputError: If a condition is not understood, a file cannot be written, or somebody else's stands there.
        """
        wanted = tuple((KINDS[name], path) for name, path in files.items() if path is not None)
        for kind, path in wanted:
            _check_target(kind, path, force)
        return cls(format, wanted, gate.parse(fail_on or ()))

    def emit(self, report: "Report") -> None:
        """Write the report wherever it was asked for.

        Raises:
            GateError: After all is written, if a condition of ``--fail-on`` is met.
        """
        report = replace(report, files=(*report.files, *(str(path) for _, path in self.files)))
        for kind, path in self.files:
            if _is_step_summary(path):
                append(path, kind.compose(report))
            else:
                write_atomically(path, kind.compose(report))
        self._print(report)
        gate.hold(self.conditions, report)

    def _print(self, report: "Report") -> None:
        if self.format is Format.json:
            write(codec.to_json(report))
            for warning in report.warnings:
                warn(warning.message)
            return
        from fusionadvisor.render import terminal

        with printing() as console:
            terminal.render(report, console)


def _is_step_summary(path: Path) -> bool:
    """GitHub's job summary is one file that the commands of a step add to."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    return bool(summary) and path.absolute() == Path(summary or "").absolute()


def _check_target(kind: Kind, path: Path, force: bool) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file to write.", f"Give {kind.option} a file name.")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"The folder {folder} does not exist.", f"Make it first: mkdir -p {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{path} cannot be written: permission denied.", "Choose another place.")
    if force or _is_step_summary(path) or not path.is_file() or not path.stat().st_size:
        return
    if not kind.own(path):
        raise InputError(f"{path} exists and is not a fusion-advisor report.", "Choose another name, or add --force.")


@contextmanager
def printing() -> "Iterator[Console]":
    """Give a console as wide and colourful as standard output is, and print what was written to it at the end."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    console = Console(width=width)
    with console.capture() as text:
        yield console
    write(text.get())


def write(text: str) -> None:
    """Print to standard output; a reader that went away (``| head``) is no error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # the interpreter flushes standard output once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(message: str) -> None:
    """Print one warning to standard error."""
    sys.stderr.write(f"warning: {clean(message)}\n")


def fail(error: FusionAdvisorError) -> int:
    """Print what went wrong and what to do, and return the exit code."""
    sys.stderr.write(f"error: {clean(error.what)}{'  ' if error.hint else ''}{clean(error.hint)}\n")
    return error.exit_code


@contextmanager
def working() -> Iterator[Callable[[str], None]]:
    """Give a function that says what is being done; meanwhile, what the user's code prints goes to standard error.

    The line is shown on a terminal only. It is rewritten, never animated: a spinner's thread would take time from
    what is being measured.
    """
    shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def say(message: str) -> None:
        if shown:
            sys.stderr.write(f"\r\x1b[2K\x1b[2m{clean(message)} …\x1b[0m")
            sys.stderr.flush()

    with _stdout_kept():
        try:
            yield say
        finally:
            if shown:
                sys.stderr.write("\r\x1b[2K")
                sys.stderr.flush()


@contextmanager
def _stdout_kept() -> Iterator[None]:
    """Send standard output to standard error, for child processes and C code too, so that results stay alone on it."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
