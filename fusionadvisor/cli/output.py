"""Where results go: text or JSON to standard output, JSON to a file, progress to a terminal's standard error."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fusionadvisor.cli.options import Format
from fusionadvisor.errors import FusionAdvisorError, InputError
from fusionadvisor.files import write_atomically
from fusionadvisor.render.text import clean
from fusionadvisor.report import codec

if TYPE_CHECKING:
    from rich.console import Console

    from fusionadvisor.report.model import Report

PIPE_WIDTH = 100
"""Columns of a report that is not printed on a terminal."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a command was asked to write. Made before the work starts, so that a bad file name costs nothing."""

    format: Format = Format.text
    json_file: Path | None = None

    @classmethod
    def checked(cls, format: Format, json_file: Path | None, force: bool) -> "Output":
        """Return the outputs, after making sure that the file can be written and is the tool's own or new.

        Raises:
            InputError: If it cannot, or somebody else's file stands there and ``force`` is not given.
        """
        if json_file is not None:
            _check_target(json_file, force)
        return cls(format, json_file)

    def emit(self, report: "Report") -> None:
        """Write the report wherever it was asked for."""
        if self.json_file is not None:
            report = replace(report, files=(*report.files, str(self.json_file)))
            write_atomically(self.json_file, codec.to_json(report))
        if self.format is Format.json:
            write(codec.to_json(report))
            for warning in report.warnings:
                warn(warning.message)
            return
        from fusionadvisor.render import terminal

        with printing() as console:
            terminal.render(report, console)


def _check_target(path: Path, force: bool) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file to write.", "Give a file name, as --json report.json.")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"The folder {folder} does not exist.", f"Make it first: mkdir -p {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{path} cannot be written: permission denied.", "Choose another place.")
    if path.is_file() and path.stat().st_size and not force and not _is_report(path):
        raise InputError(f"{path} exists and is not a fusion-advisor report.", "Choose another name, or add --force.")


def _is_report(path: Path) -> bool:
    try:
        codec.read(path)
    except InputError:
        return False
    return True


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
