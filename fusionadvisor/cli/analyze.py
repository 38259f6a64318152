"""``fusion-advisor analyze``."""

from typing import Annotated

import typer

from fusionadvisor.cli.options import Outputs, grouped


@grouped
def analyze(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE…",
            help="A torch.profiler trace (.json, .json.gz, .zip), or - for standard input. "
            "Several traces or a folder: the ranks of one job.",
        ),
    ],
    *,
    outputs: Outputs,
) -> int:
    """Find unfused kernels in a recorded trace. Needs no GPU, no model and no torch."""
    from fusionadvisor import advisor
    from fusionadvisor.cli.output import Output, working
    from fusionadvisor.errors import InputError

    if not all(trace.strip() for trace in traces):
        raise InputError("The name of a trace is empty.", "Give a file, a folder, or - for standard input.")
    output = Output.checked(outputs)
    with working() as say:
        report = advisor.analyze(traces[0] if len(traces) == 1 else traces, progress=say)
    return output.finish(report)
