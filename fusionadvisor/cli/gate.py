"""Let a report pass, or say in one sentence which conditions fail it and where."""

from collections.abc import Sequence

from fusionadvisor.errors import GateError
from fusionadvisor.render import labels, variants
from fusionadvisor.report import budget
from fusionadvisor.report.budget import Breach
from fusionadvisor.report.condition import Condition
from fusionadvisor.report.model import Report

SHOWN = 3


def hold(conditions: Sequence[Condition], report: Report) -> None:
    """Let a report pass, with each of its workloads where there are several.

    Raises:
        GateError: If a condition is met; the sentence says which, and where.
        InputError: If the report does not say what a condition is about.
    """
    for name, one in zip(variants.names(report), variants.each(report), strict=True):
        if breaches := budget.against(conditions, one, "--fail-on"):
            raise GateError(f"--fail-on: {name + ': ' if name else ''}{sentences(breaches)}")


def sentences(breaches: Sequence[Breach]) -> str:
    """The first of them in words, and how many there are besides."""
    more = f"; and {len(breaches) - SHOWN} more" if len(breaches) > SHOWN else ""
    return f"{'; '.join(map(_sentence, breaches[:SHOWN]))}{more}."


def _sentence(breach: Breach) -> str:
    """``kernels: 165, has to be at most 160: layers.0.norm block.py:31``."""
    places = [" ".join(filter(None, (p.module, labels.source(p.source)))) or p.words for p in breach.places]
    where = "; ".join(places[:SHOWN])
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return f"{breach.what}: {breach.found}, must be {breach.limit}{f': {where}{more}' if where else ''}"
