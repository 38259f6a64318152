"""``fusion-advisor run``."""

from pathlib import Path
from typing import Annotated

import typer

from fusionadvisor.cli.options import (
    HOW,
    OUT,
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


def run_(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python file, run as python SCRIPT ARGS would.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="The script's own arguments, after --.")
    ] = None,
    skip: Annotated[
        int, typer.Option("--skip", metavar="N", min=0, rich_help_panel=HOW, help="Steps left alone at the beginning.")
    ] = 3,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, rich_help_panel=HOW, help="Steps to profile after them.")
    ] = 5,
    stop: Annotated[
        bool, typer.Option("--stop", metavar="", rich_help_panel=HOW, help="End the script once they are profiled.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            rich_help_panel=OUT,
            help="Keep the profiler's trace; {rank} in the name is filled in.",
        ),
    ] = None,
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
    """Run a training or inference script unchanged, and profile some of its steps.

    A step ends with each step() of the script's first optimizer, or where nothing is trained with each call of its
    first model. Exits as the script does once the report is written.
    """
    from fusionadvisor import advisor
    from fusionadvisor.cli.output import Output, working

    output = Output.checked(
        format, force=force, fail_on=fail_on, json=json, html=html, markdown=markdown, sarif=sarif, perfetto=perfetto,
        csv=csv, also={"trace": trace},
    )  # fmt: skip
    with working() as say:
        report, code = advisor.run_script(
            script, arguments or (), skip=skip, steps=steps, stop=stop, trace=trace, progress=say
        )
    return output.finish(report, code)
