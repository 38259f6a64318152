"""Charts as inline SVG: no script, no outside resource, colours by class so that a page's theme decides them."""

import math
from collections.abc import Sequence
from html import escape

from fusionadvisor.render.labels import Scale
from fusionadvisor.report.model import Finding, KernelTable, Timing
from fusionadvisor.units import size_bytes, time_us

WIDTH = 1000
"""Units of every chart's own coordinates; the page scales them."""


def svg(height: float, body: Sequence[str], label: str, classes: str = "") -> str:
    """Return a chart as wide as ``WIDTH`` of its own units."""
    named = f' class="{classes}"' if classes else ""
    head = f'<svg{named} viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}">'
    return head + "".join(body) + "</svg>"


def rect(x: float, y: float, width: float, height: float, classes: str, title: str = "") -> str:
    """Return a rectangle that can always be seen."""
    inside = f"<title>{escape(title)}</title>" if title else ""
    place = f'x="{x:.2f}" y="{y:g}" width="{max(width, 0.4):.2f}" height="{height:g}"'
    return f'<rect {place} class="{classes}">{inside}</rect>'


def text(x: float, y: float, words: str, classes: str = "", anchor: str = "start") -> str:
    """Return a line of text on its base line."""
    return f'<text x="{x:.1f}" y="{y:g}" text-anchor="{anchor}" class="{classes}">{escape(words)}</text>'


def css(word: str) -> str:
    """Return a word as the end of a class name."""
    return "".join(c if c.isalnum() else "-" for c in word)


def ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return some round times from ``low`` to ``high`` in µs, with what to write at each."""
    scale = Scale.of(high)
    rough = (high - low) * scale.per_us / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first = math.ceil(low * scale.per_us / step - 1e-9)
    count = math.floor(high * scale.per_us / step + 1e-9) - first + 1
    return [(n * step / scale.per_us, f"{n * step:.{digits}f} {scale.unit}") for n in range(first, first + count)]


def saving(finding: Finding, whole_us: float) -> str:
    """Return a finding's bound as a bar from low to high on the scale of the whole step."""
    step, scale = finding.saving.step_us, WIDTH / max(whole_us, finding.saving.step_us.high, 1e-9)
    body = [rect(0, 2, WIDTH, 12, "track"), rect(0, 2, step.low * scale, 12, "sure"),
            rect(step.low * scale, 2, (step.high - step.low) * scale, 12, "maybe")]  # fmt: skip
    if step.likely is not None:
        body.append(rect(step.likely * scale - 1, 0, 3, 16, "likely"))
    return svg(16, body, f"could save {step.low:.1f} to {step.high:.1f} µs")


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
        body.append(text(left - 12, y + 15, name, "label", "end"))
        for i, sample in enumerate(timing.samples_ms):
            if sample <= high:
                # spread by a fixed pattern, so that equal samples do not hide each other
                body.append(
                    f'<circle cx="{left + (sample - low) * scale:.1f}" cy="{y + 4 + i * 7 % 15}" r="2" class="dot"/>'
                )
        a, b = (left + (edge - low) * scale for edge in timing.ci95_ms)
        body.append(
            rect(a, y, max(b - a, 1.5), 22, "interval", f"95 %: {timing.ci95_ms[0]:.4g}–{timing.ci95_ms[1]:.4g} ms")
        )
        body.append(rect(left + (timing.median_ms - low) * scale - 1, y - 3, 2, 28, "median"))
    bottom = 8 + 34 * len(arms)
    for mark, said in ticks(low * 1e3, (low + span) * 1e3):
        x = left + (mark / 1e3 - low) * scale
        body.insert(0, f'<path class="grid" d="M{x:.2f} 0V{bottom:g}"/>')
        body.append(text(x, bottom + 12, said, "tick", "end" if x > WIDTH - 30 else "middle"))
    return svg(bottom + 18, body, "samples of each arm")


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
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="k-{css(kind)} point"/>')
    decades_x, decades_y = (range(math.ceil(a), math.floor(b) + 1) for a, b in ((x0, x1), (y0, y1)))
    body += [text(at(p, y0)[0], height - 8, size_bytes(10.0**p), "tick", "middle") for p in decades_x]
    body += [text(52, at(x0, p)[1] + 4, time_us(10.0**p), "tick", "end") for p in decades_y]
    return svg(height, body, "bytes moved against time of each kernel")
