"""``fusion-advisor profile``."""

from pathlib import Path
from typing import Annotated

import typer

from fusionadvisor.cli import completion
from fusionadvisor.cli.options import Outputs, Workloads, grouped, how_option

BESIDE = "h100"
"""The GPU that a CPU run is also predicted for unless --gpu names another."""


@grouped
def profile(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="file.py[:name], package.module:name, or a checkpoint.")
    ],
    workloads: Workloads,
    steps: Annotated[
        int | None,
        how_option("--steps", metavar="N", min=1, help="Steps to record; default: depends on how long a step takes."),
    ] = None,
    gpu: Annotated[
        str | None,
        how_option(
            "--gpu",
            metavar="NAME",
            autocompletion=completion.gpus,
            envvar="FUSION_ADVISOR_GPU",
            help="Predict for this GPU, e.g. h100, instead of measuring; none: no prediction next to a CPU run. "
            "See: list gpus.",
        ),
    ] = None,
    *,
    outputs: Outputs,
) -> int:
    """Profile a model and find runs of kernels that could be fused."""
    from fusionadvisor import advisor
    from fusionadvisor.cli import last
    from fusionadvisor.cli.output import Output, warn, working
    from fusionadvisor.errors import InputError
    from fusionadvisor.render import verdict

    output = Output.checked(outputs)
    wanted, batches = gpu and gpu.lower(), workloads.batches()
    with working() as say:
        report = advisor.profile(
            target, **workloads.keywords(), batch=batches, steps=steps, gpu=None if wanted == "none" else gpu,
            beside=None if wanted else BESIDE, progress=say,
        )  # fmt: skip
    if report.workload:
        try:
            last.store(report.workload, Path.cwd(), verdict.offered(report))
        except InputError as error:
            warn(f"`apply` will need its target as an argument: {error.what}")
    return output.finish(report)
