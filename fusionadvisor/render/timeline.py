"""Kernels along time: one step of each arm, all on one axis, with the groups that could be one kernel bracketed.

:func:`draw` is the picture that needs no script. ``templates/timeline.js`` draws the same from :func:`data`, and draws
it anew for the part that a reader zooms to.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fusionadvisor.render.charts import WIDTH, css, rect, svg, text, ticks
from fusionadvisor.report.model import Finding, KernelTable, TimelineSummary
from fusionadvisor.units import plural, time_us

COLUMNS = 500
"""Columns a lane is drawn in: more kernels than this are drawn as the kind that fills a column most."""
HEAD, BRACKET, BAR, FOOT = 28, 14, 26, 20
"""Heights: an arm's name, the brackets over a lane, its bars, the axis."""
GUTTER = 96
"""Room for the names of lanes, where there are several."""
SAID = 56
"""Where the rest of an arm's name begins."""
LETTER = 6.6
"""Width of a letter at the most."""
TIGHT = 3
"""Brackets narrower than this are drawn as one with their neighbours."""
APART = 8
"""Kernels between two of a group from which they get a bracket each: one over both would hold what is not meant."""
NAME = 160


@dataclass(frozen=True, slots=True)
class Bar:
    """One kernel as drawn; times in µs from the step's start, ``group`` -1 for none."""

    start: float
    dur: float
    kind: str
    group: int
    label: str
    name: str


