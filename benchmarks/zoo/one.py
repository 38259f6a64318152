"""Everything the tool does, on one architecture."""

import json
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.zoo import check, forked, models
from benchmarks.zoo.forked import Failed
from fusionadvisor import advisor, strategies
from fusionadvisor.evaluate import auto, worker
from fusionadvisor.evaluate.search import Trying
from fusionadvisor.evaluate.trial import Done, Job, with_steps
from fusionadvisor.evaluate.worker import Limits
from fusionadvisor.recipe import Step
from fusionadvisor.report.codec import to_dict
from fusionadvisor.report.model import Attempt, Finding, Report, Speedup, Workload
from fusionadvisor.strategies.base import Strategy

GPU = "h100"
CHECK_SEEDS = (101, 202)
MEASURE_S = 1.0
"""Of a single strategy; ``auto`` shares out its own budget."""
BUDGET_S = 60.0
"""Of ``auto``, in CPU seconds; users are given 120 s."""
JOB_S = 400.0

Plain = dict[str, Any]
Tried = list[tuple[Attempt, Step | None]]


def measure(name: str, mode: str, folder: Path) -> Plain:
    """Profile, prediction, and each strategy but ``compile``. Runs in a process that has computed nothing."""
    start = time.monotonic()
    with forked.workers():
        found = _Row(name, str(models.write(name, folder)), mode == "training").strategies()
    return {**head(name, mode), "seconds": round(time.monotonic() - start, 1), **found}


def search(row: Plain, folder: Path, budget_s: float = BUDGET_S) -> Plain:
    """What ``auto`` and ``compile`` add to a row, which take minutes where the others take seconds."""
    start = time.monotonic()
    name, mode = row["name"], row["mode"]
    with forked.workers():
        found = _Row(name, str(models.write(name, folder)), mode == "training").search(budget_s)
    row["strategies"] |= found.pop("strategies")
    crashes = [*row["crashes"], *found.pop("crashes")]
    searched = {"searched": {**head(name, mode), "seconds": round(time.monotonic() - start, 1)}}
    return {**row, **searched, **found, "crashes": crashes}


def head(name: str, mode: str) -> Plain:
    """What a row begins with."""
    return {
        "name": name,
        "mode": mode,
        "model": models.CONFIGS[name][0] if name in models.CONFIGS else f"sample_models/{name}.py",
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
    }


