"""A report as text for a terminal: the verdict first, then what it rests on. Works from the report alone."""

import os
from collections.abc import Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

from fusionadvisor import catalog
from fusionadvisor.render import labels, variants, verdict
from fusionadvisor.render.attempts import attempts
from fusionadvisor.render.text import Piece, Sheet, cleaned
from fusionadvisor.report.model import Finding, Report
from fusionadvisor.units import percent, plural, range_us, size_bytes, time_us

if TYPE_CHECKING:
    from rich.console import Console

MAX_WIDTH = 110
"""Lines longer than this are hard to read; wider terminals leave the rest empty."""
BAR = 22
FINDINGS_SHOWN = 12
KINDS_SHOWN = 8
REASONS_SHOWN = 6
NEARLY_SHOWN = 4
VARIANT_GAP, FIGURES, TITLE = "   ", (1, 2, 3), 20
"""Of the table of several workloads: between columns, which are figures, and the least a finding's title takes."""

RECIPE = "recipe.json"
"""A recipe is kept only where another process loaded it and its outputs agreed."""

APART = 0.1
"""How far the time of the kernels may be from that of the step before shares have to say which they are of."""
WIDE = 96
"""Cells from which the remedy gets a column of its own."""
HOW = 15
NARROW = 60
"""Cells from which a row of kinds has room for their number and a bar."""


def render(report: Report, console: "Console") -> None:
    """Print a report.

    Args:
        report: What one command found.
        console: Its width, encoding and colour decide the form; ``TERM=dumb`` or a narrow encoding gives ASCII.
    """
    for line in compose(report, min(console.width, MAX_WIDTH), ascii_only=ascii_only(console)).lines:
        console.print(line, soft_wrap=True, highlight=False)


def ascii_only(console: "Console") -> bool:
    """True where the terminal cannot be trusted with more than ASCII."""
    return os.environ.get("TERM") == "dumb" or not console.encoding.lower().replace("-", "").startswith("utf")


def compose(report: Report, width: int, *, ascii_only: bool = False) -> Sheet:
    """Return the report as lines of at most ``width`` cells where words allow."""
    sheet = Sheet(width, ascii_only=ascii_only)
    report = cleaned(report)
    _header(sheet, report)
    _subject(sheet, report)
    if report.attempts or report.command == "apply":
        attempts(sheet, report)
    elif report.variants:
        _variants(sheet, report)
    else:
        _profile(sheet, report)
    _footer(sheet, report)
    return sheet


def _variants(sheet: Sheet, report: Report) -> None:
    """The workloads side by side; then in full each kind of step, of several batch sizes the first."""
    sheet.gap()
    if said := variants.best(report):
        sheet.say(said, style="bold", lead=["  "], indent=2)
        sheet.gap()
    table = [variants.headings(report), *map(astuple, variants.rows(report))]
    widths = [max(sheet.size(row[i]) for row in table) for i in range(len(table[0]))]
    widths[-1] = sheet.width + 1 - sum(width + len(VARIANT_GAP) for width in widths[:-1]) - 3
    if widths[-1] < TITLE:  # there is no room for what was found
        widths.pop()
    for i, row in enumerate(table):
        cells = [sheet.cell(row[c], width, right=c in FIGURES) for c, width in enumerate(widths)]
        sheet.add((sheet.cell("  " + VARIANT_GAP.join(cells), sheet.width), "" if i else "dim"))
    for note in variants.notes(report):
        sheet.say(note, style="dim", lead=["  "], indent=2)
    kinds: set[str | None] = set()
    for name, one in zip(variants.names(report), variants.each(report), strict=True):
        entry = one.workload.entry if one.workload else None
        if entry in kinds:
            continue
        kinds.add(entry)
        sheet.gap()
        inputs = [labels.tensor(spec) for spec in one.workload.inputs] if one.workload else []
        sheet.flow([(name, "bold"), *inputs], lead=[("In full   ", "bold")], indent=10)
        _profile(sheet, one)


def _profile(sheet: Sheet, report: Report) -> None:
    sheet.gap()
    sheet.say(verdict.of_findings(report), style="bold", lead=["  "], indent=2)
    sheet.gap()
    _step(sheet, report)
    _kinds(sheet, report)
    _predicted(sheet, report)
    _ranks(sheet, report)
    _findings(sheet, report)
    _rest(sheet, report)


