"""torch.compile: the whole model, or only the blocks that repeat."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fusionadvisor.errors import InputError, StrategyError, did_you_mean
from fusionadvisor.flow.graph import Op
from fusionadvisor.report.model import Refusal, Source
from fusionadvisor.strategies.base import Plan, Site, Strategy, Subject
from fusionadvisor.strategies.graphs.state import contents_kept
from fusionadvisor.strategies.modules import blocker
from fusionadvisor.units import plural
from fusionadvisor.workload.copies import duplicate

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
WITH_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes that record CUDA graphs, which write each call's outputs to the same memory."""
DYNAMIC = {"auto": None, "true": True, "false": False}
LISTED = 5
"""Graph breaks and recompiles told one by one; of further ones the number is."""
_EXPLAINED = "Explanation:"
"""In dynamo's text on a graph break, and not in what else makes it start again."""
_DRAWS = (
    "Random numbers, as of dropout, are drawn by PyTorch's own ops, in the order of the uncompiled step: else nothing "
    "could be verified. These ops stay unfused."
)
OLDEST_CAPABILITY = (7, 0)
"""Triton's oldest GPU, as Inductor checks it."""


@dataclass(frozen=True)
class Compile(Strategy):
    """Compile the model, or its repeated blocks, with torch.compile.

    ## What it does

    Has `torch.compile` capture the model's forward and generate kernels for what the ops compute: chains of pointwise
    ops, norms, rotary embeddings and gates become one kernel each, for which core torch has no single op. Module
    paths and state-dict keys stay as they are.

    - `regions=auto` compiles only blocks that repeat, the members of a ModuleList or Sequential of one class: they
      share one compilation. Twelve decoder blocks on a CPU took 5.6 s of CPU time to prepare this way and 13.1 s whole,
      and ran 1.05 and 1.22 times as fast as uncompiled (`benchmarks/results/regional_compile.json`).
      `regions=layers.0,layers.1` names the modules.
    - `mode` is `default`, `reduce-overhead` (CUDA graphs as well; does nothing on the CPU) or `max-autotune` (graphs,
      and tries several kernels for each matmul). Graphs write each call's outputs to the same memory: they are copied,
      so that they outlive the next call.
    - `dynamic=true` makes one kernel for all sizes from the start; `auto` does so once a size has changed; `false`
      compiles anew for each.

    Compiling is timed apart and is never in a latency; the number of calls after which it has paid for itself is given.
    Code that Inductor generates draws random numbers from a generator of its own, so a training step with dropout could
    not be compared with the uncompiled one. There PyTorch's own ops keep drawing them (`fallback_random`).

    Graph breaks (places where a graph ends and Python runs) and recompiles are counted and listed with the user's
    lines. Where torch reaches its recompile limit, and runs a function without compiling it from then on, that is said.

    ## When it helps

    Chains of short memory-bound ops; on CUDA also Python overhead. A model of large matmuls alone gains little.

    ## When it refuses

    - No C++ compiler on the CPU; no Triton, or a GPU older than compute capability 7.0, on CUDA.
    - The model is compiled, scripted, wrapped or sharded already.
    - Nothing of it can be captured, or torch fails at it: its own words are given.

    Training a convolutional model with batch norms can end as "outputs differ" on the CPU: compiled, the statistics
    are summed in float32, where PyTorch's own kernel sums in float64, so the gradients lie ten to fifty times further
    from float64. With the batch norms computed in float64 both agree. That is said, and not kept.

    A deep copy of a compiled module is not compiled: copy first.

    ## Example

    ```
    $ fusion-advisor apply model.py --strategy compile
    $ fusion-advisor apply model.py --strategy compile --set compile.regions=auto
    ```
    """

    id: ClassVar[str] = "compile"
    order: ClassVar[int] = 80
    changes_ops: ClassVar[bool] = False
    terminal: ClassVar[bool] = True
    slow: ClassVar[bool] = True

    regions: str = ""
    mode: str = "default"
    dynamic: str = "auto"

    def __post_init__(self) -> None:
        for name, value, known in (("mode", self.mode, MODES), ("dynamic", self.dynamic, tuple(DYNAMIC))):
            if value not in known:
                raise InputError(f"Strategy compile: {name} is not '{value}'.", did_you_mean(value, known))

    def places(self, model: nn.Module) -> tuple[str, ...]:
        """The regions."""
        return tuple(path for path in self._paths(model) if path)

    def plan(self, subject: Subject) -> Plan:
        """Have dynamo capture copies on every recorded input, without generating code.

        Raises:
            InputError: ``regions`` names a module that the model does not have.
        """
        from torch._dynamo.exc import TorchDynamoException

        if reason := blocker(subject.model) or _unequipped(subject.device):
            return Plan(blocker=reason)
        paths = self._paths(subject.model)
        if not paths:
            return Plan(notes=("No block repeats in this model.",))
        try:
            survey = _survey(subject, paths, DYNAMIC[self.dynamic])
        except (TorchDynamoException, *_FAILURES) as error:
            return Plan(blocker=itself(error))
        if not survey.graphs:
            return Plan(
                refused=(survey.failure or Refusal("the model", "No op of it could be captured."),), graph_breaks=0
            )
        data = {"mode": self.mode, "dynamic": self.dynamic, "draws": _draws(subject)}
        sites = tuple(Site(p or "the model", (p,) if p else (), "torch.compile", {"path": p, **data}) for p in paths)
        notes = (*self._notes(subject.device), *([_DRAWS] if data["draws"] else []), *survey.notes())
        return Plan(sites, survey.refusals(), notes=notes, graph_breaks=len(survey.breaks))

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Mark the sites for compilation, which their first call does."""
        for site in plan.sites:
            how: dict[str, Any] = {"mode": self.mode}
            if site.data.get("draws"):
                how = {"options": {**torch._inductor.list_mode_options(self.mode), "fallback_random": True}}
            module = model.get_submodule(str(site.data["path"]))
            compile_at(module, dynamic=DYNAMIC[self.dynamic], **how)
            if self.mode in WITH_GRAPHS and subject.device.startswith("cuda"):
                copy_outputs(module)
        return model

    def first_call(self, run: Callable[[], object]) -> tuple[str, ...]:
        """Compile, and say how many kernels were generated for how many operations."""
        from torch._dynamo.exc import TorchDynamoException
        from torch._dynamo.utils import counters
        from torch._inductor import metrics

        def state() -> tuple[int, int, int]:
            return (
                metrics.generated_kernel_count,
                metrics.ir_nodes_pre_fusion,
                counters["inductor"]["fxgraph_cache_hit"],
            )

        before = state()
        try:
            run()
        except (TorchDynamoException, *_FAILURES) as error:
            raise StrategyError(itself(error)) from error
        kernels, nodes, cached = (now - then for now, then in zip(state(), before, strict=True))
        notes = [f"Inductor counts {plural(nodes, 'node')} before fusion and {plural(kernels, 'generated kernel')}."]
        if cached:
            notes.append("The code was in the compiler's cache: preparing it afresh takes longer.")
        return tuple(notes)

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """Check what needs no recording."""
        known = {path for path, _ in model.named_modules(remove_duplicate=False)}
        missing = [site.name for site in plan.sites if site.data["path"] not in known]
        return blocker(model) or (f"there is no module {missing[0]}." if missing else "")

    def _paths(self, model: nn.Module) -> list[str]:
        if self.regions == "auto":
            return repeated(model)
        paths = [path.strip() for path in self.regions.split(",")]
        known = {path for path, _ in model.named_modules(remove_duplicate=False)}
        for path in paths:
            if path not in known:
                raise InputError(f"The model has no module '{path}'.", did_you_mean(path, tuple(sorted(known - {""}))))
        return paths

    def _notes(self, device: str) -> Iterator[str]:
        if device.startswith("cuda"):
            return
        if self.mode == "reduce-overhead":
            yield "reduce-overhead records CUDA graphs: on the CPU it does nothing that default does not."


_FAILURES = (AssertionError, AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What torch's compiler also raises, on a model that has just run without it."""


