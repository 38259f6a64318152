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
    trace: Annotated[
        str, typer.Argument(metavar="TRACE", help="A torch.profiler trace: .json, .json.gz, or - for standard input.")
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

    output = Output.checked(
        format, force=force, fail_on=fail_on, json=json, html=html, markdown=markdown, sarif=sarif, perfetto=perfetto,
        csv=csv,
    )  # fmt: skip
    with working() as say:
        report = advisor.analyze(trace, progress=say)
    output.emit(report)
    output.hold(report)
    return 0
