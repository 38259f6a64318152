"""What a report says, in the order it says it: which words, which numbers, which rows. Renderers only lay it out."""

from dataclasses import dataclass

from fusionadvisor import catalog
from fusionadvisor.render import labels, outcomes, variants, verdict
from fusionadvisor.render.parts import Column, Fact, Piece, Row, Table
from fusionadvisor.report.model import Finding, KernelTable, KindSummary, Report, TimelineSummary
from fusionadvisor.units import percent, plural, range_us, size_bytes

KINDS_SHOWN, CHECKS_SHOWN, NEARLY_SHOWN, SMALL_SHOWN = 6, 4, 2, 1
"""Of what a short form shows only the first."""
NAME = 44
"""Of a kernel in a table, in characters."""
RECIPE = "recipe.json"
"""A recipe is kept only where another process loaded it and its outputs agreed."""
APART = 0.1
"""How far the time of the kernels may be from that of the step before shares have to say which they are of."""
REMAINS = 0.5
"""Where less than this part of the unfused share can be saved, the report says why."""
WAYS = {"window": "the whole window", "repetition": "found by repetition"}


@dataclass(frozen=True, slots=True)
class FindingView:
    """A finding: its row, and what stands under it."""

    finding: Finding
    title: str
    where: str
    lines: str
    saving: str
    how: str
    time: str
    details: tuple[str, ...]
    url: str

    @property
    def place(self) -> str:
        """Modules and lines."""
        return f"{self.where} ({self.lines})" if self.where and self.lines else self.where or self.lines


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Launches of one kernel from one op, summed over the timeline."""

    name: str
    kind: str
    op: str
    count: int
    total_us: float
    grouped: int


@dataclass(frozen=True, slots=True)
class View:
    """A report in words. ``word`` is what one thing on the timeline is called, ``saving`` what a saving is."""

    report: Report
    word: str
    saving: str
    about: tuple[str, ...]
    subject: tuple[Piece, ...]
    assumed: tuple[str, ...]
    headline: str
    proof: tuple[str, ...]
    """What the headline rests on: interval, control, agreement of the outputs."""
    variants: Table | None
    step: tuple[Fact, ...]
    kinds: Table
    kinds_in_short: Table
    ranks: Table | None
    findings: tuple[FindingView, ...]
    common: tuple[str, ...]
    """Sentences that several findings share."""
    tried: outcomes.Tried
    checks: tuple[Fact, ...]
    """What other rules made of the report."""
    notes: tuple[Fact, ...]
    """What was lost, warnings, files, next commands."""


def of(report: Report) -> View:
    """Return what a report says."""
    ranked = verdict.ranked(report)
    common = tuple(verdict.common(ranked))
    headline = verdict.headline(report)
    return View(
        report=report,
        word=labels.kernel_word(report),
        saving=labels.bound(report),
        about=_about(report),
        subject=_subject(report),
        assumed=report.workload.assumed if report.workload else (),
        headline=headline,
        proof=outcomes.proof(report),
        variants=variants.table(report) if report.variants else None,
        step=tuple(_step(report)),
        kinds=_kinds(report),
        kinds_in_short=_kinds(report, KINDS_SHOWN),
        ranks=_ranks(report) if len(report.ranks) > 1 else None,
        findings=tuple(_finding(report, finding, common) for finding in ranked),
        common=common,
        tried=outcomes.tried(report),
        checks=tuple(_checks(report)),
        notes=tuple(_notes(report, headline)),
    )


def _about(report: Report) -> tuple[str, ...]:
    env, gpu = report.environment, labels.predicted(report)
    items = [f"{report.tool.name} {report.tool.version}"]
    if labels.cpu_times(report):
        where = "recorded without a GPU" if report.command == "analyze" else "no CUDA device here"
        items += [where, "CPU ops stand in for kernels", "CPU times", labels.scaled(report)]
    elif gpu:
        items += ["" if env.gpu else "no CUDA device here", f"kernels predicted for {gpu}",
                  "counts are exact, times are estimates"]  # fmt: skip
    elif report.command == "analyze":
        items.append(f"recorded on {env.gpu or 'an unnamed device'}")
    else:
        items.append(env.gpu or "no CUDA device here")
    items += [f"torch {env.torch}" if env.torch else "", labels.bandwidth(env)]
    items.append(plural(env.threads, "thread") if env.cpu and env.threads and labels.cpu_times(report) else "")
    return tuple(filter(None, items))


def _subject(report: Report) -> tuple[Piece, ...]:
    if work := report.workload:
        name = labels.target(work) + (f" → {work.model}" if work.model else "")
        mode = "training step" if work.mode == "training" else "eval, no_grad"
        return (name, "strong"), *map(labels.tensor, work.inputs), mode
    items: list[Piece] = [(labels.file_name(report.source), "strong")]
    if line := report.timeline:
        steps = f"{plural(line.steps, 'step')} ({WAYS.get(line.steps_from, f'by {line.steps_from}')})"
        items.append(f"{plural(verdict.kernels(report), labels.kernel_word(report))} in {steps}")
        devices = len([d for d in line.devices if d.kernels])
        items += [plural(devices, "device")] if devices > 1 else []
        if linked := verdict.kernels(report) and line.linked_share:
            items.append(f"{percent(linked)} of kernel time linked to an op")
        if line.orphan_kernels:
            items.append(f"{plural(line.orphan_kernels, 'kernel')} without a recorded launch")
    return tuple(items)


def _step(report: Report) -> list[Fact]:
    """The step and how much of it is unfused; a GPU that is not here; what is not known of launching."""
    line = report.timeline
    if line is None or not verdict.kernels(report):
        return []
    scale = verdict.scale(report)
    items: list[Piece] = []
    if report.latency:
        samples = len(report.latency.samples_ms)
        items.append(f"{labels.interval(report.latency)} ({f'median of {samples}' if samples else 'median'}, 95 %)")
    else:
        items.append(scale.time(line.step_us) + (f" (median of {line.steps})" if line.steps > 1 else ""))
    if (busy := _busy(report)) is not None:
        items.append(f"GPU busy {percent(busy)}")
    items.append(plural(verdict.step_kernels(report), labels.kernel_word(report)))
    if share := verdict.unfused_share(report):
        reason = _reason(report)
        word = labels.kernel_word(report)
        items.append(f"{percent(share)} of {word} time unfused" + (f" ({reason})" if reason else ""))
    if report.fusion.fused_share:
        items.append(f"{percent(report.fusion.fused_share)} already fused")
    moved = sum(b for b in line.kernels.bytes if b > 0)
    if moved and all(b >= 0 for b in line.kernels.bytes):
        items.append(f"{size_bytes(moved / verdict.steps_shown(report))} moved")
    if report.fusion.syncs:
        items.append((verdict.syncs(report), "warn"))
    if report.fusion.graphed_share:
        items.append(f"{percent(report.fusion.graphed_share)} replayed from a CUDA graph")
    facts = [Fact("Step", tuple(items), gap="   ")]
    found = any(catalog.concerns(f.rule, "launches") for f in report.findings)
    of_gpu = not labels.cpu_times(report) and not labels.predicted(report)
    if report.fusion.launch_bound.share is None and of_gpu and not found and report.fusion.launch_bound.reason:
        facts.append(Fact("Step", ((report.fusion.launch_bound.reason, "soft"),)))
    return facts + _predicted(report)


def _reason(report: Report) -> str:
    """Why much of the kernels' time may be unfused and little of the step can be saved; empty where both agree."""
    whole, could = verdict.of_step(report), verdict.could_save(report)
    if not whole or could / whole >= REMAINS * verdict.unfused_share(report):
        return ""
    part, word, reasons = verdict.kernel_us(report) / whole, labels.kernel_word(report), []
    if part < REMAINS:
        reasons.append(f"{word}s take {percent(part)} of the step")
    if could < REMAINS * report.fusion.unfused_us:
        reasons.append(f"fused {word}s still read inputs and write outputs" if could else "no saving is known for it")
    return "; ".join(reasons)