def itself(error: Exception) -> str:
    """Say that it is torch that fails, in its own words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    said = " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])
    return f"torch.compile itself fails on this model: {said.rstrip('.')}. compile.regions leaves parts out."


def compile_at(module: nn.Module, **how: Any) -> None:
    """As ``module.compile``, which compiles nothing where forward is torch's own, as that of ``nn.Sequential`` is."""
    from torch._dynamo import trace_rules

    module.compile(**how)
    if isinstance(module.forward, MethodType) and trace_rules.check(module.forward):

        def call(*args: Any, **kwargs: Any) -> Any:
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

        module._compiled_call_impl = torch.compile(call, **how)


def copy_outputs(module: nn.Module) -> None:
    """Let what a compiled module returns outlive its next call, as what the module itself returns does."""
    compiled = module._compiled_call_impl
    assert compiled is not None

    def call(*args: Any, **kwargs: Any) -> Any:
        return tree_map_only(Tensor, torch.clone, compiled(*args, **kwargs))

    module._compiled_call_impl = call


def repeated(model: nn.Module) -> list[str]:
    """Paths of the outermost blocks that repeat: two or more of one class, not a leaf, in one container."""
    found: list[str] = []
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or any(_within(path, outer) for outer in found):
            continue
        alike: dict[type[nn.Module], list[str]] = defaultdict(list)
        for name, child in module.named_children():
            if any(child.children()) and not isinstance(child, nn.ModuleList):
                alike[type(child)].append(f"{path}.{name}" if path else name)
        found += [member for members in alike.values() if len(members) > 1 for member in members]
    return found


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.")


def _unequipped(device: str) -> str:
    """Say what is missing here to generate code; empty if nothing is."""
    if not device.startswith("cuda"):
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except (InvalidCxxCompiler, RuntimeError):
            return "torch.compile needs a C++ compiler on the CPU, and there is none: install g++, or set CXX."
        return ""
    from torch.utils._triton import has_triton_package

    if not has_triton_package():
        return "torch.compile needs Triton on CUDA, and it is not installed."
    capability = torch.cuda.get_device_capability(device) if torch.cuda.is_available() else OLDEST_CAPABILITY
    if capability < OLDEST_CAPABILITY:
        return f"Triton needs a GPU of compute capability 7.0, and this one has {capability[0]}.{capability[1]}."
    return ""


