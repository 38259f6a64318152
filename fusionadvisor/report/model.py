"""The report: frozen dataclasses of everything that is said. Every renderer works from these alone.

Times are in the unit their name ends with (``_us``, ``_ms``, ``_s``), sizes in bytes, shares in [0, 1]. Three kinds of
number never share a field: a *bound* (what could be saved), a *measurement* (with its interval), a *prediction* (for a
GPU that is not here). JSON keys are the field names; see :mod:`fusionadvisor.report.codec`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Literal, cast

from fusionadvisor.units import plural

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = "1.0"
INTERRUPTED = "W-interrupted"
"""Code of the warning on a report of a run that Ctrl-C ended."""

LOST = "W-recipe"
"""Code of the warning that a recipe did not hold when a fresh process loaded it, so that nothing was kept."""

OUTSIDE = "W23"
"""Code of the warning on a step most of which passes outside PyTorch's ops."""

Basis = Literal["measured", "recorded", "predicted"]
SavingBasis = Literal["bound", "measured", "predicted"]
Outcome = Literal[
    "faster", "equivalent", "slower", "inconclusive", "no_effect", "diverged", "refused", "crashed", "timed_out",
    "not_tried", "same",
]  # fmt: skip
"""``same`` stands in reports of version 0.1 for what is ``equivalent`` or ``inconclusive`` since."""
Verdict = Literal["agrees", "diverges", "unchecked"]
Mode = Literal["inference", "training"]


@dataclass(frozen=True, slots=True)
class Tool:
    """The program that wrote the report."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine of a live run, or what a trace says of the machine it was recorded on.

    Bandwidths are in GB/s (1e9 bytes). ``copy_gbs`` is measured on this machine, ``peak_gbs`` is from the device table.
    """

    gpu: str | None = None
    gpu_count: int = 0
    compute_capability: str | None = None
    memory_gb: float | None = None
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    python: str | None = None
    platform: str | None = None
    cpu: str | None = None
    threads: int | None = None
    peak_gbs: float | None = None
    copy_gbs: float | None = None
    clocks: str | None = None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input: ``name`` as the forward names it, a torch dtype without its prefix, a memory layout, a device."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str = "contiguous"
    device: str = "cpu"
    low: float | None = None
    high: float | None = None


def spelled(specs: Iterable[TensorSpec]) -> str:
    """``x=float32[4,3,224,224]``, as ``--input`` takes it; several with commas between."""
    return ", ".join(f"{s.name}={s.dtype}[{','.join(map(str, s.shape))}]" for s in specs)


