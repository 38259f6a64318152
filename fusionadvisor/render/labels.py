"""What a report's fields are called when people read them."""

from fusionadvisor.report.model import Attempt, Environment, Finding, Report, Source, TensorSpec, Timing, Workload
from fusionadvisor.units import range_us, time_us

KINDS = {
    "gemm": "matrix multiply",
    "conv": "convolution",
    "attention": "attention",
    "norm": "normalisation",
    "softmax": "softmax",
    "reduction": "reduction",
    "elementwise": "pointwise",
    "copy": "copy",
    "cast": "cast",
    "layout": "layout change",
    "cat": "concatenation",
    "index": "indexing",
    "embedding": "embedding",
    "sort": "sort, scan",
    "rng": "random numbers",
    "optimizer": "optimizer",
    "fused": "fused already",
    "memcpy": "memcpy",
    "memset": "memset",
    "collective": "collective",
    "custom": "custom, unknown",
}
"""Kernel kinds (``trace.kinds``); one that is not listed reads as itself."""

OUTCOMES = {
    "faster": "faster",
    "same": "no proven difference",
    "slower": "slower",
    "no_effect": "no effect",
    "diverged": "outputs differ",
    "refused": "refused",
    "crashed": "crashed",
    "timed_out": "timed out",
    "not_tried": "not tried",
}

ENDED = {
    "faster": "was not kept",
    "same": "brought no proven difference",
    "slower": "was slower",
    "no_effect": "had no effect",
    "diverged": "changed the outputs",
    "refused": "was refused",
    "crashed": "crashed",
    "timed_out": "ran out of time",
    "not_tried": "was not tried",
}

_DTYPES = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}
_LAYOUTS = {"contiguous": "", "channels_last": " NHWC", "channels_last_3d": " NDHWC"}


def tensor(spec: TensorSpec) -> str:
    """``x[64,256,56,56] bf16 NHWC``."""
    layout = _LAYOUTS.get(spec.layout, f" {spec.layout}")
    return f"{spec.name}[{','.join(map(str, spec.shape))}] {_DTYPES.get(spec.dtype, spec.dtype)}{layout}"


def file_name(path: str) -> str:
    """The last part of a path with the name after it: ``block.py`` of ``/home/me/block.py``."""
    return path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]


def target(workload: Workload) -> str:
    """``block.py:build_model``."""
    name = file_name(workload.target)
    entry = workload.entry
    return name if not entry or name.endswith(f":{entry}") else f"{name}:{entry}"


def source(where: Source | None) -> str:
    """``block.py:31``, empty where unknown."""
    return f"{file_name(where.file)}:{where.line}" if where else ""


def bandwidth(env: Environment) -> str:
    """``copy 2.85 of 3.35 TB/s``, with what is known of it; empty where nothing is."""
    if env.copy_gbs and env.peak_gbs:
        return f"copy {env.copy_gbs / 1e3:.2f} of {env.peak_gbs / 1e3:.2f} TB/s"
    if env.copy_gbs:
        return f"copy {env.copy_gbs / 1e3:.2f} TB/s"
    return f"peak {env.peak_gbs / 1e3:.2f} TB/s" if env.peak_gbs else ""


def cpu_times(report: Report) -> bool:
    """True where no GPU ran and CPU ops stand in for its kernels."""
    return bool(report.timeline and report.timeline.stand_ins)


def kernel_word(report: Report) -> str:
    """What one thing on the timeline is: a kernel, or a CPU op that stands in for one."""
    return "op" if cpu_times(report) else "kernel"


def interval(timing: Timing) -> str:
    """``462.0 µs ± 0.6``: the median with half its 95 % interval, in one unit."""
    median = time_us(timing.median_ms * 1e3)
    unit = median.rsplit(" ", 1)[1]
    scale = {"µs": 1e3, "ms": 1.0, "s": 1e-3}[unit]
    half = (timing.ci95_ms[1] - timing.ci95_ms[0]) / 2 * scale
    return f"{median} ± {half:.1f}" if half >= 0.05 else f"{median} ± {half:.2g}"


def change(before_ms: float, after_ms: float) -> str:
    """``462.0 → 278.0 µs``, both in the unit of the larger."""
    unit, scale = _unit(max(before_ms, after_ms))
    digits = 2 if unit == "s" else 1
    return f"{before_ms * scale:.{digits}f} → {after_ms * scale:.{digits}f} {unit}"


def _unit(ms: float) -> tuple[str, float]:
    unit = time_us(ms * 1e3).rsplit(" ", 1)[1]
    return unit, {"µs": 1e3, "ms": 1.0, "s": 1e-3}[unit]


def ratio(value: float) -> str:
    """``1.66×``."""
    return f"{value:.2f}×"


def counted(finding: Finding) -> str:
    """``×3`` for a finding that repeats."""
    return f"×{finding.instances}" if finding.instances > 1 else ""


def where(finding: Finding, limit: int = 4) -> str:
    """The modules a finding is at: all of a few, the first of many."""
    paths = list(dict.fromkeys(path for path in (finding.modules or (finding.module,)) if path))
    if len(paths) <= limit:
        return ", ".join(paths)
    return f"{', '.join(paths[: limit - 1])} and {len(paths) - limit + 1} more"


def saving(finding: Finding) -> str:
    """``90–111 µs``, what a step could save; kernels that another finding has claimed are counted there."""
    step = finding.saving.step_us
    return range_us(step.low, step.high) if step.high > 0 or not finding.overlaps else "counted there"


def overlap(finding: Finding) -> str:
    """Which findings hold some of its kernels too, empty for none."""
    if not finding.overlaps:
        return ""
    return f"shares kernels with {', '.join(finding.overlaps)}: each is counted once"


def failed(attempt: Attempt) -> bool:
    """True where what was asked for could not be had."""
    return attempt.outcome in ("refused", "crashed", "diverged", "timed_out")
