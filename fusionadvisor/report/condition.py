"""The grammar of limits: ``kernels > 160``, ``findings.FA101 > 0``, ``unfused_share > 30 %``, or a rule alone.

One condition says when a report fails. ``--fail-on`` and a project's budget are written in it.
"""

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fusionadvisor import catalog
from fusionadvisor.errors import InputError, did_you_mean
from fusionadvisor.report import quantities
from fusionadvisor.report.model import Finding, Report
from fusionadvisor.report.quantities import Quantity

COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
HOLDS = {">=": "below", "<=": "above", ">": "at most", "<": "at least", "==": "not", "!=": "exactly"}
"""What a figure has to be for the report to pass."""
_CONDITION = re.compile(
    r"(?P<name>[\w.]+?)\s*(?:(?P<sign>>=|<=|==|!=|>|<)\s*(?P<limit>-?[\d._]+(?:e[+-]?\d+)?)\s*(?P<percent>%?))?"
)


@dataclass(frozen=True, slots=True)
class Condition:
    """When a report fails. A rule alone is short for its places: ``FA101`` for ``findings.FA101 > 0``."""

    text: str
    quantity: Quantity
    sign: str
    limit: float

    @property
    def holds(self) -> str:
        """What has to be for the report to pass: ``at most 160``."""
        return f"{HOLDS[self.sign]} {self.limit:,.6g}"

    def findings(self, report: Report) -> tuple[Finding, ...]:
        """Return the findings the condition is about; none where it is about another figure."""
        return tuple(f for f in report.findings if f.rule == self._rule or self.quantity.name == "findings")

    @property
    def _rule(self) -> str:
        name = self.quantity.name
        return name.removeprefix(quantities.PREFIX) if name.startswith(quantities.PREFIX) else ""

    def met(self, report: Report) -> bool:
        """True where the report fails.

        Raises:
            InputError: If the report does not say the quantity: a gate that cannot be judged must not pass.
        """
        value = self.quantity.of(report)
        if value is None:
            raise self._unjudged(report)
        return COMPARE[self.sign](value, self.limit)

    def _unjudged(self, report: Report) -> InputError:
        if not self._rule:
            return InputError(
                f"'{self.text}' cannot be judged: this report has no {self.quantity.name} ({self.quantity.meaning}).",
                "Drop that limit, or set it on a report that has the figure.",
            )
        said = [w.message for w in report.warnings if w.message.startswith(f"Rule {self._rule} ")]
        why = said[-1].removesuffix(".") if said else f"{self._rule} did not look at what this report is of"
        return InputError(f"'{self.text}' cannot be judged: {why}.", "Let the rule run, or drop that limit.")


def parse(expressions: Iterable[str], *, origin: str = "--fail-on") -> tuple[Condition, ...]:
    """Read conditions; several in one text are set apart by commas.

    Args:
        expressions: ``FA101``, ``kernels>120``, ``unfused_share > 30 %``.
        origin: Where they stand, for messages.

    Raises:
        InputError: If one is not understood.
    """
    return tuple(_one(text.strip(), origin) for words in expressions for text in words.split(",") if text.strip())


def _one(text: str, origin: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise InputError(f"{origin} '{text}' is not understood.", 'Write a rule, FA101, or a figure: "kernels>120".')
    name, sign = found["name"], found["sign"]
    if not sign:
        return _rule_alone(text, name, origin)
    try:
        limit = float(found["limit"])
    except ValueError:
        raise InputError(f"{origin} '{text}': '{found['limit']}' is no number.") from None
    return Condition(text, quantities.find(name), sign, limit / 100 if found["percent"] else limit)


def _rule_alone(text: str, name: str, origin: str) -> Condition:
    if any(quantity.name == name for quantity in quantities.QUANTITIES):
        raise InputError(f"{origin} '{text}' has no limit.", f'Compare it: "{name}>0".')
    rules = {entry.id.lower(): entry.id for entry in catalog.rules()}
    if name.lower() not in rules:
        raise InputError(f"{origin} names '{name}', which is no rule.", did_you_mean(name, tuple(rules.values())))
    rule = rules[name.lower()]
    return Condition(text, quantities.of_rule(rule), ">", 0)


def at_most(name: str, limit: float, report: Report | None = None) -> Condition:
    """Return the condition that a budget's plain number means: not above it, or not below it where more is better.

    Raises:
        InputError: If there is no such quantity.
    """
    quantity = quantities.find(name, report)
    sign = "<" if quantity.more_is_better else ">"
    return Condition(f"{quantity.name} {sign} {limit:g}", quantity, sign, limit)
