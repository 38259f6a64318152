"""Draw what the tool says on samples, for people who read about it: a terminal as SVG and a report as HTML.

python docs/screenshots.py             draws docs/samples/*.svg and *.html from the reports beside them
python docs/screenshots.py --record    first records these reports anew, on this machine (minutes)
"""

import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from fusionadvisor.render import html, terminal
from fusionadvisor.report import codec

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "docs" / "samples"
COMMANDS = {
    "profile": "profile sample_models/residual_block.py --gpu h100",
    "apply": "apply sample_models/transformer_block.py --strategy sdpa,compile",
}
WIDTH = 100
THEME = TerminalTheme(
    (24, 25, 27), (237, 238, 240),
    [(24, 25, 27), (255, 149, 146), (61, 214, 140), (255, 202, 22), (112, 184, 255), (209, 157, 255), (76, 204, 230),
     (237, 238, 240)],
)  # fmt: skip


def record(name: str) -> None:
    """Run a command and keep its report, with paths relative to the sources and without the machine's name."""
    file = SAMPLES / f"{name}.json"
    words = [*COMMANDS[name].split(), "--json", str(file), "--force"]
    subprocess.run([sys.executable, "-m", "fusionadvisor", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    report = codec.from_json(file.read_text(encoding="utf-8").replace(f"{ROOT}/", ""))
    report = replace(report, environment=replace(report.environment, platform=None), files=())
    file.write_text(codec.to_json(report, indent=None) + "\n", encoding="utf-8")


def svg(name: str) -> str:
    """Return a report as a terminal shows it."""
    report = codec.read(SAMPLES / f"{name}.json")
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(f"$ fusion-advisor {COMMANDS[name]}", highlight=False)
    for line in terminal.compose(report, WIDTH).lines:
        console.print(line, soft_wrap=True, highlight=False)
    console.print()  # rich cuts the last line at its baseline
    drawn = console.export_svg(title="fusion-advisor", theme=THEME, unique_id="sample")
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # it would be loaded from elsewhere
    return "".join(f"{line.rstrip()}\n" for line in drawn.splitlines())


def page(name: str) -> str:
    """Return a report as its page."""
    return html.compose(codec.read(SAMPLES / f"{name}.json")) + "\n"


def pictures() -> dict[str, str]:
    """Return every file's text by its name in ``docs/samples``."""
    return {"profile.svg": svg("profile"), "apply.html": page("apply")}


def stale() -> list[str]:
    """Return the names of files that are missing or differ."""
    return [name for name, text in pictures().items() if _read(SAMPLES / name) != text]


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def main() -> None:
    """Record where asked to, then draw."""
    if "--record" in sys.argv[1:]:
        for name in COMMANDS:
            record(name)
    for name, text in pictures().items():
        (SAMPLES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