def _header(sheet: Sheet, report: Report) -> None:
    env, items = report.environment, [f"{report.tool.name} {report.tool.version}"]
    if labels.cpu_times(report):
        where = "recorded without a GPU" if report.command == "analyze" else "no CUDA device here"
        items += [where, "CPU ops stand in for kernels", "CPU times", labels.scaled(report)]
    elif labels.predicted(report):
        items += [] if env.gpu else ["no CUDA device here"]
        items += [f"kernels predicted for {labels.predicted(report)}", "structure exact, times not"]
    elif report.command == "analyze":
        items.append(f"recorded on {env.gpu or 'a device the trace does not name'}")
    else:
        items.append(env.gpu or "no CUDA device here")
    items += [f"torch {env.torch}" if env.torch else "", labels.bandwidth(env)]
    if env.cpu and env.threads and labels.cpu_times(report):
        items.append(f"{plural(env.threads, 'thread')}")
    sheet.flow([(item, "dim" if i else "bold") for i, item in enumerate(items) if item], lead=[""], indent=2)


def _subject(sheet: Sheet, report: Report) -> None:
    if report.workload:
        work = report.workload
        name = labels.target(work) + (f" → {work.model}" if work.model else "")
        mode = "training step" if work.mode == "training" else "eval, no_grad"
        sheet.flow([(name, "bold"), *(labels.tensor(spec) for spec in work.inputs), mode], lead=[""], indent=2)
        if work.assumed:
            sheet.flow([(a, "dim") for a in work.assumed], lead=[("assumed: ", "dim")], indent=9)
        return
    line = report.timeline
    items = [(labels.file_name(report.source), "bold")]
    if line:
        count = plural(verdict.kernels(report), "kernel")
        items.append((f"{count} in {plural(line.steps, 'step')} ({_steps_from(line.steps_from)})", ""))
        devices = len([d for d in line.devices if d.kernels])
        items += [(plural(devices, "device"), "")] if devices > 1 else []
        if linked := verdict.kernels(report) and line.linked_share:
            items.append((f"{percent(linked)} of kernel time linked to its op", ""))
        if line.orphan_kernels:
            items.append((f"{plural(line.orphan_kernels, 'kernel')} without a launch in the recording", ""))
    sheet.flow(items, lead=[""], indent=2)


def _steps_from(word: str) -> str:
    return {"window": "the whole window", "repetition": "by repetition"}.get(word, f"by {word}")


def _step(sheet: Sheet, report: Report) -> None:
    line = report.timeline
    if line is None or not verdict.kernels(report):
        return
    items: list[Piece] = []
    scale = verdict.scale(report)
    if report.latency:
        samples = len(report.latency.samples_ms)
        middle = f"median of {samples}" if samples else "median"
        items.append(f"{labels.interval(report.latency)} ({middle}, 95 %)")
    elif line.steps > 1:
        items.append(f"{scale.time(line.step_us)} (median of {line.steps})")
    else:
        items.append(scale.time(line.step_us))
    if (busy := _busy(report)) is not None:
        items.append(f"GPU busy {percent(busy)}")
    count = plural(round(verdict.kernels(report) / verdict.steps_shown(report)), labels.kernel_word(report))
    share = verdict.unfused_share(report)
    items.append(f"{count}, {percent(share)} of their time unfused" if share else count)
    moved = sum(b for b in line.kernels.bytes if b > 0)
    if moved and all(b >= 0 for b in line.kernels.bytes):
        items.append(f"{size_bytes(moved / verdict.steps_shown(report))} moved")
    if report.fusion.syncs:
        items.append((verdict.syncs(report), "yellow"))
    if report.fusion.graphed_share:
        items.append(f"{percent(report.fusion.graphed_share)} replayed from a graph")
    sheet.flow(items, lead=[("Step      ", "bold")], indent=10, gap="   ")
    told = any(catalog.concerns(f.rule, "launches") for f in report.findings)
    of_gpu = not labels.cpu_times(report) and not labels.predicted(report)
    if report.fusion.launch_bound.share is None and of_gpu and not told:
        sheet.say(report.fusion.launch_bound.reason, style="dim", lead=[" " * 10], indent=10)


def _busy(report: Report) -> float | None:
    if report.timeline is None or labels.cpu_times(report) or labels.predicted(report):
        return None
    busy = sum(device.busy_us for device in report.timeline.devices)
    if report.latency:
        return min(busy / verdict.steps_shown(report) / (report.latency.median_ms * 1e3), 1.0)
    span = sum(device.span_us for device in report.timeline.devices)
    return min(busy / span, 1.0) if span else None


