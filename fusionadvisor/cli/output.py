"""Where results go: text or JSON to standard output, JSON to a file, progress to a terminal's standard error."""

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fusionadvisor.cli.forms import FORMS, Target
from fusionadvisor.cli.options import Format, Outputs, TextFormat
from fusionadvisor.errors import FusionAdvisorError, InputError
from fusionadvisor.render.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from fusionadvisor.report.condition import Condition
    from fusionadvisor.report.model import Report

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors that tell of what is written to, whoever writes: the parser prints ``--help`` itself."""
INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended."""
PIPE_WIDTH = 100
"""Columns of a report that is not printed on a terminal."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a command was asked to write."""

    format: Format = Format.text
    files: tuple[Target, ...] = ()
    conditions: "tuple[Condition, ...]" = ()
    verbose: bool = False
    top: int = 0

    @classmethod
    def checked(cls, asked: Outputs, *, also: Mapping[str, Path | None] = MappingProxyType({})) -> "Output":
        """Return the outputs, after making sure that each file can be written and is this tool's own or new.

        Args:
            asked: The options of the command.
            also: Files that the command writes itself, by option: no other output may have their name.

        Raises:
            InputError: If a condition is not understood, two files have one name, a file cannot be written, or it
                exists and this tool did not write it.
        """
        files: dict[str, Path | None] = {form: getattr(asked, form) for form in FORMS}
        distinct({**files, **also})
        targets = tuple(Target.checked(form, path, asked.force) for form, path in files.items() if path is not None)
        conditions: tuple[Condition, ...] = ()
        if asked.fail_on:
            from fusionadvisor.report import condition

            conditions = condition.parse(asked.fail_on)
        return cls(asked.format, targets, conditions, asked.verbose, asked.top)

    def finish(self, report: "Report", code: int = 0) -> int:
        """Write the report, check it against the conditions unless it was interrupted, and return the exit code.

        Raises:
            GateError: If a condition of ``--fail-on`` is met.
        """
        report = replace(report, files=(*report.files, *(str(target.path) for target in self.files)))
        for target in self.files:
            target.write(target.form.compose(report))
        if self.format is Format.json:
            from fusionadvisor.report import codec

            write(codec.to_json(report))
            for warning in report.warnings:
                warn(warning.message)
        else:
            from fusionadvisor.render import terminal

            with printing() as console:
                terminal.render(report, console, verbose=self.verbose, top=self.top)
        if report.interrupted:
            return INTERRUPTED
        if self.conditions:
            from fusionadvisor.cli import gate

            gate.hold(self.conditions, report)
        return code


def show(result: Any, renderer: Any, format: TextFormat) -> None:
    """Print a comparison or the outcome of a check by its renderer, as text, Markdown or JSON."""
    from fusionadvisor.report import codec

    if format is TextFormat.json:
        write(json.dumps(codec.to_dict(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    elif format is TextFormat.markdown:
        write(renderer.markdown(result))
    else:
        with printing() as console:
            renderer.render(result, console)


def distinct(files: Mapping[str, Path | None]) -> None:
    """Make sure that no two outputs go to one file, where one would be lost.

    Raises:
        InputError: If two do.
    """
    taken: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        if other := taken.get(path.resolve()):
            raise InputError(f"--{other} and --{option} both name {path}.", "Give each a file of its own.")
        taken[path.resolve()] = option


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
    """Print to standard output; a reader that went away (``| head``) is no error.

    Raises:
        InputError: If it cannot be written: the disk is full.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        silence()
        if not isinstance(error, BrokenPipeError):
            raise unwritten(error) from None


def silence() -> None:
    """Let nothing more go to standard output, which the interpreter flushes once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def unwritten(error: OSError) -> InputError:
    """Return what to say of output that has no room."""
    return InputError(f"The output cannot be written: {error.strerror}.", "Write it to a disk that has room.")


def warn(message: str) -> None:
    """Print one warning to standard error."""
    sys.stderr.write(f"warning: {clean(message)}\n")


def each_once(option: str, given: Sequence[str]) -> list[str]:
    """Return what was given, each once; a repeat is said to be dropped."""
    kept = list(dict.fromkeys(given))
    for item in kept:
        if (count := given.count(item)) > 1:
            warn(f"{option} names {item} {count} times; it is used once.")
    return kept


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
