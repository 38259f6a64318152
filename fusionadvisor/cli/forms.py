"""The forms a report takes in a file: how each is made and written, and how a file is known as this tool's own."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fusionadvisor.errors import InputError
from fusionadvisor.files import append, write_atomically

if TYPE_CHECKING:
    from fusionadvisor.report.model import Report


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the report that goes to a file."""

    option: str
    compose: Callable[["Report"], str]
    own: Callable[[Path], bool]
    """Whether a file is one that this tool wrote in this form."""


def _rendered(name: str, compose: Callable[["Report"], str] | None = None) -> Form:
    """A form made by the renderer of this name, whose files begin with its ``MARK``; imported when it is needed."""
    home = f"fusionadvisor.render.{name}"

    def composed(report: "Report") -> str:
        return cast(str, import_module(home).compose(report))

    def own(path: Path) -> bool:
        mark = cast(str, import_module(home).MARK).encode()
        with path.open("rb") as file:
            return file.read(len(mark)) == mark

    return Form(f"--{name}", compose or composed, own)


def _json(report: "Report") -> str:
    from fusionadvisor.report import codec

    return codec.to_json(report)


def _is_report(path: Path) -> bool:
    from fusionadvisor.report import codec

    try:
        codec.read(path)
    except InputError:
        return False
    return True


def _sarif(report: "Report") -> str:
    from fusionadvisor.render import sarif

    here = Path.cwd()
    # code scanning takes file names relative to the repository
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    return sarif.compose(report, sarif.Folders(root.as_posix(), here.as_posix()))


FORMS = {
    "json": Form("--json", _json, _is_report),
    "html": _rendered("html"),
    "markdown": _rendered("markdown"),
    "sarif": _rendered("sarif", _sarif),
    "perfetto": _rendered("perfetto"),
    "csv": _rendered("csv"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A file that a command was asked to write, made before the work starts: a bad file name costs nothing."""

    form: Form
    path: Path

    @classmethod
    def checked(cls, form: str, path: Path, force: bool) -> "Target":
        """Return the target, after making sure that the file can be written and is the tool's own or new.

        Raises:
            InputError: If it cannot, or somebody else's file stands there and ``force`` is not given.
        """
        made = cls(FORMS[form], path)
        if path.is_dir():
            raise InputError(f"{path} is a folder, not a file to write.", f"Give {made.form.option} a file name.")
        folder = path.absolute().parent
        if not folder.is_dir():
            raise InputError(f"The folder {folder} does not exist.", f"Make it first: mkdir -p {folder}")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise InputError(f"{path} cannot be written: permission denied.", "Choose another place.")
        taken = path.is_file() and path.stat().st_size and not force and not made.is_step_summary
        if taken and not made.form.own(path):
            raise InputError(
                f"{path} exists and is not a fusion-advisor report.", "Choose another name, or add --force."
            )
        return made

    @property
    def is_step_summary(self) -> bool:
        """GitHub's job summary is one file that the commands of a step add to."""
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        return bool(summary) and self.path.absolute() == Path(summary or "").absolute()

    def write(self, text: str) -> None:
        """Write the file whole, or add to the job's summary."""
        if self.is_step_summary:
            append(self.path, text)
        else:
            write_atomically(self.path, text)