@dataclass
class _Survey:
    """What dynamo made of the recorded inputs."""

    graphs: int = 0
    breaks: dict[tuple[str, int, str], None] = field(default_factory=dict)
    """The user's file and line of each graph break, and its reason, in the order found."""
    recompiles: list[tuple[str, int, str, str]] = field(default_factory=list)
    """File, line, function and reason of each."""
    exhausted: dict[tuple[str, int], str] = field(default_factory=dict)
    """Functions that reached the recompile limit, by file and line."""
    failure: Refusal | None = None
    seen: set[tuple[str, int]] = field(default_factory=set)
    """Functions compiled in this survey: dynamo also counts what was compiled before, for another backend."""

    def notes(self) -> Iterator[str]:
        if self.recompiles:
            names = Counter((function, _place(file, line)) for file, line, function, _ in self.recompiles)
            where = ", ".join(f"{function} ({place}) ×{n}" for (function, place), n in list(names.items())[:LISTED])
            number = plural(len(self.recompiles), "recompile")
            yield f"{number} on {where}: {self.recompiles[0][3]}."
        for (file, line), function in self.exhausted.items():
            yield (
                f"{function} ({_place(file, line)}) reaches torch's recompile limit and runs uncompiled from then on."
            )

    def refusals(self) -> tuple[Refusal, ...]:
        return tuple(
            Refusal(_place(file, line), f"Graph break: {reason}", Source(file, line))
            for file, line, reason in self.breaks
        )


def _survey(subject: Subject, paths: list[str], dynamic: bool | None) -> _Survey:
    """Run a copy on every call with a backend that generates no code."""
    from torch._dynamo.utils import get_compilation_metrics

    survey = _Survey()
    twin = duplicate(subject.model)

    def collect(graph: Any, _: Any) -> Any:
        survey.graphs += 1
        reason = getattr(graph, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break and reason.user_stack:
            frame = reason.user_stack[-1]
            survey.breaks[frame.filename, frame.lineno, _words(reason.reason)] = None
        return graph.forward

    for path in paths:
        compile_at(twin.get_submodule(path), backend=collect, dynamic=dynamic)
    start = time.time()
    with contents_kept(twin):
        for call in subject.calls:
            _run(subject, twin, call.map(lambda _, tensor: tensor.clone()))
    for frame in get_compilation_metrics():
        if (frame.start_time or 0.0) >= start:
            _read(survey, frame)
    return survey


def _run(subject: Subject, model: nn.Module, call: Any) -> None:
    if subject.run is not None:
        subject.run(model, call)
        return
    with torch.no_grad():
        model(*call.args, **call.kwargs)


def _read(survey: _Survey, frame: Any) -> None:
    """Add what one compilation of one function says."""
    place = frame.co_filename or "", frame.co_firstlineno or 0
    reason = frame.fail_reason or ""
    if "recompile limit" in reason or "cache size limit" in reason:
        last = survey.recompiles[-1] if survey.recompiles else ("", 0, "forward", "")
        survey.exhausted[place if frame.co_filename else last[:2]] = frame.co_name or last[2]
    elif frame.recompile_reason and place in survey.seen:
        survey.recompiles.append((*place, frame.co_name, _words(frame.recompile_reason.partition(": ")[2])))
    elif reason:
        at = frame.fail_user_frame_filename or place[0], frame.fail_user_frame_lineno or place[1]
        survey.breaks[*at, _words(reason)] = None
        survey.failure = Refusal("the model", _words(reason), Source(*at))
    survey.seen.add(place)
    # a break before the first op of a function leaves no graph that could tell of it
    told = {words for _, _, words in survey.breaks}
    for restart in frame.restart_reasons or ():
        if _EXPLAINED in restart and _words(restart) not in told:
            survey.breaks[*place, _words(restart)] = None


def _words(reason: str) -> str:
    """Dynamo's reason in one line."""
    if reason.startswith("generic_jump"):
        return "a condition reads a tensor's value."
    first = next((line.strip() for line in reason.splitlines() if line.strip()), "for a reason dynamo does not give")
    return " ".join(first.partition("  # ")[0].split())


def _draws(subject: Subject) -> bool:
    """Whether the recorded steps draw random numbers, which compiled code draws from a generator of its own."""
    ops = {(op.name, op.overload): op for graph in subject.graphs for op in graph.ops}.values()
    return any(_is_random(op) for op in ops)


def _is_random(op: Op) -> bool:
    namespace, _, name = op.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overload = getattr(packet, op.overload or "default", None)
    return torch.Tag.nondeterministic_seeded in getattr(overload, "tags", ()) and op.arguments.get("dropout_p") != 0


def _place(file: str, line: int) -> str:
    return f"{file.rpartition('/')[2]}:{line}"
