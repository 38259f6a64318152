"""What a report's fields are called when people read them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fusionadvisor import catalog
from fusionadvisor.report.model import (
    Attempt,
    Environment,
    Finding,
    NearMiss,
    Report,
    Source,
    TensorSpec,
    Timing,
    Workload,
)
from fusionadvisor.units import plural

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
    "pool": "pooling",
    "optimizer": "optimizer",
    "fused": "already fused",
    "memcpy": "memcpy",
    "memset": "memset",
    "collective": "collective",
    "custom": "unknown (custom)",
}
"""Kernel kinds (``trace.kinds``); one that is not listed reads as itself."""

OUTCOMES = {
    "faster": "faster",
    "equivalent": "as fast",
    "inconclusive": "inconclusive",
    "same": "no proven difference",
    "slower": "slower",
    "no_effect": "no effect",
    "diverged": "outputs differ",
    "refused": "refused",
    "crashed": "crashed",
    "timed_out": "timed out",
    "not_tried": "not tried",
    "unchecked": "outputs not checked",
}

ENDED = {
    "faster": "was not kept",
    "equivalent": "was as fast as before",
    "inconclusive": "brought no proven difference",
    "same": "brought no proven difference",
    "slower": "was slower",
    "no_effect": "had no effect",
    "diverged": "changed the outputs",
    "refused": "was refused",
    "crashed": "crashed",
    "timed_out": "ran out of time",
    "not_tried": "was not tried",
    "unchecked": "could not be checked",
}

_ANGLES = re.compile(r"<[^<>]*>")
_NUMBERS = re.compile(r"\d+")
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


def scaled(report: Report) -> str:
    """Say that the ops' times are not as recorded, empty where they are."""
    shortened = report.timeline is not None and report.timeline.time_scale != 1.0
    return "op times scaled to the unprofiled step" if shortened else ""


def predicted(report: Report) -> str:
    """The GPU whose kernels were predicted, empty where they were measured or recorded."""
    line = report.timeline
    if line is None or line.basis != "predicted":
        return ""
    return next((device.name for device in line.devices if device.name), "a GPU that is not here")


def kernel_word(report: Report) -> str:
    """What one thing on the timeline is: a kernel, or a CPU op that stands in for one."""
    return "op" if cpu_times(report) else "kernel"


@dataclass(frozen=True, slots=True)
class Scale:
    """One unit for all times of a report, so that they compare at a glance."""

    unit: str
    per_us: float

    @classmethod
    def of(cls, whole_us: float) -> "Scale":
        """Return the unit in which the whole, and so each part, reads well."""
        if whole_us >= 9_999.5e3:
            return cls("s", 1e-6)
        return cls("ms", 1e-3) if whole_us >= 9_999.5 else cls("µs", 1.0)

    def time(self, us: float) -> str:
        """``462.0 µs``, to a tenth; to a hundredth below one."""
        value = us * self.per_us
        return f"{value:.2f} {self.unit}" if 0 < abs(value) < 0.95 else f"{value:.1f} {self.unit}"

    def bound(self, us: float) -> str:
        """``90 µs``, no more digits than a bound can mean."""
        return f"{self._rounded(us)} {self.unit}"

    def range(self, low: float, high: float) -> str:
        """``90–111 µs``; ``up to 111 µs`` where the low end is nothing; one value where both ends read the same."""
        left, right = self._rounded(low), self._rounded(high)
        if left == right:
            return f"{left} {self.unit}"
        return f"up to {right} {self.unit}" if float(left) == 0 else f"{left}–{right} {self.unit}"

    def _rounded(self, us: float) -> str:
        value = us * self.per_us
        if abs(value) >= 9.95:
            return f"{value:.0f}"
        return f"{value:.2f}" if 0.005 <= abs(value) < 0.95 else f"{value:.1f}"


def interval(timing: Timing) -> str:
    """``462.0 µs ± 0.6``: the median with half its 95 % interval, in one unit."""
    scale = Scale.of(timing.median_ms * 1e3)
    half = (timing.ci95_ms[1] - timing.ci95_ms[0]) / 2 * 1e3 * scale.per_us
    return f"{scale.time(timing.median_ms * 1e3)} ± {f'{half:.1f}' if half >= 0.05 else f'{half:.2g}'}"


def change(before_ms: float, after_ms: float) -> str:
    """``462.0 → 278.0 µs``, both in the unit of the larger."""
    scale = Scale.of(max(before_ms, after_ms) * 1e3)
    return f"{scale.time(before_ms * 1e3).split()[0]} → {scale.time(after_ms * 1e3)}"


def paired(attempt: Attempt) -> str:
    """``462.0 → 278.0 µs``: the median before, and that over the speed-up; empty where nothing was timed.

    The median after is not shown: the speed-up is of pairs, and where the machine drifts, medians say something else.
    """
    if attempt.before is None or attempt.speedup is None:
        return ""
    return change(attempt.before.median_ms, attempt.before.median_ms / attempt.speedup.median)


PAIRED = "After = baseline median ÷ paired speed-up, so drift cancels out."