def _kinds(sheet: Sheet, report: Report) -> None:
    if report.timeline is None or not report.timeline.by_kind:
        return
    steps, scale = verdict.steps_shown(report), verdict.scale(report)
    total = sum(kind.gpu_us for kind in report.timeline.by_kind) or 1.0
    ranked = sorted(report.timeline.by_kind, key=lambda kind: -kind.gpu_us)
    rows = [(labels.KINDS.get(k.kind, k.kind), k.kernels, k.gpu_us) for k in ranked[:KINDS_SHOWN]]
    if rest := ranked[KINDS_SHOWN:]:
        rows.append((f"{len(rest)} other kinds", sum(k.kernels for k in rest), sum(k.gpu_us for k in rest)))
    counted = sheet.width >= NARROW
    for name, count, time in rows:
        share = time / total
        sheet.add(
            f"  {sheet.cell(name, 18)}",
            sheet.cell(plural(round(count / steps), labels.kernel_word(report)), 14, right=True) if counted else "",
            sheet.cell(scale.time(time / steps), 12, right=True),
            sheet.cell(percent(share), 8, right=True),
            "  ",
            (_bar(share, min(BAR, max(sheet.width - (58 if counted else 44), 0))), "cyan"),
        )
    if abs(total / steps - (whole := verdict.of_step(report))) > APART * whole:
        word = labels.kernel_word(report)
        sheet.say(f"shares are of the {word}s' time together, {scale.time(total / steps)}", style="dim", indent=2)


def _predicted(sheet: Sheet, report: Report) -> None:
    """The step on a GPU that is not here, beside times that were measured."""
    found = report.predicted
    if found is None or labels.predicted(report):
        return
    items = [f"on {found.gpu}: {plural(found.kernels, 'kernel')}", f"{plural(found.groups, 'group')} to fuse"]
    if found.unfused_bytes:
        items.append(f"{size_bytes(found.unfused_bytes)} of {size_bytes(found.bytes)} only written to be read again")
    items.append(plural(found.syncs, "sync"))
    items.append(range_us(found.kernel_us.low, found.kernel_us.high))
    if found.uncalibrated_share >= 0.005:
        items.append(f"{percent(found.uncalibrated_share)} of that not calibrated")
    sheet.flow(items, lead=[("Predicted ", "bold")], indent=10)


def _ranks(sheet: Sheet, report: Report) -> None:
    if len(report.ranks) < 2:
        return
    sheet.gap()
    titles = ("kernels", "step", "compute", "collectives", "exposed", "waiting")
    sheet.add(("Ranks   ", "bold"), *((sheet.cell(title, 12, right=True), "dim") for title in titles))
    for rank in report.ranks:
        times = (rank.step_us, rank.compute_us, rank.collective_us, rank.exposed_us, rank.waiting_us)
        sheet.add(
            f"  {sheet.cell(str(rank.rank), 6)}",
            sheet.cell(f"{rank.kernels:,}", 12, right=True),
            *(sheet.cell(time_us(time), 12, right=True) for time in times),
            ("  the others wait for it", "yellow") if rank.straggler else "",
        )


def _bar(share: float, width: int) -> str:
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _findings(sheet: Sheet, report: Report) -> None:
    ranked = verdict.ranked(report)
    if not ranked:
        return
    wide = sheet.width >= WIDE
    common = verdict.common(ranked)
    sheet.gap()
    title = f"could save ({labels.bound(report)})"
    room = sheet.width - 2 - len("Findings") - (HOW if wide else 0)
    sheet.add(("Findings", "bold"), (sheet.cell(title, room, right=True), "dim"), ("  how" if wide else "", "dim"))
    for finding in ranked[:FINDINGS_SHOWN]:
        _finding(sheet, report, finding, common)
    if (more := len(ranked) - FINDINGS_SHOWN) > 0:
        sheet.add((f"  and {plural(more, 'smaller finding')} (all in --json)", "dim"))
    if notes := [f for f in report.findings if f.footnote]:
        names = [f"{f.rule} {labels.place(f, 20)}" for f in notes[:4]]
        names += [f"{len(notes) - 4} more"] if len(notes) > 4 else []
        sheet.flow([(n, "dim") for n in names], lead=[("  too small to act on: ", "dim")], indent=9)
    for sentence in common:
        sheet.say(sentence, style="dim", indent=2)