@dataclass(frozen=True, slots=True)
class Workload:
    """What was run. Rebuildable in another process from these fields alone.

    ``target`` is what the user typed with its path made absolute, ``entry`` the name found in it, ``model`` the class
    of the module, ``entry_kind`` what ``entry`` is. ``assumed`` says in words what was not given and had to be chosen.
    For a checkpoint, ``model_from`` names the file and class its weights belong to, built with ``model_args``.
    ``batch`` is the batch size asked for, ``amp`` the dtype of automatic mixed precision, ``accumulate`` the number of
    batches a training step takes its gradients from.
    """

    target: str
    entry: str | None = None
    entry_kind: Literal["factory", "module", "class", "live", "checkpoint", "archive", "pretrained", "script"] = (
        "factory"
    )
    model: str | None = None
    inputs: tuple[TensorSpec, ...] = ()
    inputs_from: str = ""
    mode: Mode = "inference"
    device: str = "cpu"
    seed: int = 0
    trust: bool = False
    assumed: tuple[str, ...] = ()
    model_from: str | None = None
    model_args: tuple[str, ...] = ()
    batch: int | None = None
    amp: str | None = None
    accumulate: int = 1


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """One device's kernels. ``busy_us`` is a union of intervals and never exceeds ``span_us``."""

    device: int
    kernels: int
    busy_us: float
    span_us: float
    kernel_us: float
    streams: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class KindSummary:
    """Kernels of one kind: how many, and the sum of their times; those of a step are fewer, see TimelineSummary."""

    kind: str
    kernels: int
    gpu_us: float
    step_kernels: float = 0.0
    step_gpu_us: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Kernels as parallel columns (the same length each), capped; ``total`` says how many there were."""

    total: int = 0
    index: tuple[int, ...] = ()
    name: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    op: tuple[str, ...] = ()
    module: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    device: tuple[int, ...] = ()
    stream: tuple[int, ...] = ()
    start_us: tuple[float, ...] = ()
    dur_us: tuple[float, ...] = ()
    group: tuple[int, ...] = ()
    """Index of the group a kernel belongs to, -1 for none."""
    bytes: tuple[int, ...] = ()
    """External bytes the kernel's op reads and writes, -1 where unknown."""
    step: tuple[int, ...] = ()
    """Index of the step a kernel belongs to, -1 outside all."""
    shapes: tuple[str, ...] = ()
    """Input shapes of the op, ``[8,64] [64]``; empty where not recorded."""

    def __post_init__(self) -> None:
        for column in fields(self):
            values = getattr(self, column.name)
            if isinstance(values, tuple) and len(values) not in (0, len(self.index)):
                raise ValueError(f"kernel column {column.name} has {len(values)} values for {len(self.index)} kernels")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Kernels of the same op, module and input shapes, summed."""

    op: str
    module: str
    shapes: str
    kernels: int
    gpu_us: float


@dataclass(frozen=True, slots=True)
class TimelineSummary:
    """What the trace holds, for all devices and steps together."""

    basis: Basis
    stand_ins: bool = False
    """True where CPU ops stand in for kernels because there was no GPU; times are then CPU times."""
    time_scale: float = 1.0
    """What the ops' times were multiplied by, so that together they fit into the unprofiled step."""
    devices: tuple[DeviceSummary, ...] = ()
    steps: int = 1
    steps_from: str = "window"
    step_us: float = 0.0
    """A step: its range on the CPU, or the span of what it launched on the device where that is longer; the median."""
    step_kernels: float = 0.0
    """Kernels a step. What ran outside all steps (its launch was not recorded) is part of the totals above only."""
    step_kernel_us: float = 0.0
    """Summed time of a step's kernels; more than ``step_us`` where they overlap."""
    busy_us: float = 0.0
    """Time of a step in which the devices that ran something ran a kernel, memcpy or memset; their mean."""
    linked_share: float = 1.0
    """Share of kernel time that is attributed to an op of the model."""
    orphan_kernels: int = 0
    launches: int = 0
    graph_launches: int = 0
    rank: int | None = None
    """Which process of a distributed job recorded this; None where the trace does not say."""
    by_kind: tuple[KindSummary, ...] = ()
    lost: tuple[str, ...] = ()
    kernels: KernelTable = field(default_factory=KernelTable)
    aggregates: tuple[Aggregate, ...] = ()


@dataclass(frozen=True, slots=True)
class Idle:
    """Time a step in which the device computed nothing, by what it waited for, as recorded, profiler included.

    ``other`` is what passes between queued kernels and what nothing in the recording explains.
    """

    launch_us: float = 0.0
    sync_us: float = 0.0
    data_us: float = 0.0
    communication_us: float = 0.0
    other_us: float = 0.0


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One process of a distributed job. All times are unions of intervals, so nothing is counted twice."""

    rank: int
    name: str
    kernels: int
    steps: int
    step_us: float
    """Median length of a step on the CPU."""
    span_us: float
    compute_us: float
    """Time in kernels that are no collectives."""
    collective_us: float
    """Time in collectives: transfer, and waiting for the last rank to arrive."""
    exposed_us: float
    """Time in collectives while no other kernel ran."""
    lost: tuple[str, ...] = ()
    waiting_us: float = 0.0
    """How much longer it was in collectives than the rank that was in them least, which came last."""
    straggler: bool = False
    """True where the others wait for it."""
    windows: int = 1
    """How many traces of it were read: a profiler's cycles, whose kernels, steps and times are added here."""


