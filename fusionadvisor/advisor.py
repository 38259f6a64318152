"""The three things the tool does, each from what the user gave to a Report: profile, analyze, optimize."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fusionadvisor import __version__
from fusionadvisor.catalog import SEARCH
from fusionadvisor.errors import InputError
from fusionadvisor.interrupts import held
from fusionadvisor.report.model import (
    INTERRUPTED,
    Environment,
    Notice,
    Prediction,
    RankSummary,
    Report,
    Tool,
    Workload,
)

if TYPE_CHECKING:
    from fusionadvisor.analysis.facts import Facts
    from fusionadvisor.rules.engine import Advice
    from fusionadvisor.trace.timeline import Timeline
    from fusionadvisor.workload.program import Program

Progress = Callable[[str], None]


def _silent(_message: str) -> None:
    pass


def _started(command: str) -> tuple[Tool, str, str]:
    return Tool("fusion-advisor", __version__), datetime.now(UTC).isoformat(timespec="seconds"), command


def analyze(source: str | Path | Sequence[str | Path], *, progress: Progress | None = None) -> Report:
    """Read a recorded trace and say what is unfused in it. Needs neither a GPU, nor the model, nor torch.

    Args:
        source: A Kineto/Chrome trace: JSON, gzip or zip of it, or ``"-"`` for standard input. Or the traces of one job,
            one a rank: a directory, a zip, or a list of files; the report is then on the rank the others wait for,
            else on the first, with a summary of each.
        progress: Called with a few words before each stage.

    Raises:
        InputError: If the file is no trace or holds no GPU events.
    """
    from fusionadvisor import trace
    from fusionadvisor.analysis.facts import Facts
    from fusionadvisor.trace.build import MergedError
    from fusionadvisor.trace.ranks import several

    say = progress or _silent
    say("reading the trace")
    ranks: tuple[RankSummary, ...] = ()
    warnings: tuple[Notice, ...] = ()
    if isinstance(source, str | Path) and not several(source):
        try:
            timeline = trace.load(source, stand_ins=True)
            if timeline.stand_ins and len(timeline.launches):  # it ran on a GPU, and that side of it is lost
                timeline = trace.load(source)
        except MergedError:
            timeline, ranks, warnings = _of_job(source)
    else:
        timeline, ranks, warnings = _of_job(source)
    say("looking for unfused runs")
    report = _advised("analyze", Facts(timeline), _recorded_on(timeline), warnings)
    return replace(
        report, source=str(source) if isinstance(source, str | Path) else f"{len(source)} files", ranks=ranks
    )


def _advised(command: str, facts: "Facts", environment: Environment, warnings: tuple[Notice, ...]) -> Report:
    """What the rules say of a timeline, as a report."""
    from fusionadvisor.rules.engine import run

    return _reported(command, facts, run(facts), environment, warnings)


def _reported(
    command: str, facts: "Facts", advice: "Advice", environment: Environment, warnings: tuple[Notice, ...]
) -> Report:
    from fusionadvisor.analysis.summary import summarise

    tool, created, command = _started(command)
    return Report(
        tool=tool,
        created=created,
        command=command,
        environment=environment,
        timeline=summarise(facts.timeline, advice.group_of_kernel, advice.bytes_of_kernel),
        fusion=advice.fusion,
        findings=advice.findings,
        near_misses=advice.near_misses,
        passed=advice.passed,
        not_applicable=advice.not_applicable,
        warnings=(*warnings, *advice.warnings),
    )


def _of_job(
    source: str | Path | Sequence[str | Path],
) -> "tuple[Timeline, tuple[RankSummary, ...], tuple[Notice, ...]]":
    """Read all ranks; return the timeline of the one to report on, and a summary of each."""
    from fusionadvisor.trace.ranks import load_ranks

    job = load_ranks(source)
    late, waiting = job.stragglers, job.waiting_us
    summaries = tuple(replace(r, waiting_us=waiting[r.rank], straggler=r.rank in late) for r in job.ranks)
    chosen = late[0] if late else summaries[0].rank
    why = "the others wait for it" if late else "no rank is waited for"
    said = [f"{len(summaries)} ranks were read; what follows is on rank {chosen}: {why}."] if len(summaries) > 1 else []
    windows = next(r.windows for r in summaries if r.rank == chosen)
    if windows > 1:
        said.append(f"Rank {chosen} was recorded in {windows} windows; what follows is on the first of them.")
    said += [f"Left out: {reason}" for reason in job.skipped]
    return job.timeline(chosen), summaries, tuple(Notice("W-ranks", sentence) for sentence in said)


def _recorded_on(timeline: "Timeline") -> Environment:
    names = {device.name for device in timeline.devices if device.name}
    first = timeline.devices[0] if timeline.devices else None
    return Environment(
        gpu=" + ".join(sorted(names)) or None,
        gpu_count=len(timeline.devices),
        compute_capability=first.compute_capability if first else None,
        memory_gb=round(first.memory_bytes / 1e9, 1) if first and first.memory_bytes else None,
        driver=timeline.versions.get("driver"),
        cuda=timeline.versions.get("cuda"),
        torch=timeline.versions.get("torch"),
    )


def profile(
    target: str | Path,
    *,
    entry: str | None = None,
    inputs: Sequence[str] = (),
    train: bool = False,
    device: str | None = None,
    steps: int | None = None,
    gpu: str | None = None,
    beside: str | None = None,
    seed: int = 0,
    trust: bool = False,
    model: str | None = None,
    model_args: Sequence[str] = (),
    batch: int | Sequence[int] | None = None,
    amp: str | None = None,
    accumulate: int = 1,
    progress: Progress | None = None,
) -> Report:
    """Build a model, run it under the profiler, and say which runs of kernels should have been one.

    Args:
        target: ``file.py[:name]``, ``package.module:name``, or a checkpoint file or folder.
        entry: The name to take from the target, where it holds several; ``generate`` of a Hugging Face folder gives
            prefill and decode.
        inputs: Input specs, ``"x=float32[8,3,224,224]"``; empty takes the file's own.
        train: Profile forward, backward and optimizer instead of a forward under ``no_grad``.
        device: ``"cuda"``, ``"cpu"``; None takes CUDA where there is one.
        steps: Steps to record; None chooses by their length.
        gpu: Predict the kernels for this GPU, ``"h100"``, instead of running the model on what is here.
        beside: Where the model runs on the CPU, also predict the step for this GPU and add its counts.
        seed: Seed of inputs and initialisation.
        trust: Allow what pickle would run while loading.
        model: For a checkpoint of weights alone, the model they belong to, as a target.
        model_args: ``name=value`` texts to build the model with.
        batch: Batch size to run at instead of the inputs' own, or several.
        amp: Run under autocast to ``bf16`` or ``fp16``.
        accumulate: Batches a training step takes its gradients from.
        progress: Called with a few words before each stage.

    Returns:
        The report; where several workloads were asked for, on the first, with the others as its ``variants``.

    Raises:
        InputError: If there is no such model or its inputs do not fit.
        EnvironmentUnfitError: If the profiler records nothing here.
    """
    from fusionadvisor.workload.resolve import ask, entries

    say = progress or _silent
    sizes: Sequence[int | None] = [batch] if isinstance(batch, int) else batch or [None]
    asked = [
        ask(
            str(target), entry=one, inputs=inputs, train=train, device=device, seed=seed, trust=trust, model=model,
            model_args=model_args, batch=size, amp=amp, accumulate=accumulate, here=not gpu,
        )
        for one in entries(str(target), entry)
        for size in sizes
    ]  # fmt: skip
    reports: list[Report] = []
    try:
        for report in _predicted_each(asked, gpu, say) if gpu else _profiled_each(asked, steps, beside, say):
            reports.append(report)
            if report.interrupted:
                break
    except KeyboardInterrupt:
        if not reports:
            raise
        reports[-1] = _interrupted(reports[-1], f"{len(asked) - len(reports)} of {len(asked)} workloads were not run")
    return replace(reports[0], variants=tuple(reports[1:]))


def _interrupted(report: Report, left_out: str) -> Report:
    return replace(report, warnings=(*report.warnings, Notice(INTERRUPTED, f"Interrupted: {left_out}.")))


def _predicted_each(asked: Sequence[Workload], gpu: str, say: Progress) -> Iterator[Report]:
    return (predict_workload(workload, gpu, progress=say) for workload in asked)


def _profiled_each(asked: Sequence[Workload], steps: int | None, beside: str | None, say: Progress) -> Iterator[Report]:
    """Profile workloads of one target one after the other; the model is built once for each entry."""
    from fusionadvisor.workload.program import Program, start

    program: Program | None = None
    for before, workload in zip((None, *asked), asked, strict=False):
        if program is None or before is None or before.entry != workload.entry:
            say("building the model")
            program = start(workload)
        else:
            program = program.at(workload.batch)
        report = _profiled(program, steps, say)
        if beside and workload.device == "cpu" and not report.interrupted:
            report = _with_prediction(report, workload, beside, say)
        yield report


def _with_prediction(report: Report, workload: Workload, gpu: str, say: Progress) -> Report:
    """Add what the step would be on a GPU; where that cannot be told, say why."""
    try:
        return replace(report, predicted=predict_workload(workload, gpu, as_here=True, progress=say).predicted)
    except InputError as error:
        said = Notice("W-predict", f"Not predicted for {gpu}: {error.what}")
        return replace(report, warnings=(*report.warnings, said))
    except KeyboardInterrupt:
        return _interrupted(report, f"not predicted for {gpu}")


def predict_workload(
    workload: Workload, gpu: str, *, as_here: bool = False, progress: Progress | None = None
) -> Report:
    """Report on a step of a workload as predicted for a GPU, which is neither built nor run here for it.

    Args:
        workload: As asked for, or as resolved.
        gpu: The GPU's name.
        as_here: Predict what runs on this machine, where the code chooses its inputs by the GPUs it finds.
        progress: Called with a few words before each stage.

    Raises:
        InputError: If the GPU is not known, or the model cannot be run without its weights.
    """
    from fusionadvisor.analysis.facts import Facts
    from fusionadvisor.capture.environment import probe
    from fusionadvisor.capture.predict import predict
    from fusionadvisor.rules.engine import run

    say = progress or _silent
    say(f"predicting the kernels for {gpu}")
    predicted = predict(workload, gpu, as_here=as_here)
    say("looking for unfused runs")
    facts = Facts(predicted.timeline, predicted.flow)
    advice = run(facts)
    report = _reported("profile", facts, advice, probe(), predicted.warnings)
    moved = advice.bytes_of_kernel
    return replace(
        report,
        workload=predicted.workload,
        source=workload.target,
        predicted=Prediction(
            gpu=predicted.timeline.devices[0].name or gpu,
            kernels=len(predicted.timeline.kernels),
            groups=report.fusion.groups,
            bytes=0 if moved is None else int(moved[moved > 0].sum()),
            unfused_bytes=report.fusion.unfused_bytes,
            syncs=report.fusion.syncs,
            kernel_us=predicted.kernel_us,
            uncalibrated_share=predicted.uncalibrated_share,
        ),
    )


def profile_workload(workload: Workload, *, steps: int | None = None, progress: Progress | None = None) -> Report:
    """Profile a resolved workload; see :func:`profile`."""
    from fusionadvisor.workload.program import build

    return _profiled(build(workload), steps, progress or _silent)


def _profiled(program: "Program", steps: int | None, say: Progress) -> Report:
    from fusionadvisor.analysis.facts import Facts
    from fusionadvisor.capture.environment import probe
    from fusionadvisor.capture.live import capture

    say("profiling" + (f" batch {program.workload.batch}" if program.workload.batch else ""))
    captured = capture(program, steps=steps)
    say("looking for unfused runs")
    latency_us = captured.latency.median_ms * 1e3 if captured.latency else None
    with held() as pressed:
        facts = Facts(captured.timeline, captured.flow, latency_us=latency_us, hooked=captured.hooked)
        report = _advised("profile", facts, probe(), captured.warnings)
    if pressed:
        report = _interrupted(report, "the step was measured, and nothing else was done")
    return replace(report, workload=program.workload, source=program.workload.target, latency=captured.latency)


def run_script(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    skip: int = 3,
    steps: int = 5,
    stop: bool = False,
    trace: str | Path | None = None,
    progress: Progress | None = None,
) -> tuple[Report, int]:
    """Run an unmodified script as ``python`` would, profile some of its steps, and say what is unfused in them.

    Args:
        script: The file.
        arguments: Its command line after its name.
        skip: Steps left alone at the beginning.
        steps: Steps to profile after them.
        stop: End the script then.
        trace: Where to keep the profiler's trace; ``{rank}`` in it is filled in.
        progress: Called with a few words before each stage.

    Returns:
        The report, and the script's exit code.

    Raises:
        InputError: If the script fails, or ends before its first profiled step did.
        EnvironmentUnfitError: If the profiler records nothing here.
    """
    from fusionadvisor.analysis.facts import Facts
    from fusionadvisor.capture.environment import probe
    from fusionadvisor.capture.script import watch_script

    say = progress or _silent
    say("running the script")
    watched = watch_script(
        Path(script), arguments, skip=skip, steps=steps, stop=stop, trace=Path(trace) if trace else None
    )
    say("looking for unfused runs")
    latency_us = watched.latency.median_ms * 1e3 if watched.latency else None
    with held() as pressed:
        facts = Facts(watched.timeline, watched.flow, latency_us=latency_us)
        report = _advised("run", facts, probe(), watched.warnings)
    if pressed:
        report = _interrupted(report, "the script had ended")
    report = replace(report, workload=watched.workload, source=str(script), latency=watched.latency)
    return report, watched.exit_code


def optimize(
    target: Report | Workload | str | Path,
    strategies: Sequence[str],
    *,
    parameters: Mapping[str, Mapping[str, str]] | None = None,
    timeout_s: float = 300.0,
    save: Path | None = None,
    budget_s: float | None = None,
    goal: Literal["latency", "throughput", "memory"] = "latency",
    progress: Progress | None = None,
) -> Report:
    """Apply strategies in order, each verified and measured against the one before, and say what each brought.

    Args:
        target: What :func:`profile` takes; or its report, or that report's workload, for the inputs and the mode there.
        strategies: Strategy ids; ``auto`` alone searches for the best combination.
        parameters: Their parameters, as typed, by strategy id.
        timeout_s: Seconds one attempt may take before it is ended.
        save: A folder for the recipe and artefacts of what was kept.
        budget_s: Seconds that ``auto`` may search.
        goal: What ``auto`` is to improve.
        progress: Called with a few words before each stage.

    Raises:
        InputError: If a strategy or parameter is unknown, there is no such model, it can no longer be built, or the
            folder to save to holds files that are no recipe.
    """
    from fusionadvisor import recipe
    from fusionadvisor.evaluate import auto
    from fusionadvisor.evaluate.search import attempt
    from fusionadvisor.report.credit import credited

    if save is not None:
        recipe.check_folder(save)
    say = progress or _silent
    tool, created, command = _started("apply")
    before = profile_workload(_workload(target), progress=say)
    assert before.workload is not None
    assert before.timeline is not None
    if before.interrupted:
        return replace(_interrupted(before, "no strategy was tried"), tool=tool, created=created, command=command)
    if list(strategies) == [SEARCH.id]:
        outcome = auto.search(
            before.workload, before.findings, budget_s=budget_s or auto.BUDGET_S, goal=goal, timeout_s=timeout_s,
            save=save, progress=say,
        )  # fmt: skip
    else:
        outcome = attempt(
            before.workload, list(strategies), parameters=parameters, timeout_s=timeout_s, save=save, progress=say
        )
    return replace(
        before,
        tool=tool,
        created=created,
        command=command,
        attempts=credited(outcome.attempts, before.findings, before.timeline.kernels),
        hunt=outcome.hunt,
        result=outcome.result,
        before=outcome.before,
        after=outcome.after,
        timeline_after=outcome.timeline,
        warnings=(*before.warnings, *outcome.warnings),
        files=outcome.files,
    )


def _workload(target: Report | Workload | str | Path) -> Workload:
    from fusionadvisor.workload.resolve import resolve

    if isinstance(target, str | Path):
        return resolve(str(target))
    if isinstance(target, Workload):
        return target
    if target.workload is None:
        raise InputError("This report is of a trace, which holds no model.", "Profile the model itself.")
    return target.workload
