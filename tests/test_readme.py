"""The papers a user reads first say what is so."""

import re
from pathlib import Path

from fusionadvisor.report.quantities import QUANTITIES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


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
