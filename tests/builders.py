"""Synthetic timelines: a few ops with their kernels, as a trace of a GPU would have them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fusionadvisor.trace.timeline import (
    KERNEL_COLUMNS,
    LAUNCH_COLUMNS,
    MEMORY_COLUMNS,
    OP_COLUMNS,
    DeviceInfo,
    Recording,
    Step,
    Timeline,
)

H100 = "NVIDIA H100 80GB HBM3"
CPP = {"float32": "float", "bfloat16": "c10::BFloat16", "float16": "c10::Half", "int64": "long int", "bool": "bool"}


@dataclass(frozen=True)
class T:
    """A tensor argument; strides are those of a contiguous tensor unless given."""

    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    strides: tuple[int, ...] | None = None

    @property
    def steps(self) -> tuple[int, ...]:
        if self.strides is not None:
            return self.strides
        made, step = [], 1
        for size in reversed(self.shape):
            made.append(step)
            step *= size
        return tuple(reversed(made))


@dataclass(frozen=True)
class Call:
    """One op and its kernel. ``args`` are tensors, lists of tensors, or scalars as the trace would print them."""

    name: str
    args: tuple[Any, ...] = ()
    us: float = 10.0
    kind: str = "elementwise"
    kernel: str = ""
    outer: str = ""
    module: str = ""
    source: str = ""
    phase: str = ""
    stream: int = 7
    step: int = 0
    gap_us: float = 0.0
    launch_us: float | None = None
    graph: int = -1
    linked: bool = True
    flow_op: int = -1
    extra: dict[str, Any] = field(default_factory=dict)


def call(name: str, *args: Any, **how: Any) -> Call:
    """``call("aten::add", T((4, 8)), T((4, 8)), "1", us=3.0, module="layer.0")``."""
    return Call(name, args, **how)


def timeline(
    calls: Sequence[Call],
    *,
    gpu: str | None = H100,
    recording: Recording | None = None,
    stand_ins: bool = False,
    shapes: bool = True,
    syncs: Sequence[dict[str, Any]] = (),
    memory: Sequence[dict[str, Any]] = (),
    helpers: dict[int, tuple[str, ...]] | None = None,
) -> Timeline:
    """Return a timeline in which each call's kernel follows the one before, ``gap_us`` later.

    ``helpers`` names further kernels of a call, of kind layout and 5 µs each.
    """
    kernels: list[dict[str, Any]] = []
    ops: list[dict[str, Any]] = []
    launches: list[dict[str, Any]] = []
    at = 0.0
    for index, c in enumerate(calls):
        at = round(at + c.gap_us, 3)
        op_id = _add_op(ops, c, shapes) if c.linked else -1
        launch = at - 6.4 if c.launch_us is None else c.launch_us
        if c.linked:
            launches.append(
                {"start_ns": _ns(launch), "dur_ns": 4000, "name": "cudaLaunchKernel", "correlation": len(kernels) + 1,
                 "op_id": op_id, "graph": c.graph >= 0, "pid": 1, "tid": 1}
            )  # fmt: skip
        kernels.append(
            {"start_ns": _ns(at), "dur_ns": _ns(c.us), "device": 0, "stream": c.stream,
             "name": c.kernel or f"{c.kind}_kernel", "kind": c.kind, "op": c.name if c.linked else "", "op_id": op_id,
             "forward_op_id": -1, "launch_ns": _ns(launch) if c.linked else -1,
             "launch_id": len(launches) - 1 if c.linked else -1, "correlation": len(kernels) + 1, "graph_id": c.graph,
             "module": c.module, "source": c.source, "step": c.step, "phase": c.phase, "flow_op": c.flow_op}
        )  # fmt: skip
        at += _ns(c.us) / 1000
        for name in (helpers or {}).get(index, ()):
            kernels.append({**kernels[-1], "start_ns": _ns(at), "dur_ns": 5000, "name": name, "kind": "layout"})
            at += 5
    indices = sorted({c.step for c in calls if c.step >= 0}) or [0]
    return Timeline(
        kernels=table(kernels, KERNEL_COLUMNS),
        memory=table(list(memory), MEMORY_COLUMNS),
        launches=table(launches, LAUNCH_COLUMNS),
        ops=table(ops, OP_COLUMNS),
        syncs=table(list(syncs), _SYNCS),
        steps=tuple(Step(i, f"ProfilerStep#{i}", *_range(kernels, i, _ns(at))) for i in indices),
        steps_from="ProfilerStep",
        devices=(DeviceInfo(0, gpu),),
        stand_ins=stand_ins,
        recording=recording if recording is not None else Recording(shapes=True),
    )


def _range(kernels: list[dict[str, Any]], step: int, end: int) -> tuple[int, int]:
    """From a step's first kernel to its last, as if the CPU had waited for it; all of the time without kernels."""
    mine = [k for k in kernels if k["step"] == step]
    if not mine:
        return 0, end
    return min(k["start_ns"] for k in mine), max(k["start_ns"] + k["dur_ns"] for k in mine)


_SYNCS = {
    **{k: LAUNCH_COLUMNS[k] for k in ("start_ns", "dur_ns", "pid", "tid", "name", "op_id")},
    **{k: KERNEL_COLUMNS[k] for k in ("module", "source", "step")},
}


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    """Return rows as a DataFrame of exactly these columns."""
    made: dict[str, Any] = {}
    for name, kind in columns.items():
        missing = {"category": "", "int64": -1}.get(kind)
        values = [row.get(name, missing) for row in rows]
        column: Any = pd.Series(values, dtype=object)
        made[name] = column if kind == "object" else column.astype(kind)
    return pd.DataFrame(made, columns=list(columns))


def _ns(us: float) -> int:
    return round(us * 1000)


def _add_op(ops: list[dict[str, Any]], c: Call, shapes: bool) -> int:
    base: dict[str, Any] = {"start_ns": 0, "dur_ns": 1000, "pid": 1, "tid": 1, "external_id": -1, "sequence": -1,
            "shapes": None, "dtypes": None, "strides": None, "concrete": None, "module": c.module,
            "source": c.source}  # fmt: skip
    parent = -1
    if c.outer:
        ops.append({**base, "name": c.outer, "parent": -1})
        parent = len(ops) - 1
    row = {**base, "name": c.name, "parent": parent}
    if shapes:
        row.update(zip(("shapes", "dtypes", "strides", "concrete"), _arguments(c.args), strict=True))
    ops.append(row)
    return len(ops) - 1


def _arguments(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
    shapes: list[Any] = []
    dtypes: list[str] = []
    strides: list[Any] = []
    concrete: list[str] = []
    for arg in args:
        if isinstance(arg, T):
            row: tuple[Any, str, Any, str] = (arg.shape, CPP[arg.dtype], arg.steps, "")
        elif isinstance(arg, list):
            row = (tuple(t.shape for t in arg), "TensorList", tuple(t.steps for t in arg), "")
        else:
            row = ((), "ScalarList" if str(arg).startswith("[") else "Scalar", (), str(arg))
        for column, value in zip((shapes, dtypes, strides, concrete), row, strict=True):
            column.append(value)
    return tuple(shapes), tuple(dtypes), tuple(strides), tuple(concrete)
