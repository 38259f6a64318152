"""Timeline: what ran on the device, linked to what launched it. Tables with fixed columns.

``kernels`` (one row a kernel, sorted by device and start; ``KERNEL_COLUMNS``): times are int64 ns since the first event
of the trace. ``memory`` (memcpy and memset, the same time columns), ``launches`` (runtime calls that put work on a
device), ``ops`` (CPU ops), ``syncs`` (runtime calls in which the CPU waited).
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fusionadvisor.report.model import Basis

if TYPE_CHECKING:
    import pandas as pd

KERNEL_COLUMNS: dict[str, str] = {
    "start_ns": "int64",  # since the trace's first event
    "dur_ns": "int64",
    "device": "int64",
    "stream": "int64",
    "name": "category",  # as recorded
    "kind": "category",  # see trace.kinds
    "op": "category",  # the op that launched it, aten::addmm; "" where unknown
    "op_id": "int64",  # row of ops, -1 where unlinked
    "forward_op_id": "int64",  # for a backward kernel, the row of its forward op; -1 elsewhere
    "launch_ns": "int64",  # start of the launching runtime call; -1 where there is none
    "launch_id": "int64",  # row of launches, -1 where there is none
    "correlation": "int64",  # -1 where missing
    "graph_id": "int64",  # >= 0: replayed by graph launch with this number; -1 launched one by one
    "module": "category",  # qualified path live; class#n/class#n from a recorded trace; "" where unknown
    "source": "category",  # "file.py:31", the first frame of user code; "" where unknown
    "step": "int64",  # index in steps, -1 outside all
    "phase": "category",  # forward | backward | optimizer | ""
    "flow_op": "int64",  # index in FlowGraph.ops, -1 where unknown
}

OP_COLUMNS: dict[str, str] = {
    "start_ns": "int64",
    "dur_ns": "int64",
    "pid": "int64",
    "tid": "int64",
    "name": "category",
    "parent": "int64",  # row of the enclosing op on its thread, -1 at top level
    "external_id": "int64",
    "sequence": "int64",  # autograd's sequence number, -1 where missing
    "shapes": "object",  # tuple of shapes (tuples of int; () for a scalar), None where not recorded
    "dtypes": "object",  # tuple of type names as recorded, None where not recorded
    "strides": "object",  # tuple of strides, None where not recorded
    "concrete": "object",  # tuple of recorded scalar arguments as text, None where not recorded
    "module": "category",
    "source": "category",
}

MEMORY_COLUMNS: dict[str, str] = {
    "start_ns": "int64",
    "dur_ns": "int64",
    "device": "int64",
    "stream": "int64",
    "name": "category",  # "Memcpy DtoH (Device -> Pinned)"
    "kind": "category",  # memcpy | memset
    "bytes": "int64",  # -1 where not recorded
    "op": "category",
    "op_id": "int64",
    "launch_ns": "int64",
    "correlation": "int64",
    "graph_id": "int64",
    "module": "category",
    "source": "category",
    "step": "int64",
}

SYNC_COLUMNS: dict[str, str] = {
    "start_ns": "int64",
    "dur_ns": "int64",
    "pid": "int64",
    "tid": "int64",
    "name": "category",  # cudaDeviceSynchronize, cudaMemcpy, …
    "op": "category",
    "op_id": "int64",
    "module": "category",
    "source": "category",
    "step": "int64",
}

LAUNCH_COLUMNS: dict[str, str] = {
    "start_ns": "int64",
    "dur_ns": "int64",
    "pid": "int64",
    "tid": "int64",
    "name": "category",  # cudaLaunchKernel, cuLaunchKernelEx, hipGraphLaunch, …
    "correlation": "int64",
    "op_id": "int64",
    "graph": "bool",  # a graph launch
}


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration: a window on the CPU and the kernels it launched."""

    index: int
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device that ran something. ``name`` is None where the trace does not say."""

    index: int
    name: str | None = None
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """How the trace was taken; what slows the CPU makes launch times unusable."""

    stacks: bool = False
    shapes: bool = False
    memory: bool = False
    modules: bool = False

    @property
    def light(self) -> bool:
        """True where launch times are near those of an unprofiled run."""
        return not (self.stacks or self.shapes or self.memory or self.modules)


@dataclass(frozen=True, repr=False)
class Timeline:
    """The tables of one trace (one rank), and what is known of how it was taken."""

    kernels: "pd.DataFrame"
    memory: "pd.DataFrame"
    launches: "pd.DataFrame"
    ops: "pd.DataFrame"
    syncs: "pd.DataFrame"
    steps: tuple[Step, ...]
    steps_from: str
    """``ProfilerStep``, ``module calls``, ``repetition`` or ``window``."""
    devices: tuple[DeviceInfo, ...]
    basis: Basis = "recorded"
    stand_ins: bool = False
    time_scale: float = 1.0
    """What the durations of stand-ins were multiplied by, so that a step of them fits into the unprofiled one."""
    recording: Recording = field(default_factory=Recording)
    lost: tuple[str, ...] = ()
    """What a damaged file cost, one sentence each."""
    name: str = ""
    rank: int | None = None
    calls: tuple[int, ...] = ()
    """When each call of the outermost module began, in ns; empty where modules were not recorded."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions the trace states: torch, cuda, driver."""
    own_waits: int = 0
    """How many of ``syncs`` are of the program that profiled, not of what it ran."""

    def __repr__(self) -> str:
        what = "ops standing in for kernels" if self.stand_ins else "kernels"
        steps = f"{len(self.steps)} step{'' if len(self.steps) == 1 else 's'} by {self.steps_from}"
        return f"<Timeline {self.name}: {len(self.kernels)} {what}, {steps}, {len(self.lost)} losses>"

    def _repr_html_(self) -> str:
        """The kernels by kind, for a notebook; the tables are in ``.kernels``, ``.ops``, ``.launches`` and so on."""
        from fusionadvisor.trace.html import timeline_html

        return timeline_html(self)
