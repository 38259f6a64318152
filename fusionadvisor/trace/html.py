"""How a timeline looks in a notebook."""

from html import escape

from fusionadvisor.trace.measures import busy_us, kernel_us, linked_share, orphan_kernels, span_us
from fusionadvisor.trace.timeline import Timeline
from fusionadvisor.units import percent, plural, time_us

_HEAD = "<tr><th>kind</th><th>kernels</th><th>time</th><th>share</th></tr>"


def timeline_html(timeline: Timeline) -> str:
    """Return a summary: devices, steps, kernels by kind, what is linked and what was lost."""
    steps = f"{plural(len(timeline.steps), 'step')}, told by {timeline.steps_from}"
    linked = f"{percent(linked_share(timeline))} of kernel time is linked to an op"
    orphans = f"{plural(orphan_kernels(timeline), 'kernel')} without a launch in the trace"
    return "".join(
        (
            f"<p><b>{escape(timeline.name)}</b>: {steps}</p>",
            *(f"<p>{escape(_device(timeline, info.index, info.name))}</p>" for info in timeline.devices),
            f"<table><thead>{_HEAD}</thead><tbody>{''.join(_rows(timeline))}</tbody></table>",
            f"<p>{linked}; {orphans}.</p>",
            *(f"<p>Lost: {escape(sentence)}</p>" for sentence in timeline.lost),
        )
    )


def _device(timeline: Timeline, index: int, name: str | None) -> str:
    busy, span = time_us(busy_us(timeline, index)), time_us(span_us(timeline, index))
    return f"{name or f'device {index}'}: busy {busy} of {span}"


def _rows(timeline: Timeline) -> list[str]:
    total = kernel_us(timeline) or 1.0
    by_kind = timeline.kernels.groupby("kind", observed=True)["dur_ns"].agg(["size", "sum"])
    by_kind = by_kind.sort_values("sum", ascending=False)
    cells = zip(by_kind.index, by_kind["size"].tolist(), (by_kind["sum"] / 1e3).tolist(), strict=True)
    return [
        "".join(f"<td>{cell}</td>" for cell in (escape(str(kind)), count, time_us(us), percent(us / total))).join(
            ("<tr>", "</tr>")
        )
        for kind, count, us in cells
    ]
