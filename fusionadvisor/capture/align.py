"""Tell which recorded op each profiled op is, by order: the profile then knows modules, source lines and data flow."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fusionadvisor import sequences
from fusionadvisor.flow.graph import FlowGraph, Frame
from fusionadvisor.trace.standin import rearranges
from fusionadvisor.trace.timeline import Timeline

if TYPE_CHECKING:
    import numpy.typing as npt

_SAME = {"aten::_index_put_impl": "aten::index_put"}
"""Ops that backward formulas call in place of others where no dispatch mode is active."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """A timeline with its links filled in, and how many kernels got none."""

    timeline: Timeline
    unlinked: int
    kernels: int


def align(timeline: Timeline, flow: FlowGraph) -> Alignment:
    """Match each step's ops with the recording's in order; fill ``flow_op``, ``module``, ``source`` and ``phase``."""
    wanted = [op.index for op in flow.ops if not op.view and not rearranges(op.name)]
    names = [_token(flow.ops[i].name) for i in wanted]
    ops = timeline.ops
    flow_of_op = np.full(len(ops), -1, dtype=np.int64)
    starts = ops["start_ns"].to_numpy()
    parent = ops["parent"].to_numpy()
    known = frozenset(names)
    tokens = {name: _token(str(name)) for name in ops["name"].unique()}
    op_names = [tokens[name] for name in ops["name"]]
    order = np.argsort(starts, kind="stable")
    for step in timeline.steps:
        low, high = np.searchsorted(starts[order], [step.start_ns, step.end_ns])
        rows = _outermost(order[low:high].tolist(), parent.tolist(), op_names, known)
        for theirs, ours in sequences.align([op_names[row] for row in rows], names).pairs:
            flow_of_op[rows[theirs]] = wanted[ours]
    place_of_op = _spread(flow_of_op, parent, order, flow)
    op_id = timeline.kernels["op_id"].to_numpy()
    kernels = _filled(timeline.kernels, _taken(place_of_op, op_id), flow).assign(flow_op=_taken(flow_of_op, op_id))
    inside = (kernels["step"] >= 0).to_numpy() if timeline.steps else np.ones(len(kernels), dtype=bool)
    unlinked = int(((_taken(place_of_op, op_id) < 0) & inside).sum())
    linked = replace(timeline, kernels=kernels, ops=_filled(ops, place_of_op, flow))
    return Alignment(linked, unlinked, int(inside.sum()))


def _token(name: str) -> str:
    """What an op is matched by: autograd adds gradients in place only where nobody records them."""
    bare = name.removesuffix("_")
    return _SAME.get(bare, bare)


def _spread(
    flow_of_op: "npt.NDArray[np.int64]",
    parent: "npt.NDArray[np.int64]",
    order: "npt.NDArray[np.intp]",
    flow: FlowGraph,
) -> "npt.NDArray[np.int64]":
    """Give what is inside a matched op, and a wrapper around a single one, the same recorded op.

    Returns:
        For each op a recorded op that tells its place in the model. It says more than ``flow_of_op`` for a wrapper
        around several ops of one module call, which runs as one what is recorded taken apart (``_fused_rms_norm``).
    """
    matched = np.flatnonzero(flow_of_op >= 0)
    for row in order.tolist():  # parents come before their children
        if flow_of_op[row] < 0 and parent[row] >= 0:
            flow_of_op[row] = flow_of_op[parent[row]]
    around: dict[int, set[int]] = {}
    for row in matched.tolist():
        above = parent[row]
        while above >= 0:
            around.setdefault(int(above), set()).add(int(flow_of_op[row]))
            above = parent[above]
    place_of_op = flow_of_op.copy()
    for row, inner in around.items():
        if len(inner) == 1:
            flow_of_op[row] = place_of_op[row] = next(iter(inner))
        elif len({(flow.ops[i].module, flow.ops[i].call) for i in inner}) == 1:
            place_of_op[row] = min(inner)
    return place_of_op


def _outermost(rows: Sequence[int], parent: Sequence[int], names: Sequence[str], known: frozenset[str]) -> list[int]:
    """Of a step's op rows in order of time, those with a recorded name that are not inside another such op."""
    inside: set[int] = set()
    found = []
    for row in rows:
        if parent[row] in inside:
            inside.add(row)
        elif names[row] in known:
            inside.add(row)
            found.append(row)
    return found


def _taken(values: "npt.NDArray[np.int64]", rows: "npt.NDArray[np.int64]") -> "npt.NDArray[np.int64]":
    found: npt.NDArray[np.int64] = np.where(rows >= 0, values[np.maximum(rows, 0)], -1) if len(values) else rows * 0 - 1
    return found


def _filled(table: "pd.DataFrame", flow_op: "npt.NDArray[np.int64]", flow: FlowGraph) -> "pd.DataFrame":
    """The table with module, source and phase from the recording where a row is linked."""
    linked = [flow.ops[i] if i >= 0 else None for i in flow_op.tolist()]
    told: dict[str, list[str | None]] = {
        "module": [op.module if op else None for op in linked],
        "source": [source_text(op.source) if op and op.source else None for op in linked],
        "phase": [op.phase if op else None for op in linked],
    }
    for column in told.keys() & set(table.columns):
        before = table[column].astype(str).tolist()
        merged = [old if new is None else new for old, new in zip(before, told[column], strict=True)]
        table = table.assign(**{column: pd.Categorical(merged)})
    return table


@cache
def source_text(frame: Frame) -> str:
    """``model.py:31``, the path relative to the current folder where it lies below it."""
    here = os.getcwd() + os.sep
    return f"{frame.file.removeprefix(here)}:{frame.line}"
