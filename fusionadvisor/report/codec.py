"""The report to JSON and back, by the field types of :mod:`fusionadvisor.report.model` alone."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fusionadvisor.errors import InputError
from fusionadvisor.report.model import SCHEMA_VERSION, Report


def to_json(report: Report, *, indent: int | None = 2) -> str:
    """Return the report as JSON text.

    Raises:
        ValueError: If a number is NaN or infinite; a report never holds one.
    """
    text = json.dumps(to_dict(report), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
    # bytes of a file name that the locale could not decode are UTF-8, or lost
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def to_dict(value: Any) -> Any:
    """Return dataclasses as dicts and tuples as lists, all the way down. ``schema_version`` comes first."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if "schema_version" in plain:
            plain = {"schema_version": plain.pop("schema_version"), **plain}
        return plain
    if isinstance(value, tuple | list):
        return [to_dict(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_dict(item) for key, item in value.items()}
    return value


def from_json(text: str | bytes, *, name: str = "report") -> Report:
    """Read a report of this major version; unknown keys of a later minor version are ignored.

    Raises:
        InputError: If the text is no report, or of a major version this program does not know.
    """
    try:
        plain = json.loads(text)
    except ValueError as error:
        raise InputError(f"{name} is not JSON: {error}.") from None
    version = plain.get("schema_version") if isinstance(plain, dict) else None
    if not isinstance(version, str):
        raise InputError(f"{name} is not a fusion-advisor report: it has no schema_version.")
    if version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise InputError(
            f"{name} has schema version {version}; this program reads {SCHEMA_VERSION.split('.')[0]}.x.",
            "Use the fusion-advisor version that wrote it.",
        )
    try:
        return typing.cast(Report, from_dict(Report, plain))
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{name} is not a complete report: {error}.") from None


def read(path: Path) -> Report:
    """Read a report file; see :func:`from_json`."""
    try:
        return from_json(path.read_bytes(), name=path.name)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.") from None


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def from_dict(kind: Any, plain: Any) -> Any:
    """Rebuild a value of the annotated type ``kind`` from plain JSON data."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(plain, dict):
            raise TypeError(f"expected an object for {kind.__name__}, found {type(plain).__name__}")
        hints = _hints(kind)
        return kind(**{name: from_dict(hints[name], item) for name, item in plain.items() if name in hints})
    if origin in (typing.Union, types.UnionType):
        return None if plain is None else from_dict(next(a for a in args if a is not type(None)), plain)
    if origin is tuple:
        if not isinstance(plain, list):
            raise TypeError(f"expected a list, found {type(plain).__name__}")
        kinds = [args[0]] * len(plain) if len(args) == 2 and args[1] is Ellipsis else list(args)
        return tuple(from_dict(k, item) for k, item in zip(kinds, plain, strict=True))
    if origin is dict:
        return {key: from_dict(args[1], item) for key, item in plain.items()}
    if origin is typing.Literal:
        if plain not in args:
            raise ValueError(f"{plain!r} is not one of {', '.join(map(str, args))}")
        return plain
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if isinstance(kind, type) and (not isinstance(plain, kind) or (kind is not bool and isinstance(plain, bool))):
        raise TypeError(f"expected {kind.__name__}, found {type(plain).__name__}")
    return plain