@dataclass(frozen=True, slots=True)
class Lane:
    """The kernels of one stream, in order of time."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Arm:
    """One step: ``before``, ``after``, or without a name the only one. ``rules`` name what holds a group."""

    name: str
    length_us: float
    lanes: tuple[Lane, ...]
    rules: Mapping[int, str]


def arm(
    line: TimelineSummary | None, name: str = "", length_us: float | None = None, findings: Sequence[Finding] = (),
    stretch: float = 1.0,
) -> Arm | None:  # fmt: skip
    """Take one step of a timeline; None where it has no kernels.

    Kernels take the time that the report says. Where the step's length is known, the gaps between them are drawn as
    much shorter as it takes to fit it: the profiler makes gaps, and the op times of a CPU, longer than they are.

    Args:
        line: What ran.
        name: What to call it.
        length_us: Of the step, measured without the profiler; None draws starts as recorded.
        findings: Whose rules name the groups that their kernels are in.
        stretch: What all times are multiplied by in the end, for a step that is drawn beside a later one of a machine
            that had become slower.
    """
    rows = _of_one_step(line) if line else []
    if line is None or not rows:
        return None
    table = line.kernels
    rows.sort(key=lambda i: table.start_us[i])
    at = _clock([(table.start_us[i], table.dur_us[i] / line.time_scale) for i in rows], line, length_us)
    lanes: dict[tuple[int, int], list[Bar]] = {}
    for i in rows:
        ends = (table.start_us[i], table.start_us[i] + table.dur_us[i] / line.time_scale)
        start, end = (stretch * at(time) for time in ends)
        op, group = table.op[i], table.group[i] if table.group else -1
        label, known = (op or table.name[i]).removeprefix("aten::"), f"{op}  {table.module[i]}".strip()
        title = f"{table.name[i][:NAME]}\n{known}" if known not in ("", table.name[i]) else table.name[i][:NAME]
        bar = Bar(start, end - start, table.kind[i], group, label[:NAME], title)
        lanes.setdefault((table.device[i], table.stream[i]), []).append(bar)
    several = len({device for device, _ in lanes}) > 1
    last = max(bar.start + bar.dur for bars in lanes.values() for bar in bars)
    return Arm(
        name,
        max(stretch * (length_us or 0.0), last) or 1.0,
        tuple(
            Lane(f"{device} · stream {stream}" if several else f"stream {stream}", tuple(lanes[device, stream]))
            for device, stream in sorted(lanes)
        ),
        _rules(table, findings),
    )


def _rules(table: KernelTable, findings: Sequence[Finding]) -> dict[int, str]:
    """What to write over each group: the rules that found its kernels."""
    found: dict[int, set[str]] = {}
    for finding in findings:
        for kernel in finding.kernels:
            if kernel < len(table.group) and table.group[kernel] >= 0:
                found.setdefault(table.group[kernel], set()).add(finding.rule)
    return {group: ", ".join(sorted(rules)) for group, rules in found.items()}


def _of_one_step(line: TimelineSummary) -> list[int]:
    """Rows of the step in the middle, which is neither the first, still warming up, nor a last one cut off."""
    steps = sorted({step for step in line.kernels.step if step >= 0})
    if not steps:
        return list(range(len(line.kernels.index)))
    middle = steps[len(steps) // 2]
    return [i for i, step in enumerate(line.kernels.step) if step == middle]


def _clock(
    recorded: Sequence[tuple[float, float]], line: TimelineSummary, length_us: float | None
) -> Callable[[float], float]:
    """Return what maps a recorded time to a drawn one, both in µs: busy time by one factor, gaps by another."""
    spans: list[tuple[float, float]] = []
    for start, dur in recorded:
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], start + dur)
        else:
            spans.append((start, start + dur))
    busy = sum(end - start for start, end in spans)
    idle = spans[-1][1] - spans[0][0] - busy
    work = gap = line.time_scale
    if length_us is not None:
        work = min(work, length_us / busy) if line.stand_ins and busy else work
        gap = min(1.0, max(length_us - work * busy, 0.0) / idle) if idle else gap
    edges, drawn = [spans[0][0]], [0.0]
    for number, (start, end) in enumerate(spans):
        if number:
            drawn.append(drawn[-1] + gap * (start - edges[-1]))
            edges.append(start)
        drawn.append(drawn[-1] + work * (end - start))
        edges.append(end)

    def at(time: float) -> float:
        before = min(bisect_right(edges, time) - 1, len(edges) - 2)
        return drawn[before] + (work if before % 2 == 0 else gap) * (time - edges[before])

    return at


def draw(arms: Sequence[Arm], word: str = "kernel") -> str:
    """Return the arms under each other on one axis, empty where there are none; ``word`` is what a bar is."""
    if not arms:
        return ""
    length, left = max(one.length_us for one in arms), _left(arms)
    scale, body, y = (WIDTH - left) / length, [], 0.0
    bottom = sum(_height(one) for one in arms)
    marks = ticks(0.0, length)
    body += [f'<path class="grid" d="M{left + mark * scale:.2f} 0V{bottom:g}"/>' for mark, _ in marks]
    for one in arms:
        if one.name:
            body.append(text(0, y + 20, one.name, "arm"))
            body.append(text(SAID, y + 20, _said(one, word), "tick"))
            y += HEAD
        for lane in one.lanes:
            if left:
                body.append(text(0, y + BRACKET + 17, lane.name, "tick"))
            body.append(rect(left, y + BRACKET, one.length_us * scale, BAR, "track"))
            body += _brackets(lane, one.rules, left, scale, y)
            body += _bars(lane.bars, left, scale, y + BRACKET)
            y += BRACKET + BAR
    for mark, said in marks:
        x = left + mark * scale
        anchor = "start" if mark == 0 else "end" if x > WIDTH - 30 else "middle"
        body.append(text(x, bottom + 14, said, "tick", anchor))
    said = "; ".join(f"{one.name} {_said(one, word)}".strip() for one in arms)
    return svg(bottom + FOOT, body, said, "timeline")


def _said(one: Arm, word: str) -> str:
    return f"{time_us(one.length_us)} · {plural(sum(len(lane.bars) for lane in one.lanes), word)}"


def _left(arms: Sequence[Arm]) -> int:
    return GUTTER if any(len(one.lanes) > 1 for one in arms) else 0


def _height(one: Arm) -> float:
    return (HEAD if one.name else 0) + (BRACKET + BAR) * len(one.lanes)


def _bars(bars: Sequence[Bar], left: float, scale: float, y: float) -> list[str]:
    if len(bars) > COLUMNS:
        return _columns(bars, left, scale, y)
    body = []
    for bar in bars:
        x, width = left + bar.start * scale, bar.dur * scale
        body.append(rect(x, y, width, BAR, f"k k-{css(bar.kind)}", f"{bar.name}\n{time_us(bar.dur)}"))
        if len(bar.label) * LETTER + 8 <= width:
            body.append(text(x + width / 2, y + 17, bar.label, f"in in-{css(bar.kind)}", "middle"))
    return body


def _columns(bars: Sequence[Bar], left: float, scale: float, y: float) -> list[str]:
    width = (WIDTH - left) / COLUMNS
    columns: list[dict[str, float]] = [{} for _ in range(COLUMNS)]
    for bar in bars:
        start, end = bar.start * scale, (bar.start + bar.dur) * scale
        for column in range(int(start / width), min(int(end / width), COLUMNS - 1) + 1):
            covered = max(min(end, (column + 1) * width) - max(start, column * width), 0.0)
            columns[column][bar.kind] = columns[column].get(bar.kind, 0.0) + covered
    body = []
    for column, kinds in enumerate(columns):
        if kinds:
            kind = max(kinds, key=lambda k: kinds[k])
            share = min(sum(kinds.values()) / width, 1.0)
            body.append(rect(left + column * width, y + BAR * (1 - share), width, BAR * share, f"k k-{css(kind)}"))
    return body


def _brackets(lane: Lane, rules: Mapping[int, str], left: float, scale: float, y: float) -> list[str]:
    drawn: list[tuple[float, float, int]] = []
    for group, start, end in _runs(lane.bars):
        a, b = left + start * scale, left + end * scale
        if drawn and a - drawn[-1][1] < TIGHT and min(b - a, drawn[-1][1] - drawn[-1][0]) < TIGHT:
            drawn[-1] = drawn[-1][0], max(b, drawn[-1][1]), -1
        else:
            drawn.append((a, b, group))
    body = []
    for a, b, group in drawn:
        if rule := _fitting(rules.get(group, ""), b - a):
            middle, half = (a + b) / 2, len(rule) * LETTER / 2 + 3
            body.append(
                f'<path class="bracket" d="M{a + 0.75:.2f} {y + 12:g}v-5H{middle - half:.2f}'
                f'M{middle + half:.2f} {y + 7:g}H{b - 0.75:.2f}v5"/>'
            )
            body.append(text(middle, y + 11, rule, "rule", "middle"))
        else:
            end = max(b - 0.75, a + 1.75)
            body.append(f'<path class="bracket" d="M{a + 0.75:.2f} {y + 12:g}v-5H{end:.2f}v5"/>')
    return body


def _fitting(rules: str, width: float) -> str:
    """As much of ``FA101, FA102`` as a bracket has room for, empty for none."""
    first, *others = rules.split(", ")
    shorter = [f"{first} +{len(others)}"] if others else []
    return next((said for said in (rules, *shorter) if said and len(said) * LETTER + 14 <= width), "")


def _runs(bars: Sequence[Bar]) -> list[tuple[int, float, float]]:
    """Group, start and end of each run of a group's kernels that has no more than a few others in it."""
    runs: list[tuple[int, float, float]] = []
    last: dict[int, tuple[int, int]] = {}  # of each group its last kernel, and the run that is in
    for index, bar in enumerate(bars):
        if bar.group < 0:
            continue
        end = bar.start + bar.dur
        before, run = last.get(bar.group, (-APART - 2, 0))
        if index - before > APART + 1:
            run = len(runs)
            runs.append((bar.group, bar.start, end))
        runs[run] = (bar.group, runs[run][1], max(runs[run][2], end))
        last[bar.group] = index, run
    return runs


def data(arms: Sequence[Arm], word: str = "kernel") -> str:
    """Return the arms as JSON that can stand inside a page: times in ns, each start from the one before it."""
    kinds: dict[str, int] = {}
    texts: dict[tuple[str, str], int] = {}

    def packed(lane: Lane) -> dict[str, object]:
        starts = [round(bar.start * 1e3) for bar in lane.bars]
        return {
            "name": lane.name,
            "start": [now - then for now, then in zip(starts, [0, *starts], strict=False)],
            "dur": [round(bar.dur * 1e3) for bar in lane.bars],
            "kind": [kinds.setdefault(css(bar.kind), len(kinds)) for bar in lane.bars],
            "text": [texts.setdefault((bar.label, bar.name), len(texts)) for bar in lane.bars],
            "group": [bar.group for bar in lane.bars],
        }

    shown = [
        {"name": one.name, "said": _said(one, word), "length": one.length_us, "rules": dict(one.rules),
         "lanes": [*map(packed, one.lanes)]}
        for one in arms
    ]  # fmt: skip
    whole = {"left": _left(arms), "arms": shown, "kinds": [*kinds], "texts": [*texts]}
    return json.dumps(whole, separators=(",", ":")).replace("<", "\\u003c")
