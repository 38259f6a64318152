"""The report's JSON Schema (draft 7), derived from the types of :mod:`fusionadvisor.report.model`."""

import dataclasses
import inspect
import types
import typing
from pathlib import Path
from typing import Any

from fusionadvisor.report.model import SCHEMA_VERSION, Report

FILE = Path(__file__).with_name(f"report-{SCHEMA_VERSION.split('.')[0]}.json")
"""The schema as shipped; a test compares it with what :func:`generate` returns."""

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


def generate() -> dict[str, Any]:
    """Return the schema of a report as JSON data.

    Fields with a default are optional, because a later minor version may have added them; unknown keys are allowed for
    the same reason.
    """
    known: dict[str, Any] = {}
    root = _of(Report, known)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"fusion-advisor report, schema version {SCHEMA_VERSION.split('.')[0]}.x",
        **root,
        "definitions": dict(sorted(known.items())),
    }


def _of(kind: Any, known: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in known:
            known[kind.__name__] = {}  # named before its fields are looked at, should one refer back to it
            known[kind.__name__] = _object(kind, known)
        return {"$ref": f"#/definitions/{kind.__name__}"}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of(arg, known) for arg in args]}
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return {"type": "array", "items": _of(args[0], known)}
    if origin is tuple:
        size = len(args)
        return {"type": "array", "items": [_of(arg, known) for arg in args], "minItems": size, "maxItems": size}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(args[1], known)}
    if origin is typing.Literal:
        return {"enum": list(args)}
    return {"type": "null"} if kind is types.NoneType else {"type": _PLAIN[kind]}


def _object(kind: type, known: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    required = [
        f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]  # fmt: skip
    properties = {f.name: _of(hints[f.name], known) for f in fields}
    if kind is Report:
        required = ["schema_version", *required]
        properties["schema_version"]["pattern"] = rf"^{SCHEMA_VERSION.split('.')[0]}\.\d+$"
    return {
        "type": "object",
        "description": (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " "),
        "required": required,
        "properties": properties,
    }
