"""Write the page of every rule and strategy, and their indexes, from their docstrings.

python docs/pages.py            writes docs/rules/ and docs/strategies/
python docs/pages.py --check    exits 1 where a page is stale
"""

import sys
from pathlib import Path

from fusionadvisor import catalog

DOCS = Path(__file__).parent
FAMILIES = {"1": "Vertical: one after the other", "2": "Horizontal: side by side", "3": "Launching", "4": "Memory"}
NOTE = "<!-- Written by docs/pages.py from a docstring: change it there. -->"


def page(entry: catalog.Entry) -> str:
    """Return a rule's or strategy's page as Markdown."""
    body = catalog.page(entry.id).partition("\n")[2].strip()
    return f"{NOTE}\n\n# {entry.id} · {entry.title}\n\n{_beside(entry)}.\n\n{body}\n"


def _beside(entry: catalog.Entry) -> str:
    """Say which strategies do what a rule asks for, or which rules a strategy answers."""
    if entry in catalog.RULES:
        remedies = ", ".join(f"[`{r}`](../strategies/{r}.md)" for r in entry.remedies)
        return f"Strategies that do it: {remedies or 'none yet: the page says how to do it by hand'}"
    return f"It answers: {_answered(entry, '../rules/') or 'no rule names it'}"


def _answered(strategy: catalog.Entry, folder: str) -> str:
    return ", ".join(f"[{rule.id}]({folder}{rule.id}.md)" for rule in catalog.RULES if strategy.id in rule.remedies)


def strategies_index() -> str:
    """Return the list of strategies as Markdown."""
    rows = [
        f"| [{s.id}]({s.id}.md) | {s.title} | {_answered(s, '../rules/')} |"
        for s in (*catalog.STRATEGIES, catalog.SEARCH)
    ]
    return "\n".join([NOTE, "", "# Strategies", "", "| strategy | what it does | rules |", "|---|---|---|", *rows, ""])


def index() -> str:
    """Return the list of rules as Markdown."""
    parts = [NOTE, "", "# Rules", ""]
    for digit, family in FAMILIES.items():
        parts += [f"## {family}", "", "| rule | what to do | strategies |", "|---|---|---|"]
        for entry in catalog.RULES:
            if entry.id.startswith(f"FA{digit}"):
                remedies = ", ".join(f"`{r}`" for r in entry.remedies)
                parts.append(f"| [{entry.id}]({entry.id}.md) | {entry.title} | {remedies} |")
        parts.append("")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """Return every file's text by its name in ``docs``."""
    found = {"rules/README.md": index(), "strategies/README.md": strategies_index()}
    found |= {f"rules/{entry.id}.md": page(entry) for entry in catalog.RULES}
    return found | {f"strategies/{entry.id}.md": page(entry) for entry in (*catalog.STRATEGIES, catalog.SEARCH)}


def stale() -> list[str]:
    """Return the names of files that are missing, differ, or belong to no rule or strategy."""
    wanted = pages()
    files = [file for folder in ("rules", "strategies") for file in (DOCS / folder).glob("*.md")]
    present = {file.relative_to(DOCS).as_posix(): file.read_text(encoding="utf-8") for file in files}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def main() -> None:
    """Write or check the pages."""
    if "--check" in sys.argv[1:]:
        sys.exit(f"stale: {', '.join(names)}; run python docs/pages.py" if (names := stale()) else 0)
    for name in stale():
        (DOCS / name).unlink(missing_ok=True)
    for name, text in pages().items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