def _busy(report: Report) -> float | None:
    if report.timeline is None or labels.cpu_times(report) or labels.predicted(report):
        return None
    if report.timeline.busy_us and report.timeline.step_us:
        whole = report.latency.median_ms * 1e3 if report.latency else report.timeline.step_us
        return min(report.timeline.busy_us / whole, 1.0)
    busy = sum(device.busy_us for device in report.timeline.devices)
    if report.latency:
        return min(busy / verdict.steps_shown(report) / (report.latency.median_ms * 1e3), 1.0)
    span = sum(device.span_us for device in report.timeline.devices)
    return min(busy / span, 1.0) if span else None


def _predicted(report: Report) -> list[Fact]:
    """The step on a GPU that is not here, beside times that were measured."""
    found = report.predicted
    if found is None or labels.predicted(report):
        return []
    items = [f"on {found.gpu}: {plural(found.kernels, 'kernel')}", f"{plural(found.groups, 'group')} to fuse"]
    if found.unfused_bytes:
        whole = size_bytes(found.bytes)
        items.append(f"{size_bytes(found.unfused_bytes)} of {whole} are intermediates that fusion would keep on chip")
    items += [plural(found.syncs, "sync"), range_us(found.kernel_us.low, found.kernel_us.high)]
    if found.uncalibrated_share >= 0.005:
        items.append(f"{percent(found.uncalibrated_share)} of that time is not calibrated")
    return [Fact("Predicted", tuple(items))]