@dataclass(frozen=True, slots=True)
class Range:
    """A bound. ``likely`` is None where the recording cannot support one."""

    low: float
    likely: float | None
    high: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step on a GPU that is not here, beside what was measured. Counts are exact, times are not."""

    gpu: str
    kernels: int
    groups: int
    bytes: int
    """That the ops of all kernels together read and write, as in the kernel table."""
    unfused_bytes: int | None
    syncs: int
    kernel_us: Range
    uncalibrated_share: float
    """Share of that time which rests on constants that were not measured for it."""


@dataclass(frozen=True, slots=True)
class LaunchBound:
    """Whether the CPU keeps the GPU waiting. ``share`` is the idle share a graph would remove, None where unknown."""

    break_even_us: float | None
    share: float | None = None
    reason: str = ""
    idle: Idle | None = None
    """None where nothing was recorded on a device."""
    idle_share: float | None = None
    """Share of a step in which the devices ran nothing, neither a kernel nor a copy; None where no device was."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """How much of the work is fused already, and how much could be."""

    groups: int = 0
    unfused_us: float = 0.0
    """Time of the kernels in groups of two or more that could be one."""
    unfused_bytes: int | None = None
    """Bytes a step that these kernels write only for each other to read; None where shapes are unknown."""
    fused_share: float = 0.0
    """Share of kernel time in kernels that are already fused."""
    graphed_share: float = 0.0
    """Share of kernel time launched from a graph."""
    launch_bound: LaunchBound = field(default_factory=lambda: LaunchBound(None))
    syncs: int = 0
    judged_share: float = 1.0
    """Share of kernel time in kernels of which it is known what op they are of, and where a model was recorded, which
    recorded one; no finding that rests on data flow covers the rest. Kernels replayed from a graph are of the rest: a
    replay records no ops."""
    not_examined: str = ""
    """Why most of the kernel time could not be examined for fusion, a sentence; empty where it could."""


@dataclass(frozen=True, slots=True)
class Saving:
    """What a finding could save: kernel time, and time of the step with the group collapsed (only those add up)."""

    gpu_us: Range
    step_us: Range
    basis: SavingBasis = "bound"


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's code."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to fix, with its repeats collapsed; totals are summed over the real instances."""

    id: str
    rule: str
    title: str
    module: str
    saving: Saving
    source: Source | None = None
    modules: tuple[str, ...] = ()
    """Every module path it was found at, in order of time; ``module`` is the first."""
    sources: tuple[Source | None, ...] = ()
    """The line of each of ``modules``, None where it is unknown; ``source`` is the line of ``module``."""
    instances: int = 1
    kernels: tuple[int, ...] = ()
    """Indices into the kernel table, of all instances."""
    kernel_us: float = 0.0
    share: float = 0.0
    """Share of all kernel time of the steps that these kernels take; kernels without a launch are part of the whole."""
    flow: Literal["proven", "assumed"] = "assumed"
    evidence: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    snippet: str = ""
    url: str = ""
    overlaps: tuple[str, ...] = ()
    """Findings whose kernels this one also holds; their time is credited there and not here."""
    footnote: bool = False
    """True where the saving is under what is worth acting on."""


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A place where a rule almost applied, and the condition that failed."""

    rule: str
    module: str
    reason: str
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """A rule that looked and found nothing to say, in a few words."""

    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """A rule that had nothing to look at, and why."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the reader must know before trusting a number."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Latency of one arm. ``samples_ms`` are the raw samples, one a call, in the order taken."""

    median_ms: float
    ci95_ms: tuple[float, float]
    samples_ms: tuple[float, ...] = ()
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Speedup:
    """before/after as a ratio of paired samples; ``aa_band`` is what two identical arms showed in the same session."""

    median: float
    ci95: tuple[float, float]
    aa_band: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether the candidate's outputs agree with the original's, and by which measure."""

    verdict: Verdict
    device: str = "cpu"
    max_error: float = 0.0
    rmse_ratio: float | None = None
    """RMSE against fp64, divided by the original's own RMSE against fp64."""
    limit: float | None = None
    inputs: int = 0
    """How many input sets were compared."""
    reason: str = ""
    row: float | None = None
    """Largest error of a row against fp64, as a share of what is allowed there; None where there are no rows."""
    element: float | None = None
    """The same of an element."""
    notes: tuple[str, ...] = ()
    """What was not varied, and why."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A site a strategy left alone, and why."""

    site: str
    reason: str
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Sites:
    """Places a strategy looked at: ``matched`` are all of them, those refused included."""

    matched: int = 0
    applied: int = 0
    refused: tuple[Refusal, ...] = ()
    modules: tuple[str, ...] = ()
    """Module paths it changed; empty where it wraps the whole model."""


@dataclass(frozen=True, slots=True)
class KernelCount:
    """Kernels (ops, where CPU ops stand in) of one step, before and after, and which went or came by op name."""

    before: int
    after: int
    gone: tuple[tuple[str, int], ...] = ()
    added: tuple[tuple[str, int], ...] = ()
    original: int = 0
    """Of a step before anything was applied; 0 where ``went`` is not known."""
    went: tuple[int, ...] = ()
    """Which of those no longer run, by their place in the step: ops aligned in the order they run."""


