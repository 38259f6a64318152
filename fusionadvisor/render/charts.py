"""Charts as inline SVG: no script, no outside resource, colours by class so that a page's theme decides them."""

import math
from collections.abc import Sequence
from html import escape

from fusionadvisor.report.model import Attempt, Finding, KernelTable, Timing
from fusionadvisor.units import size_bytes, time_us

WIDTH = 1000
"""Units of every chart's own coordinates; the page scales them."""
COLUMNS = 500
"""Columns a timeline is drawn in: more kernels than this are drawn as the kind that fills a column most."""


def _svg(height: float, body: Sequence[str], label: str) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}">'
    return head + "".join(body) + "</svg>"


def _rect(x: float, y: float, width: float, height: float, classes: str, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    place = f'x="{x:.2f}" y="{y:g}" width="{max(width, 0.4):.2f}" height="{height:g}"'
    return f'<rect {place} class="{classes}">{inside}</rect>'


def _text(x: float, y: float, text: str, classes: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:g}" text-anchor="{anchor}" class="{classes}">{escape(text)}</text>'


def _anchor(tick: int, last: int) -> str:
    return "start" if tick == 0 else "end" if tick == last else "middle"


def timeline(table: KernelTable) -> str:
    """Return one step's kernels along time, a row a stream, with unfused groups bracketed above; times are in µs."""
    rows = _of_one_step(table)
    if not rows:
        return ""
    start = min(table.start_us[i] for i in rows)
    span = max(table.start_us[i] + table.dur_us[i] for i in rows) - start or 1.0
    lanes = sorted({(table.device[i], table.stream[i]) for i in rows})
    scale, body = WIDTH / span, []
    for lane, key in enumerate(lanes):
        mine = [i for i in rows if (table.device[i], table.stream[i]) == key]
        body += _lane(mine, table, start, scale, 22 + 34 * lane)
    body += _brackets(table, rows, start, scale)
    bottom = 22 + 34 * len(lanes)
    body += [_text(WIDTH * i / 5, bottom + 14, time_us(span * i / 5), "tick", _anchor(i, 5)) for i in range(6)]
    return _svg(bottom + 20, body, f"{len(rows)} kernels over {time_us(span)}")


def _of_one_step(table: KernelTable) -> list[int]:
    """Rows of the step in the middle, which is neither the first, still warming up, nor a last one cut off."""
    steps = sorted({step for step in table.step if step >= 0})
    if not steps:
        return list(range(len(table.index)))
    middle = steps[len(steps) // 2]
    return [i for i, step in enumerate(table.step) if step == middle]


def _lane(mine: list[int], table: KernelTable, start: float, scale: float, y: float) -> list[str]:
    if len(mine) <= COLUMNS:
        return [
            _rect((table.start_us[i] - start) * scale, y, table.dur_us[i] * scale, 26, f"k k-{_css(table.kind[i])}",
                  f"{table.name[i][:160]}\n{table.op[i]}  {table.module[i]}\n{time_us(table.dur_us[i])}")
            for i in mine
        ]  # fmt: skip
    width = WIDTH / COLUMNS
    columns: list[dict[str, float]] = [{} for _ in range(COLUMNS)]
    for i in mine:
        left, right = (table.start_us[i] - start) * scale, (table.start_us[i] + table.dur_us[i] - start) * scale
        for column in range(int(left / width), min(int(right / width), COLUMNS - 1) + 1):
            covered = min(right, (column + 1) * width) - max(left, column * width)
            columns[column][table.kind[i]] = columns[column].get(table.kind[i], 0.0) + max(covered, 0.0)
    body = []
    for column, kinds in enumerate(columns):
        if kinds:
            kind = max(kinds, key=lambda k: kinds[k])
            share = min(sum(kinds.values()) / width, 1.0)
            body.append(_rect(column * width, y + 26 * (1 - share), width, 26 * share, f"k k-{_css(kind)}"))
    return body


def _brackets(table: KernelTable, rows: Sequence[int], start: float, scale: float) -> list[str]:
    ends: dict[int, tuple[float, float]] = {}
    for i in rows:
        if table.group and table.group[i] >= 0:
            left, right = table.start_us[i], table.start_us[i] + table.dur_us[i]
            known = ends.get(table.group[i], (left, right))
            ends[table.group[i]] = (min(known[0], left), max(known[1], right))
    body = []
    for left, right in list(ends.values())[:COLUMNS]:
        a, b = (left - start) * scale, (right - start) * scale
        body.append(f'<path class="bracket" d="M{a:.2f} 18v-6H{max(b, a + 1):.2f}v6"/>')
    return body


def _css(word: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in word)


def saving(finding: Finding, whole_us: float) -> str:
    """Return a finding's bound as a bar from low to high on the scale of the whole step."""
    step, scale = finding.saving.step_us, WIDTH / max(whole_us, finding.saving.step_us.high, 1e-9)
    body = [_rect(0, 2, WIDTH, 12, "track"), _rect(0, 2, step.low * scale, 12, "sure"),
            _rect(step.low * scale, 2, (step.high - step.low) * scale, 12, "maybe")]  # fmt: skip
    if step.likely is not None:
        body.append(_rect(step.likely * scale - 1, 0, 3, 16, "likely"))
    return _svg(16, body, f"could save {step.low:.1f} to {step.high:.1f} µs")


def samples(arms: Sequence[tuple[str, Timing]]) -> str:
    """Return the samples of each arm as a strip of marks with its median and 95 % interval."""
    every = [s for _, timing in arms for s in (*timing.samples_ms, *timing.ci95_ms)]
    if not every:
        return ""
    ordered = sorted(every)
    low, high = ordered[0], ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]
    span = (high - low) or high or 1.0
    left, scale, body = 200, (WIDTH - 220) / span, []
    for row, (name, timing) in enumerate(arms):
        y = 8 + 34 * row
        body.append(_text(left - 12, y + 15, name, "label", "end"))
        for i, sample in enumerate(timing.samples_ms):
            if sample <= high:
                # spread by a fixed pattern, so that equal samples do not hide each other
                body.append(
                    f'<circle cx="{left + (sample - low) * scale:.1f}" cy="{y + 4 + i * 7 % 15}" r="2" class="dot"/>'
                )
        a, b = (left + (edge - low) * scale for edge in timing.ci95_ms)
        body.append(
            _rect(a, y, max(b - a, 1.5), 22, "interval", f"95 %: {timing.ci95_ms[0]:.4g}–{timing.ci95_ms[1]:.4g} ms")
        )
        body.append(_rect(left + (timing.median_ms - low) * scale - 1, y - 3, 2, 28, "median"))
    bottom = 8 + 34 * len(arms)
    body += [
        _text(left + span * i / 4 * scale, bottom + 12, time_us((low + span * i / 4) * 1e3), "tick", _anchor(i, 4))
        for i in range(5)
    ]
    return _svg(bottom + 18, body, "samples of each arm")


def waterfall(attempts: Sequence[Attempt]) -> str:
    """Return the latency from the original through each kept step as bars, shorter is faster.

    Each step divides what was before it by its own speed-up, so that what drifts between the steps is left out.
    """
    kept = [a for a in attempts if a.kept and a.before and a.speedup]
    if not kept or kept[0].before is None:
        return ""
    bars = [("original", kept[0].before.median_ms)]
    for attempt in kept:
        bars.append((attempt.strategy, bars[-1][1] / (attempt.speedup.median if attempt.speedup else 1.0)))
    scale, body = (WIDTH - 330) / max(ms for _, ms in bars), []
    for row, (name, ms) in enumerate(bars):
        y = 4 + 28 * row
        body.append(_text(188, y + 15, name, "label", "end"))
        body.append(_rect(200, y, ms * scale, 20, "after" if row else "before"))
        gain = f"  {bars[0][1] / ms:.2f}×" if row else ""
        body.append(_text(206 + ms * scale, y + 15, time_us(ms * 1e3) + gain, "label"))
    return _svg(8 + 28 * len(bars), body, "latency after each step")


def roofline(table: KernelTable, limit_gbs: float | None) -> str:
    """Return kernels by bytes moved and time, with the line that the memory bandwidth draws.

    Args:
        table: The report's kernels; those of unknown bytes are left out.
        limit_gbs: Bandwidth in GB/s; None draws nothing, for the chart says nothing without it.
    """
    points = {
        (b, round(t, 1), k) for b, t, k in zip(table.bytes, table.dur_us, table.kind, strict=False) if b > 0 and t > 0
    }
    if not points or not limit_gbs:
        return ""
    xs, ys = [math.log10(b) for b, _, _ in points], [math.log10(t) for _, t, _ in points]
    x0, x1, y0, y1 = min(xs) - 0.2, max(xs) + 0.2, min(ys) - 0.2, max(ys) + 0.2
    height = 320

    def at(x: float, y: float) -> tuple[float, float]:
        return 60 + (x - x0) / (x1 - x0) * (WIDTH - 80), (height - 30) * (1 - (y - y0) / (y1 - y0))

    line = [
        at(x, min(max(x - 3 - math.log10(limit_gbs), y0), y1)) for x in (x0 + (x1 - x0) * i / 50 for i in range(51))
    ]
    body = ['<polyline class="roof" points="' + " ".join(f"{x:.1f},{y:.1f}" for x, y in line) + '"/>']
    for size, time, kind in sorted(points)[:3000]:
        x, y = at(math.log10(size), math.log10(time))
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="k-{_css(kind)} point"/>')
    decades_x, decades_y = (range(math.ceil(a), math.floor(b) + 1) for a, b in ((x0, x1), (y0, y1)))
    body += [_text(at(p, y0)[0], height - 8, size_bytes(10.0**p), "tick", "middle") for p in decades_x]
    body += [_text(52, at(x0, p)[1] + 4, time_us(10.0**p), "tick", "end") for p in decades_y]
    return _svg(height, body, "bytes moved against time of each kernel")