def drift(report: Report) -> float:
    """How much slower the original was when before and after were measured than when it was profiled."""
    both = verdict.arms(report)
    return both[0] / report.latency.median_ms if both and report.latency else 1.0


def _kinds(report: Report, shown: int | None = None) -> Table:
    """Kernels of each kind in a step, those after the first ``shown`` together; and what became of them in an apply."""
    before = _of_a_step(report.timeline)
    after = _of_a_step(report.timeline_after, 1 / drift(report)) if report.timeline_after else None
    scale, word = verdict.scale(report), labels.kernel_word(report)
    total, none, rows = sum(kind.gpu_us for kind in before.values()), KindSummary("", 0, 0.0), []
    kinds = {
        kind: (before.get(kind, none), (after or {}).get(kind, none)) for kind in sorted({*before, *(after or ())})
    }
    ranked = sorted(kinds.items(), key=lambda item: (-item[1][0].gpu_us, -item[1][1].gpu_us))
    if shown and len(rest := ranked[shown:]) > 1:
        sums = [KindSummary("", sum(k[i].kernels for _, k in rest), sum(k[i].gpu_us for _, k in rest)) for i in (0, 1)]
        ranked[shown:] = [(f"{len(rest)} other kinds", (sums[0], sums[1]))]
    for kind, (was, now) in ranked:
        counts, time, share = f"{was.kernels:,}", scale.time(was.gpu_us), was.gpu_us / (total or 1.0)
        if after is not None:
            counts, time = f"{counts} → {now.kernels:,}", f"{time.split()[0]} → {scale.time(now.gpu_us)}"
        rows.append(Row((labels.KINDS.get(kind, kind), counts, time, percent(share)), share=share, key=kind))
    notes = []
    if report.timeline and abs(total - (whole := verdict.of_step(report))) > APART * whole:
        notes.append(f"Shares are of the {word}s' total time, {scale.time(total)}.")
    columns = (
        Column("kind"), Column(f"{word}s", number=True, spare=1), Column("time", number=True),
        Column("share", number=True),
    )  # fmt: skip
    return Table(f"Time by kind of {word}", columns, tuple(rows), tuple(notes))


