"""What reading a trace costs: CPU time and peak memory beside ``json.load`` and HolisticTraceAnalysis.

    python benchmarks/trace_engine.py [--tools ../shared/tools] [--source ../shared/traces/tl_h100_owlv2.json.gz]
                                      [--hta-python PYTHON] [--json FILE] [--markdown FILE]

A big trace is made from a real one by repeating it (identifiers and times shifted, pretty-printed as the profiler
does). Every figure is the median of three runs, each in a process of its own, the programs taking turns. CPU time is
user plus system time of the child, interpreter and imports included; memory is its peak resident set. ``load`` reads
and links; ``analyze`` is the whole command. HolisticTraceAnalysis is run by an interpreter that has it, where one is
named: its reading of the same file, before any analysis.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
ROUNDS = 3
SIZES = (1, 2, 4)
LIMITS = {"load": (0.25, 0.3), "analyze": (0.4, None)}
"""At most this share of json.load's CPU time and peak memory."""

PROGRAMS = {
    "json.load": "import json; json.load(open(PATH, encoding='utf-8'))",
    "load": "from fusionadvisor.trace import load; load(PATH)",
    "analyze": None,
    "HTA": "from hta.trace_analysis import TraceAnalysis; TraceAnalysis(trace_files={0: PATH}, trace_dir='/')",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """One run, or the median of several."""

    cpu_s: float
    peak_mb: float


def cost(command: list[str]) -> Cost:
    """Run a command and return what it cost.

    Raises:
        RuntimeError: If it failed.
    """
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def command(program: str, path: Path, hta_python: str | None) -> list[str]:
    if program == "analyze":
        return [sys.executable, "-m", "fusionadvisor", "analyze", str(path)]
    python = hta_python if program == "HTA" and hta_python else sys.executable
    return [python, "-c", f"PATH = {str(path)!r}; {PROGRAMS[program]}"]


def medians(programs: list[str], path: Path, hta_python: str | None) -> dict[str, Cost]:
    """Run the programs in turns and return the median cost of each."""
    runs: dict[str, list[Cost]] = {program: [] for program in programs}
    for _ in range(ROUNDS):
        for program in programs:
            runs[program].append(cost(command(program, path, hta_python)))
    return {
        program: Cost(statistics.median(r.cpu_s for r in taken), statistics.median(r.peak_mb for r in taken))
        for program, taken in runs.items()
    }


def make(tools: Path, source: Path, folder: Path, megabytes: float) -> Path:
    """Make a trace of about that size and return its path."""
    path = folder / f"trace_{megabytes:.0f}.json"
    made = [sys.executable, str(tools / "make_big_trace.py"), str(source), str(path), f"{megabytes}"]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    return path


def big_enough(tools: Path, source: Path, folder: Path, at_least: float) -> Path:
    """Make a trace of at least that many MB; the generator's own measure is the source's size, so ask again."""
    asked = at_least
    while True:
        path = make(tools, source, folder, asked)
        size = path.stat().st_size / 1e6
        if size >= at_least:
            return path
        path.unlink()
        asked *= 1.02 * at_least / size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, default=SHARED / "tools")
    parser.add_argument("--source", type=Path, default=SHARED / "traces" / "tl_h100_owlv2.json.gz")
    parser.add_argument("--megabytes", type=float, default=500)
    parser.add_argument("--hta-python", help="an interpreter with HolisticTraceAnalysis installed")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        big = big_enough(given.tools, given.source, folder, given.megabytes)
        programs = [program for program in PROGRAMS if program != "HTA" or given.hta_python]
        found = medians(programs, big, given.hta_python)
        size = big.stat().st_size / 1e6
        big.unlink()
        linear = []
        for times in SIZES:
            path = make(given.tools, given.source, folder, given.megabytes * times / SIZES[-1])
            linear.append((path.stat().st_size / 1e6, medians(["load"], path, None)["load"]))
            path.unlink()
    text = report(given.source.name, size, found, linear)
    print(text)
    if given.markdown:
        given.markdown.write_text(text)
    if given.json:
        given.json.write_text(json.dumps(figures(given.source.name, size, found, linear), indent=2) + "\n")


def figures(source: str, size: float, found: dict[str, Cost], linear: list[tuple[float, Cost]]) -> dict[str, object]:
    base = found["json.load"]
    return {
        "date": date.today().isoformat(),
        "machine": machine(),
        "python": platform.python_version(),
        "source": source,
        "megabytes": round(size, 1),
        "rounds": ROUNDS,
        "programs": {
            name: {
                "cpu_s": round(c.cpu_s, 2),
                "peak_mb": round(c.peak_mb),
                "cpu_ratio": round(c.cpu_s / base.cpu_s, 3),
                "peak_ratio": round(c.peak_mb / base.peak_mb, 3),
            }
            for name, c in found.items()
        },
        "load_by_size": [
            {"megabytes": round(mb, 1), "cpu_s": round(c.cpu_s, 2), "peak_mb": round(c.peak_mb)} for mb, c in linear
        ],
    }


def machine() -> str:
    return f"{os.cpu_count()} shared {platform.machine()} cores"


def report(source: str, size: float, found: dict[str, Cost], linear: list[tuple[float, Cost]]) -> str:
    """Return the figures as Markdown, each ratio beside its limit."""
    base = found["json.load"]
    lines = [
        f"# Reading a trace of {size:.0f} MB",
        "",
        f"{date.today().isoformat()} · {machine()} · Python {platform.python_version()} · made from `{source}` · "
        f"medians of {ROUNDS} processes, interpreter and imports included",
        "",
        "| program | CPU s | of json.load | at most | peak MB | of json.load | at most |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, c in found.items():
        cpu, peak = (f"{limit}" if limit else "" for limit in LIMITS.get(name, (None, None)))
        lines.append(
            f"| {name} | {c.cpu_s:.2f} | {c.cpu_s / base.cpu_s:.2f} | {cpu} "
            f"| {c.peak_mb:.0f} | {c.peak_mb / base.peak_mb:.2f} | {peak} |"
        )
    lines += ["", "`load` by size:", "", "| MB | CPU s | s per 100 MB | peak MB |", "|---:|---:|---:|---:|"]
    lines += [f"| {mb:.0f} | {c.cpu_s:.2f} | {100 * c.cpu_s / mb:.2f} | {c.peak_mb:.0f} |" for mb, c in linear]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
