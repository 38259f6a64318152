"""A report as GitHub Markdown: for a job's summary or a comment on a pull request. Works from the report alone."""

import re

from fusionadvisor.render import labels, variants, view
from fusionadvisor.render.parts import Fact, Table, plain
from fusionadvisor.render.text import cleaned
from fusionadvisor.render.view import View
from fusionadvisor.report.model import Report
from fusionadvisor.units import plural

MARK = "<!-- fusion-advisor report -->"
"""First line of the text, by which a file or comment is known as this tool's own."""
FINDINGS_SHOWN = 20
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|<>~&@:])")


def compose(report: Report) -> str:
    """Return the report as Markdown, the verdict first."""
    report = cleaned(report)
    seen = view.of(report)
    parts = [MARK, f"### {escape(seen.headline)}", *map(escape, seen.proof), _about(seen)]
    if seen.variants:
        parts += [laid_out(seen.variants), escape(f"The rest is about {variants.names(report)[0]}.")]
    parts += _facts(seen.step)
    if report.attempts:
        parts.append(_attempts(seen))
    elif seen.kinds.rows:
        parts.append(_folded(seen.kinds.caption, laid_out(seen.kinds)))
    parts += [_findings(seen), _notes(report, seen)]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Return text that Markdown shows as it is: no markup, link, mention or table border comes of it."""
    return _SPECIAL.sub(r"\\\1", text)


def code(text: str) -> str:
    """Return text as code; what would end the code or a table's cell is replaced."""
    return f"`{text.replace('`', 'ˋ').replace('|', '∣')}`" if text else ""


def _about(seen: View) -> str:
    items = [code(plain(seen.subject[0])), *(escape(plain(item)) for item in (*seen.subject[1:], *seen.about[1:]))]
    return " · ".join(items)


def _findings(seen: View) -> str:
    if not seen.findings:
        return ""
    rows = []
    for one in seen.findings[:FINDINGS_SHOWN]:
        rule = f"[{one.finding.rule}]({one.url})" if one.url else escape(one.finding.rule)
        place = " ".join(filter(None, (code(one.where), code(one.lines))))
        rows.append([rule, escape(one.title), place, one.saving, ", ".join(one.finding.remedies)])
    more = len(seen.findings) - FINDINGS_SHOWN
    shown = table(["", "finding", "where", f"saving ({seen.saving})", "how"], rows, numbers=(3,))
    return shown + (f"\n\nand {plural(more, 'smaller finding')}" if more > 0 else "")


def _attempts(seen: View) -> str:
    rows = []
    for row in seen.tried.table.rows:
        *cells, verdict = map(plain, row.cells)
        reasons = [plain(item) for fact in row.details if fact.verbose is None for item in fact.items]
        rows.append([escape(cell) for cell in cells] + [escape(". ".join([verdict, *reasons]))])
    parts = [table([c.title for c in seen.tried.table.columns], rows, numbers=(4, 5))] if rows else []
    parts += [escape(labels.PAIRED)] if any(row[5] for row in rows) else []
    names = ", ".join(map(code, seen.tried.not_applicable))
    parts += [f"Not applicable: {names}"] if names else []
    parts += [_folded("Why", "\n".join(f"- {escape(plain(f.items[0]))}" for f in seen.tried.reasons))] if names else []
    return "\n\n".join([*parts, *_facts(seen.tried.facts)])


def _facts(facts: tuple[Fact, ...]) -> list[str]:
    """Each fact a line of a list."""
    lines = [
        f"- {fact.label}: {escape(fact.gap.join(map(plain, fact.items)))}"
        for fact in facts
        if fact.verbose is not False
    ]
    return ["\n".join(lines)] if lines else []


def _notes(report: Report, seen: View) -> str:
    lines = [f"> [!WARNING]\n> {escape(plain(f.items[0]))}" for f in seen.notes if f.label in ("Warning", "Lost")]
    asides = [
        f"- {m.rule} near miss{', ' if m.module else ''}{code(m.module)}: {escape(m.reason)}"
        for m in report.near_misses
    ]
    asides += [f"- {p.rule} passed: {escape(p.message)}" for p in report.passed]
    asides += [f"- {n.rule} not applicable: {escape(n.reason)}" for n in report.not_applicable]
    return "\n\n".join([*lines, _folded("Other checks", "\n".join(asides))]).strip()


def laid_out(made: Table) -> str:
    """Return a table whose words are decided as Markdown, its notes below."""
    numbers = tuple(i for i, column in enumerate(made.columns) if column.number)
    rows = [[escape(plain(cell)) for cell in row.cells] for row in made.rows]
    return "\n\n".join([table([c.title for c in made.columns], rows, numbers=numbers), *map(escape, made.notes)])


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>" if body else ""


def table(head: list[str], rows: list[list[str]], *, numbers: tuple[int, ...] = ()) -> str:
    """Return a Markdown table; columns in ``numbers`` are set to the right."""
    rule = ["---:" if i in numbers else "---" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])
