"""Findings as SARIF 2.1.0, so that they land on source lines (GitHub code scanning, editors).

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from fusionadvisor import catalog
from fusionadvisor.errors import InputError
from fusionadvisor.render import labels, verdict
from fusionadvisor.render.text import cleaned
from fusionadvisor.report.model import Finding, Report, Source
from fusionadvisor.units import plural

MARK = '{"properties": {"writtenBy": "fusion-advisor"}'
"""How the file begins, by which it is known as this tool's own."""
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "%SRCROOT%"
RELATED = 20
"""Further places named in one result."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Absolute paths: ``root`` is what file names are made relative to, ``here`` what relative ones are relative to."""

    root: str
    here: str


def compose(report: Report, folders: Folders) -> str:
    """Return the findings that have a source line, as a SARIF log.

    Args:
        report: Findings without a line are counted in a notification.
        folders: Where files lie.
    """
    report = cleaned(report)
    placed = [finding for finding in report.findings if finding.source]
    rules = list(dict.fromkeys(finding.rule for finding in placed))
    unplaced = len(report.findings) - len(placed)
    said = f"{plural(unplaced, 'finding')} without a source line left out; the report has all."
    run = {
        "tool": {
            "driver": {
                "name": report.tool.name,
                "version": report.tool.version,
                "informationUri": catalog.DOCS_URL,
                "rules": [_rule(rule, placed) for rule in rules],
            }
        },
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [{"level": "note", "message": {"text": said}}] if unplaced else [],
            }
        ],
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"uri": f"file://{quote(folders.root.rstrip('/'))}/"}},
        "results": [_result(finding, rules.index(finding.rule), report, folders) for finding in placed],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return f"{MARK},{json.dumps(log, ensure_ascii=True)[1:]}\n"


def _rule(rule: str, findings: list[Finding]) -> dict[str, Any]:
    try:
        entry = catalog.entry(rule)
        title, url = entry.title, entry.url
    except InputError:  # another package's rule
        first = next(f for f in findings if f.rule == rule)
        title, url = first.title, first.url
    help_text = f"{title}. Run `fusion-advisor explain {rule}` for what it finds, why it costs and what to do."
    described = {"shortDescription": {"text": f"{title}."}, "help": {"text": help_text}}
    return {"id": rule, **described, **({"helpUri": url} if url.startswith("https://") else {})}


def _result(finding: Finding, index: int, report: Report, folders: Folders) -> dict[str, Any]:
    assert finding.source is not None
    modules = finding.modules or (finding.module,)
    others = zip(modules[1 : RELATED + 1], finding.sources[1:], strict=False)
    related = [_location(source, module, report, folders) for module, source in others if source]
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": "note" if finding.footnote else "warning",
        "message": {"text": _message(finding, report)},
        "locations": [_location(finding.source, modules[0], report, folders)],
        **({"relatedLocations": [{"id": i, **place} for i, place in enumerate(related)]} if related else {}),
        "partialFingerprints": {"fusionAdvisor/v1": _fingerprint(finding)},
    }


def _message(finding: Finding, report: Report) -> str:
    parts = [f"{finding.title} {labels.counted(finding)}".rstrip()]
    parts += [f"at {labels.where(finding)}"] if labels.where(finding) else []
    saving = labels.could_save(finding, report, verdict.scale(report))
    how = f" Remedies: {', '.join(finding.remedies)}." if finding.remedies else ""
    # a message's text may hold links, [text](target); names must not become any (SARIF 2.1.0, 3.11.6)
    return re.sub(r"([\\\[\]])", r"\\\1", f"{' '.join(parts)}: {saving}.{how}")


def _location(source: Source, module: str, report: Report, folders: Folders) -> dict[str, Any]:
    region = {"startLine": max(source.line, 1)}
    physical = {"artifactLocation": _artifact(source.file, report, folders), "region": region}
    named = [{"fullyQualifiedName": module, "kind": "module"}] if module else []
    return {"physicalLocation": physical, **({"logicalLocations": named} if named else {})}


def _artifact(file: str, report: Report, folders: Folders) -> dict[str, str]:
    """Give a file under the root relative to it, so that it is found in a checkout elsewhere."""
    path = PurePosixPath(file.replace("\\", "/"))
    target = report.workload.target if report.workload else ""
    if not path.is_absolute():
        path = PurePosixPath(target) if target.endswith(f"/{path}") else PurePosixPath(folders.here) / path
    if path.is_relative_to(folders.root):
        return {"uri": quote(str(path.relative_to(folders.root))), "uriBaseId": ROOT}
    return {"uri": f"file://{quote(str(path))}"}


def _fingerprint(finding: Finding) -> str:
    """The same finding in a later version of the code, wherever its line went."""
    return hashlib.sha256(f"{finding.rule}\n{finding.module}\n{finding.title}".encode()).hexdigest()[:32]