@dataclass(frozen=True, slots=True)
class Credit:
    """What one attempt made of one finding: what it could bring, what it brought, and whether its kernels are gone."""

    finding: str
    bound_us: Range
    """Time of the step that could be saved, as the finding says."""
    kernels: int = 0
    """Kernels of one step that the finding names and that would not have to stay; 0 where it is about none."""
    gone: int = 0
    """How many of them no longer run."""
    closed: bool = False
    measured_us: float | None = None
    """What the whole attempt took off the step it was tried on; None where nothing was timed."""
    ci95_us: tuple[float, float] | None = None
    shared: int = 1
    """Findings of this attempt that share the measured time: it is known only for all of them together."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One strategy tried: what happened, and why. ``reason`` is empty only for ``faster``."""

    strategy: str
    outcome: Outcome
    kept: bool = False
    reason: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    """Findings it was a remedy for, at their modules."""
    closed: tuple[str, ...] = ()
    """Findings whose kernels are gone, whether it was their remedy or not."""
    sites: Sites = field(default_factory=Sites)
    kernels: KernelCount | None = None
    verification: Verification | None = None
    before: Timing | None = None
    after: Timing | None = None
    speedup: Speedup | None = None
    compile_s: float | None = None
    break_even_calls: int | None = None
    graph_breaks: int | None = None
    """Places where a compiler gave up on one graph; None where nothing was compiled."""
    notes: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    """Strategies on whose result it was tried and measured; empty for the original model."""
    credits: tuple[Credit, ...] = ()
    """For each finding it addressed or closed."""

    @property
    def name(self) -> str:
        """``compile``, or ``compile of 12 blocks``."""
        return called(self.strategy, self.parameters)


def called(strategy: str, parameters: Mapping[str, str]) -> str:
    """Name what is tried so that a strategy on some modules is told from the same on the whole model."""
    regions = parameters.get("regions")
    return f"{strategy} of {plural(len(regions.split(',')), 'block')}" if regions and regions != "auto" else strategy


@dataclass(frozen=True, slots=True)
class Hunt:
    """How a search for the best combination went. Its path is in the attempts: each says what it was tried on."""

    goal: Literal["latency", "throughput", "memory"]
    budget_s: float
    spent_s: float
    """On attempts and the check of the whole; the profile before them does not count."""
    unreached: tuple[str, ...] = ()
    """What was left out for lack of time."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything one command has to say."""

    tool: Tool
    created: str
    command: str
    environment: Environment = field(default_factory=Environment)
    workload: Workload | None = None
    source: str = ""
    """What was read: the target or the trace's file name."""
    timeline: TimelineSummary | None = None
    timeline_after: TimelineSummary | None = None
    """One step with the kept attempts together, profiled as the original was; None where nothing was kept."""
    latency: Timing | None = None
    predicted: Prediction | None = None
    """The same step on a GPU that is not here, or what this whole report is predicted for."""
    ranks: tuple[RankSummary, ...] = ()
    """All ranks of the job, where several were read; the rest of the report is on ``timeline.rank``."""
    fusion: Fusion = field(default_factory=Fusion)
    findings: tuple[Finding, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    hunt: Hunt | None = None
    """Where the strategies were chosen by a search."""
    result: Speedup | None = None
    """The kept attempts together against the original."""
    before: Timing | None = None
    """The original, measured in pairs with the kept attempts together; ``result`` is of these pairs."""
    after: Timing | None = None
    """The kept attempts together. Its median drifts with the machine: the original's over ``result`` does not."""
    passed: tuple[Passed, ...] = ()
    not_applicable: tuple[NotApplicable, ...] = ()
    warnings: tuple[Notice, ...] = ()
    files: tuple[str, ...] = ()
    """Files this run wrote."""
    variants: tuple["Report", ...] = ()
    """Reports on the target's other workloads, where one command ran several: further batch sizes, or decode after
    prefill. All else here is on the first."""
    schema_version: str = SCHEMA_VERSION

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run: what was measured until then is reported, and a warning says what is not."""
        said = (warning.code for report in (self, *self.variants) for warning in report.warnings)
        return INTERRUPTED in said

    # For notebooks. What they need is loaded by name when called: the report itself rests on the standard library.

    def to_frame(self) -> "pd.DataFrame":
        """Return the kernels the report lists as a table, one row each; see ``fusionadvisor.analysis.frame``."""
        return cast("pd.DataFrame", import_module("fusionadvisor.analysis.frame").kernels(self))

    def _repr_html_(self) -> str:
        return cast(str, import_module("fusionadvisor.render.notebook").compose(self))