def _of_a_step(line: TimelineSummary | None, scale: float = 1.0) -> dict[str, KindSummary]:
    """The kinds of a step's kernels; in a report that does not tell those of a step, an equal part of all."""
    if line is None:
        return {}
    inside = [k for k in line.by_kind if k.step_kernels]
    if inside:
        return {k.kind: KindSummary(k.kind, round(k.step_kernels), scale * k.step_gpu_us) for k in inside}
    steps = max(line.steps, 1)
    return {k.kind: KindSummary(k.kind, round(k.kernels / steps), scale * k.gpu_us / steps) for k in line.by_kind}


def _ranks(report: Report) -> Table:
    scale = labels.Scale.of(max(rank.step_us for rank in report.ranks))
    rows = []
    for rank in report.ranks:
        times = rank.step_us, rank.compute_us, rank.collective_us, rank.exposed_us, rank.waiting_us
        note = ("late", "warn") if rank.straggler else ""
        rows.append(Row((str(rank.rank), f"{rank.kernels:,}", *map(scale.time, times), note)))
    titles = ("rank", "kernels", "step", "compute", "collectives", "exposed", "waiting")
    columns = (*(Column(title, number=True) for title in titles), Column("", wraps=True))
    return Table("Ranks", columns, tuple(rows))


def kernels(report: Report) -> list[KernelRow]:
    """Return the kernels that the report lists, those of one name and op together, the longest first."""
    table = report.timeline.kernels if report.timeline else KernelTable()
    totals: dict[tuple[str, str, str], tuple[int, float, int]] = {}
    groups = table.group or (-1,) * len(table.index)
    for name, kind, op, time, group in zip(table.name, table.kind, table.op, table.dur_us, groups, strict=True):
        count, total, grouped = totals.get((name, kind, op), (0, 0.0, 0))
        totals[name, kind, op] = (count + 1, total + time, grouped + (group >= 0))
    return sorted((KernelRow(*key, *value) for key, value in totals.items()), key=lambda row: -row.total_us)


def top(report: Report, count: int) -> Table:
    """Return the kernels that take the most time, as totals of what the report lists."""
    ranked, word = kernels(report), labels.kernel_word(report)
    whole = sum(row.total_us for row in ranked) or 1.0
    scale = labels.Scale.of(max((row.total_us for row in ranked), default=0.0))
    rows = [
        Row((labels.kernel(row.name, NAME), row.op, f"{row.count:,}", scale.time(row.total_us),
             scale.time(row.total_us / row.count), percent(row.total_us / whole)))
        for row in ranked[:count]
    ]  # fmt: skip
    columns = (
        Column(word), Column("op", spare=2), Column("count", number=True), Column("total", number=True),
        Column("mean", number=True, spare=1), Column("share", number=True),
    )  # fmt: skip
    return Table(f"Top {word}s", columns, tuple(rows))


def _finding(report: Report, finding: Finding, common: tuple[str, ...]) -> FindingView:
    scale, word = verdict.scale(report), labels.kernel_word(report)
    own = tuple(sentence for sentence in finding.evidence if sentence not in common)
    overlap = labels.overlap(finding, word)
    return FindingView(
        finding=finding,
        title=f"{finding.title} {labels.counted(finding)}".rstrip(),
        where=labels.where(finding),
        lines=labels.lines(finding),
        saving=labels.saving(finding, scale),
        how=finding.remedies[0] if finding.remedies else "by hand",
        time=f"{scale.time(finding.kernel_us)}, {percent(finding.share)} of {word} time" if finding.share else "",
        details=(*([overlap] if overlap else []), *own),
        url=catalog.url(finding.rule),
    )


