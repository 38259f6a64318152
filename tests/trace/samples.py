"""A small trace built by hand, and ways to spoil it. Four multiplications: four ops, launches and kernels of 10 µs."""

import io
import json
from typing import Any

from fusionadvisor import trace
from fusionadvisor.trace.timeline import Timeline

Event = dict[str, Any]
Args = dict[str, Any]
KERNEL = "void at::native::vectorized_elementwise_kernel<4, MulFunctor>(int)"


def op(name: str, ts: float, dur: float, args: Args | None = None, *, tid: int = 1, pid: int = 1) -> Event:
    return event("cpu_op", name, ts, dur, args, pid=pid, tid=tid)


def launch(
    ts: float, correlation: int, args: Args | None = None, *, name: str = "cudaLaunchKernel", tid: int = 1, pid: int = 1
) -> Event:
    return event("cuda_runtime", name, ts, 2.0, {"correlation": correlation, **(args or {})}, pid=pid, tid=tid)


def kernel(
    ts: float, dur: float, correlation: int, args: Args | None = None, *, name: str = KERNEL, stream: int = 7
) -> Event:
    own = {"device": 0, "stream": stream, "correlation": correlation, **(args or {})}
    return event("kernel", name, ts, dur, own, pid=0, tid=stream)


def frame(name: str, ts: float, dur: float, *, tid: int = 1, pid: int = 1) -> Event:
    return event("python_function", name, ts, dur, pid=pid, tid=tid)


def annotation(name: str, ts: float, dur: float, *, tid: int = 1, pid: int = 1) -> Event:
    return event("user_annotation", name, ts, dur, pid=pid, tid=tid)


def event(cat: str, name: str, ts: float, dur: float, args: Args | None = None, *, pid: int, tid: int) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args or {}}


def four() -> list[Event]:
    """Return the events of the sound trace: busy 40 µs, four launches, one step."""
    events = [annotation("ProfilerStep#1", 5000.0, 500.0)]
    for i in range(4):
        start = 5010.0 + 20 * i
        events += [
            op("aten::mul", start, 15.0, {"External id": 20 + i, "Input Dims": [[8, 8], [8, 8]]}),
            launch(start + 5, 600 + i, {"External id": 20 + i}),
            kernel(5040.0 + 25 * i, 10.0, 600 + i, {"External id": 20 + i}),
        ]
    return events


def of_category(events: list[Event], category: str) -> list[Event]:
    return [event for event in events if event["cat"] == category]


def document(events: list[Event], **header: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], **header, "traceEvents": events}


def text(events: list[Event]) -> bytes:
    return json.dumps(document(events)).encode()


def read(data: bytes | list[Event], *, stand_ins: bool = False) -> Timeline:
    return trace.load(io.BytesIO(data if isinstance(data, bytes) else text(data)), stand_ins=stand_ins)
