"""``fusion-advisor list``."""

from typing import Annotated

import typer

TOPICS = ("rules", "strategies", "gpus")


def list_(topic: Annotated[str, typer.Argument(metavar="rules|strategies|gpus", help="What to list.")]) -> int:
    """List the rules, the strategies, or the GPUs whose figures are known."""
    from rich.text import Text

    from fusionadvisor.cli.output import printing
    from fusionadvisor.errors import InputError, did_you_mean

    if topic not in TOPICS:
        raise InputError(f"There is no list of '{topic}'.", did_you_mean(topic, TOPICS))
    rows = {"rules": _rules, "strategies": _strategies, "gpus": _gpus}[topic]()
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    with printing() as console:
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            line = Text(cells[0], style="cyan").append("  " + "  ".join(cells[1:]), style="none")
            line.rstrip()
            console.print(line, soft_wrap=True, highlight=False)
    return 0


def _rules() -> list[tuple[str, ...]]:
    from fusionadvisor.catalog import RULES

    return [(entry.id, entry.title, ", ".join(entry.remedies)) for entry in RULES]


def _strategies() -> list[tuple[str, ...]]:
    from fusionadvisor.catalog import RULES, SEARCH, STRATEGIES

    answers = {entry.id: [rule.id for rule in RULES if entry.id in rule.remedies] for entry in STRATEGIES}
    rows: list[tuple[str, ...]] = [(entry.id, entry.title, ", ".join(answers[entry.id])) for entry in STRATEGIES]
    return [*rows, (SEARCH.id, SEARCH.title, "all of them")]


def _gpus() -> list[tuple[str, ...]]:
    from fusionadvisor.analysis.devices import GPUS

    return [
        (gpu.name, f"{gpu.peak_gbs:,.0f} GB/s".rjust(10), f"{gpu.tensor_tflops:,.0f} TFLOP/s".rjust(13), gpu.source)
        for gpu in GPUS
    ]