def outcome(report: Report, attempt: Attempt) -> str:
    """How an attempt ended, whether it was kept, and on what it was tried where a search tried it on more than one."""
    words = OUTCOMES[attempt.outcome]
    if late(report, attempt):
        words += " on its own"  # its reason says that it was kept, and why
    elif attempt.kept:
        words += ", kept"
    others = [other for other in report.attempts if other.strategy == attempt.strategy]
    if report.hunt and any(other.parameters != attempt.parameters for other in others):
        words += f", {_part(attempt)}"
    if attempt.on:
        return f"{words}, on top of {', '.join(attempt.on)}"
    return f"{words}, on the original" if report.hunt and any(other.on for other in others) else words


def late(report: Report, attempt: Attempt) -> bool:
    """Whether only the check of the whole proved an attempt; a search for less memory keeps what is not faster."""
    return report.hunt is not None and report.hunt.goal != "memory" and attempt.kept and attempt.outcome != "faster"


def _part(attempt: Attempt) -> str:
    """Which part of the model it was tried on: ``on 12 blocks (layers.0 … layers.11)``."""
    if not attempt.parameters.get("regions"):
        return "on the whole model"
    paths = attempt.parameters["regions"].split(",")
    more = f" … {paths[-1]}" if len(paths) > 1 else ""
    return f"on {plural(len(paths), 'block')} ({paths[0]}{more})"


def bound(report: Report) -> str:
    """What a saving is: a bound; an estimate where it rests on the times of CPU ops, which vary."""
    return "estimate" if cpu_times(report) else "bound"


def ratio(value: float) -> str:
    """``1.66×``."""
    return f"{value:.2f}×"


def counted(finding: Finding) -> str:
    """``×3`` for a finding that repeats."""
    return f"×{finding.instances}" if finding.instances > 1 else ""


def short(path: str) -> str:
    """A module's path without the middle that says least: ``…/ViTLayer#1/Linear#7`` of a path of class names."""
    parts = path.split("/")
    return path if len(parts) <= 3 else "/".join(["…", *parts[-2:]])


def place(finding: Finding, room: int = 60) -> str:
    """Where a finding is, in one piece: its modules, else its source lines, else what it is about."""
    return where(finding, room) or lines(finding) or finding.title


def where(finding: Finding, room: int = 60) -> str:
    """The modules a finding is at, as many as fit in ``room`` characters, and how many more there are."""
    paths = [short(path) for path in dict.fromkeys(finding.modules or (finding.module,)) if path]
    shown = paths[:1]
    for path in paths[1:]:
        if len(", ".join([*shown, path])) > room:
            break
        shown.append(path)
    rest = len(paths) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def lines(finding: Finding) -> str:
    """The source lines a finding is at: ``block.py:18, 21``."""
    numbers: dict[str, set[int]] = {}
    for where in finding.sources or (finding.source,):
        if where:
            numbers.setdefault(file_name(where.file), set()).add(where.line)
    return ", ".join(f"{file}:{_few(sorted(found))}" for file, found in numbers.items())


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) <= 4 else f"{numbers[0]}–{numbers[-1]}"


def saving(finding: Finding, scale: Scale) -> str:
    """``90–111 µs``, what a step could save; kernels that another finding has claimed are counted there.

    A launch-bound step without a bound is one whose recording does not tell; any other finding without one saves
    something else than time, as its evidence says.
    """
    step = finding.saving.step_us
    if step.high > 0:
        return scale.range(step.low, step.high)
    if finding.overlaps:
        return f"counted in {_sharing(finding)}"
    return "unknown" if catalog.concerns(finding.rule, "launches") else "no time"


def could_save(finding: Finding, report: Report, scale: Scale) -> str:
    """The same as a clause: ``could save 90–111 µs (bound)``, ``saves no time``."""
    if finding.saving.step_us.high > 0:
        return f"could save {saving(finding, scale)} ({bound(report)})"
    if finding.overlaps:
        return overlap(finding, kernel_word(report))
    return "what it could save is unknown" if catalog.concerns(finding.rule, "launches") else "saves no time"


def near_misses(missed: Sequence[NearMiss]) -> list[tuple[NearMiss, int]]:
    """The first near miss of each rule and reason, and how many there are; layer numbers make no other reason."""
    found: dict[tuple[str, str], list[NearMiss]] = {}
    for miss in missed:
        found.setdefault((miss.rule, _NUMBERS.sub("#", miss.reason)), []).append(miss)
    return [(same[0], len(same)) for same in found.values()]


def overlap(finding: Finding, word: str = "kernel") -> str:
    """Which findings hold some of its kernels too, empty for none."""
    return f"shares {word}s with {_sharing(finding)}; each is counted once" if finding.overlaps else ""


def _sharing(finding: Finding) -> str:
    rules = dict.fromkeys(other.partition("#")[0] for other in finding.overlaps)
    return ", ".join(f"another {rule}" if rule == finding.rule else rule for rule in rules)


def kernel(name: str, room: int = 60) -> str:
    """A kernel's name without arguments, template arguments and namespaces, and no longer than ``room``."""
    short = name
    if "<" in name or "(" in name:
        short = name.replace("(anonymous namespace)::", "").removeprefix("void ")
        while (shorter := _ANGLES.sub("", short)) != short:
            short = shorter
        short = short.partition("(")[0].rpartition("::")[2].strip() or name
    return short if len(short) <= room else f"{short[: room - 1]}…"


def failed(attempt: Attempt) -> bool:
    """True where what was asked for could not be had."""
    return attempt.outcome in ("refused", "crashed", "diverged", "timed_out", "not_tried")