def _finding(sheet: Sheet, report: Report, finding: Finding, common: Sequence[str]) -> None:
    wide, scale = sheet.width >= WIDE, verdict.scale(report)
    how = finding.remedies[0] if finding.remedies else "by hand"
    saving, colour = labels.saving(finding, scale), "green" if finding.saving.step_us.high > 0 else "dim"
    room = sheet.width - 9 - (HOW if wide else 0)
    title = sheet.spell(f"{finding.title}  {labels.counted(finding)}".rstrip())
    title = sheet.cell(title, min(sheet.size(title), room - sheet.size(saving) - 2))
    space = " " * (room - sheet.size(title) - sheet.size(saving))
    sheet.add(
        "  ", (sheet.cell(finding.rule, 7), "cyan"), (title, "bold"), space, (saving, colour),
        ("  " + how if wide else "", "magenta"),
    )  # fmt: skip
    items: list[Piece] = [i for i in (labels.where(finding), labels.lines(finding)) if i]
    items += [(f"{scale.time(finding.kernel_us)}, {percent(finding.share)}", "dim")] if finding.share else []
    items += [] if wide else [(f"how: {how}", "magenta")]
    sheet.flow(items, lead=[" " * 9], indent=9)
    if overlap := labels.overlap(finding):
        sheet.say(overlap, style="dim", indent=9)
    for sentence in finding.evidence:
        if sentence not in common:
            sheet.say(sentence, style="dim", indent=9)


def _rest(sheet: Sheet, report: Report) -> None:
    sheet.gap()
    titles = {entry.id: entry.title for entry in catalog.rules()}
    if report.passed:
        sheet.flow(
            [p.message or titles.get(p.rule, p.rule) for p in report.passed], lead=[("Passed    ", "bold")], indent=10
        )
    if report.not_applicable:
        reasons = list(dict.fromkeys(item.reason for item in report.not_applicable))
        shown = reasons[:REASONS_SHOWN]
        shown += [f"{len(reasons) - REASONS_SHOWN} more"] if len(reasons) > REASONS_SHOWN else []
        sheet.flow([(reason, "dim") for reason in shown], lead=[("Skipped   ", "bold")], indent=10)
    nearly = labels.near_misses(report.near_misses)
    for i, (miss, count) in enumerate(nearly[:NEARLY_SHOWN]):
        place = f" ({labels.source(miss.source)})" if miss.source else ""
        at = f"{miss.module}: " if miss.module and miss.module not in miss.reason and count == 1 else ""
        often = f" × {count}" if count > 1 else ""
        lead = [("Nearly    " if not i else " " * 10, "bold")]
        sheet.say(f"{miss.rule} {at}{miss.reason}{place}{often}", lead=lead, indent=10)
    if more := sum(count for _, count in nearly[NEARLY_SHOWN:]):
        sheet.add((f"          and {more} more", "dim"))


def _footer(sheet: Sheet, report: Report) -> None:
    lost = report.timeline.lost if report.timeline else ()
    for i, sentence in enumerate(lost):
        sheet.say(sentence, lead=[("Lost      " if not i else " " * 10, "bold yellow")], indent=10)
    for i, message in enumerate(variants.warnings(report)):
        sheet.say(message, lead=[("Warning   " if not i else " " * 10, "bold yellow")], indent=10)
    if report.files:
        held = any(labels.file_name(file) == RECIPE for file in report.files)
        said = [("reloaded in a fresh process and verified again", "dim")] if held else []
        sheet.flow([*report.files, *said], lead=[("Saved     ", "bold")], indent=10, gap="  ")
    if steps := next_commands(report):
        sheet.flow([(command, "cyan") for command in steps], lead=[("Next      ", "bold")], indent=10, gap="    ")


def next_commands(report: Report) -> tuple[str, ...]:
    """What to type next: a strategy that answers the largest finding and can run here, and that finding's page."""
    ranked = verdict.ranked(report)
    if report.attempts or not ranked:
        return ()
    offered = verdict.offered(report) if report.command == "profile" and report.workload else ()
    apply = tuple(f"fusion-advisor apply --strategy {strategy}" for strategy in offered[:1])
    return (*apply, f"fusion-advisor explain {ranked[0].rule}")
