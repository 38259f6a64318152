"""Kernels, groups and findings as tracks of a trace for https://ui.perfetto.dev and chrome://tracing.

The format is the Trace Event JSON of Chrome: complete events (``"ph": "X"``), times in µs. Events of one track must
nest or be disjoint, which kernels that overlap on one stream are not: they go to further tracks of the stream.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from fusionadvisor.render import labels, verdict
from fusionadvisor.render.text import clean
from fusionadvisor.report.model import KernelTable, Report

MARK = '{"otherData": {"writtenBy": "fusion-advisor"'
"""How the file begins, by which it is known as this tool's own."""
STEPS, GROUPS, FINDINGS, STREAMS = 0, 1_000, 2_000, 10_000
"""Where the track numbers of each sort begin; a viewer shows tracks in their order."""
LANES = 100
"""Track numbers kept for one stream."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A named interval in ns; integers, so that what touches does not overlap by a rounding."""

    name: str
    start: int
    end: int
    args: dict[str, Any] = field(default_factory=dict)


def compose(report: Report) -> str:
    """Return the kernels that the report lists, one process a device, with groups and findings as tracks above them."""
    table = report.timeline.kernels if report.timeline else KernelTable()
    events = [event for device in sorted(set(table.device)) for event in _device(report, table, device)]
    about = {"version": report.tool.version, "source": clean(report.source), "created": report.created}
    head = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in about.items())
    body = ",\n".join(json.dumps(event, ensure_ascii=True) for event in events)
    return f'{MARK}, {head}}}, "displayTimeUnit": "ns", "traceEvents": [\n{body}\n]}}\n'


def _device(report: Report, table: KernelTable, device: int) -> Iterator[dict[str, Any]]:
    rows = [row for row, at in enumerate(table.device) if at == device]
    names = {d.device: d.name for d in report.timeline.devices} if report.timeline else {}
    what = "CPU ops standing in for kernels" if labels.cpu_times(report) else "device"
    yield _name("process_name", device, 0, f"{what} {device} {clean(names.get(device) or '')}".rstrip())
    yield from _track(device, STEPS, "steps", _steps(table, rows))
    yield from _track(device, GROUPS, "groups that could be one kernel", _groups(table, rows))
    yield from _track(device, FINDINGS, "findings", _findings(report, table, device))
    for number, stream in enumerate(sorted({table.stream[row] for row in rows})):
        own = [row for row in rows if table.stream[row] == stream]
        yield from _track(device, STREAMS + LANES * number, f"stream {stream}", _kernels(table, own))


def _track(pid: int, first: int, name: str, slices: Iterable[Slice]) -> Iterator[dict[str, Any]]:
    """Yield a track's events; slices that cross others go to tracks after it, up to its last."""
    lanes: list[list[int]] = []
    for part in sorted(slices, key=lambda s: (s.start, -s.end)):
        lane = next((i for i, ends in enumerate(lanes) if _fits(part, ends)), len(lanes))
        tid = first + lane
        if lane == len(lanes):
            lanes.append([])
            yield _name("thread_name", pid, tid, f"{name} ({lane + 1})" if lane else name)
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
        lanes[lane].append(part.end)
        yield {
            "ph": "X", "name": clean(part.name), "pid": pid, "tid": tid, "ts": part.start / 1e3,
            "dur": (part.end - part.start) / 1e3,
            "args": {key: clean(value) if isinstance(value, str) else value for key, value in part.args.items()},
        }  # fmt: skip


def _fits(part: Slice, ends: list[int]) -> bool:
    """True where a slice comes after a track's open slices or inside the innermost; drops the ones that are over."""
    while ends and ends[-1] <= part.start:
        ends.pop()
    return not ends or part.end <= ends[-1]


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _interval(table: KernelTable, rows: Iterable[int]) -> tuple[int, int]:
    starts, ends = zip(*((round(table.start_us[i] * 1e3), _end(table, i)) for i in rows), strict=True)
    return min(starts), max(ends)


def _end(table: KernelTable, row: int) -> int:
    return round(table.start_us[row] * 1e3) + round(table.dur_us[row] * 1e3)


def _kernels(table: KernelTable, rows: list[int]) -> Iterator[Slice]:
    for row in rows:
        known = {
            "op": table.op[row], "module": table.module[row], "source": table.source[row], "kind": table.kind[row],
            "shapes": table.shapes[row] if table.shapes else "",
        }  # fmt: skip
        args = {key: value for key, value in known.items() if value}
        yield Slice(table.name[row], *_interval(table, [row]), {"index": table.index[row], **args})


def _steps(table: KernelTable, rows: list[int]) -> Iterator[Slice]:
    members: dict[int, list[int]] = {}
    for row in rows:
        if table.step and table.step[row] >= 0:
            members.setdefault(table.step[row], []).append(row)
    for step, own in members.items():
        yield Slice(f"step {step}", *_interval(table, own), {"kernels": len(own)})


def _groups(table: KernelTable, rows: list[int]) -> Iterator[Slice]:
    members: dict[int, list[int]] = {}
    for row in rows:
        if table.group and table.group[row] >= 0:
            members.setdefault(table.group[row], []).append(row)
    for group, own in members.items():
        modules = dict.fromkeys(table.module[row] for row in own)
        ops = " ".join(table.op[row] or table.kind[row] for row in own)
        args = {"group": group, "kernels": len(own), "modules": ", ".join(filter(None, modules))}
        yield Slice(ops, *_interval(table, own), args)


def _findings(report: Report, table: KernelTable, device: int) -> Iterator[Slice]:
    """A finding is shown over each unbroken run of its kernels."""
    scale, row_of = verdict.scale(report), {index: row for row, index in enumerate(table.index)}
    for finding in report.findings:
        rows = sorted(row_of[k] for k in set(finding.kernels) if k in row_of and table.device[row_of[k]] == device)
        args = {
            "id": finding.id, f"could save in a step ({labels.bound(report)})": labels.saving(finding, scale),
            "remedies": ", ".join(finding.remedies), "source": labels.source(finding.source),
        }  # fmt: skip
        for run in _runs(rows, table):
            places = dict.fromkeys(table.module[row] for row in run if table.module[row])
            yield Slice(f"{finding.rule} {finding.title}", *_interval(table, run), {**args, "at": ", ".join(places)})


def _runs(rows: list[int], table: KernelTable) -> Iterator[list[int]]:
    counter = count()
    runs: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        runs.setdefault((row - next(counter), table.stream[row]), []).append(row)
    yield from runs.values()
