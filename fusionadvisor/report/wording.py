"""What a comparison says, in words that its renderers and the gate share."""

from collections import defaultdict
from collections.abc import Sequence

from fusionadvisor.report import step
from fusionadvisor.report.diff import FusionChange, ModuleChange

OPS_SHOWN = 6


def percent_change(ratio: float) -> str:
    """``−40 %`` of a time after that is 0.6 of the time before."""
    share = (ratio - 1) * 100
    digits = f"{abs(share):.1f}" if abs(share) < 9.95 else f"{abs(share):.0f}"
    return f"{'−' if share < 0 else '+'}{digits} %" if float(digits) else "±0 %"


def slower_or_faster(ratio: float, ci95: tuple[float, float] | None) -> str:
    """``−40 % (95 %: −41 % to −39 %)``, without an interval that has no width."""
    low, high = map(percent_change, ci95 or (ratio, ratio))
    return percent_change(ratio) + (f" (95 %: {low} to {high})" if low != high else "")


def alike(changes: Sequence[FusionChange]) -> list[list[FusionChange]]:
    """Changes of repeated blocks together: the same event of one rule at one line, in modules that differ by number."""
    found: dict[tuple[object, ...], list[FusionChange]] = defaultdict(list)
    for change in changes:
        modules = step.numberless(change.module), step.numberless(change.to)
        found[change.event, change.rule, change.title, change.source, *modules].append(change)
    return list(found.values())


def fusion_words(change: FusionChange) -> str:
    """``Fuse the pointwise chain ×2`` with what became of it."""
    times = f" ×{change.count}" if change.count > 1 else ""
    words = {
        "lost": "no longer fused", "new": "new and unfused", "gained": "now fused", "gone": "no longer found",
        "moved": f"now at {change.to}", "hidden": "not analysed: the other side replays it from a CUDA graph",
    }[change.event]  # fmt: skip
    return f"{change.rule} {change.title}{times}: {words}"


def module_words(change: ModuleChange) -> str:
    """``1 → 6 kernels: + aten::mul ×2, aten::rsqrt − aten::rms_norm``; of several modules the sums, and ops of each."""
    parts = [f"{sign} {_ops(ops)}" for sign, ops in (("+", change.came), ("−", change.gone)) if ops]
    each = ", in each" if len(change.modules) > 1 else ""
    return f"{change.before} → {change.after} kernels{each}: {' '.join(parts)}"


def _ops(ops: tuple[tuple[str, int], ...]) -> str:
    often = sorted(ops, key=lambda op: (-op[1], op[0]))
    names = ", ".join(f"{op} ×{count}" if count > 1 else op for op, count in often[:OPS_SHOWN])
    return f"{names} and {len(ops) - OPS_SHOWN} other ops" if len(ops) > OPS_SHOWN else names


def names(change: ModuleChange) -> str:
    """The modules of a change; see :func:`listed`."""
    return listed([path or "(no module)" for path in change.modules])


def listed(paths: Sequence[str], limit: int = 3) -> str:
    """All of a few paths, the first of many and how many more there are."""
    if len(paths) <= limit:
        return ", ".join(paths)
    return f"{', '.join(paths[:limit])} and {len(paths) - limit} more"
