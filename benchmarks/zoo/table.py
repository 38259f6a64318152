"""The rows as tables."""

from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
Plain = dict[str, Any]


def write(folder: Path) -> None:
    pass


def brief(row: Plain) -> str:
    """A row in a line, for whoever waits."""
    outcomes = [
        f"{name}:{made['outcome']}{' WRONG' if made.get('check', {}).get('wrong') else ''}"
        for name, made in row.get("strategies", {}).items()
        if made["outcome"] not in ("no_effect", "not_tried")
    ]
    auto = row.get("auto", {})
    crashes = f" CRASHED {row['crashes'][0][:300]}" if row["crashes"] else ""
    return f"{row['name']} {row['mode']}: {' '.join(outcomes)}; auto {auto.get('kept')} {auto.get('speedup')}{crashes}"
