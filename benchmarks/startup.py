"""What the program costs before and around its work, as ratios of CPU time against bare imports.

    python benchmarks/startup.py [TRACE] [--rounds 15] [--json FILE]

Every round runs each command once in a process of its own, in a random order; the figure is user plus system time of
the child, and a ratio is taken of medians. The control runs the same command under two names: how far its ratio is
from 1 says how much the others mean.
"""

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRACE = ROOT.parent / "shared" / "traces" / "tl_h100_vit_nsfw.json.gz"


def cpu_seconds(command: list[str]) -> float:
    """Return the user and system time of one run of a command.

    Raises:
        subprocess.CalledProcessError: If it failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def measure(commands: dict[str, list[str]], rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each command, the commands interleaved in random order."""
    samples: dict[str, list[float]] = {name: [] for name in commands}
    names, order = list(commands), random.Random(0)
    for command in commands.values():
        cpu_seconds(command)  # byte code and file cache
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            samples[name].append(cpu_seconds(commands[name]))
    return {name: statistics.median(taken) for name, taken in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, default=TRACE)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    python, tool = [sys.executable, "-c"], [sys.executable, "-m", "fusionadvisor"]
    commands = {
        "import typer, rich": [*python, "import typer, rich"],
        "the same again": [*python, "import typer, rich"],
        "--help": [*tool, "--help"],
    }
    claims: dict[str, float | None] = {"the same again": None, "--help": 3.0}
    bases = dict.fromkeys(claims, "import typer, rich")
    if given.trace.exists():
        commands["import pandas, msgspec, typer, rich"] = [*python, "import pandas, msgspec, typer, rich"]
        commands["analyze"] = [*tool, "analyze", str(given.trace)]
        claims["analyze"], bases["analyze"] = 2.0, "import pandas, msgspec, typer, rich"
    medians = measure(commands, given.rounds)
    rows = []
    for name, limit in claims.items():
        ratio = medians[name] / medians[bases[name]]
        rows.append({"command": name, "against": bases[name], "ratio": round(ratio, 2), "limit": limit,
                     "cpu_s": round(medians[name], 3), "base_cpu_s": round(medians[bases[name]], 3)})  # fmt: skip
        said = f"at most {limit:g}×" if limit else "control"
        print(f"{ratio:5.2f}×  ({said})  {name}  /  {bases[name]}")
    if given.json:
        machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "trace": given.trace.name}
        given.json.write_text(json.dumps({"rounds": given.rounds, "machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
