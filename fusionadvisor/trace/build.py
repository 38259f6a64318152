"""From recorded columns to a :class:`~fusionadvisor.trace.timeline.Timeline`: one clock, sound times, linked tables."""

import re
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from fusionadvisor.errors import InputError
from fusionadvisor.trace.clock import settle_times
from fusionadvisor.trace.container import open_trace
from fusionadvisor.trace.events import Pool
from fusionadvisor.trace.header import devices, no_gpu, rank, recording, versions
from fusionadvisor.trace.kinds import copy_kind, kernel_kind, linked_kind, op_kind
from fusionadvisor.trace.link import FORWARD, Calls, Ops, launching_calls, link_calls, link_ops, matching
from fusionadvisor.trace.numbers import Ints
from fusionadvisor.trace.reader import KERNEL, MEMCPY, RawTrace, read
from fusionadvisor.trace.standin import stand_in_rows
from fusionadvisor.trace.steps import find_steps, step_of
from fusionadvisor.trace.timeline import (
    KERNEL_COLUMNS,
    LAUNCH_COLUMNS,
    MEMORY_COLUMNS,
    OP_COLUMNS,
    SYNC_COLUMNS,
    DeviceInfo,
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
    raw = read(open_trace(source))
    if len(processes := raw.processes()) > 1:
        raise MergedError(raw.name, processes)
    return build(raw, stand_ins=stand_ins)


class MergedError(InputError):
    """One file holds the traces of several processes, whose devices and streams bear equal numbers."""

    def __init__(self, name: str, processes: tuple[str, ...]) -> None:
        shown = ", ".join(processes[:4]) + (", …" if len(processes) > 4 else "")
        super().__init__(
            f"{name} holds the traces of {len(processes)} processes ({shown}).",
            "Read it with fusionadvisor.trace.ranks.load_ranks, which takes them apart.",
        )


def build(raw: RawTrace, *, stand_ins: bool = False) -> Timeline:
    """Link recorded columns into a timeline.

    Raises:
        InputError: If there are no GPU events and nothing may stand in for them.
    """
    had_gpu = len(raw.gpu) > 0
    lost = [*raw.lost, *settle_times(raw)]
    on_cpu = not len(raw.gpu)
    if on_cpu and not (stand_ins and len(raw.ops)):
        raise no_gpu(raw, untimed=had_gpu)
    ops = link_ops(raw)
    calls = link_calls(raw, ops)
    steps, steps_from = find_steps(raw, ops, calls, _window(raw))
    names = np.array(list(raw.names), dtype=object)
    tables = _Tables(raw, ops, calls, steps, names)
    if on_cpu:
        kernels = tables.stand_ins(stand_in_rows(ops, list(raw.names), list(raw.texts["shapes"])))
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
        devices=(DeviceInfo(0, "CPU"),) if on_cpu else devices(raw),
        stand_ins=on_cpu,
        recording=recording(raw),
        lost=tuple(lost),
        name=raw.name,
        rank=rank(raw),
        calls=tuple(ops.module_calls.tolist()),
        versions=versions(raw),
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
        """The calls in which the CPU waited: those that say so, and copies that returned only when they were done.

        A copy from pageable memory waits for all work before it; the call that synchronizes after it returns at once,
        and both are one wait.
        """
        calls, gpu = self._calls.columns, self._raw.gpu
        count = len(calls)
        waits = matching(self._raw.names, _SYNC)[calls["name"]] if count else np.zeros(0, dtype=bool)
        copied = np.flatnonzero((gpu["kind"] == MEMCPY) & (self._call >= 0))
        copying = self._call[copied]
        done = gpu["start"][copied] + gpu["dur"][copied]
        ends = calls["start"] + calls["dur"]
        slow = np.zeros(count, dtype=bool)
        slow[copying[ends[copying] >= done]] = True
        slow &= ~self._calls.graph & ~waits
        rows = np.flatnonzero(waits | slow)
        after = np.flatnonzero(waits[rows[1:]] & slow[rows[:-1]]) + 1
        op = self._calls.op
        after = after[(op[rows[after]] >= 0) & (op[rows[after]] == op[rows[after - 1]])]
        columns = self._call_columns(rows)
        columns["dur_ns"] = columns["dur_ns"].copy()
        columns["dur_ns"][after - 1] = ends[rows[after]] - columns["start_ns"][after - 1]
        columns |= {**self._op_columns(op[rows]), "step": step_of(self._steps, calls["start"][rows])}
        kept = np.setdiff1d(np.arange(len(rows)), after)
        return _frame(columns, SYNC_COLUMNS).iloc[kept].reset_index(drop=True)

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
    shifted = np.asarray(codes, dtype=np.int64) + 1
    used = np.flatnonzero(np.bincount(shifted))
    pool = Pool()
    short = np.zeros(int(used.max(initial=0)) + 1, dtype=np.int32)
    short[used] = pool.codes([texts[code - 1] if code else "" for code in used.tolist()])
    return pd.Categorical.from_codes(short[shifted], categories=pd.Index(list(pool), dtype=object))


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
