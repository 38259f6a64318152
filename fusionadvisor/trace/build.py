"""From recorded columns to a :class:`~fusionadvisor.trace.timeline.Timeline`: one clock, sound times, linked tables."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from fusionadvisor.errors import InputError
from fusionadvisor.trace import frames
from fusionadvisor.trace.container import open_trace
from fusionadvisor.trace.events import Columns, Pool
from fusionadvisor.trace.kinds import copy_kind, kernel_kind, linked_kind
from fusionadvisor.trace.link import FORWARD, Calls, Ops, launching_calls, link_calls, link_ops, matching
from fusionadvisor.trace.numbers import MISSING, Ints, whole
from fusionadvisor.trace.reader import KERNEL, MEMCPY, RawTrace, lower_first, read
from fusionadvisor.trace.steps import find_steps, step_of
from fusionadvisor.trace.timeline import (
    KERNEL_COLUMNS,
    LAUNCH_COLUMNS,
    MEMORY_COLUMNS,
    OP_COLUMNS,
    SYNC_COLUMNS,
    DeviceInfo,
    Recording,
    Step,
    Timeline,
)

_SYNC = re.compile(
    r"Synchronize|^(?:cuda|hip)Memcpy(?:2D|3D)?$|^(?:cu|hip)Memcpy(?:HtoD|DtoH|DtoD)(?:_v2)?$|WithStream$"
)
_COPY = re.compile(r"^aten::copy_$")
_COPIED = ("shapes", "dtypes", "strides")
_PHASES = np.array(["forward", "backward", "optimizer", ""])


def load_timeline(source: str | Path | BinaryIO, *, stand_ins: bool = False) -> Timeline:
    """See :func:`fusionadvisor.trace.load`."""
    return build(read(open_trace(source)), stand_ins=stand_ins)


def build(raw: RawTrace, *, stand_ins: bool = False) -> Timeline:
    """Link recorded columns into a timeline.

    Raises:
        InputError: If there are no GPU events and nothing may stand in for them.
    """
    lost = [*raw.lost, *_settle_times(raw)]
    on_cpu = not len(raw.gpu)
    if on_cpu and not (stand_ins and len(raw.ops)):
        raise InputError(*_no_gpu(raw, lost))
    ops = link_ops(raw)
    calls = link_calls(raw, ops)
    steps, steps_from = find_steps(raw, ops, calls, _window(raw))
    names = np.array(list(raw.names), dtype=object)
    tables = _Tables(raw, ops, calls, steps, names)
    if on_cpu:
        from fusionadvisor.trace.standin import stand_in_rows

        kernels = tables.stand_ins(stand_in_rows(ops, list(raw.names)))
    else:
        kernels = tables.kernels()
    return Timeline(
        kernels=kernels,
        memory=tables.memory(),
        launches=tables.launches(),
        ops=tables.ops(),
        syncs=tables.syncs(),
        steps=steps,
        steps_from=steps_from,
        devices=(DeviceInfo(0, "CPU"),) if on_cpu else _devices(raw),
        stand_ins=on_cpu,
        recording=_recording(raw),
        lost=tuple(lost),
        name=raw.name,
        rank=_rank(raw.header),
        versions=_versions(raw.header),
    )


def _settle_times(raw: RawTrace) -> list[str]:
    """Put all times on one clock from the first event, drop what has none; say what that cost."""
    said = []
    spans = (raw.gpu, raw.runtime, raw.ops, raw.annotations, raw.python)
    unset = _zero_is_unset(spans)
    timeless = 0
    for table in spans:
        known = (table["start"] != MISSING) & ~(unset & (table["start"] == 0))
        if table is raw.gpu:
            known &= table["dur"] != MISSING
        if not known.all():
            timeless += int((~known).sum()) if table is raw.gpu else 0
            table.keep(known)
    if timeless:
        said.append(f"{timeless} GPU events have no start or duration and are left out.")
    negative = 0
    for table in spans:
        below = table["dur"] < 0
        negative += int((below & (table["dur"] != MISSING)).sum())
        table["dur"][below] = 0
    if negative:
        said.append(f"{negative} events had a negative duration, taken as 0.")
    origin = min((int(t["start"].min()) for t in spans if len(t)), default=0)
    for table in (*spans, raw.flows):
        table["start"][:] -= origin
    return said


def _zero_is_unset(spans: Iterable[Columns]) -> bool:
    """Whether a start of exactly 0 was never written: all other events lie together, far from 0."""
    starts = np.concatenate([table["start"] for table in spans])
    starts = starts[(starts != 0) & (starts != MISSING)]
    return bool(len(starts)) and int(starts.min()) > int(starts.max()) - int(starts.min())


def _no_gpu(raw: RawTrace, lost: list[str]) -> tuple[str, str]:
    if any("have no start" in sentence for sentence in lost):
        return f"{raw.name} holds GPU events, but none has a start and a duration.", "Record it again."
    if raw.lost:
        reason = lower_first(raw.lost[0])
        return f"{raw.name} holds no GPU events in what can be read of it: {reason}", "Record it again."
    launches = (
        int(matching(raw.names, re.compile("LaunchKernel"))[raw.runtime["name"]].sum()) if len(raw.runtime) else 0
    )
    if launches:
        return (
            f"{raw.name} holds {launches} kernel launches but no GPU events: the profiler lost the device's side.",
            "Record it with ProfilerActivity.CUDA and no other tool using CUPTI; `fusion-advisor doctor` checks that.",
        )
    return (
        f"{raw.name} holds no GPU events: it was recorded without ProfilerActivity.CUDA, or without a GPU.",
        "Record it on the GPU with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
    )


def _window(raw: RawTrace) -> tuple[int, int]:
    spans = [table for table in (raw.gpu, raw.runtime, raw.ops, raw.annotations) if len(table)]
    return (
        min((int(table["start"].min()) for table in spans), default=0),
        max((int((table["start"] + table["dur"]).max()) for table in spans), default=0),
    )


class _Tables:
    """Makes the DataFrames of a timeline."""

    def __init__(
        self, raw: RawTrace, ops: Ops, calls: Calls, steps: tuple[Step, ...], names: npt.NDArray[np.object_]
    ) -> None:
        self._raw, self._ops, self._calls, self._steps, self._names = raw, ops, calls, steps, names
        gpu = raw.gpu
        gpu.keep(np.lexsort((gpu["start"], gpu["device"])))
        self._call = launching_calls(gpu, calls)
        self._is_launch = calls.launch.copy()
        # a call of a name nobody knows that started a kernel is a launch
        self._is_launch[self._call[(gpu["kind"] == KERNEL) & (self._call >= 0)]] = True
        self._launch_row = np.where(self._is_launch, np.cumsum(self._is_launch) - 1, -1)
        self._graph_row = np.where(calls.graph, np.cumsum(calls.graph) - 1, -1)

    def _op_columns(self, op: Ints) -> dict[str, Any]:
        ops = self._ops
        return {
            "op": categorical(_taken(ops.columns["name"], op, -1), self._names),
            "op_id": op,
            "module": categorical(_taken(ops.module, op, 0), ops.modules),
            "source": categorical(_taken(ops.source, op, 0), ops.sources),
        }

    def _gpu_columns(self, rows: npt.NDArray[np.intp]) -> dict[str, Any]:
        gpu, call = self._raw.gpu, self._call[rows]
        launch = _taken(self._calls.columns["start"], call, -1)
        op = _taken(self._calls.op, call, -1)
        moments = launch if (self._call >= 0).any() else gpu["start"][rows]
        return {
            "start_ns": gpu["start"][rows],
            "dur_ns": gpu["dur"][rows],
            "device": gpu["device"][rows],
            "stream": gpu["stream"][rows],
            "name": categorical(gpu["name"][rows], self._names),
            "launch_ns": launch,
            "correlation": np.where(gpu["correlation"][rows] > 0, gpu["correlation"][rows], -1),
            "graph_id": _taken(self._graph_row, call, -1),
            "step": step_of(self._steps, moments),
            **self._op_columns(op),
        }

    def kernels(self) -> pd.DataFrame:
        rows = np.flatnonzero(self._raw.gpu["kind"] == KERNEL)
        columns = self._gpu_columns(rows)
        op = columns["op_id"]
        phase = _taken(self._ops.phase, op, 3)
        columns |= {
            "kind": self._kinds(self._raw.gpu["name"][rows], op),
            "launch_id": _taken(self._launch_row, self._call[rows], -1),
            "forward_op_id": np.where(phase != FORWARD, _taken(self._ops.forward, op, -1), -1),
            "phase": categorical(phase, _PHASES),
            "flow_op": np.full(len(rows), -1, dtype=np.int64),
        }
        return _frame(columns, KERNEL_COLUMNS)

    def _kinds(self, name: Ints, op: Ints) -> pd.Categorical:
        pairs = np.stack([name, _taken(self._ops.columns["name"], op, -1)], axis=1).astype(np.int64)
        unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
        pool = Pool()
        found = pool.codes(
            linked_kind(kernel_kind(self._names[kernel]), self._names[of] if of >= 0 else "")
            for kernel, of in unique.tolist()
        )[inverse.reshape(-1)]
        self._settle_copies(pool, found, op)
        return categorical(found, list(pool))

    def _settle_copies(self, pool: Pool, kinds: npt.NDArray[np.int32], op: Ints) -> None:
        """Tell casts, layout changes and plain copies apart where the op's arguments were recorded."""
        columns = self._ops.columns
        codes = [pool[kind] for kind in ("copy", "cast", "layout")]
        copies = matching(self._raw.names, _COPY)[columns["name"]] if len(columns) else np.zeros(1, dtype=bool)
        rows = np.flatnonzero(np.isin(kinds, codes) & (op >= 0) & copies[op])
        arguments = np.stack([columns[key][op[rows]] for key in _COPIED], axis=1)
        unique, inverse = np.unique(arguments, axis=0, return_inverse=True)
        texts = [list(self._raw.texts[key]) for key in _COPIED]
        told = [
            copy_kind(*(tuples(text[code]) for text, code in zip(texts, row, strict=True))) for row in unique.tolist()
        ]
        for row, which in zip(rows.tolist(), inverse.reshape(-1).tolist(), strict=True):
            if (kind := told[which]) is not None:
                kinds[row] = pool[kind]

    def stand_ins(self, rows: npt.NDArray[np.intp]) -> pd.DataFrame:
        """Leaf CPU ops as kernels: they launch themselves, each thread is a stream."""
        from fusionadvisor.trace.kinds import op_kind

        columns, zeros = self._ops.columns, np.zeros(len(rows), dtype=np.int64)
        rows = rows[np.argsort(columns["start"][rows], kind="stable")]
        phase = self._ops.phase[rows]
        kinds = Pool()
        table = {
            "start_ns": columns["start"][rows],
            "dur_ns": columns["dur"][rows],
            "device": zeros,
            "stream": np.unique(columns["tid"][rows], return_inverse=True)[1].astype(np.int64),
            "name": categorical(columns["name"][rows], self._names),
            "kind": categorical(
                kinds.codes([op_kind(name) for name in self._names])[columns["name"][rows]], list(kinds)
            ),
            "forward_op_id": np.where(phase != FORWARD, self._ops.forward[rows], -1),
            "launch_ns": columns["start"][rows],
            "launch_id": zeros - 1,
            "correlation": zeros - 1,
            "graph_id": zeros - 1,
            "step": step_of(self._steps, columns["start"][rows]),
            "phase": categorical(phase, _PHASES),
            "flow_op": zeros - 1,
            **self._op_columns(rows.astype(np.int64)),
        }
        return _frame(table, KERNEL_COLUMNS)

    def memory(self) -> pd.DataFrame:
        rows = np.flatnonzero(self._raw.gpu["kind"] != KERNEL)
        kind = np.where(self._raw.gpu["kind"][rows] == MEMCPY, 0, 1)
        columns = self._gpu_columns(rows)
        columns |= {"kind": categorical(kind, ["memcpy", "memset"]), "bytes": self._raw.gpu["bytes"][rows]}
        return _frame(columns, MEMORY_COLUMNS)

    def launches(self) -> pd.DataFrame:
        rows = np.flatnonzero(self._is_launch)
        calls = self._calls.columns
        columns = self._call_columns(rows)
        columns |= {
            "correlation": calls["correlation"][rows],
            "op_id": self._calls.op[rows],
            "graph": self._calls.graph[rows],
        }
        return _frame(columns, LAUNCH_COLUMNS)

    def syncs(self) -> pd.DataFrame:
        calls = self._calls.columns
        waits = matching(self._raw.names, _SYNC)[calls["name"]] if len(calls) else np.zeros(0, dtype=bool)
        rows = np.flatnonzero(waits)
        columns = self._call_columns(rows)
        columns |= {**self._op_columns(self._calls.op[rows]), "step": step_of(self._steps, calls["start"][rows])}
        return _frame(columns, SYNC_COLUMNS)

    def _call_columns(self, rows: npt.NDArray[np.intp]) -> dict[str, Any]:
        calls = self._calls.columns
        return {
            "start_ns": calls["start"][rows],
            "dur_ns": calls["dur"][rows],
            "pid": calls["pid"][rows],
            "tid": calls["tid"][rows],
            "name": categorical(calls["name"][rows], self._names),
        }

    def ops(self) -> pd.DataFrame:
        columns, ops = self._ops.columns, self._ops
        texts = self._raw.texts
        return _frame(
            {
                "start_ns": columns["start"],
                "dur_ns": columns["dur"],
                "pid": columns["pid"],
                "tid": columns["tid"],
                "name": categorical(columns["name"], self._names),
                "parent": ops.nest.parent,
                "external_id": columns["external_id"],
                "sequence": columns["sequence"],
                **{key: decoded(texts[key], columns[key]) for key in ("shapes", "dtypes", "strides", "concrete")},
                "module": categorical(ops.module, ops.modules),
                "source": categorical(ops.source, ops.sources),
            },
            OP_COLUMNS,
        )


