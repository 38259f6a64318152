"""What a project set for this tool: ``[tool.fusion-advisor]`` of the nearest pyproject.toml that has it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusionadvisor.errors import InputError, did_you_mean

TABLE = "fusion-advisor"
ASKED_EACH_TIME = ("trust", "force", "help")
"""Consent is given where it is needed, never for good."""


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
            raise InputError(f"{self.file}: [tool.{TABLE}] {name} is not a table.", f"Write [tool.{TABLE}.{name}].")
        return found

    def defaults(self, options: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, Any]]:
        """Return what is set for each command: ``[tool.fusion-advisor.profile]`` with options by their long names.

        Args:
            options: Of each command, the parameter behind each long option.

        Raises:
            InputError: If a table names an option that its command does not have, or one that is never a default.
        """
        found: dict[str, dict[str, Any]] = {}
        for command in options.keys() & self.values.keys():
            known = {name: parameter for name, parameter in options[command].items() if name not in ASKED_EACH_TIME}
            for name, value in self.table(command).items():
                if name in ASKED_EACH_TIME:
                    raise InputError(
                        f"{self.file}: {name} cannot be set in a file.", f"Give --{name} on the command line."
                    )
                if name not in known:
                    raise InputError(
                        f"{self.file}: {command} has no option '{name}'.", did_you_mean(name, tuple(known))
                    )
                found.setdefault(command, {})[known[name]] = value
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
