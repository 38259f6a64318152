"""How a timeline looks in a notebook."""

from html import escape

from fusionadvisor.trace.measures import busy_us, kernel_us, linked_share, orphan_kernels, span_us
from fusionadvisor.trace.timeline import Timeline
from fusionadvisor.units import percent, plural, time_us

_TABLE = (
    "<table><thead><tr><th>kind</th><th>kernels</th><th>time</th><th>share</th></tr></thead><tbody>{}</tbody></table>"
)


def timeline_html(timeline: Timeline) -> str:
    """Return a summary: devices, steps, kernels by kind, what is linked and what was lost."""
    parts = [f"<p><b>{escape(timeline.name)}</b>: {escape(_steps(timeline))}</p>"]
    parts += [f"<p>{escape(_device(timeline, info.index, info.name))}</p>" for info in timeline.devices]
    parts.append(_TABLE.format("".join(_rows(timeline))))
    linked = f"{percent(linked_share(timeline))} of kernel time is linked to an op"
    parts.append(f"<p>{linked}; {plural(orphan_kernels(timeline), 'kernel')} without a launch in the trace.</p>")
    parts += [f"<p>Lost: {escape(sentence)}</p>" for sentence in timeline.lost]
    return "".join(parts)


def _steps(timeline: Timeline) -> str:
    return f"{plural(len(timeline.steps), 'step')}, told by {timeline.steps_from}"


def _device(timeline: Timeline, index: int, name: str | None) -> str:
    return (
        f"{name or f'device {index}'}: busy {time_us(busy_us(timeline, index))} of {time_us(span_us(timeline, index))}"
    )


def _rows(timeline: Timeline) -> list[str]:
    total = kernel_us(timeline) or 1.0
    by_kind = timeline.kernels.groupby("kind", observed=True)["dur_ns"].agg(["size", "sum"])
    rows = by_kind.sort_values("sum", ascending=False)
    return [
        f"<tr><td>{escape(str(kind))}</td><td>{count}</td><td>{time_us(ns / 1e3)}</td><td>{percent(ns / 1e3 / total)}</td></tr>"
        for kind, count, ns in zip(rows.index, rows["size"].tolist(), rows["sum"].tolist(), strict=True)
    ]
