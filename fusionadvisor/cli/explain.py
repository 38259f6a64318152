"""``fusion-advisor explain``."""

import sys
from typing import Annotated

import typer

from fusionadvisor.cli import completion


def explain(
    identifier: Annotated[
        str,
        typer.Argument(
            metavar="ID", autocompletion=completion.ids, help="A rule (FA101), a finding (FA101#2) or a strategy."
        ),
    ],
) -> int:
    """Show the documentation of a rule or a strategy."""
    from fusionadvisor import catalog
    from fusionadvisor.cli.output import printing, write

    entry = catalog.entry(identifier.split("#")[0])
    page = catalog.page(entry.id).removeprefix(f"{entry.title}.").lstrip("\n")
    lines = [f"# {entry.id}: {entry.title}", "", page]
    if entry.package:
        lines += ["", f"From {entry.package}."]
    if entry.remedies:
        lines += ["", f"Remedies: {', '.join(entry.remedies)}"]
    text = "\n".join(lines) + "\n"
    if not sys.stdout.isatty():
        write(text)
        return 0
    from rich.markdown import Markdown

    with printing() as console:
        console.print(Markdown(text), width=min(console.width, 100))
    return 0
