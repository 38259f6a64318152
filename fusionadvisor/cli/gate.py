"""``--fail-on``: conditions on a report that end the command with exit code 1."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusionadvisor.catalog import RULES
from fusionadvisor.errors import GateError, InputError, did_you_mean
from fusionadvisor.render import labels, verdict
from fusionadvisor.report.model import Report

FIGURES: dict[str, Callable[[Report], float]] = {
    "findings": lambda r: sum(not f.footnote for f in r.findings),
    "kernels": lambda r: round(verdict.kernels(r) / verdict.steps_shown(r)),
    "groups": lambda r: r.fusion.groups,
    "syncs": lambda r: r.fusion.syncs,
    "unfused_us": lambda r: r.fusion.unfused_us,
    "unfused_share": lambda r: r.fusion.unfused_us / (verdict.kernel_us(r) or 1.0),
    "fused_share": lambda r: r.fusion.fused_share,
    "saving_us": verdict.could_save,
    "latency_ms": lambda r: r.latency.median_ms if r.latency else 0.0,
}
"""What a condition can be about; of one step where several were recorded."""

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_CONDITION = re.compile(
    r"\s*(?P<name>\w+)\s*(?:(?P<sign>>=|<=|==|!=|>|<)\s*(?P<limit>[\d.]+(?:e-?\d+)?)\s*(?P<percent>%?)\s*)?"
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A rule that must not speak, or a figure that must not stand in this relation to a limit."""

    text: str
    name: str
    sign: str = ""
    limit: float = 0.0

    def met(self, report: Report) -> str:
        """Return a sentence where the condition holds, so that the gate fails; else nothing."""
        if not self.sign:
            found = [f for f in report.findings if f.rule == self.name and not f.footnote]
            places = [" ".join(filter(None, (labels.where(f), labels.source(f.source)))) or f.title for f in found]
            return f"{self.name} was found: {'; '.join(places)}" if found else ""
        value = FIGURES[self.name](report)
        return f"{self.name} is {value:.6g} ({self.text})" if _COMPARE[self.sign](value, self.limit) else ""


def parse(expressions: Sequence[str]) -> tuple[Condition, ...]:
    """Read conditions: ``FA101``, ``kernels>120``, ``unfused_share > 30 %``; several in one text by commas.

    Raises:
        InputError: If one is not understood.
    """
    return tuple(_one(text.strip()) for expression in expressions for text in expression.split(",") if text.strip())


def _one(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    rules = {entry.id.lower(): entry.id for entry in RULES}
    if found is None:
        raise InputError(f"--fail-on '{text}' is not understood.", 'Write a rule, FA101, or a figure: "kernels>120".')
    name, sign = found["name"], found["sign"]
    if not sign:
        if name.lower() in rules:
            return Condition(text, rules[name.lower()])
        if name in FIGURES:
            raise InputError(f"--fail-on '{text}' has no limit.", f'Compare it: "{name}>0".')
        raise InputError(f"--fail-on names '{name}', which is no rule.", did_you_mean(name, tuple(rules.values())))
    if name not in FIGURES:
        raise InputError(f"--fail-on knows no figure '{name}'.", did_you_mean(name, tuple(FIGURES)))
    try:
        limit = float(found["limit"])
    except ValueError:
        raise InputError(f"--fail-on '{text}': '{found['limit']}' is no number.") from None
    return Condition(text, name, sign, limit / 100 if found["percent"] else limit)


def hold(conditions: tuple[Condition, ...], report: Report) -> None:
    """Let a report pass.

    Raises:
        GateError: If a condition is met; the sentence says which, and where.
    """
    if met := [sentence for condition in conditions if (sentence := condition.met(report))]:
        raise GateError(f"--fail-on: {'; '.join(met)}.")
