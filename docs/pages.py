"""Write the page of every rule, and their index, from the rules' docstrings.

python docs/pages.py            writes docs/rules/
python docs/pages.py --check    exits 1 where a page is stale
"""

import sys
from pathlib import Path

from fusionadvisor import catalog

RULES = Path(__file__).parent / "rules"
FAMILIES = {"1": "Vertical: one after the other", "2": "Horizontal: side by side", "3": "Launching", "4": "Memory"}
NOTE = "<!-- Written by docs/pages.py from the rule's docstring: change it there. -->"


def page(entry: catalog.Entry) -> str:
    """Return a rule's page as Markdown."""
    body = catalog.page(entry.id).partition("\n")[2].strip()
    remedies = ", ".join(f"`{r}`" for r in entry.remedies) or "none yet: the page says how to do it by hand"
    return f"{NOTE}\n\n# {entry.id} · {entry.title}\n\nStrategies that do it: {remedies}.\n\n{body}\n"


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
    """Return every file's text by its name in ``docs/rules``."""
    return {**{f"{entry.id}.md": page(entry) for entry in catalog.RULES}, "README.md": index()}


def stale() -> list[str]:
    """Return the names of files that are missing, differ, or belong to no rule."""
    wanted = pages()
    present = {p.name: p.read_text(encoding="utf-8") for p in RULES.glob("*.md")}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def main() -> None:
    """Write or check the pages."""
    if "--check" in sys.argv[1:]:
        sys.exit(f"stale: {', '.join(names)}; run python docs/pages.py" if (names := stale()) else 0)
    RULES.mkdir(exist_ok=True)
    for name in stale():
        (RULES / name).unlink(missing_ok=True)
    for name, text in pages().items():
        (RULES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
