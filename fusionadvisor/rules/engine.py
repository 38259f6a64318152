"""The rules run over the facts, and each kernel's time credited once."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING

from fusionadvisor import catalog, units
from fusionadvisor.analysis import cost
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.launch import Merge
from fusionadvisor.errors import InputError
from fusionadvisor.report.model import (
    Finding,
    Fusion,
    LaunchBound,
    NearMiss,
    NotApplicable,
    Notice,
    Passed,
    Range,
    Saving,
    Source,
)
from fusionadvisor.rules.base import Candidate, Looked, Mean, Rule, source

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MODULES_SHOWN = 64
MOST = 0.5
"""A verdict needs to have seen at least this share of kernel time."""
_OF_LAUNCHING = "FA3"
"""Rules that look at launches and waits, whatever is known of the ops."""
INFERENCE_ALONE = frozenset({"fuse_modules", "horizontal", "fx", "torchscript"})
"""Strategies that leave a model in training alone."""


@dataclass(frozen=True)
class Advice:
    """What the rules said, and for each row of the kernel table its group and its bytes, -1 for none or unknown."""

    findings: tuple[Finding, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    passed: tuple[Passed, ...] = ()
    not_applicable: tuple[NotApplicable, ...] = ()
    warnings: tuple[Notice, ...] = ()
    fusion: Fusion = field(default_factory=Fusion)
    group_of_kernel: "npt.NDArray[np.int64] | None" = None
    bytes_of_kernel: "npt.NDArray[np.int64] | None" = None


def rules() -> tuple[Rule, ...]:
    """Every rule that can be loaded: the built-in ones, then those of other packages."""
    return _loaded()[0]


def _loaded() -> tuple[tuple[Rule, ...], list[Notice]]:
    """Load the rules. One of another package that cannot be costs a warning."""
    found: list[Rule] = []
    warnings = [Notice("W10", said) for said in catalog.refused_rules()]
    for entry in catalog.rules():
        module, name = entry.home.split(":")
        try:
            rule = getattr(import_module(module), name)()
        except Exception as error:  # one broken rule must not cost the others' findings
            if not entry.package:
                raise
            warnings.append(_left_out(entry, f"cannot be loaded: {type(error).__name__}: {error}"))
            continue
        if not isinstance(rule, Rule):
            warnings.append(
                _left_out(entry, f"is left out: {entry.home} is no subclass of fusionadvisor.rules.base.Rule")
            )
        elif rule.id != entry.id:
            warnings.append(_left_out(entry, f"is left out: it calls itself '{rule.id}'"))
        else:
            found.append(rule)
    return tuple(found), warnings


def _left_out(entry: catalog.Entry, why: str) -> Notice:
    return Notice("W10", f"Rule {entry.id} of {entry.package} {why}.")


def run(facts: Facts, among: Iterable[Rule] | None = None) -> Advice:
    """Run the rules. One that fails costs its own findings and a warning, never the report."""
    proposals: list[_Proposal] = []
    misses: list[NearMiss] = []
    passed: list[Passed] = []
    skipped: list[NotApplicable] = []
    warnings: list[Notice] = []
    if among is None:
        among, warnings = _loaded()
    unseen = _unseen(facts, _judged_share(facts))
    for rule in among:
        try:
            looked = rule.look(facts)
        except Exception as error:  # noqa: BLE001 - one broken rule must not cost the others' findings
            warnings.append(Notice("W10", f"Rule {rule.id} failed and was left out: {type(error).__name__}: {error}"))
            continue
        misses.extend(looked.near_misses)
        proposals.extend(_Proposal(rule, c) for c in _honest(rule, looked, facts))
        if looked.skipped:
            skipped.append(NotApplicable(rule.id, looked.skipped))
        elif not looked.candidates and not looked.near_misses and unseen and not rule.id.startswith(_OF_LAUNCHING):
            skipped.append(NotApplicable(rule.id, f"not examined: {unseen}"))
        elif not looked.candidates and not looked.near_misses:
            passed.append(Passed(rule.id, _entry(rule).passed))
    warnings.extend(_unjudged(facts))
    findings = _findings(_credit(proposals, facts), facts)
    return Advice(
        findings, tuple(misses), tuple(passed), tuple(skipped), tuple(warnings), _fusion(facts), _group_column(facts),
        _bytes_column(facts),
    )  # fmt: skip


@dataclass(slots=True)
class _Proposal:
    """A candidate with the share of its time that is credited to it, the nodes that is, and who has the rest."""

    rule: Rule
    candidate: Candidate
    share: float = 1.0
    own: list[int] = field(default_factory=list)
    winners: list["_Proposal"] = field(default_factory=list)


def _unjudged(facts: Facts) -> list[Notice]:
    """Say how much of the recording no rule could look at."""
    kernels = facts.timeline.kernels
    apart = (kernels["op_id"].to_numpy() < 0) & (kernels["graph_id"].to_numpy() < 0)
    if not apart.any() or facts.timeline.stand_ins:
        return []
    us = float(kernels["dur_ns"].to_numpy()[apart].sum()) / 1e3
    share = us / (float(kernels["dur_ns"].sum()) / 1e3 or 1.0)
    count = units.plural(int(apart.sum()), "kernel")
    return [
        Notice(
            "W11",
            f"{count} ({units.time_us(us)}, {units.percent(share)} of kernel time) could not be linked to an op: "
            "they are counted in the totals, and no finding covers them.",
        )
    ]


def _entry(rule: Rule) -> catalog.Entry:
    try:
        return catalog.entry(rule.id)
    except InputError:  # given by hand
        kind = type(rule)
        return catalog.Entry(rule.id, rule.id, f"{kind.__module__}:{kind.__qualname__}", passed="nothing found")


def _honest(rule: Rule, looked: Looked, facts: Facts) -> Iterable[Candidate]:
    """Keep only the upper end of a bound that rests on assumed flow known to be wrong too often."""
    for candidate in looked.candidates:
        backward = any(facts.nodes[n].phase == "backward" for n in candidate.nodes)  # saved tensors hide their makers
        weak = candidate.nodes and not facts.proven and (backward or not rule.trusted)
        yield replace(candidate, saving=cost.at_most(candidate.saving)) if weak else candidate


def _credit(proposals: list[_Proposal], facts: Facts) -> list[_Proposal]:
    """Credit each node's time to one candidate: specific rules first, then the larger saving, then the earlier rule."""
    order = {p.rule.id: i for i, p in reversed(list(enumerate(proposals)))}
    ranked = sorted(
        proposals,
        key=lambda p: (not p.candidate.specific, -p.candidate.saving.high, order[p.rule.id], p.candidate.nodes),
    )
    owner: dict[int, _Proposal] = {}
    for proposal in ranked:
        nodes = proposal.candidate.nodes
        free = [n for n in nodes if n not in owner]
        us = sum(facts.nodes[n].us for n in nodes)
        if len(free) < len(nodes):
            proposal.share = sum(facts.nodes[n].us for n in free) / us if us and len(free) > 1 else 0.0
            proposal.winners = list({id(owner[n]): owner[n] for n in nodes if n in owner}.values())
        if proposal.share:
            proposal.own = free
            owner.update(dict.fromkeys(free, proposal))
    return ranked


