"""Real traces and their facts, where this checkout has them beside it."""

from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "shared"
SHARED: Path | None = _FOLDER if (_FOLDER / "traces" / "TRUTH.json").exists() else None
