"""What a rule is: it looks at the facts and says what it found, what almost matched, or why it saw nothing."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.nodes import Node
from fusionadvisor.report.model import NearMiss, Range, Source
from fusionadvisor.units import plural, time_us


@dataclass(frozen=True, slots=True)
class Mean:
    """One of a finding's repeats on average: its kernels' number and time, of which the finding's own are the sum.

    Args:
        us: Time of its kernels, in µs.
        count: How many kernels it has.
        repeats: Over how many places of a step this is the mean.
    """

    us: float
    count: float
    repeats: int = 1

    @property
    def time(self) -> str:
        """``97.1 µs``, or where there are several places ``97.1 µs on average``."""
        return f"{time_us(self.us)} on average" if self.repeats > 1 else time_us(self.us)

    @property
    def kernels(self) -> str:
        """``8 kernels``."""
        return plural(round(self.count), "kernel")

    @property
    def each(self) -> str:
        """What one kernel takes: ``3.4 µs``."""
        return time_us(self.us / max(1, round(self.count)))


Sentence = str | Callable[[Mean], str]
"""Evidence. What names a time or counts kernels says it of the mean, so that it fits the finding's own numbers."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place a rule matched, before its kernels' time is credited.

    Args:
        nodes: Nodes whose kernels would go or merge. Their time is this candidate's unless another takes it first.
        saving: Bound in µs of kernel time.
        pattern: What makes repeats equal, in words: ``conv → batch_norm``. Repeats become one finding.
        anchor: The node that gives the finding its module path and line.
        beside: Nodes that belong to the picture and keep their time (the convolution a norm folds into).
        step_us: Bound in µs of the step where it is not the kernels' own saving (idle time of launches).
        evidence: Sentences with the numbers the finding rests on; those with a time take it from the mean.
        specific: False for a rule that catches whatever nothing else explains; it is credited last.
        remedies: Strategies, where they differ from the rule's own.
        title: Where it differs from the rule's own.
        where: Module path and line, where there is no anchor.
        note: It is a footnote whatever it saves.
    """

    nodes: tuple[int, ...]
    saving: Range
    pattern: str
    anchor: Node | None = None
    beside: tuple[int, ...] = ()
    step_us: Range | None = None
    evidence: tuple[Sentence, ...] = ()
    specific: bool = True
    remedies: tuple[str, ...] | None = None
    title: str = ""
    where: tuple[str, Source | None] = ("", None)
    note: bool = False


@dataclass(frozen=True, slots=True)
class Looked:
    """What a rule saw. ``skipped`` says why it had nothing to look at; it then has no candidates."""

    candidates: tuple[Candidate, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    skipped: str = ""


class Rule(ABC):
    """One rule. The docstring of a subclass is its page; it keeps no state.

    The page begins with the title, an imperative, as a sentence of its own. ``remedies``, ``passed`` and ``timed`` are
    for rules of other packages, which write them as literals: they are read without running the package, as the page
    is. Those of the built-in rules stand in :mod:`fusionadvisor.catalog`.
    """

    id: ClassVar[str]
    remedies: ClassVar[tuple[str, ...]] = ()
    """Strategies that do what the rule asks for, the best first."""
    passed: ClassVar[str] = ""
    """What to say when it found nothing, in two or three words."""
    timed: ClassVar[bool] = False
    """True where it judges by measured times, so that two runs of the same code may differ."""
    worth_us: ClassVar[float] = 1.0
    worth_share: ClassVar[float] = 0.002
    """A finding that can save less than either (µs a step; share of a step's busy time) is a footnote."""
    trusted: ClassVar[bool] = False
    """True where the edges it rests on were assumed right in 95 % of cases or more, of models the inference was not
    written with, so that a trace supports a likely value; see benchmarks/flow_inference.json."""

    @abstractmethod
    def look(self, facts: Facts) -> Looked:
        """Look at the facts; raise nothing for what is missing, say it in ``skipped``."""

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Return the fix as code in the user's own names, for all repeats of one finding; empty where there is none."""
        return ""


@dataclass(slots=True)
class Notes:
    """Candidates and near misses while a rule looks; near misses repeat once a module and reason."""

    candidates: list[Candidate] = field(default_factory=list)
    _missed: dict[tuple[str, str], NearMiss] = field(default_factory=dict)

    def miss(self, rule: Rule, node: Node, reason: str) -> None:
        """Record that ``rule`` almost matched at ``node``."""
        where = node.module or node.op
        self._missed.setdefault((where, reason), NearMiss(rule.id, where, reason, source(node)))

    def looked(self) -> Looked:
        """What was seen."""
        return Looked(tuple(self.candidates), tuple(self._missed.values()))


def hook(facts: Facts, *nodes: Node) -> str:
    """Say which hook sees a value that passes between these nodes: ``conv4 has a forward hook``; empty for none.

    A hook of a module that holds all of them sees only what goes in and what comes out.
    """
    for path, words in facts.hooked.items():
        inside = [n for n in nodes if n.module == path or n.module.startswith(f"{path}.")]
        if 0 < len(inside) < len(nodes):
            return f"{path} {words}"
    return ""


def source(node: Node) -> Source | None:
    """The line of user code that ran a node, None where unknown."""
    return line_of(node.source)


def line_of(text: str) -> Source | None:
    """Read ``file.py:31``; None for anything else."""
    file, _, line = text.rpartition(":")
    return Source(file, int(line)) if file and line.isdigit() else None


def name(node: Node) -> str:
    """What to call a node in a sentence: its module's path (of a trace's, the last part), else its op."""
    return node.module.rpartition("/")[2] or node.outer or node.op