_Key = tuple[str, str]
"""A finding before it is numbered: its rule and its pattern."""


def _findings(ranked: list[_Proposal], facts: Facts) -> tuple[Finding, ...]:
    repeats: dict[_Key, list[_Proposal]] = defaultdict(list)
    for proposal in ranked:
        repeats[proposal.rule.id, proposal.candidate.pattern].append(proposal)
    found = {key: _collapse(group, facts) for key, group in repeats.items()}
    ordered = sorted(found, key=lambda key: (found[key].footnote, -_value(found[key]), key))
    ids: dict[_Key, str] = {}
    count: dict[str, int] = defaultdict(int)
    for key in ordered:
        count[key[0]] += 1
        ids[key] = f"{key[0]}#{count[key[0]]}"
    named = []
    for key in ordered:
        winners = [w for p in repeats[key] for w in map(_key, p.winners)]
        overlaps = tuple(dict.fromkeys(ids[w] for w in winners if w != key))
        named.append(replace(found[key], id=ids[key], overlaps=overlaps))
    return _within_step(named, facts)


def _key(proposal: _Proposal) -> _Key:
    return proposal.rule.id, proposal.candidate.pattern


def _value(finding: Finding) -> float:
    return max(finding.saving.step_us.high, finding.saving.gpu_us.high)


