"""``fusion-advisor analyze``."""

from typing import Annotated

import typer

from fusionadvisor.cli.options import (
    CsvOption,
    FailOption,
    ForceOption,
    Format,
    FormatOption,
    HtmlOption,
    JsonOption,
    MarkdownOption,
    PerfettoOption,
    SarifOption,
)


def analyze(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE…",
            help="A torch.profiler trace: .json, .json.gz, .zip, or - for standard input. "
            "Several, or their folder: the ranks of one job.",
        ),
    ],
    json: JsonOption = None,
    html: HtmlOption = None,
    markdown: MarkdownOption = None,
    sarif: SarifOption = None,
    perfetto: PerfettoOption = None,
    csv: CsvOption = None,
    fail_on: FailOption = None,
    format: FormatOption = Format.text,
    force: ForceOption = False,
) -> int:
    """Show what is unfused in a recorded trace; needs neither a GPU, nor the model, nor torch."""
    from fusionadvisor import advisor
    from fusionadvisor.cli.output import Output, working
    from fusionadvisor.errors import InputError

    if not all(trace.strip() for trace in traces):
        raise InputError("The name of a trace is empty.", "Give a file, a folder, or - for standard input.")
    output = Output.checked(
        format, force=force, fail_on=fail_on, json=json, html=html, markdown=markdown, sarif=sarif, perfetto=perfetto,
        csv=csv,
    )  # fmt: skip
    with working() as say:
        report = advisor.analyze(traces[0] if len(traces) == 1 else traces, progress=say)
    return output.finish(report)
