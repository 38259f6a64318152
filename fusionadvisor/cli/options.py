"""Options that several commands share: a command takes a group of them as one parameter, see :func:`grouped`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from fusionadvisor.cli import completion

RUN, HOW, OUT = "What to run", "How", "What to write"
"""Panels of the help."""
run_option = partial(typer.Option, rich_help_panel=RUN)
how_option = partial(typer.Option, rich_help_panel=HOW)
out_option = partial(typer.Option, rich_help_panel=OUT)


class Format(StrEnum):
    """What goes to standard output."""

    text = "text"
    json = "json"


class TextFormat(StrEnum):
    """What goes to standard output of a command whose result is not a report."""

    text = "text"
    markdown = "markdown"
    json = "json"


TextFormatOption = Annotated[TextFormat, out_option("--format", help="Format of standard output.")]
MarkdownOption = Annotated[
    Path | None,
    out_option("--markdown", metavar="FILE", help="Also write Markdown; appended if FILE is $GITHUB_STEP_SUMMARY."),
]
FailOption = Annotated[
    list[str] | None,
    out_option(
        "--fail-on",
        metavar="EXPR",
        autocompletion=completion.limits,
        help='Exit 1 on a finding of a rule (FA101) or a limit ("kernels>120"); repeatable.',
    ),
]
ForceOption = Annotated[
    bool, out_option("--force", metavar="", help="Overwrite files that fusion-advisor did not write.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workloads:
    """What to run, and on which inputs."""

    entry: Annotated[
        str | None,
        run_option(
            "--entry", metavar="NAME", help="The model's name in TARGET; `generate` profiles prefill and decode."
        ),
    ] = None
    inputs: Annotated[
        list[str] | None,
        run_option("--input", metavar="SPEC", help='An input, e.g. "x=float32[8,3,224,224]"; repeatable.'),
    ] = None
    train: Annotated[
        bool, run_option("--train", metavar="", help="Run a training step instead of a forward pass under no_grad.")
    ] = False
    device: Annotated[
        str | None,
        run_option(
            "--device",
            metavar="NAME",
            autocompletion=completion.devices,
            help="cuda or cpu; default: cuda if available.",
        ),
    ] = None
    seed: Annotated[int, run_option("--seed", metavar="N", help="Random seed for weights and inputs.")] = 0
    trust: Annotated[
        bool, run_option("--trust", metavar="", help="Allow a pickled checkpoint to run code while it loads.")
    ] = False
    model: Annotated[
        str | None,
        run_option("--model", metavar="FILE.py:NAME", help="The model class of a checkpoint that holds only weights."),
    ] = None
    model_args: Annotated[
        list[str] | None,
        run_option("--model-arg", metavar="NAME=VALUE", help="An argument for the model's constructor; repeatable."),
    ] = None
    batch: Annotated[
        str | None,
        run_option(
            "--batch", metavar="N[,N…]", help="Override the inputs' batch size; profile compares several in one table."
        ),
    ] = None
    amp: Annotated[
        str | None,
        run_option(
            "--amp", metavar="DTYPE", autocompletion=completion.dtypes, help="Run under autocast: bf16 or fp16."
        ),
    ] = None
    accumulate: Annotated[
        int, run_option("--accumulate", metavar="N", min=1, help="With --train: accumulate gradients over N batches.")
    ] = 1

    def keywords(self) -> dict[str, Any]:
        """Return the options as arguments of ``advisor.profile`` and ``workload.resolve``, without the batch."""
        given = {option.name: getattr(self, option.name) for option in fields(self) if option.name != "batch"}
        return {**given, "inputs": self.inputs or (), "model_args": self.model_args or ()}

    def batches(self) -> list[int]:
        """Return the batch sizes, each once.

        Raises:
            InputError: If one is not a positive number.
        """
        from fusionadvisor.cli.output import each_once
        from fusionadvisor.errors import InputError

        words = [word.strip() for word in self.batch.split(",")] if self.batch is not None else []
        if any(not word.isdecimal() or not int(word) for word in words):
            raise InputError(f"--batch '{self.batch}' is not a batch size.", "Write --batch 8, or --batch 1,8,64.")
        return [int(size) for size in each_once("--batch", [str(int(word)) for word in words])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where the report goes, and when it fails the command."""

    json: Annotated[Path | None, out_option("--json", metavar="FILE", help="Also write the report as JSON.")] = None
    html: Annotated[
        Path | None, out_option("--html", metavar="FILE", help="Also write a self-contained HTML page.")
    ] = None
    markdown: MarkdownOption = None
    sarif: Annotated[
        Path | None, out_option("--sarif", metavar="FILE", help="Also write the findings as SARIF, for code scanning.")
    ] = None
    perfetto: Annotated[
        Path | None,
        out_option("--perfetto", metavar="FILE", help="Also write a Perfetto trace with findings as tracks."),
    ] = None
    csv: Annotated[Path | None, out_option("--csv", metavar="FILE", help="Also write the kernel table as CSV.")] = None
    fail_on: FailOption = None
    format: Annotated[
        Format, out_option("--format", help="Format of standard output; json prints the report and nothing else.")
    ] = Format.text
    verbose: Annotated[
        bool, out_option("--verbose", "-v", metavar="", help="Print every finding, attempt and reason in full.")
    ] = False
    top: Annotated[
        int, out_option("--top", metavar="N", min=0, help="Also print the N kernels that take the most time.")
    ] = 0
    force: ForceOption = False


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """Let a command take groups of options: each parameter that is one of the dataclasses above becomes its fields."""
    hints = get_type_hints(command, include_extras=True)
    parameters: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if not is_dataclass(hints[name]):
            parameters[name] = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        of_group = get_type_hints(hints[name], include_extras=True)
        for option in fields(hints[name]):
            parameters[option.name] = inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=of_group[option.name]
            )

    @wraps(command)
    def called(**given: Any) -> int:
        arguments = {}
        for name, kind in hints.items():
            if is_dataclass(kind):
                arguments[name] = kind(**{option.name: given[option.name] for option in fields(kind)})  # type: ignore[operator]
            elif name in given:
                arguments[name] = given[name]
        return command(**arguments)

    called.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
    called.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return called