def _collapse(group: list[_Proposal], facts: Facts) -> Finding:
    """Make one finding of a rule's repeats. Times are per step: the recording's total over its steps."""
    group = sorted(group, key=lambda p: p.candidate.nodes or p.candidate.beside)
    first, rule = group[0].candidate, group[0].rule
    entry = _entry(rule)
    nodes = sorted({n for p in group for n in p.candidate.nodes})
    shown = sorted({n for p in group for n in (*p.candidate.nodes, *p.candidate.beside)})
    us = sum(facts.nodes[n].us * facts.nodes[n].repeats for n in nodes)
    times = [_repeats(p.candidate, facts) for p in group]
    parts = [cost.scale(p.candidate.saving, p.share * n) for p, n in zip(group, times, strict=True)]
    gpu = cost.scale(cost.total(parts), 1 / facts.steps)
    own = [p.candidate.step_us for p in group if p.candidate.step_us is not None]
    step = cost.scale(cost.total(own), 1 / facts.steps) if own else _step_saving(group, gpu, facts)
    places = [_place(p.candidate) for p in group]
    modules: dict[str, Source | None] = {}
    for module, line in places:
        if module:
            modules[module] = modules.get(module) or line
    worth = max(step.high, gpu.high)
    too_little = worth < max(rule.worth_us, rule.worth_share * facts.busy_us / facts.steps)
    return Finding(
        id="", rule=rule.id, title=first.title or entry.title, module=places[0][0] or next(iter(modules), ""),
        saving=Saving(gpu, step), source=places[0][1],
        modules=tuple(modules)[:MODULES_SHOWN], sources=tuple(modules.values())[:MODULES_SHOWN],
        instances=max(1, round(sum(times) / facts.steps)),
        kernels=tuple(k for n in shown for k in facts.nodes[n].kernels), kernel_us=us / facts.steps,
        share=us / facts.kernel_us if facts.kernel_us else 0.0, flow=facts.dataflow.flow,
        evidence=_evidence(first, nodes, sum(times), facts),
        remedies=_remedies(first.remedies if first.remedies is not None else entry.remedies, facts),
        snippet=rule.snippet([p.candidate for p in group], facts), url=entry.url,
        footnote=first.note or (bool(nodes) and too_little),
    )  # fmt: skip


def _remedies(named: tuple[str, ...], facts: Facts) -> tuple[str, ...]:
    """Those of a rule's remedies that can do anything here."""
    return tuple(r for r in named if r not in INFERENCE_ALONE) if facts.training else named


def _repeats(candidate: Candidate, facts: Facts) -> int:
    """How many equal steps a candidate stands for; one without nodes speaks of the whole recording."""
    nodes = candidate.nodes or candidate.beside
    return facts.nodes[nodes[0]].repeats if nodes else 1


def _place(candidate: Candidate) -> tuple[str, Source | None]:
    return (candidate.anchor.module, source(candidate.anchor)) if candidate.anchor else candidate.where


