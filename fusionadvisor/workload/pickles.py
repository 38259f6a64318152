"""What loading a checkpoint would import and run, found out without loading it."""

import json
import pickletools
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import IO

_ZIP = b"PK\x03\x04"


def unsafe_names(path: Path) -> list[str]:
    """Names that the pickles of a file import beyond what torch itself holds for safe, in order of appearance."""
    with path.open("rb") as stream:
        found = _in_zip(stream) if stream.read(4) == _ZIP else _in_pickles(stream, path.stat().st_size)
        return list(dict.fromkeys(found))


def _in_zip(stream: IO[bytes]) -> Iterator[str]:
    """What the pickles of a torch archive import; archives inside (weights of an exported program) are opened too."""
    with zipfile.ZipFile(stream) as archive:
        names = archive.namelist()
        pickled = [name for name in names if name.endswith((".pkl", ".pt"))]
        for config in (name for name in names if name.endswith("_config.json")):
            entries = json.loads(archive.read(config)).get("config", {}).values()
            paths = {entry["path_name"] for entry in entries if entry.get("use_pickle")}
            pickled += [name for name in names if name.rpartition("/")[2] in paths]
        for name in dict.fromkeys(pickled):
            content = archive.read(name)
            if content.startswith(_ZIP):
                yield from _in_zip(BytesIO(content))
            else:
                yield from _in_pickles(BytesIO(content), len(content))


def _in_pickles(stream: IO[bytes], size: int) -> Iterator[str]:
    """What a row of pickles imports: older torch files are several of them, then raw tensors."""
    stream.seek(0)
    while stream.tell() < size:
        try:
            yield from _in_pickle(stream)
        except (ValueError, EOFError, IndexError, UnicodeDecodeError):
            return


def _in_pickle(stream: IO[bytes]) -> Iterator[str]:
    from torch._weights_only_unpickler import _get_allowed_globals

    allowed = _get_allowed_globals()
    strings: list[str] = []
    for code, argument, _ in pickletools.genops(stream):
        if code.name in ("GLOBAL", "INST"):
            name = str(argument).replace(" ", ".").replace("__builtin__.", "builtins.")
            if name not in allowed:
                yield name
        elif code.name == "STACK_GLOBAL":
            # the name is put together while loading, so what it is can be hidden: never taken for safe
            yield ".".join(strings[-2:]) if len(strings) > 1 else "a name made while loading"
        elif isinstance(argument, str):
            strings.append(argument)
