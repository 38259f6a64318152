"""What two runs of unchanged code share to the byte, whatever the clock says: all that a gate compares exactly.

Times, kernel names (they change with library versions), file names and line numbers (they change with a comment) and
orders by time are left out.
"""

import json
from collections import Counter
from typing import Any

from fusionadvisor.report.model import Report
from fusionadvisor.report.quantities import QUANTITIES
from fusionadvisor.report.step import kernels, kernels_of, module_path, step_rows, structural


def structure(report: Report) -> dict[str, Any]:
    """Return one step as plain sorted data without a time in it.

    Two runs of the same code on the same versions give equal dicts; :func:`canonical` makes them bytes.
    """
    ran = kernels(report)
    findings = [
        {"rule": f.rule, "modules": sorted(map(module_path, f.modules or (f.module,))), "instances": f.instances}
        for f in structural(report.findings)
    ]
    return {
        "quantities": {q.name: q.of(report) for q in QUANTITIES if not q.timed},
        "kinds": dict(sorted(Counter(kernel.kind for kernel in ran).items())),
        "kernels": [
            {"module": k.module, "op": k.op, "shapes": k.shapes, "kind": k.kind, "count": count}
            for k, count in sorted(Counter(ran).items(), key=lambda item: repr(item[0]))
        ],
        "groups": _groups(report),
        "findings": sorted(findings, key=lambda f: json.dumps(f, sort_keys=True)),
    }


def _groups(report: Report) -> list[dict[str, Any]]:
    if report.timeline is None or not report.timeline.kernels.group:
        return []
    table = report.timeline.kernels
    members: dict[int, list[int]] = {}
    for row in step_rows(table):
        if table.group[row] >= 0:
            members.setdefault(table.group[row], []).append(row)
    counted = Counter(tuple((k.module, k.op) for k in kernels_of(table, rows)) for rows in members.values())
    return [{"kernels": [list(k) for k in group], "count": count} for group, count in sorted(counted.items())]


def canonical(report: Report) -> bytes:
    """Return the structure as bytes, equal exactly when the structures are."""
    return json.dumps(structure(report), sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()
