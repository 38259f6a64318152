"""A report as GitHub Markdown: for a job's summary or a comment on a pull request. Works from the report alone."""

import re
from dataclasses import astuple

from fusionadvisor import catalog
from fusionadvisor.render import labels, variants, verdict
from fusionadvisor.render.text import cleaned
from fusionadvisor.report.model import Attempt, Finding, Report
from fusionadvisor.units import percent, plural

MARK = "<!-- fusion-advisor report -->"
"""First line of the text, by which a file or comment is known as this tool's own."""
FINDINGS_SHOWN = 20
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|<>~&@:])")


def compose(report: Report) -> str:
    """Return the report as Markdown, the verdict first."""
    report = cleaned(report)
    parts = [MARK, f"### {escape(_verdict(report))}", _about(report)]
    parts += [_variants(report)] if report.variants else []
    parts += [_attempts(report)] if report.attempts else [_kinds(report)]
    parts += [_findings(report), _notes(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Return text that Markdown shows as it is: no markup, link, mention or table border comes of it."""
    return _SPECIAL.sub(r"\\\1", text)


def code(text: str) -> str:
    """Return text as code; what would end the code or a table's cell is replaced."""
    return f"`{text.replace('`', 'ˋ').replace('|', '∣')}`" if text else ""


def _verdict(report: Report) -> str:
    if not report.attempts:
        return verdict.of_findings(report)
    both = verdict.arms(report)
    change = f"{labels.change(*both)}: " if both else ""
    return f"{change}{verdict.of_attempts(report)}"


def _about(report: Report) -> str:
    env = report.environment
    where = "no CUDA device: CPU ops stand in for kernels, times are CPU times" if labels.cpu_times(report) else env.gpu
    where = ", ".join(filter(None, (where, labels.scaled(report))))
    where = f"predicted for {labels.predicted(report)}" if labels.predicted(report) else where
    if report.workload:
        inputs = ", ".join(map(labels.tensor, report.workload.inputs))
        subject = (
            f"{code(labels.target(report.workload))} on {code(inputs)}" if inputs else code(report.workload.target)
        )
    else:
        subject = code(labels.file_name(report.source))
    items = [subject, escape(where or ""), escape(f"torch {env.torch}") if env.torch else ""]
    if report.latency:
        items.append(f"step {labels.interval(report.latency)}")
    if count := verdict.kernels(report):
        items.append(plural(round(count / verdict.steps_shown(report)), labels.kernel_word(report)))
    return " · ".join(item for item in items if item)


def _variants(report: Report) -> str:
    rows = [[escape(cell) for cell in astuple(row)] for row in variants.rows(report)]
    told = [*variants.notes(report), f"All else here is on {variants.names(report)[0]}."]
    return table([*variants.headings(report)], rows, numbers=(1, 2, 3)) + "\n\n" + escape(" ".join(told))


def _kinds(report: Report) -> str:
    if not report.timeline or not report.timeline.by_kind:
        return ""
    steps, scale = verdict.steps_shown(report), verdict.scale(report)
    ranked = sorted(report.timeline.by_kind, key=lambda k: -k.gpu_us)
    total = sum(k.gpu_us for k in ranked) or 1.0
    rows = [
        [labels.KINDS.get(k.kind, escape(k.kind)), f"{round(k.kernels / steps):,}", scale.time(k.gpu_us / steps),
         percent(k.gpu_us / total)]
        for k in ranked
    ]  # fmt: skip
    word = f"{labels.kernel_word(report)}s"
    return _folded(f"Time by kind of {word[:-1]}", table(["kind", word, "time", "share"], rows, numbers=(1, 2, 3)))


def _findings(report: Report) -> str:
    ranked = verdict.ranked(report)
    if not ranked:
        return ""
    rows = [_finding(report, finding) for finding in ranked[:FINDINGS_SHOWN]]
    more = len(ranked) - FINDINGS_SHOWN
    shown = table(["", "finding", "where", f"could save ({labels.bound(report)})", "how"], rows, numbers=(3,))
    return shown + (f"\n\nand {plural(more, 'smaller finding')}" if more > 0 else "")


def _finding(report: Report, finding: Finding) -> list[str]:
    places = [code(labels.where(finding)), code(labels.lines(finding))]
    page = catalog.url(finding.rule)
    rule = f"[{finding.rule}]({page})" if page else escape(finding.rule)
    title = f"{escape(finding.title)} {labels.counted(finding)}".rstrip()
    return [
        rule,
        title,
        " ".join(filter(None, places)),
        labels.saving(finding, verdict.scale(report)),
        ", ".join(finding.remedies),
    ]


def _attempts(report: Report) -> str:
    rows = [_attempt(report, attempt) for attempt in report.attempts]
    word = f"{labels.kernel_word(report)}s"
    head = ["strategy", "outcome", word, "error vs eager's", "before → after", "speed-up (95 %)"]
    shown = table(head, rows, numbers=(3, 5))
    return f"{shown}\n\n{labels.PAIRED}" if any(map(labels.paired, report.attempts)) else shown


def _attempt(report: Report, attempt: Attempt) -> list[str]:
    check, counts, gain = attempt.verification, attempt.kernels, attempt.speedup
    outcome = labels.outcome(report, attempt)
    return [
        code(attempt.strategy),
        f"{outcome}. {escape(attempt.reason)}" if attempt.reason else outcome,
        f"{counts.before} → {counts.after}" if counts else "",
        labels.ratio(check.rmse_ratio) if check and check.rmse_ratio is not None else "",
        labels.paired(attempt),
        f"{labels.ratio(gain.median)} ({gain.ci95[0]:.2f}–{gain.ci95[1]:.2f})" if gain else "",
    ]


def _notes(report: Report) -> str:
    lost = report.timeline.lost if report.timeline else ()
    lines = [f"> [!WARNING]\n> {escape(sentence)}" for sentence in (*lost, *variants.warnings(report))]
    asides = [
        f"- {m.rule} nearly{', ' if m.module else ''}{code(m.module)}: {escape(m.reason)}" for m in report.near_misses
    ]
    asides += [f"- {p.rule} passed: {escape(p.message)}" for p in report.passed]
    asides += [f"- {n.rule} does not apply: {escape(n.reason)}" for n in report.not_applicable]
    return "\n\n".join([*lines, _folded("What else was looked at", "\n".join(asides))]).strip()


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>" if body else ""


def table(head: list[str], rows: list[list[str]], *, numbers: tuple[int, ...] = ()) -> str:
    """Return a Markdown table; columns in ``numbers`` are set to the right."""
    rule = ["---:" if i in numbers else "---" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])