def _step_saving(group: list[_Proposal], gpu: Range, facts: Facts) -> Range:
    """What a step gains when these kernels become one each.

    Where the recording's launch times can be trusted, its queue is replayed with and without: at worst the CPU takes as
    long as before. Elsewhere it is all of the kernels' saving where the GPU never waits, and unknown where it may.
    """
    launch = facts.launch
    if facts.queue is not None:
        low = _replayed(group, "low", facts)
        high = max(low, _replayed(group, "high", facts))
        return Range(low, None if gpu.likely is None else min(high, max(low, _replayed(group, "likely", facts))), high)
    if facts.timeline.stand_ins or launch.idle_share < 0.1 or not launch.kernels:
        return gpu
    if launch.saving_us is not None and facts.step_us and launch.saving_us / facts.steps < 0.1 * facts.step_us:
        return gpu
    return Range(0.0, None, gpu.high)


def _replayed(group: list[_Proposal], end: str, facts: Facts) -> float:
    """Return what a step gains by replay if kernels save this end of their bound. Equal steps are replayed once."""
    assert facts.queue is not None
    merges: dict[int, list[Merge]] = defaultdict(list)
    for proposal in group:
        nodes = [facts.nodes[n] for n in proposal.own]
        us = sum(n.us for n in nodes)
        if us > 0:
            saved = getattr(proposal.candidate.saving, end) * proposal.share / us
            rows = tuple(k for n in nodes for k in n.first)
            merges[nodes[0].repeats].append(Merge(rows, max(0.0, 1 - saved)))
    saved = sum(n * facts.queue.saved(some, earlier=end != "low") for n, some in merges.items())
    return saved / facts.steps


def _mean(nodes: Iterable[int], times: int, facts: Facts) -> Mean:
    """What one of a finding's repeats takes, steps that differ from each other included."""
    members = [facts.nodes[n] for n in nodes]
    us, kernels = sum(n.us * n.repeats for n in members), sum(len(n.kernels) for n in members)
    return Mean(us / times, kernels / times, max(1, round(times / facts.steps)))


def _evidence(first: Candidate, nodes: list[int], times: int, facts: Facts) -> tuple[str, ...]:
    mean = _mean(nodes, times, facts)
    said = list(dict.fromkeys(s if isinstance(s, str) else s(mean) for s in first.evidence))
    if nodes and times < facts.steps:
        said.append(f"In {times} of {facts.steps} steps; the finding's time and share are means over all.")
    if facts.dataflow.flow == "assumed" and first.nodes:
        said.append("What feeds what is assumed from shapes, dtypes and order; the recording names no tensors.")
    return tuple(said)


def _within_step(findings: list[Finding], facts: Facts) -> tuple[Finding, ...]:
    """Trim savings so that together they exceed neither the step nor, of kernel time, what the devices are busy."""
    step_left, busy_left = facts.step_us, facts.busy_us / facts.steps
    kept = []
    for finding in findings:
        saving = finding.saving
        gpu, step = _trimmed(saving.gpu_us, busy_left), _trimmed(saving.step_us, step_left)
        busy_left -= gpu.high
        step_left -= step.high
        kept.append(replace(finding, saving=replace(saving, gpu_us=gpu, step_us=step)))
    return tuple(kept)


def _trimmed(bound: Range, most: float) -> Range:
    if bound.high <= most:
        return bound
    likely = None if bound.likely is None else min(bound.likely, most)
    return Range(min(bound.low, most), likely, most)


def _group_column(facts: Facts) -> "npt.NDArray[np.int64]":
    import numpy as np

    column = np.full(len(facts.timeline.kernels), -1, np.int64)
    for group in facts.groups:
        for node in (facts.nodes[i] for i in group.nodes):
            table = np.array(node.kernels).reshape(node.repeats, -1)
            column[table] = group.index + len(facts.groups) * np.arange(node.repeats)[:, None]
    return column


def _bytes_column(facts: Facts) -> "npt.NDArray[np.int64]":
    """What each op reads and writes, at the first of its kernels in each step; its helpers move none of it."""
    import numpy as np

    column = np.full(len(facts.timeline.kernels), -1, np.int64)
    for node in facts.nodes:
        if node.kernels and (node.reads or node.writes):
            reads = sum({i: t.bytes for i, t in zip(node.inputs, node.reads, strict=False)}.values())
            writes = sum(t.bytes for t in node.writes[:1])
            # a gather reads of its table about what it returns
            reads = min(reads, 2 * writes) if node.kind == "index" else reads
            table = np.array(node.kernels).reshape(node.repeats, -1)
            column[table] = 0
            column[table[:, 0]] = reads + writes
    return column


