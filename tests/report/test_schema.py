"""The shipped JSON Schema is the one of the types, and reports satisfy it."""

import copy
import json
import os
from collections.abc import Callable
from typing import Any

import fastjsonschema
import pytest

from fusionadvisor.report import codec, schema
from tests.render.samples import ALL, APPLY

Validate = Callable[[Any], Any]


@pytest.fixture(scope="module")
def validate() -> Validate:
    compiled: Validate = fastjsonschema.compile(json.loads(schema.FILE.read_bytes()))
    return compiled


def test_shipped_schema_is_current() -> None:
    text = json.dumps(schema.generate(), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        schema.FILE.write_text(text, encoding="utf-8")
    current = schema.FILE.read_text(encoding="utf-8") == text
    assert current, "model.py changed: UPDATE_SNAPSHOTS=1 pytest tests/report/test_schema.py"


@pytest.mark.parametrize("name", list(ALL))
def test_reports_satisfy_it(name: str, validate: Validate) -> None:
    validate(json.loads(codec.to_json(ALL[name])))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema_version",), "2.0"),
        (("findings", 0, "instances"), "three"),
        (("findings", 0, "saving", "step_us", "low"), None),
        (("attempts", 0, "outcome"), "splendid"),
        (("attempts", 0, "speedup", "ci95"), [1.0]),
    ],
)
def test_it_refuses_what_is_no_report(path: tuple[str | int, ...], value: object, validate: Validate) -> None:
    plain = copy.deepcopy(json.loads(codec.to_json(APPLY)))
    inner = plain
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        validate(plain)


def test_a_later_minor_version_passes(validate: Validate) -> None:
    plain = json.loads(codec.to_json(APPLY))
    validate({**plain, "schema_version": "1.7", "something_new": [1, 2]})
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        validate({key: item for key, item in plain.items() if key != "schema_version"})
