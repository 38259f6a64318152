"""Figures of a trace beside those of HolisticTraceAnalysis: kernels, busy and idle time, kernel launches.

    python -m benchmarks.peers_traces --hta-python PYTHON [TRACE ...]

HTA runs in an interpreter of its own. What it counts is not always what this package counts: :data:`WHY` says where
each difference comes from. Traces are those of ``../shared/traces``.
"""

import argparse
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fusionadvisor import trace
from fusionadvisor.analysis.summary import summarise

TRACES = Path(__file__).parents[2] / "shared" / "traces"
RESULTS = Path(__file__).parent / "results"
CHOSEN = (
    "tl_h100_vit_nsfw", "tl_h100_owlv2", "tl_h100_qwen15_05b", "tl_mi300_compile_triton", "luatil_3060_graph_05",
    "part_a100_eager_bs512", "param_v100_dlrm_w0", "kineto_r50_v100_2021_nw0",
)  # fmt: skip

WHY = (
    "Kernels: HTA counts every row on a stream, so copies and memsets too (vit_nsfw 154 + 2 memsets, owlv2 4330 + 750 "
    "+ 85, qwen15 1465 + 241 + 1, A100 549 + 11, DLRM 245 + 16). Here copies are counted apart.",
    "Kernels of the ResNet-50: HTA leaves one of the six recorded steps out, 7580 is five sixths of 8772 + 324.",
    "Busy and idle time: HTA rounds starts up and ends down to whole microseconds, which takes about 1 µs from each "
    "row. Rounded so, vit_nsfw, owlv2 and the A100 give its busy time to the digit (1068, 561607, 91095). "
    "On the DLRM trace, whose times are whole, both agree. On the 3060 it leaves one kernel out as well, on the "
    "ResNet-50 the sixth step.",
    "Launches: HTA counts `cudaLaunchKernel`, `cudaLaunchKernelExC` and the calls for copies and memsets, and not "
    "`cuLaunchKernel`, by which Triton and cuBLASLt launch (vit_nsfw 81 + 24 + 2, without 49), nor "
    "`cudaGraphLaunch` (3060: 75, without the 10 that launch all graphs). Here all calls that launch kernels count.",
    "HTA fails on the MI300 trace, whose op and kernel counts overflow its integer type, and on the breakdown of the "
    "Qwen trace, by an assertion of its own.",
)

_HTA = """
import json, logging, sys, warnings
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
found = {}
try:
    analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
    frame, symbols = analysis.t.get_trace(0), analysis.t.symbol_table.sym_table
    found["kernels"] = int((frame["stream"] >= 0).sum())
    times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    found["busy_us"] = float(times["compute_time(us)"] + times["non_compute_time(us)"])
    found["idle_us"] = float(times["idle_time(us)"])
    launches = analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
    found["launches"] = len(launches)
except Exception as error:
    found["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
print(json.dumps(found))
"""


def ours(path: Path) -> dict[str, Any]:
    """This package's figures of a trace."""
    timeline = trace.load(path)
    summary = summarise(timeline)
    return {
        "kernels": sum(device.kernels for device in summary.devices),
        "busy_us": round(sum(device.busy_us for device in summary.devices), 1),
        "idle_us": round(sum(device.span_us - device.busy_us for device in summary.devices), 1),
        "launches": summary.launches,
    }


def theirs(path: Path, python: str) -> dict[str, Any]:
    """HTA's."""
    ran = subprocess.run([python, "-c", _HTA, str(path)], capture_output=True, text=True, check=False, timeout=600)
    lines = ran.stdout.strip().splitlines()
    if not lines:
        return {"error": (ran.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", default=CHOSEN)
    parser.add_argument("--hta-python", required=True)
    given = parser.parse_args()
    rows = {}
    for slug in given.traces:
        path = TRACES / f"{slug}.json.gz"
        rows[slug] = {"fusion-advisor": ours(path), "HTA": theirs(path, given.hta_python)}
        print(slug, json.dumps(rows[slug]), flush=True)
    (RESULTS / "peers_traces.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "peers_traces.md").write_text("\n".join(_page(rows)) + "\n")


def _page(rows: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    figures = ("kernels", "busy_us", "idle_us", "launches")
    yield from (
        "# Traces: figures beside HolisticTraceAnalysis",
        "",
        "| trace | by | " + " | ".join(figures) + " | |",
        "|---|---|" + "---:|" * len(figures) + "---|",
    )
    for slug, found in rows.items():
        for who, known in found.items():
            cells = [f"{known[f]:,}" if f in known else "" for f in figures]
            yield f"| {slug} | {who} | {' | '.join(cells)} | {known.get('error', '')} |"
    yield from ("", *(f"- {why}" for why in WHY))


if __name__ == "__main__":
    main()
