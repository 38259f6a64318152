"""A stream as an ordinary timeline: the same tables as a recording, with predicted times."""

from typing import TYPE_CHECKING, Any

from fusionadvisor.capture.align import source_text
from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.kernels import Kernel, Transfer, Work
from fusionadvisor.capture.predicted.stream import Stream
from fusionadvisor.capture.predicted.times import Time, time_of
from fusionadvisor.flow.graph import Op
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

if TYPE_CHECKING:
    import pandas as pd

GAP_US, LAUNCH_TO_START_US = 1.2, 6.4
"""Between queued kernels, and from a launch to its kernel on an idle stream (H100 traces)."""
LAUNCH_US = 2.0
STREAM = 7
"""The default stream's number in CUPTI's records."""

_API = {"kernel": "cudaLaunchKernel", "memcpy": "cudaMemcpyAsync", "memset": "cudaMemsetAsync"}
_COPIES = {"HtoD": "Memcpy HtoD (Pageable -> Device)", "DtoH": "Memcpy DtoH (Device -> Pageable)",
           "DtoD": "Memcpy DtoD (Device -> Device)"}  # fmt: skip
_Rows = list[dict[str, Any]]


class Assembly:
    """Rows of the tables, in the order the work is queued."""

    def __init__(self, stream: Stream, gpu: Silicon) -> None:
        self.flow = stream.flow
        self.gpu = gpu
        self.kernels: _Rows = []
        self.memory: _Rows = []
        self.launches: _Rows = []
        self.ops: _Rows = []
        self.syncs: _Rows = []
        self.times: list[Time] = []
        """Of the kernels, in order."""
        self.now_us = LAUNCH_TO_START_US
        for index, work in stream.work:
            self._op(self.flow.ops[index], work)

    def timeline(self, name: str, versions: dict[str, str]) -> Timeline:
        """The tables made so far, as one step."""
        end = _ns(self.now_us)
        return Timeline(
            kernels=_table(self.kernels, KERNEL_COLUMNS),
            memory=_table(self.memory, MEMORY_COLUMNS),
            launches=_table(self.launches, LAUNCH_COLUMNS),
            ops=_table(self.ops, OP_COLUMNS),
            syncs=_table(self.syncs, SYNC_COLUMNS),
            steps=(Step(0, "predicted step", 0, end),),
            steps_from="prediction",
            devices=(
                DeviceInfo(
                    0, self.gpu.recorded_name, self.gpu.multiprocessors, None, "{}.{}".format(*self.gpu.capability)
                ),
            ),
            basis="predicted",
            recording=Recording(shapes=True, modules=True),
            name=name,
            versions=versions,
        )  # fmt: skip

    def _op(self, op: Op, work: tuple[Work, ...]) -> None:
        place = {"module": op.module, "source": source_text(op.source) if op.source else ""}
        outer = self._op_row(op.name, -1, op, place)
        inner: dict[str, int] = {op.name: outer}
        for item in work:
            launching = (item.op if isinstance(item, Kernel) else "aten::copy_") or op.name
            if launching not in inner:
                inner[launching] = self._op_row(launching, outer, op, place)
            self._work(item, launching, inner[launching], op, place)
        for row in inner.values():
            self.ops[row]["dur_ns"] = max(1, _ns(self.now_us) - self.ops[row]["start_ns"])

    def _op_row(self, name: str, parent: int, op: Op, place: dict[str, str]) -> int:
        values = [self.flow.values[v] for v in op.reads]
        self.ops.append({
            "start_ns": _ns(self.now_us), "dur_ns": 1, "pid": 0, "tid": 0, "name": name, "parent": parent,
            "external_id": len(self.ops), "sequence": -1, "shapes": tuple(v.shape for v in values),
            "dtypes": tuple(v.dtype for v in values), "strides": tuple(v.strides for v in values), "concrete": None,
            **place,
        })  # fmt: skip
        return len(self.ops) - 1

    def _work(self, item: Work, launching: str, row: int, op: Op, place: dict[str, str]) -> None:
        if isinstance(item, Transfer):
            self._queue_memory("memcpy", _COPIES[item.direction], item, launching, row, place)
            if item.sync:
                self._sync(launching, row, place)
            return
        if item.memset:
            filled = Transfer("DtoD", item.memset)
            self._queue_memory("memset", "Memset (Device)", filled, launching, row, place)
        took = time_of(item, self.gpu)
        self.times.append(took)
        launch = self._launch("kernel", row)
        self.kernels.append({
            "start_ns": _ns(self.now_us), "dur_ns": _ns(took.likely_us), "device": 0, "stream": STREAM,
            "name": item.label, "kind": item.kind, "op": launching, "op_id": row, "forward_op_id": -1,
            **launch, "graph_id": -1, **place,
            "step": 0, "phase": op.phase, "flow_op": op.index,
        })  # fmt: skip
        self.now_us += took.likely_us + GAP_US

    def _queue_memory(
        self, kind: str, name: str, item: Transfer, launching: str, row: int, place: dict[str, str]
    ) -> None:
        took = time_of(item, self.gpu).likely_us
        launch = self._launch(kind, row)
        del launch["launch_id"]
        self.memory.append({
            "start_ns": _ns(self.now_us), "dur_ns": _ns(took), "device": 0, "stream": STREAM, "name": name,
            "kind": kind, "bytes": item.bytes, "op": launching, "op_id": row, **launch, "graph_id": -1, **place,
            "step": 0,
        })  # fmt: skip
        self.now_us += took + GAP_US

    def _launch(self, kind: str, row: int) -> dict[str, int]:
        """A launch just early enough: how fast the CPU really launches is not predicted."""
        start = _ns(self.now_us - LAUNCH_TO_START_US)
        number = len(self.launches)
        self.launches.append({
            "start_ns": start, "dur_ns": _ns(LAUNCH_US), "pid": 0, "tid": 0, "name": _API[kind],
            "correlation": number + 1, "op_id": row, "graph": False,
        })  # fmt: skip
        return {"launch_ns": start, "launch_id": number, "correlation": number + 1}

    def _sync(self, launching: str, row: int, place: dict[str, str]) -> None:
        self.syncs.append({
            "start_ns": _ns(self.now_us), "dur_ns": _ns(LAUNCH_US), "pid": 0, "tid": 0, "name": "cudaStreamSynchronize",
            "op": launching, "op_id": row, **place, "step": 0,
        })  # fmt: skip


def _ns(us: float) -> int:
    return round(us * 1e3)


def _table(rows: _Rows, columns: dict[str, str]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame({
        name: pd.Series([row[name] for row in rows], dtype=kind) for name, kind in columns.items()
    })  # fmt: skip
