"""Reports of other versions, and texts that are none."""

import copy
import json
from dataclasses import fields, replace
from typing import Any

import pytest

from fusionadvisor.errors import InputError
from fusionadvisor.report import codec
from fusionadvisor.report.model import SCHEMA_VERSION, KernelTable, Report, Timing, Tool
from tests.render.samples import ALL, PROFILE
from tests.report.steps import K, made


@pytest.mark.parametrize("report", [*ALL.values(), made(K("a", "b"), steps=3, latency=(1, 2, 3))])
def test_what_is_written_is_read(report: Report) -> None:
    assert codec.from_json(codec.to_json(report)) == report
    assert codec.from_json(codec.to_json(report, indent=None)) == report


def plain(report: Report) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(codec.to_json(report))
    assert next(iter(loaded)) == "schema_version"
    return loaded


def test_an_older_minor_version_lacks_what_came_later_and_loads() -> None:
    older = plain(PROFILE)
    for key in ("step", "shapes", "bytes"):
        del older["timeline"]["kernels"][key]
    del older["timeline"]["rank"], older["fusion"]["unfused_bytes"], older["files"], older["near_misses"]
    read = codec.from_json(json.dumps(older))
    assert read.timeline is not None
    assert (read.timeline.rank, read.fusion.unfused_bytes, read.files) == (None, None, ())
    assert (read.timeline.kernels.step, read.findings) == ((), PROFILE.findings)


def test_every_field_that_came_after_the_first_has_a_default() -> None:
    required = {f.name for f in fields(Report) if f.default is f.default_factory}
    assert required == {"tool", "created", "command"}
    assert KernelTable().total == 0


def test_a_later_minor_version_says_more_and_loads() -> None:
    later = {**plain(PROFILE), "schema_version": "1.99", "new": {"a": 1}}
    later["findings"][0]["new"] = True
    read = codec.from_json(json.dumps(later))
    assert replace(read, schema_version=SCHEMA_VERSION) == PROFILE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "r.json is not JSON"),
        ("[]", "it has no schema_version"),
        ('{"schema_version": 1}', "it has no schema_version"),
        ('{"schema_version": "2.0"}', "has schema version 2.0; this program reads 1.x.  Use the fusion-advisor"),
        ('{"schema_version": "10.1"}', "has schema version 10.1"),
        ('{"schema_version": "1.0"}', "is not a complete report"),
        (
            '{"schema_version": "1.0", "tool": 3, "created": "", "command": ""}',
            "expected an object for Tool, found int",
        ),
    ],
)
def test_what_is_no_report(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        codec.from_json(text, name="r.json")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("findings", 0, "instances"), "3"), (("findings", 0, "instances"), True), (("findings", 0, "modules"), "bn1"),
        (("timeline", "basis"), "guessed"), (("latency", "ci95_ms"), [1.0]), (("fusion", "groups"), None),
        (("timeline", "kernels", "op"), ["aten::a"]), (("timeline", "kernels", "index"), []),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused(path: tuple[str | int, ...], value: object) -> None:
    broken = copy.deepcopy(plain(PROFILE))
    inner: Any = broken
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(InputError, match="is not a complete report"):
        codec.from_json(json.dumps(broken))


def test_a_number_that_is_none_is_never_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        codec.to_json(Report(Tool("t", "1"), "now", "profile", latency=Timing(float("nan"), (0.0, 1.0))))
