"""``fusion-advisor run``."""

from pathlib import Path
from typing import Annotated

import typer

from fusionadvisor.cli.options import Outputs, grouped, how_option, out_option


@grouped
def run_(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python file, run as `python SCRIPT ARGS`.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="The script's own arguments, after --.")
    ] = None,
    skip: Annotated[int, how_option("--skip", metavar="N", min=0, help="Steps to skip before profiling.")] = 3,
    steps: Annotated[int, how_option("--steps", metavar="N", min=1, help="Steps to profile.")] = 5,
    stop: Annotated[bool, how_option("--stop", metavar="", help="End the script after these steps.")] = False,
    trace: Annotated[
        Path | None,
        out_option("--trace", metavar="FILE", help="Keep the profiler's trace; {rank} in the name is replaced."),
    ] = None,
    *,
    outputs: Outputs,
) -> int:
    """Run an unmodified training or inference script and profile some of its steps.

    A step ends with each step() of the script's first optimizer; in a script that does not train, with each call of
    its first model. Exits as the script does, after the report is written.
    """
    from fusionadvisor import advisor
    from fusionadvisor.cli.output import Output, working

    output = Output.checked(outputs, also={"trace": trace})
    with working() as say:
        report, code = advisor.run_script(
            script, arguments or (), skip=skip, steps=steps, stop=stop, trace=trace, progress=say
        )
    return output.finish(report, code)