def _frame(columns: dict[str, Any], order: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame({name: columns[name] for name in order}, copy=False)


def _taken(values: npt.NDArray[Any], rows: Ints, missing: int) -> npt.NDArray[np.int64]:
    """Return ``values[rows]``, and ``missing`` where a row is -1."""
    if not len(values):
        return np.full(len(rows), missing, dtype=np.int64)
    return np.where(rows >= 0, values[rows], missing).astype(np.int64)


def categorical(codes: npt.NDArray[Any], texts: Any) -> pd.Categorical:
    """Return codes into ``texts`` as a categorical of the texts that occur; -1 is ``""``."""
    unique, inverse = np.unique(codes, return_inverse=True)
    listed = [texts[code] if code >= 0 else "" for code in unique.tolist()]
    pool = Pool()
    return pd.Categorical.from_codes(
        pool.codes(listed)[inverse.reshape(-1)], categories=pd.Index(list(pool), dtype=object)
    )


def decoded(pool: Pool, codes: npt.NDArray[np.int32]) -> npt.NDArray[np.object_]:
    """Return the JSON texts of a pool as nested tuples, one for each code; None where there was none."""
    values = np.empty(max(len(pool), 1), dtype=object)
    for row, text in enumerate(pool):
        values[row] = tuples(text)
    return values[codes]


def tuples(text: bytes) -> Any:
    """Return a JSON list as nested tuples, None where it is none."""
    try:
        value = msgspec.json.decode(text) if text else None
        return _frozen(value) if isinstance(value, list) else None
    except (msgspec.MsgspecError, RecursionError):
        return None


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _devices(raw: RawTrace) -> tuple[DeviceInfo, ...]:
    listed = raw.header.get("deviceProperties") or raw.header.get("computeProperties")
    known = {whole(d.get("id")): d for d in listed if isinstance(d, dict)} if isinstance(listed, list) else {}
    return tuple(_device(index, known.get(index, {})) for index in np.unique(raw.gpu["device"]).tolist())


def _device(index: int, stated: dict[str, Any]) -> DeviceInfo:
    name, sms, memory = stated.get("name"), whole(stated.get("numSms")), whole(stated.get("totalGlobalMem"))
    major, minor = whole(stated.get("computeMajor")), whole(stated.get("computeMinor"))
    return DeviceInfo(
        index,
        name if isinstance(name, str) and name else None,
        sms if sms > 0 else None,
        memory if memory > 0 else None,
        f"{major}.{minor}" if major > 0 and minor >= 0 else None,
    )


def _recording(raw: RawTrace) -> Recording:
    header = raw.header
    modules = any(name.startswith(frames.MODULE) for name in raw.python_names)
    return Recording(
        stacks=len(raw.python) > 0 or bool(header.get("with_stack")) or len(raw.texts["stack"]) > 1,
        shapes=any(raw.texts["shapes"]) or bool(header.get("record_shapes")),
        memory=raw.memory_recorded or bool(header.get("profile_memory")),
        modules=modules or bool(header.get("with_modules")),
    )


def _rank(header: dict[str, Any]) -> int | None:
    info = header.get("distributedInfo")
    rank = whole(info.get("rank")) if isinstance(info, dict) else -1
    return rank if rank >= 0 else None


def _versions(header: dict[str, Any]) -> dict[str, str]:
    found = {}
    for key, stated in (
        ("cuda", "cuda_runtime_version"),
        ("driver", "cuda_driver_version"),
        ("hip", "hip_runtime_version"),
    ):
        number = whole(header.get(stated))
        if number > 0:  # CUDA writes 12.4 as 12040
            found[key] = f"{number // 1000}.{number % 1000 // 10}" if key != "hip" else str(number)
    for stated in ("torch_version", "pytorch_version", "PyTorch version"):
        if isinstance(header.get(stated), str):
            found["torch"] = header[stated]
    return found
