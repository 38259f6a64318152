"""The papers a user reads first say what is so."""

import re
from pathlib import Path

from fusionadvisor.catalog import STRATEGIES, entry
from fusionadvisor.report.quantities import QUANTITIES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_commands_and_names_in_the_readme_exist() -> None:
    from fusionadvisor.cli.app import app

    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    for word in re.findall(r"fusion-advisor (?!--)([a-z]+)", README):
        assert word in commands
    for name in re.findall(r"--strategy ([a-z_]+)", README):
        assert name in {s.id for s in STRATEGIES}
    for rule in set(re.findall(r"\bFA\d{3}\b", README)):
        assert entry(rule).id == rule


def test_ci_runs_the_command_of_the_readme() -> None:
    block = README.split("<!-- install and test -->\n")[1].split("```")[1]
    assert "pytest" in block
    assert "constraints.txt" in block
    assert "<!-- install and test -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_page_on_ci_lists_every_quantity() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    for quantity in QUANTITIES:
        assert f"| `{quantity.name}` | {quantity.meaning} |" in page
    sources = [ROOT / "fusionadvisor" / "cli" / f"{name}.py" for name in ("check", "options", "profile")]
    known = "".join(source.read_text(encoding="utf-8") for source in sources)
    for option in set(re.findall(r"(?<![-|])--[a-z][a-z-]+", page)):
        assert f'"{option}"' in known
