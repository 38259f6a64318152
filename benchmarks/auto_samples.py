"""Hold what ``--strategy auto`` ends with against every single strategy, on every sample model.

python benchmarks/auto_samples.py [--budget 120] [--json benchmarks/results/auto_samples.json] [SAMPLE…]

For each sample the search runs as ``apply --strategy auto`` does. Then the original, a copy of it, the result of the
search and each strategy alone take turns in random order in one process: what the original and its copy differ by on
this machine (the A/A band) stands beside every gain. A single strategy beats the search where the interval of
search over single lies below that band. Where the search kept nothing its result is the original: a single one then
beats it where it is faster than that.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from fusionadvisor import __version__, advisor, strategies
from fusionadvisor.evaluate import auto, bench, trial
from fusionadvisor.evaluate.trial import Job
from fusionadvisor.recipe import Step
from fusionadvisor.workload.program import Program, build
from fusionadvisor.workload.resolve import resolve

SAMPLES = Path(__file__).resolve().parent.parent / "sample_models"
ROUNDS = 60
LONGEST_S = 60.0
"""Of measuring one sample."""


def names() -> list[str]:
    """Every sample, and the training step of the one that has one."""
    return [*(path.stem for path in sorted(SAMPLES.glob("*.py"))), "train_step --train"]


def single(program: Program, name: str) -> Step | str:
    """A strategy alone as it can be kept, or why it cannot."""
    done = trial.perform(Job(program.workload, step=Step(name), budget_s=0.0), program, lambda _: None)
    made = done.attempt
    if made is None or done.step is None or made.speedup is None:
        return f"{made.outcome}: {made.reason}" if made else done.failure
    return done.step


def samples_of(arms: dict[str, Callable[[], object]], clock: bench.Clock) -> dict[str, list[float]]:
    """Seconds a call of every arm, round by round, in random order."""
    for run in arms.values():
        bench.warm_up(run, clock)
    quickest = min(clock.seconds(run, 1) for run in arms.values())
    calls = max(1, round(bench.SHORTEST_SAMPLE_S / max(quickest, 1e-9)))
    taken: dict[str, list[float]] = {name: [] for name in arms}
    draw, start = random.Random(0), clock.now()
    for number in range(ROUNDS):
        if number >= bench.FEWEST_ROUNDS and clock.now() - start > LONGEST_S:
            break
        for name in draw.sample(list(arms), len(arms)):
            taken[name].append(clock.seconds(arms[name], calls) / calls)
    return taken


def compared(name: str, budget_s: float) -> dict[str, Any]:
    """Search, then measure the result beside each strategy alone."""
    file, _, train = name.partition(" ")
    workload = resolve(str(SAMPLES / f"{file}.py"), train=bool(train))
    profile = advisor.profile_workload(workload)
    began = time.perf_counter()
    found = auto.search(workload, profile.findings, budget_s=budget_s)
    took_s = time.perf_counter() - began
    program = build(workload)
    singles = {identifier: single(program, identifier) for identifier in strategies.ids()}
    steps = {"auto": found.steps} | {f"{i} alone": (s,) for i, s in singles.items() if isinstance(s, Step)}
    models = {"original": program.model, "copy": trial.copied(program.model)}
    models |= {arm: trial.with_steps(program, made) for arm, made in steps.items()}
    call, clock = program.call(), bench.clock(workload.device)
    taken = samples_of({arm: lambda m=model: program.step(call, m) for arm, model in models.items()}, clock)  # type: ignore[misc]
    rows = {arm: _row(taken["original"], taken["copy"], taken[arm]) for arm in steps}
    best = max((arm for arm in rows if arm != "auto"), key=lambda arm: rows[arm]["speedup"], default=None)
    against = bench.ratio(taken[best], taken[best], taken["auto"])[0] if best else None
    band = rows["auto"]["aa_band"]
    return {
        "auto": [step.strategy for step in found.steps], "search_s": round(took_s, 1),
        "unreached": list(found.hunt.unreached) if found.hunt else [], "arms": rows, "best_single": best,
        "auto_over_best_single": [round(x, 3) for x in (against.median, *against.ci95)] if against else None,
        "auto_loses": bool(best and against) and (
            against.ci95[1] < band[0] if found.steps else rows[best]["verdict"] == "faster"
        ),
        "auto_slower_than_original": rows["auto"]["verdict"] == "slower",
        "not_measured": {i: s for i, s in singles.items() if isinstance(s, str)},
        "path": [
            {"strategy": a.strategy, "on": list(a.on), "outcome": a.outcome, "kept": a.kept,
             "speedup": round(a.speedup.median, 3) if a.speedup else None, "reason": a.reason}
            for a in found.attempts
        ],
    }  # fmt: skip


def _row(original: list[float], copy: list[float], arm: list[float]) -> dict[str, Any]:
    speedup, verdict = bench.ratio(original, copy, arm)
    return {
        "median_ms": round(bench.timing(arm).median_ms, 4), "speedup": round(speedup.median, 3),
        "ci95": [round(x, 3) for x in speedup.ci95], "aa_band": [round(x, 3) for x in speedup.aa_band],
        "verdict": verdict, "rounds": len(arm),
    }  # fmt: skip


def machine() -> str:
    """What it ran on."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{os.cpu_count()} shared {platform.machine()} cores, no GPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", nargs="*", default=[])
    parser.add_argument("--budget", type=float, default=auto.BUDGET_S, help="seconds of each search")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(compared(given.samples[0], given.budget)))
        return
    rows: dict[str, Any] = {}
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "fusion-advisor": __version__,
        "torch": torch.__version__, "python": platform.python_version(), "threads": torch.get_num_threads(),
        "machine": machine(), "budget_s": given.budget, "samples": rows,
    }  # fmt: skip
    for name in given.samples or names():
        # a process each: what one sample compiled or left in memory must not weigh on the next
        command = [sys.executable, __file__, name, "--one", "--budget", str(given.budget)]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        rows[name] = row = json.loads(said.splitlines()[-1])
        row["load_average"] = round(os.getloadavg()[1], 2)
        ahead = f"{row['auto_over_best_single']} times {row['best_single']}" if row["best_single"] else "no single"
        gain = row["arms"]["auto"]
        print(f"{name:20} {' → '.join(row['auto']) or 'nothing kept'}: {gain['speedup']}x {gain['ci95']} "
              f"(A/A {gain['aa_band']}); {ahead}; loses: {row['auto_loses']}", flush=True)  # fmt: skip
        if given.json:
            given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