def commit() -> str:
    """The commit of this checkout."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


class _Row:
    def __init__(self, name: str, target: str, train: bool) -> None:
        self.name, self.target, self.train = name, target, train
        self.crashes: list[str] = []

    def strategies(self) -> Plain:
        """Profile, predict, and try each strategy alone."""
        profiled = self._call("profile", partial(_profile, self.target, self.train))
        if not isinstance(profiled, Report):
            return {"profile": profiled, "strategies": {}, "crashes": self.crashes}
        assert profiled.workload is not None
        predicted = self._call("predict", partial(_predict, profiled.workload))
        tried = dict(self._each(profiled.workload))
        return {"profile": _profiled(profiled), "predict": predicted, "strategies": tried, "crashes": self.crashes}

    def search(self, budget_s: float) -> Plain:
        """Search for the best, and see what ``compile`` alone does."""
        profiled = self._call("profile", partial(_profile, self.target, self.train))
        if not isinstance(profiled, Report):
            return {"strategies": {}, "crashes": self.crashes}
        assert profiled.workload is not None
        found, tried = self._auto(profiled.workload, profiled.findings, budget_s)
        made, step = self._compiled(profiled.workload, tried)
        row = _attempt(made)
        if step is not None and made.kept and found.get("kept") != ["compile"]:
            row["check"] = self._check(profiled.workload, (step,))
        return {"strategies": {"compile": row}, "auto": found, "crashes": self.crashes}

    def _call(self, what: str, function: Any) -> Any:
        found = forked.call(function, JOB_S)
        if not isinstance(found, Failed):
            return found
        if not found.meant:
            self.crashes.append(f"{what}: {found.what}\n{found.trace}".strip())
        return {"error": found.what}

    def _auto(
        self, workload: Workload, findings: tuple[Finding, ...], budget_s: float
    ) -> tuple[Plain, list[tuple[Attempt, Step | None]]]:
        """The search, and every attempt it made with the step that came of it."""
        start = time.monotonic()
        tried: Tried = []
        one = Trying.tried

        def noted(trying: Trying, strategy: Strategy, on: Any) -> tuple[Attempt, Done]:
            made, done = one(trying, strategy, on)
            tried.append((made, done.step))
            return made, done

        # on a machine that others use as well, the budget is of what these processes get, not of time that passes
        hunt = partial(auto.Search, clock=forked.cpu_seconds)
        with mock.patch.object(Trying, "tried", noted), mock.patch.object(auto, "Search", hunt):
            try:
                outcome = auto.search(workload, findings, budget_s=budget_s, timeout_s=JOB_S)
            except Exception as error:  # noqa: BLE001 - what the benchmark is there to find
                self.crashes.append(f"auto: {type(error).__name__}: {error}")
                return {"error": str(error)}, tried
        row: Plain = {
            "seconds": round(time.monotonic() - start, 1),
            "budget_s": budget_s,
            "kept": [step.strategy + _bracketed(step.parameters) for step in outcome.steps],
            "steps": [to_dict(step) for step in outcome.steps],
            "speedup": _speedup(outcome.result),
            "warnings": [w.message for w in outcome.warnings],
            "attempts": [_attempt(a) for a in outcome.attempts],
        }
        self.crashes += [f"auto, {a.strategy}: {a.reason}" for a in outcome.attempts if a.outcome == "crashed"]
        if outcome.verification:
            row["verification"] = _verification(outcome.verification)
        if outcome.steps:
            row["check"] = self._check(workload, outcome.steps)
        return row, tried

    def _compiled(self, workload: Workload, tried: Tried) -> tuple[Attempt, Step | None]:
        """``compile`` of the whole original, as the search tried it, else by itself."""
        for made, step in tried:
            if (made.strategy, made.on, made.parameters) == ("compile", (), {}) and made.outcome != "not_tried":
                return made, step
        made, done = Trying(workload, Limits(JOB_S), MEASURE_S, lambda _: None).tried(strategies.get("compile"), ())
        return made, done.step

    def _each(self, workload: Workload) -> Iterator[tuple[str, Plain]]:
        """Those that plan nothing are asked together, the others tried one by one."""
        names = [name for name in strategies.ids() if name != "compile"]
        survey = worker.run(Job(workload, survey=tuple(map(Step, names))), Limits(JOB_S))
        planned = {a.strategy: a for a in survey.done.survey}
        if not planned:
            self.crashes.append(f"survey: {survey.how} {survey.reason} {survey.done.failure}")
        trying = Trying(workload, Limits(JOB_S), MEASURE_S, lambda _: None)
        for name in names:
            made, step = planned.get(name, Attempt(name, "not_tried")), None
            if not made.reason:
                made, done = trying.tried(strategies.get(name), ())
                step = done.step
            if made.outcome == "crashed":
                self.crashes.append(f"{name}: {made.reason}")
            row = _attempt(made)
            if step is not None:
                row["check"] = self._check(workload, (step,))
            yield name, row

    def _check(self, workload: Workload, steps: tuple[Step, ...]) -> Plain:
        found = forked.call(partial(_checked, self.name, workload, steps), JOB_S)
        if isinstance(found, Failed):
            self.crashes.append(f"check of {[s.strategy for s in steps]}: {found.what}\n{found.trace}")
            return {"error": found.what}
        return to_dict(found)  # type: ignore[no-any-return]


# -- in forked processes ----------------------------------------------------------------------------------------------


def _profile(target: str, train: bool) -> Report:
    return advisor.profile(target, train=train, device="cpu")


def _predict(workload: Workload) -> Plain:
    """As ``profile --gpu``, without its process of its own: this is one already."""
    from fusionadvisor.capture import predict
    from fusionadvisor.capture.predicted.stream import stream

    with mock.patch.object(predict, "_in_child", stream):
        report = advisor.predict_workload(workload, GPU)
    assert report.predicted is not None
    return {
        "kernels": report.predicted.kernels,
        "us": round(report.predicted.kernel_us.likely or 0.0, 1),
        "uncalibrated": round(report.predicted.uncalibrated_share, 3),
        "findings": _found(report.findings),
        "warnings": [w.message for w in report.warnings],
    }


def _checked(name: str, workload: Workload, steps: tuple[Step, ...]) -> check.Agreement:
    """Build the model anew, do the steps as a recipe would, and compare without the tool."""
    from fusionadvisor.workload.program import build

    program = build(workload)
    if program.training is None:
        draw = partial(models.inputs, name) if name in models.CONFIGS else partial(_drawn, program)
        return check.outputs_agree(program.model, with_steps(program, steps), draw, CHECK_SEEDS)
    model = program.model = check.without_dropout(program.model)
    candidate = with_steps(program, steps)
    draw = partial(models.labelled, name) if name in models.CONFIGS else partial(_drawn, program)
    return check.steps_agree(model, candidate, partial(_step, program), draw, CHECK_SEEDS)


def _drawn(program: Any) -> dict[str, Any]:
    """Inputs of a sample: fresh ones, of this seed."""
    return named(program, torch.initial_seed())


def named(program: Any, seed: int, batch: int | None = None) -> dict[str, Any]:
    """A call's tensors by the names that forward gives them."""
    call = program.call(seed, batch)
    return {spec.name: tensor for spec, (_, tensor) in zip(program.specs(call), call.tensors(), strict=True)}


