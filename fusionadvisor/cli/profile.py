"""``fusion-advisor profile``."""

from pathlib import Path
from typing import Annotated

import typer

from fusionadvisor.cli import completion
from fusionadvisor.cli.options import (
    HOW,
    AccumulateOption,
    AmpOption,
    BatchesOption,
    CsvOption,
    DeviceOption,
    EntryOption,
    FailOption,
    ForceOption,
    Format,
    FormatOption,
    HtmlOption,
    InputOption,
    JsonOption,
    MarkdownOption,
    ModelArgOption,
    ModelOption,
    PerfettoOption,
    SarifOption,
    SeedOption,
    TrainOption,
    TrustOption,
)

BESIDE = "h100"
"""The GPU whose kernels are shown beside a CPU run where none is named."""


def profile(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="file.py[:name], package.module:name, or a checkpoint.")
    ],
    entry: EntryOption = None,
    inputs: InputOption = None,
    train: TrainOption = False,
    device: DeviceOption = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", metavar="N", min=1, rich_help_panel=HOW, help="Steps to record; default: by their length."
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME",
            rich_help_panel=HOW,
            autocompletion=completion.gpus,
            envvar="FUSION_ADVISOR_GPU",
            help="Predict for this GPU instead, as h100; none: no prediction beside a CPU run. See: list gpus.",
        ),
    ] = None,
    seed: SeedOption = 0,
    trust: TrustOption = False,
    model: ModelOption = None,
    model_args: ModelArgOption = None,
    batch: BatchesOption = None,
    amp: AmpOption = None,
    accumulate: AccumulateOption = 1,
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
    """Run a model under the profiler and show which runs of kernels should have been one."""
    from fusionadvisor import advisor
    from fusionadvisor.cli import last
    from fusionadvisor.cli.output import Output, warn, working
    from fusionadvisor.errors import InputError
    from fusionadvisor.render import verdict

    output = Output.checked(
        format, force=force, fail_on=fail_on, json=json, html=html, markdown=markdown, sarif=sarif, perfetto=perfetto,
        csv=csv,
    )  # fmt: skip
    wanted, batches = gpu and gpu.lower(), _batches(batch)
    with working() as say:
        report = advisor.profile(
            target, entry=entry, inputs=inputs or (), train=train, device=device, steps=steps,
            gpu=None if wanted == "none" else gpu, beside=None if wanted else BESIDE,
            seed=seed, trust=trust, model=model, model_args=model_args or (), batch=batches,
            amp=amp, accumulate=accumulate, progress=say,
        )  # fmt: skip
    if report.workload:
        try:
            last.store(report.workload, Path.cwd(), verdict.offered(report))
        except InputError as error:
            warn(f"`apply` will need its target named: {error.what}")
    return output.finish(report)


def _batches(given: str | None) -> list[int]:
    """Return the batch sizes asked for, each once."""
    from fusionadvisor.cli.output import each_once
    from fusionadvisor.errors import InputError

    words = [word.strip() for word in given.split(",")] if given is not None else []
    if any(not word.isdecimal() or not int(word) for word in words):
        raise InputError(f"--batch '{given}' is no batch size.", "Write --batch 8, or --batch 1,8,64 for a table.")
    return [int(size) for size in each_once("--batch", [str(int(word)) for word in words])]
