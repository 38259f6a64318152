"""``fusion-advisor list``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fusionadvisor.cli import completion

if TYPE_CHECKING:
    from fusionadvisor.catalog import Entry

TOPICS = ("rules", "strategies", "gpus")


def list_(
    topic: Annotated[
        str,
        typer.Argument(metavar="rules|strategies|gpus", autocompletion=completion.topics, help="What to list."),
    ],
) -> int:
    """List rules, strategies, or GPUs with known bandwidth."""
    from rich.text import Text

    from fusionadvisor import catalog
    from fusionadvisor.cli.output import printing, warn
    from fusionadvisor.errors import InputError, did_you_mean

    if topic not in TOPICS:
        raise InputError(f"There is no list of '{topic}'.", did_you_mean(topic, TOPICS))
    rows = {"rules": _rules, "strategies": _strategies, "gpus": _gpus}[topic]()
    for said in {"rules": catalog.refused_rules, "strategies": catalog.refused_strategies}.get(topic, tuple)():
        warn(said)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    with printing() as console:
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            line = Text(cells[0], style="cyan").append("  " + "  ".join(cells[1:]), style="none")
            line.rstrip()
            console.print(line, soft_wrap=True, highlight=False)
    return 0


def _rules() -> list[tuple[str, ...]]:
    from fusionadvisor import catalog

    rows = [(entry.id, entry.title, ", ".join(entry.remedies)) for entry in catalog.rules()]
    return _with_packages(rows, catalog.rules())


def _strategies() -> list[tuple[str, ...]]:
    from fusionadvisor import catalog

    listed = (*catalog.strategies(), catalog.SEARCH)
    answers = {entry.id: ", ".join(r.id for r in catalog.rules() if entry.id in r.remedies) for entry in listed}
    answers[catalog.SEARCH.id] = "all of them"
    return _with_packages([(entry.id, entry.title, answers[entry.id]) for entry in listed], listed)


def _with_packages(rows: list[tuple[str, str, str]], entries: "Sequence[Entry]") -> list[tuple[str, ...]]:
    """Add which package brings each, where another than this one brings any."""
    if not any(entry.package for entry in entries):
        return list(rows)
    return [(*row, entry.package) for row, entry in zip(rows, entries, strict=True)]


def _gpus() -> list[tuple[str, ...]]:
    from fusionadvisor.analysis.devices import GPUS

    return [
        (gpu.name, f"{gpu.peak_gbs:,.0f} GB/s".rjust(10), f"{gpu.tensor_tflops:,.0f} TFLOP/s".rjust(13), gpu.source)
        for gpu in GPUS
    ]