def _step(program: Any, model: Any, batch: Any) -> Any:
    from fusionadvisor.workload.inputs import Call

    return program.step(Call(kwargs=batch), model)


# -- plain data -------------------------------------------------------------------------------------------------------


def _profiled(report: Report) -> Plain:
    assert report.timeline is not None
    assert report.latency is not None
    return {
        "ops": report.timeline.kernels.total // max(report.timeline.steps, 1),
        "ms": round(report.latency.median_ms, 3),
        "findings": _found(report.findings),
        "warnings": [w.message for w in report.warnings],
    }


def _found(findings: tuple[Finding, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for finding in findings:
        found[finding.rule] = found.get(finding.rule, 0) + finding.instances
    return found


def _attempt(made: Attempt) -> Plain:
    row: Plain = {"strategy": made.strategy, "outcome": made.outcome, "kept": made.kept, "reason": made.reason}
    row |= {key: value for key, value in (("on", made.on), ("parameters", made.parameters)) if value}
    row["sites"] = [made.sites.applied, made.sites.matched]
    row["refused"] = sorted({f"{r.site}: {r.reason}" for r in made.sites.refused})[:12]
    row["notes"] = list(made.notes)
    if made.kernels:
        row["ops"] = [made.kernels.before, made.kernels.after]
    if made.verification:
        row["verification"] = _verification(made.verification)
    if made.speedup:
        row["speedup"] = _speedup(made.speedup)
    if made.compile_s is not None:
        row["compile_s"] = round(made.compile_s, 2)
    return row


def _verification(found: Any) -> Plain:
    ratio = found.rmse_ratio
    return {
        "verdict": found.verdict, "max_error": float(f"{found.max_error:.3g}"),
        "times_own": None if ratio is None else float(f"{ratio:.3g}"), "reason": found.reason,
    }  # fmt: skip


def _speedup(found: Speedup | None) -> list[float] | None:
    if found is None:
        return None
    return [round(x, 3) for x in (found.median, *found.ci95, *found.aa_band)]


def _bracketed(parameters: dict[str, str]) -> str:
    return f"({', '.join(f'{k}={v}' for k, v in parameters.items())})" if parameters else ""


def save(row: Plain, path: Path) -> None:
    """Write a row, whole or not at all."""
    partial_path = path.with_suffix(".partial")
    partial_path.write_text(json.dumps(row, indent=1) + "\n")
    partial_path.rename(path)
