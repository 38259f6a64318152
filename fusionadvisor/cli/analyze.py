"""``fusion-advisor analyze``."""

from typing import Annotated

import typer

from fusionadvisor.cli.options import ForceOption, Format, FormatOption, JsonOption


def analyze(
    trace: Annotated[
        str, typer.Argument(metavar="TRACE", help="A torch.profiler trace: .json, .json.gz, or - for standard input.")
    ],
    json: JsonOption = None,
    format: FormatOption = Format.text,
    force: ForceOption = False,
) -> int:
    """Show what is unfused in a recorded trace; needs neither a GPU, nor the model, nor torch."""
    from fusionadvisor import advisor
    from fusionadvisor.cli.output import Output, working

    output = Output.checked(format, json, force)
    with working() as say:
        report = advisor.analyze(trace, progress=say)
    output.emit(report)
    return 0
