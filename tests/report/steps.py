"""Reports of a few kernels, made by hand, whose counts agree with one another."""

from collections import Counter
from dataclasses import dataclass, replace

from fusionadvisor import catalog
from fusionadvisor.report.model import (
    Basis,
    DeviceSummary,
    Environment,
    Finding,
    Fusion,
    KernelTable,
    KindSummary,
    Passed,
    Range,
    Report,
    Saving,
    Source,
    TimelineSummary,
    Timing,
    Tool,
)

GPU = Environment(gpu="NVIDIA H100 80GB HBM3", torch="2.13.0", python="3.11.7")


@dataclass(frozen=True)
class K:
    """One kernel; those of the same ``group`` could be one."""

    module: str
    op: str
    line: int = 1
    kind: str = "elementwise"
    us: float = 10.0
    group: int = -1
    shapes: str = "[8,64]"
    name: str = ""
    stream: int = 7


def finding(
    rule: str, *modules: str, line: int = 1, title: str = "Fuse it", instances: int = 0, kernels: tuple[int, ...] = ()
) -> Finding:
    saving = Range(1.0, None, 2.0)
    return Finding(
        id=f"{rule}#1", rule=rule, title=title, module=modules[0], modules=modules, source=Source("block.py", line),
        saving=Saving(saving, saving), instances=instances or len(modules), remedies=("compile",),
        kernels=kernels,
    )  # fmt: skip


def made(
    *kernels: K, findings: tuple[Finding, ...] = (), steps: int = 1, environment: Environment = GPU,
    latency: tuple[float, float, float] | None = None, basis: Basis = "measured", stand_ins: bool = False,
    rank: int | None = None, syncs: int = 0, unfused_bytes: int | None = None,
) -> Report:  # fmt: skip
    """Return a report of ``steps`` equal steps; ``latency`` is low, median and high in ms. Every rule looked."""
    rows = [(step, k) for step in range(steps) for k in kernels]
    groups = len({k.group for k in kernels} - {-1})
    count = len(rows)
    table = KernelTable(
        total=count, index=tuple(range(count)), name=tuple(k.name or f"{k.op}_kernel" for _, k in rows),
        kind=tuple(k.kind for _, k in rows), op=tuple(k.op for _, k in rows), module=tuple(k.module for _, k in rows),
        source=tuple(f"block.py:{k.line}" if k.line else "" for _, k in rows), device=(0,) * count,
        stream=tuple(k.stream for _, k in rows), start_us=tuple(12.0 * i for i in range(count)),
        dur_us=tuple(k.us for _, k in rows),
        group=tuple(k.group + step * groups if k.group >= 0 else -1 for step, k in rows),
        step=tuple(step for step, _ in rows), shapes=tuple(k.shapes for _, k in rows),
    )  # fmt: skip
    total = sum(k.us for k in kernels) * steps
    kinds = Counter(k.kind for _, k in rows)
    timed = Timing(latency[1], (latency[0], latency[2]), (latency[1],) * 9) if latency else None
    return Report(
        tool=Tool("fusion-advisor", "0.1.0"), created="2026-01-02T03:04:05+00:00", command="profile",
        environment=environment, source="block.py",
        timeline=TimelineSummary(
            basis=basis, stand_ins=stand_ins, steps=steps, steps_from="ProfilerStep", step_us=12.0 * len(kernels),
            devices=(DeviceSummary(0, count, total, 12.0 * count, total, 1, environment.gpu),), launches=count,
            by_kind=tuple(KindSummary(kind, n, 10.0 * n) for kind, n in kinds.items()), kernels=table, rank=rank,
        ),
        latency=timed,
        fusion=Fusion(groups=groups, unfused_us=sum(k.us for k in kernels if k.group >= 0), syncs=syncs,
                      unfused_bytes=unfused_bytes),
        findings=findings,
        passed=tuple(Passed(r.id, r.passed) for r in catalog.RULES if r.id not in {f.rule for f in findings}),
    )  # fmt: skip


def retimed(report: Report, factor: float) -> Report:
    """The same step on another day: other times, kernel names, lines, ids and order of findings."""
    assert report.timeline is not None
    table = report.timeline.kernels
    other = replace(
        table,
        dur_us=tuple(us * factor for us in table.dur_us),
        start_us=tuple(us * factor for us in table.start_us),
        name=tuple(f"{name}_v2" for name in table.name),
        source=tuple(f"/elsewhere/{where}7" if where else "" for where in table.source),
    )
    findings = tuple(
        replace(f, id=f"{f.rule}#{9 - i}", source=Source("moved.py", 99), kernel_us=factor, footnote=not f.footnote)
        for i, f in enumerate(reversed(report.findings))
    )
    return replace(report, created="2027", findings=findings, timeline=replace(report.timeline, kernels=other))