def findings_table(view: View, count: int | None = None) -> Table:
    """Return the findings as a table: what, where, how much, and which strategy does it."""
    rows = []
    for one in view.findings[:count]:
        tone = "good" if one.finding.saving.step_us.high > 0 else "soft"
        modules = one.where if one.lines else ""
        details = (
            [Fact("", tuple((item, "soft") for item in (modules, one.time) if item))] if modules or one.time else []
        )
        details += [
            Fact("", ((sentence, "soft"),), True) for sentence in (*one.details, f"data flow {one.finding.flow}")
        ]
        place = one.lines or one.where
        cells = (one.finding.rule, "name"), (one.title, "strong"), place, (one.saving, tone), (one.how, "how")
        rows.append(Row(cells, tuple(details)))
    columns = (
        Column(""), Column("", wraps=True), Column("where", limit=26, spare=1),
        Column(f"saving ({view.saving})", number=True), Column("how", spare=2),
    )  # fmt: skip
    more = len(view.findings) - len(rows)
    notes = [f"{plural(more, 'smaller finding')} not shown (--verbose)."] if more > 0 else []
    return Table("Findings", columns, tuple(rows), (*notes, *view.common))


def _checks(report: Report) -> list[Fact]:
    titles = {entry.id: entry.title for entry in catalog.rules()}
    facts = []
    if small := [f for f in report.findings if f.footnote]:
        names = [f"{f.rule} {labels.place(f, 20)}" for f in small]
        facts += _short("Too small", names, SMALL_SHOWN)
    if report.passed:
        partly = [] if report.fusion.judged_share >= verdict.MOST else ["in the part that could be analysed"]
        facts += _short("Passed", [*partly, *(p.message or titles.get(p.rule, p.rule) for p in report.passed)])
    if report.not_applicable:
        reasons = dict.fromkeys(item.reason for item in report.not_applicable)
        rules = dict.fromkeys(item.rule for item in report.not_applicable)
        facts.append(Fact("Skipped", tuple((reason, "soft") for reason in reasons), True))
        text = f"{plural(len(rules), 'rule')} not applicable (--verbose for why)"
        facts.append(Fact("Skipped", ((text, "soft"),), False))
    for number, (miss, count) in enumerate(labels.near_misses(report.near_misses)):
        place = f" ({labels.source(miss.source)})" if miss.source else ""
        at = f"{miss.module}: " if miss.module and miss.module not in miss.reason and count == 1 else ""
        often = f" ×{count}" if count > 1 else ""
        facts.append(
            Fact("Near miss", (f"{miss.rule} {at}{miss.reason}{place}{often}",), number >= NEARLY_SHOWN or None)
        )
    return facts


def _short(label: str, items: list[str], count: int = CHECKS_SHOWN) -> list[Fact]:
    """All items in full, and the first of them with how many more there are."""
    if len(items) <= count + 1:
        return [Fact(label, tuple(items))]
    more = f"{len(items) - count} more (--verbose)"
    return [Fact(label, tuple(items), True), Fact(label, (*items[:count], (more, "soft")), False)]


def _notes(report: Report, headline: str) -> list[Fact]:
    facts = [Fact("Lost", (sentence,)) for sentence in (report.timeline.lost if report.timeline else ())]
    facts += [Fact("Warning", (message,)) for message in variants.warnings(report) if message != headline]
    if report.files:
        loaded = any(labels.file_name(file) == RECIPE for file in report.files)
        proof = (("(loaded in a fresh process and verified again)", "soft"),) if loaded else ()
        facts.append(Fact("Saved", (*report.files, *proof), gap="  "))
    if commands := next_commands(report):
        facts.append(Fact("Next", tuple((command, "name") for command in commands), gap="    "))
    return facts


def next_commands(report: Report) -> tuple[str, ...]:
    """What to type next: a strategy that answers the largest finding and can run here, and that finding's page."""
    ranked = verdict.ranked(report)
    if report.attempts or not ranked:
        return ()
    offered = verdict.offered(report) if report.command == "profile" and report.workload else ()
    apply = tuple(f"fusion-advisor apply --strategy {strategy}" for strategy in offered[:1])
    return (*apply, f"fusion-advisor explain {ranked[0].rule}")
