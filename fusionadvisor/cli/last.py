"""The last profile of this folder, so that ``apply`` need not be told again what to change."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fusionadvisor.errors import InputError
from fusionadvisor.files import write_atomically
from fusionadvisor.report import codec
from fusionadvisor.report.model import SCHEMA_VERSION, Workload

FOLDER = ".fusion-advisor"
FILE = "last.json"
AGAIN = "Run `fusion-advisor profile TARGET` first, or name the target: fusion-advisor apply TARGET --strategy NAME"


def store(workload: Workload, root: Path, offered: Sequence[str] = ()) -> None:
    """Keep the workload under ``root``. Trust is never kept: it is given anew each time.

    Args:
        workload: What was profiled.
        root: The folder whose last profile it is.
        offered: The strategies its report recommends, the first first.

    Raises:
        InputError: If the folder cannot be written.
    """
    folder = root / FOLDER
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}.") from None
    if not (folder / ".gitignore").exists():
        write_atomically(folder / ".gitignore", "*\n")
    plain = {"schema_version": SCHEMA_VERSION, "workload": codec.to_dict(replace(workload, trust=False))}
    plain["offered"] = list(offered)
    write_atomically(folder / FILE, json.dumps(plain, indent=2) + "\n")


def offered(root: Path) -> tuple[str, ...]:
    """Return the strategies that the last profile under ``root`` recommends; none where there is no such profile."""
    try:
        names = json.loads((root / FOLDER / FILE).read_bytes())["offered"]
    except (OSError, ValueError, TypeError, KeyError):
        return ()
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def load(root: Path) -> Workload:
    """Return the workload kept under ``root``.

    Raises:
        InputError: If there is none, or the file is not what :func:`store` writes.
    """
    path = root / FOLDER / FILE
    try:
        plain = json.loads(path.read_bytes())
        workload = codec.from_dict(Workload, plain["workload"])
    except FileNotFoundError:
        raise InputError("No model has been profiled in this folder.", AGAIN) from None
    except (OSError, ValueError, TypeError, KeyError):
        raise InputError(f"{FOLDER}/{FILE} is damaged.", AGAIN) from None
    assert isinstance(workload, Workload)
    return replace(workload, trust=False)
