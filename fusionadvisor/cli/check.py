"""``fusion-advisor check``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusionadvisor.cli.options import FailOption, ForceOption, MarkdownOption, TextFormat, TextFormatOption, how_option

if TYPE_CHECKING:
    from fusionadvisor.cli.forms import Target
    from fusionadvisor.report.budget import Check
    from fusionadvisor.report.model import Report

TOLERANCE = 5.0


def check(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A report (--json) or a trace.")],
    baseline: Annotated[
        Path | None, how_option("--baseline", metavar="FILE", help="The report of the code before the change.")
    ] = None,
    update: Annotated[
        bool,
        how_option(
            "--update-baseline", metavar="", help="Make REPORT the new baseline; differences are shown but do not fail."
        ),
    ] = False,
    fail_on: FailOption = None,
    tolerance: Annotated[
        float, how_option("--tolerance", min=0, metavar="PERCENT", help="How much slower a measured step may be.")
    ] = TOLERANCE,
    format: TextFormatOption = TextFormat.text,
    markdown: MarkdownOption = None,
    force: ForceOption = False,
) -> int:
    """Check a report against a baseline and the project's budget; exit 1 if it is worse.

    The budget is the table tool.fusion-advisor.budget in pyproject.toml, e.g. kernels = 160, findings.FA101 = 0.
    """
    from fusionadvisor.cli import gate, settings
    from fusionadvisor.cli.forms import Target
    from fusionadvisor.cli.inputs import report_or_trace
    from fusionadvisor.cli.output import distinct, show, working
    from fusionadvisor.errors import GateError, InputError
    from fusionadvisor.render import gate as rendered
    from fusionadvisor.report import budget, condition

    if update and baseline is None:
        raise InputError("--update-baseline needs a file to update.", "Add --baseline FILE.")
    if baseline is not None and not update and not baseline.exists():
        raise InputError(f"The baseline {baseline} does not exist.", "Add --update-baseline to create it.")
    distinct({"baseline": baseline if update else None, "markdown": markdown})
    kept_in = Target.checked("json", baseline, force) if update and baseline is not None else None
    summary = Target.checked("markdown", markdown, force) if markdown else None
    table, extra = settings.load(Path.cwd()).table("budget"), condition.parse(fail_on or ())
    with working() as say:
        current = report_or_trace(report, say)
        kept = report_or_trace(baseline, say) if baseline is not None and baseline.exists() else None
    limits = (*budget.read(table, current), *extra)
    if kept is None and not limits and not update:
        raise InputError(
            "There is nothing to check against.",
            "Add --baseline FILE, --fail-on, or a table [tool.fusion-advisor.budget] in pyproject.toml.",
        )
    found = budget.check(current, limits, kept, tolerance=tolerance / 100)
    if kept_in:
        found = _updated(kept_in, current, found)
    show(found, rendered, format)
    if summary:
        summary.write(rendered.markdown(found))
    if found.breaches:
        raise GateError(gate.sentences(found.breaches))
    return 0


def _updated(target: "Target", current: "Report", found: "Check") -> "Check":
    """Write the new baseline unless it would say the same; what differs from the old one then fails nothing."""
    from fusionadvisor.report import budget, codec

    if found.same and not found.breaches and found.comparison and not found.comparison.notes:
        return replace(found, notes=(f"{target.path} is up to date and was not changed.",))
    target.write(codec.to_json(budget.baseline(current)))
    changes = tuple(f"{b.what}: {b.limit} → {b.found}." for b in found.breaches if b.origin == "baseline")
    return replace(
        found,
        breaches=tuple(b for b in found.breaches if b.origin != "baseline"),
        notes=(*found.notes, *changes, f"{target.path} is now the baseline."),
    )
