"""A Timeline in the numbers a report shows."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fusionadvisor.report.model import Aggregate, DeviceSummary, KernelTable, KindSummary, TimelineSummary
from fusionadvisor.trace.measures import busy_share, busy_us, linked_share, orphan_kernels, span_us, step_us

if TYPE_CHECKING:
    import pandas as pd

    from fusionadvisor.trace.timeline import Timeline

KERNEL_CAP = 20_000
"""Kernels listed one by one in a report; above it only aggregates are complete."""
AGGREGATE_CAP = 200


def summarise(
    timeline: "Timeline",
    group_of: "npt.NDArray[np.int64] | None" = None,
    bytes_of: "npt.NDArray[np.int64] | None" = None,
) -> TimelineSummary:
    """Return what the report says of a timeline.

    Args:
        timeline: The tables of one rank.
        group_of: For each kernel's row the number of its group, -1 for none; None where groups were not sought.
        bytes_of: For each kernel's row what its op reads and writes, -1 where unknown; None where that was not asked.
    """
    steps, shapes = max(1, len(timeline.steps)), _shapes(timeline)
    inside = timeline.kernels["step"].to_numpy() >= 0
    step = step_us(timeline)
    return TimelineSummary(
        basis=timeline.basis,
        stand_ins=timeline.stand_ins,
        time_scale=timeline.time_scale,
        devices=tuple(_device(timeline, info.index, info.name) for info in timeline.devices),
        steps=len(timeline.steps),
        steps_from=timeline.steps_from,
        step_us=step,
        step_kernels=int(inside.sum()) / steps,
        step_kernel_us=int(timeline.kernels["dur_ns"].to_numpy()[inside].sum()) / 1e3 / steps,
        busy_us=busy_share(timeline) * step,
        linked_share=round(linked_share(timeline), 6),
        orphan_kernels=orphan_kernels(timeline),
        launches=len(timeline.launches),
        graph_launches=int(timeline.launches["graph"].sum()),
        rank=timeline.rank,
        by_kind=_by_kind(timeline.kernels, inside, steps),
        lost=timeline.lost,
        kernels=_kernel_table(timeline, shapes, group_of, bytes_of),
        aggregates=_aggregates(timeline, shapes),
    )


def _device(timeline: "Timeline", device: int, name: str | None) -> DeviceSummary:
    rows = timeline.kernels[timeline.kernels["device"] == device]
    return DeviceSummary(
        device=device,
        kernels=len(rows),
        busy_us=busy_us(timeline, device),
        span_us=span_us(timeline, device),
        kernel_us=int(rows["dur_ns"].sum()) / 1e3,
        streams=int(rows["stream"].nunique()),
        name=name,
    )


def _by_kind(kernels: "pd.DataFrame", inside: "npt.NDArray[np.bool_]", steps: int) -> tuple[KindSummary, ...]:
    codes, us = kernels["kind"].cat.codes.to_numpy(), kernels["dur_ns"].to_numpy() / 1e3
    names = list(kernels["kind"].cat.categories)
    counts, of_step = (np.bincount(part, minlength=len(names)) for part in (codes, codes[inside]))
    totals = np.bincount(codes, weights=us, minlength=len(names))
    step_us = np.bincount(codes[inside], weights=us[inside], minlength=len(names))
    rows = [
        KindSummary(str(name), int(counts[i]), float(totals[i]), int(of_step[i]) / steps, float(step_us[i]) / steps)
        for i, name in enumerate(names)
        if counts[i]
    ]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_us, row.kind)))


def _kernel_table(
    timeline: "Timeline",
    shapes: tuple[str, ...],
    group_of: "npt.NDArray[np.int64] | None",
    bytes_of: "npt.NDArray[np.int64] | None",
) -> KernelTable:
    shown = timeline.kernels.iloc[:KERNEL_CAP]
    count = len(shown)
    return KernelTable(
        total=len(timeline.kernels),
        index=tuple(range(count)),
        name=tuple(shown["name"].astype(str)),
        kind=tuple(shown["kind"].astype(str)),
        op=tuple(shown["op"].astype(str)),
        module=tuple(shown["module"].astype(str)),
        source=tuple(shown["source"].astype(str)),
        device=tuple(shown["device"].tolist()),
        stream=tuple(shown["stream"].tolist()),
        start_us=tuple((shown["start_ns"].to_numpy() / 1e3).tolist()),
        dur_us=tuple((shown["dur_ns"].to_numpy() / 1e3).tolist()),
        group=tuple(group_of[:count].tolist()) if group_of is not None else (-1,) * count,
        bytes=tuple(bytes_of[:count].tolist()) if bytes_of is not None else (),
        step=tuple(shown["step"].tolist()),
        shapes=shapes[:count],
    )


def _aggregates(timeline: "Timeline", shapes: tuple[str, ...]) -> tuple[Aggregate, ...]:
    kernels = timeline.kernels
    totals: dict[tuple[str, str, str], tuple[int, int]] = {}
    rows = zip(kernels["op"].tolist(), kernels["module"].tolist(), shapes, kernels["dur_ns"].tolist(), strict=True)
    for op, module, text, dur in rows:
        count, total = totals.get((op, module, text), (0, 0))
        totals[op, module, text] = (count + 1, total + dur)
    ranked = sorted(totals.items(), key=lambda item: (-item[1][1], item[0]))
    return tuple(Aggregate(*key, kernels=count, gpu_us=total / 1e3) for key, (count, total) in ranked[:AGGREGATE_CAP])


def _shapes(timeline: "Timeline") -> tuple[str, ...]:
    """Input shapes of each kernel's op as text."""
    op_ids = timeline.kernels["op_id"].to_numpy()
    used, which = np.unique(op_ids, return_inverse=True)
    text = lru_cache(None)(_shapes_text)  # few shapes, many ops
    recorded = timeline.ops["shapes"].to_numpy()
    words = ["" if op < 0 else text(recorded[op]) for op in used.tolist()]
    return tuple(words[i] for i in which.tolist())


def _shapes_text(shapes: "tuple[Any, ...] | None") -> str:
    """``[8,64] [64]``; the shapes of a list of tensors stand side by side."""
    if not shapes:
        return ""
    if isinstance(shapes[0], int):
        return f"[{','.join(map(str, shapes))}]"
    return " ".join(filter(None, map(_shapes_text, shapes)))
