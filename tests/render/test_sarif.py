"""SARIF: what the standard demands, paths that a checkout elsewhere understands, and names that stay text.

The shape is asserted by hand after the OASIS schema of SARIF 2.1.0, which no package ships.
"""

import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest

from fusionadvisor.render.sarif import MARK, Folders, compose
from fusionadvisor.report.model import Finding, Report, Source
from tests.render.samples import ALL, BLOCK, CHAIN, EPILOGUE, FOLD, PROFILE, TRACE
from tests.render.test_terminal import HOSTILE

HERE = Folders("/home/someone", "/home/someone/work")


def log(report: Report, folders: Folders = HERE) -> dict[str, Any]:
    text = compose(report, folders)
    assert text.startswith(MARK)
    assert text.isascii()
    found: dict[str, Any] = json.loads(text)
    return found


def assert_location(location: dict[str, Any]) -> None:
    physical = location["physicalLocation"]
    assert set(physical) == {"artifactLocation", "region"}
    assert set(physical["artifactLocation"]) <= {"uri", "uriBaseId"}
    assert re.fullmatch(r"(file:///)?[A-Za-z0-9%/._~-]+", physical["artifactLocation"]["uri"])
    assert physical["region"]["startLine"] >= 1
    for logical in location.get("logicalLocations", ()):
        assert set(logical) == {"fullyQualifiedName", "kind"}


@pytest.mark.parametrize("name", list(ALL))
def test_it_is_what_the_standard_says(name: str) -> None:
    found = log(ALL[name])
    assert set(found) == {"properties", "$schema", "version", "runs"}
    assert (found["version"], len(found["runs"])) == ("2.1.0", 1)
    run = found["runs"][0]
    assert set(run) == {"tool", "invocations", "columnKind", "originalUriBaseIds", "results"}
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    driver = run["tool"]["driver"]
    assert set(driver) == {"name", "version", "informationUri", "rules"}
    for rule in driver["rules"]:
        assert set(rule) <= {"id", "shortDescription", "help", "helpUri"}
        assert rule["shortDescription"]["text"].endswith(".")
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        assert len(result["locations"]) == 1
        for location in (*result["locations"], *result.get("relatedLocations", ())):
            assert_location(location)
        assert re.fullmatch("[0-9a-f]{32}", result["partialFingerprints"]["fusionAdvisor/v1"])


def test_findings_land_on_their_lines() -> None:
    results = log(PROFILE)["runs"][0]["results"]
    assert [(r["ruleId"], r["locations"][0]["physicalLocation"]["region"]["startLine"]) for r in results] == [
        ("FA101", 31), ("FA102", 35), ("FA103", 41),
    ]  # fmt: skip
    assert results[0]["message"]["text"] == (
        "Fold batch norm into its convolution ×3 at bn1, bn2, bn3: could save 90–111 µs (bound). "
        "Remedies: fuse_modules, compile."
    )
    assert "shares kernels with FA103; each is counted once" in results[1]["message"]["text"]
    assert {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in results} == {"block.py"}


def test_other_places_of_a_finding_are_related() -> None:
    (related,) = [r["relatedLocations"] for r in log(PROFILE)["runs"][0]["results"] if "relatedLocations" in r]
    assert [place["logicalLocations"][0]["fullyQualifiedName"] for place in related] == ["bn2", "bn3"]


def test_findings_without_a_line_are_counted() -> None:
    (invocation,) = log(TRACE)["runs"][0]["invocations"]
    assert invocation["toolExecutionNotifications"][0]["message"]["text"].startswith("1 finding without a source line")
    assert log(PROFILE)["runs"][0]["invocations"][0]["toolExecutionNotifications"] == []


@pytest.mark.parametrize(
    ("file", "uri", "based"),
    [
        ("/home/someone/models/a b.py", "models/a%20b.py", True),
        ("models/block.py", "work/models/block.py", True),
        ("block.py", "block.py", True),  # the target's own name: it lies in the root
        ("C:\\models\\block.py", "work/C%3A/models/block.py", True),
        (
            "/usr/lib/python3/site-packages/timm/resnet.py",
            "file:///usr/lib/python3/site-packages/timm/resnet.py",
            False,
        ),
    ],
)
def test_paths_are_relative_to_the_repository(file: str, uri: str, based: bool) -> None:
    report = replace(PROFILE, workload=replace(BLOCK), findings=(replace(FOLD, source=Source(file, 3)),))
    artifact = log(report)["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == ({"uri": uri, "uriBaseId": "%SRCROOT%"} if based else {"uri": uri})


def test_a_fingerprint_survives_a_moved_line_and_tells_modules_apart() -> None:
    def prints(*findings: Finding) -> list[str]:
        results = log(replace(PROFILE, findings=findings))["runs"][0]["results"]
        return [r["partialFingerprints"]["fusionAdvisor/v1"] for r in results]

    assert prints(FOLD) == prints(replace(FOLD, source=Source("/home/someone/block.py", 99), id="FA101#7"))
    assert len(set(prints(FOLD, EPILOGUE, replace(FOLD, module="bn9")))) == 3


def test_hostile_names_stay_text() -> None:
    name = f"{HOSTILE}</script><script>alert(1)</script>[click](http://evil)"
    finding = replace(CHAIN, title=name, module=name, modules=(name,), source=Source(f"/home/someone/{name}.py", 3))
    text = compose(replace(PROFILE, findings=(finding,)), HERE)
    assert text.isascii()
    result = json.loads(text)["runs"][0]["results"][0]
    assert not {"\x1b", "\u202e", "\u2028", "\x00", "\r", "\n"} & set(result["message"]["text"])
    assert not re.search(r"(?<!\\)\[", result["message"]["text"])  # no link comes of it
    assert_location(result["locations"][0])
    assert "alert(1)" in unquote(result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])