def _fusion(facts: Facts) -> Fusion:
    us = facts.timeline.kernels["dur_ns"].to_numpy() / 1e3
    total = float(us.sum()) or 1.0
    fused = facts.timeline.kernels["kind"].isin(["fused", "attention"]).to_numpy()
    graphed = facts.timeline.kernels["graph_id"].to_numpy() >= 0
    launch = facts.launch
    share = None if launch.saving_us is None or not facts.step_us else launch.saving_us / facts.steps / facts.step_us
    times = [facts.nodes[g.nodes[0]].repeats for g in facts.groups]
    judged = _judged_share(facts)
    unfused = sum(g.internal * n for g, n in zip(facts.groups, times, strict=True))
    return Fusion(
        groups=round(sum(times) / facts.steps),
        unfused_us=sum(g.us * n for g, n in zip(facts.groups, times, strict=True)) / facts.steps,
        unfused_bytes=round(unfused / facts.steps) if facts.dataflow.shaped else None,
        fused_share=float(us[fused].sum()) / total,
        graphed_share=float(us[graphed].sum()) / total,
        launch_bound=LaunchBound(
            None if facts.timeline.stand_ins else launch.break_even_us,
            None if share is None else min(1.0, share),
            _said(facts),
            facts.idle,
            None if facts.timeline.stand_ins or facts.timeline.basis == "predicted" else launch.idle_share,
        ),
        syncs=round((len(facts.timeline.syncs) - facts.timeline.own_waits) / facts.steps),
        judged_share=judged,
        not_examined=_not_examined(facts, judged),
    )


def _judged_share(facts: Facts) -> float:
    kernels = facts.timeline.kernels
    known = kernels["flow_op" if facts.proven else "op_id"].to_numpy() >= 0
    known &= kernels["graph_id"].to_numpy() < 0
    return _share_in_steps(facts, known, empty=1.0)


def _share_in_steps(facts: Facts, rows: "npt.NDArray[np.bool_]", *, empty: float = 0.0) -> float:
    inside = facts.timeline.kernels["step"].to_numpy() >= 0
    us = facts.timeline.kernels["dur_ns"].to_numpy()
    total = us[inside].sum()
    return float(us[rows & inside].sum() / total) if total else empty


def _unseen(facts: Facts, judged: float) -> str:
    """What hides most of the kernel time from the rules on fusion, in words; empty where they could look at it."""
    kernels = facts.timeline.kernels
    if not len(kernels) or judged >= MOST:
        return ""
    graphed = _share_in_steps(facts, kernels["graph_id"].to_numpy() >= 0)
    if graphed >= 1 - judged - graphed:
        return f"{units.percent(graphed)} of kernel time is replayed from graphs, where no op is recorded"
    return f"{units.percent(1 - judged)} of kernel time is not linked to an op"


def _not_examined(facts: Facts, judged: float) -> str:
    """The same as sentences, with what to do."""
    unseen = _unseen(facts, judged)
    if not unseen:
        return ""
    if "graphs" in unseen:
        return f"{unseen}. Record one step without graphs to find what could be fused."
    if facts.proven or facts.flow is not None:
        return f"{unseen} of the model."
    if len(facts.timeline.ops):
        return f"{unseen}: what launched it began before the recording, or is no op of PyTorch."
    return f"{unseen}. Record ProfilerActivity.CPU together with ProfilerActivity.CUDA to find what could be fused."


def _said(facts: Facts) -> str:
    launch = facts.launch
    if launch.break_even_us is None or facts.timeline.stand_ins or not launch.reason:
        return launch.reason
    limit = f"{launch.break_even_us:.2f} µs"
    return f"launch-bound if the CPU needs more than {limit} a kernel; unknown here: {launch.reason}"
