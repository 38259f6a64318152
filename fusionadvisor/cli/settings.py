"""What a project set for this tool: ``[tool.fusion-advisor]`` of the nearest pyproject.toml that has it."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusionadvisor.errors import InputError

TABLE = "fusion-advisor"


@dataclass(frozen=True, slots=True)
class Settings:
    """The table, and the file it stands in; both empty where no project file has one."""

    values: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None

    def table(self, name: str) -> dict[str, Any]:
        """Return a table within; empty where there is none.

        Raises:
            InputError: If the name stands for something else.
        """
        found = self.values.get(name, {})
        if not isinstance(found, dict):
            raise InputError(f"{self.file}: [tool.{TABLE}] {name} is no table.", f"Write [tool.{TABLE}.{name}].")
        return found


def load(start: Path) -> Settings:
    """Look for the table from a folder upwards.

    Raises:
        InputError: If a pyproject.toml on the way is not TOML.
    """
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        try:
            plain = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise InputError(f"{file} cannot be read: {error}.") from None
        if found := plain.get("tool", {}).get(TABLE):
            return Settings(found, file)
    return Settings()
