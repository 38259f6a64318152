"""Options that several commands share."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fusionadvisor.cli import completion

RUN, HOW, OUT = "What is run", "How", "What comes out"
"""Panels of the help."""
_run = partial(typer.Option, rich_help_panel=RUN)
_out = partial(typer.Option, rich_help_panel=OUT)


class Format(StrEnum):
    """What goes to standard output."""

    text = "text"
    json = "json"


class TextFormat(StrEnum):
    """What goes to standard output of a command whose result is no report."""

    text = "text"
    markdown = "markdown"
    json = "json"


FormatOption = Annotated[
    Format, _out("--format", help="What to print: a report to read, or the report as JSON and nothing else.")
]
TextFormatOption = Annotated[TextFormat, _out("--format", help="How to print it.")]
JsonOption = Annotated[Path | None, _out("--json", metavar="FILE", help="Also write the report as JSON.")]
MarkdownOption = Annotated[
    Path | None,
    _out("--markdown", metavar="FILE", help="Also write Markdown; adds to $GITHUB_STEP_SUMMARY if that is FILE."),
]
HtmlOption = Annotated[
    Path | None, _out("--html", metavar="FILE", help="Also write one HTML page that needs nothing else.")
]
SarifOption = Annotated[
    Path | None, _out("--sarif", metavar="FILE", help="Also write findings as SARIF, for code scanning.")
]
PerfettoOption = Annotated[
    Path | None,
    _out("--perfetto", metavar="FILE", help="Also write a trace with findings as tracks."),
]
CsvOption = Annotated[Path | None, _out("--csv", metavar="FILE", help="Also write the kernels as a table.")]
FailOption = Annotated[
    list[str] | None,
    _out(
        "--fail-on",
        metavar="EXPR",
        autocompletion=completion.limits,
        help='Exit 1 if so: a rule, FA101, or a figure, "kernels>120"; repeat for several.',
    ),
]
ForceOption = Annotated[bool, _out("--force", metavar="", help="Overwrite a file that this tool did not write.")]
EntryOption = Annotated[
    str | None,
    _run(
        "--entry",
        metavar="NAME",
        help="The model's name in the target, where it holds several; generate: prefill and decode.",
    ),
]
InputOption = Annotated[
    list[str] | None,
    _run("--input", metavar="SPEC", help='An input, as "x=float32[8,3,224,224]"; repeat for several.'),
]
TrainOption = Annotated[bool, _run("--train", metavar="", help="A training step instead of a forward under no_grad.")]
DeviceOption = Annotated[
    str | None,
    _run(
        "--device",
        metavar="NAME",
        autocompletion=completion.devices,
        help="cuda or cpu; default: CUDA where there is one.",
    ),
]
SeedOption = Annotated[int, _run("--seed", metavar="N", help="Seed of weights and inputs.")]
TrustOption = Annotated[
    bool, _run("--trust", metavar="", help="Run what a pickled checkpoint asks for while it loads.")
]
ModelOption = Annotated[
    str | None,
    _run("--model", metavar="FILE.py:NAME", help="For a checkpoint of weights: the model they belong to."),
]
ModelArgOption = Annotated[
    list[str] | None,
    _run("--model-arg", metavar="NAME=VALUE", help="An argument to build the model with; repeat for several."),
]
BatchesOption = Annotated[
    str | None,
    _run("--batch", metavar="N[,N…]", help="Run at this batch size instead of the inputs' own; several give a table."),
]
BatchOption = Annotated[
    int | None, _run("--batch", metavar="N", min=1, help="Run at this batch size instead of the inputs' own.")
]
AmpOption = Annotated[
    str | None,
    _run(
        "--amp",
        metavar="DTYPE",
        autocompletion=completion.dtypes,
        help="Run under autocast (mixed precision): bf16 or fp16.",
    ),
]
AccumulateOption = Annotated[
    int, _run("--accumulate", metavar="N", min=1, help="With --train: batches a step takes its gradients from.")
]
