"""Launching: where the GPU waits for the CPU."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fusionadvisor import units
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.nodes import Node
from fusionadvisor.report.model import Range, Source
from fusionadvisor.rules.base import Candidate, Looked, Rule, Sentence, line_of, name
from fusionadvisor.rules.match import common, compile_snippet

NOTHING = Range(0.0, None, 0.0)
STORM, TINY_US = 16, 5.0
"""A run this long of kernels this short costs more to launch than to run."""
EAGER_SHARE = 0.05
"""Fewer of the ops than this outside compiled regions are the glue around any model."""
WORTH_SHARE = 0.1
"""Idle time below this share of a step is within what the queue model and run-to-run noise explain."""
MOST = 0.5
"""Of more kernel time than this a rule about the step as a whole must be able to speak."""
WAITED_FOR = (
    ("launch_us", "for the next launch"),
    ("sync_us", "after the CPU had waited for the GPU"),
    ("data_us", "for data"),
    ("communication_us", "for communication"),
    ("other_us", "between queued kernels"),
)


_Wait = tuple[str, str, str]
"""What the CPU waits in, its line of code, and its module."""


@dataclass(slots=True)
class _Waited:
    """The waits of one place, all steps together: how many, how long the CPU waited, and the GPU stood idle after."""

    count: int = 0
    us: float = 0.0
    idle_us: float = 0.0


def _waits(facts: Facts) -> dict[_Wait, _Waited]:
    """Where the CPU waits for the GPU inside a step."""
    return _recorded(facts) if facts.timeline.stand_ins else _traced(facts)


def _traced(facts: Facts) -> dict[_Wait, _Waited]:
    syncs = facts.timeline.syncs
    found: dict[_Wait, _Waited] = defaultdict(_Waited)
    memory = facts.timeline.memory  # a copy to the device that waits is FA405's
    to_device = set(memory["op_id"][memory["name"].astype(str).str.contains("HtoD")]) if "op_id" in memory else set()
    names = facts.timeline.ops["name"]
    inside = (syncs["step"] >= 0).tolist() if "step" in syncs else [True] * len(syncs)
    places = [syncs[c].astype(str).tolist() if c in syncs else [""] * len(syncs) for c in ("source", "module")]
    rows = zip(
        inside, syncs["op_id"].tolist(), syncs["name"].astype(str), syncs["dur_ns"].tolist(), facts.wait_costs.tolist(),
        *places, strict=True,
    )  # fmt: skip
    for in_step, op_id, call, dur, idle, where, module in rows:
        # what no op asked for, at the end of a step or between two, costs nothing unless the GPU then stands idle
        if not in_step or (op_id < 0 and not idle) or (op_id >= 0 and op_id in to_device):
            continue
        waited = found[str(names.iloc[op_id]) if op_id >= 0 else call, where, module]
        waited.count += 1
        waited.us += dur / 1e3
        waited.idle_us += idle / 1e3
    return found


def _recorded(facts: Facts) -> dict[_Wait, _Waited]:
    """On the CPU nothing waits; the recorded ops say what would on a GPU."""
    found: dict[_Wait, _Waited] = defaultdict(_Waited)
    for op in facts.flow.ops if facts.flow is not None else ():
        if op.sync and op.phase != "optimizer":  # an optimizer keeps its step counts on the CPU
            key = (op.name, f"{op.source.file}:{op.source.line}" if op.source else "", op.module)
            found[key].count += facts.steps
    return found


def _obstacles(facts: Facts) -> tuple[str, ...]:
    """What has to go before the step can be captured as a graph."""
    waits = _waits(facts)
    if not waits:
        return ()
    ops, lines, modules = (list(dict.fromkeys(filter(None, column))) for column in zip(*waits, strict=True))
    places = [line.rpartition("/")[2] for line in lines] or modules
    where = f" at {', '.join(places[:3])}{' and elsewhere' if len(places) > 3 else ''}" if places else ""
    return (f"First FA302: a graph cannot hold what waits for the GPU, {ops[0]}{where}.",)


class LaunchBound(Rule):
    """Replay the step as a graph.

    ## What it does
    Replays the queue of kernels with the launch times of the recording, and again with every kernel already queued. The
    difference is what launching one by one costs.

    ## Why it costs
    A launch takes the CPU some µs of Python, dispatch and driver. Where kernels are shorter than that, the GPU waits.

    ## Example
    154 kernels of 8 µs each: if the CPU needs more than 8 µs a kernel, it sets the pace.

    ## Use instead
    ```python
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    graph.replay()  # one launch for all kernels
    ```
    or `fusion-advisor apply --strategy cudagraph`, which checks what prevents it, or
    `torch.compile(mode="reduce-overhead")`. Larger batches and fused kernels help too.

    ## When not to
    Where shapes change with every call, where the CPU must read a value back in the middle, or where the GPU is busy
    anyway. A recording with stacks, shapes or memory slows the CPU several times: it gives the break-even, no saving.
    """

    id = "FA301"

    def look(self, facts: Facts) -> Looked:
        """Compare the queue's span with and without waiting for launches."""
        launch = facts.launch
        if facts.timeline.stand_ins:
            return Looked(skipped="no GPU here: nothing is launched")
        if launch.break_even_us is None:
            return Looked(skipped="no kernel was launched on its own")
        if launch.graphed_share > MOST:
            return Looked(
                skipped=f"{units.percent(launch.graphed_share)} of kernel time is replayed from graphs already"
            )
        if launch.saving_us is None:
            if launch.idle_share < WORTH_SHARE:
                return Looked()
            predicted = facts.timeline.basis == "predicted"
            return self._predicted(launch.break_even_us, facts) if predicted else self._unknown(facts)
        waits = sum(w.idle_us for w in _waits(facts).values())  # FA302's
        saving = max(0.0, launch.saving_us - waits)
        if not facts.step_us or saving / facts.steps < WORTH_SHARE * facts.step_us:
            return Looked()
        likely = None if facts.latency_us is not None else saving
        evidence = (
            f"{units.plural(round(launch.kernels / facts.steps), 'kernel')} a step; the GPU is idle for "
            f"{units.percent(launch.idle_share)} of {units.time_us(facts.step_us)}.",
            f"Break-even: {launch.break_even_us:.2f} µs of CPU time a kernel.",
            *self._idle(facts),
            *_obstacles(facts),
        )
        return Looked(
            (Candidate((), Range(0.0, 0.0, 0.0), "step", step_us=Range(0.0, likely, saving), evidence=evidence),)
        )  # fmt: skip

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Compile with graphs, or capture by hand."""
        return 'model = torch.compile(model, mode="reduce-overhead")  # captures CUDA graphs where it can'

    def _predicted(self, break_even_us: float, facts: Facts) -> Looked:
        """No CPU ran: the limit alone, and nothing of idle time."""
        said = (
            f"Launch-bound if the CPU needs more than {break_even_us:.2f} µs a kernel; the CPU's time a kernel is not "
            "known for a predicted step."
        )
        evidence = (said, *_obstacles(facts))
        return Looked((Candidate((), NOTHING, "step", step_us=NOTHING, evidence=evidence),))

    def _unknown(self, facts: Facts) -> Looked:
        launch = facts.launch
        limit = f"{launch.break_even_us or 0.0:.2f} µs"
        evidence = (
            f"Launch-bound if the CPU needs more than {limit} a kernel; unknown from this recording: {launch.reason}.",
            f"The GPU is idle for {units.percent(launch.idle_share)} of the step; how much of it without the profiler "
            "is not known.",
            *self._idle(facts),
            *_obstacles(facts),
        )
        return Looked((Candidate((), NOTHING, "step", step_us=NOTHING, evidence=evidence),))

    def _idle(self, facts: Facts) -> tuple[str, ...]:
        """What the device waited for, largest first."""
        if facts.idle is None:
            return ()
        parts = sorted(((getattr(facts.idle, field), words) for field, words in WAITED_FOR), reverse=True)
        said = [f"{units.time_us(us)} {words}" for us, words in parts if us >= 0.5]
        return (f"Computing nothing, as recorded, a step: {', '.join(said)}.",) if said else ()


class HotSync(Rule):
    """Keep the CPU from waiting.

    ## What it does
    Finds places inside a step where the CPU waits for the GPU: a value read back (`.item()`, `if tensor:`), a size that
    depends on data (`nonzero`, boolean masks), a synchronous copy.

    ## Why it costs
    While it waits, the CPU launches nothing. When the value arrives the queue is empty, and the GPU waits for the next
    launch. It also keeps the step from being captured as a graph.

    ## Example
    ```python
    if mask.all():  # one round trip to the GPU a call
        mask = None
    ```

    ## Use instead
    Decide on the CPU from what is known there, or keep the decision on the GPU with `torch.where`. Read losses and
    metrics every hundred steps, with `non_blocking=True` into pinned memory.

    ## When not to
    At the end of a step that has nothing to do but hand over its result.
    """

    id = "FA302"

    def look(self, facts: Facts) -> Looked:
        """Match waits inside a step that an op caused, by line."""
        return Looked(tuple(self._candidate(*place, waited, facts) for place, waited in _waits(facts).items()))

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Say what to do instead of branching on a value."""
        return "y = torch.where(condition, a, b)  # instead of reading the condition back to branch on it"

    def _candidate(self, op: str, where: str, module: str, waited: _Waited, facts: Facts) -> Candidate:
        return Candidate(
            (), NOTHING, f"{op} at {where or module or 'an unknown line'}", step_us=Range(0.0, None, waited.idle_us),
            evidence=(self._said(op, waited, facts),), where=(module, line_of(where)),
        )  # fmt: skip

    def _said(self, op: str, waited: _Waited, facts: Facts) -> str:
        often = f"{op} {max(1, round(waited.count / facts.steps))} × a step"
        if facts.timeline.stand_ins:
            return f"{often}: on a GPU the CPU would wait here."
        idle = (
            f", after which the GPU was idle for {units.time_us(waited.idle_us / facts.steps)}"
            if waited.idle_us
            else ""
        )
        return f"{often}; the CPU waited {units.time_us(waited.us / facts.steps)} for the GPU{idle}."


class TinyKernelStorm(Rule):
    """Fuse the storm of tiny kernels.

    ## What it does
    Finds a run of sixteen or more consecutive fusible kernels that take less than 5 µs on average.

    ## Why it costs
    Such kernels are over before the next one is launched; what they cost is their number.

    ## Example
    ```python
    for i in range(n_boxes):
        boxes[i] = boxes[i] * scale + offset  # four kernels a box
    ```

    ## Use instead
    ```python
    boxes = boxes * scale + offset  # vectorised: two kernels in all
    ```
    or compile the function, or graph the step.

    ## When not to
    Where it runs once, outside the loop that matters.
    """

    id = "FA303"

    def look(self, facts: Facts) -> Looked:
        """Match long stretches of short kernels."""
        node_of = {k: n for n in facts.nodes for k in n.first}
        storms = []
        for stretch in facts.stretches:
            if stretch.kernels[0] not in node_of:  # outside all steps, or in a step equal to an earlier one
                continue
            nodes = [facts.nodes[i] for i in dict.fromkeys(node_of[k].index for k in stretch.kernels)]
            us = sum(n.us for n in nodes)
            tiny = us < TINY_US * sum(len(n.first) for n in nodes)
            if len(stretch.kernels) >= STORM and tiny and nodes[0].phase != "optimizer":
                storms.append(nodes)
        said: tuple[Sentence, ...] = (lambda mean: f"{mean.kernels} in a row, {mean.each} each.",)
        said += _obstacles(facts) if storms else ()
        return Looked(tuple(self._candidate(nodes, said) for nodes in storms))

    def _candidate(self, nodes: Sequence[Node], said: tuple[Sentence, ...]) -> Candidate:
        high = sum(n.us for n in nodes) - max(n.us for n in nodes)
        members = tuple(sorted(n.index for n in nodes))
        return Candidate(members, Range(0.0, None, high), "storm", where=self._place(nodes), evidence=said,
                         specific=False)  # fmt: skip

    def _place(self, nodes: Sequence[Node]) -> tuple[str, Source | None]:
        """The module that launched more than half of the kernels, and its line that launched most; else nowhere."""
        of_module = Counter(module for n in nodes for module in [n.module] * len(n.first))
        module, most = of_module.most_common(1)[0]
        if 2 * most <= of_module.total():
            return "", None
        lines = Counter(line for n in nodes if n.module == module for line in [n.source] * len(n.first))
        return module, line_of(lines.most_common(1)[0][0])

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Compile the region."""
        return compile_snippet(common(facts.nodes[i] for i in c.nodes) for c in found)


_COMPILED = re.compile(r"Torch-Compiled Region|CompiledFunction|CompiledFxGraph")
"""Ranges around what ``torch.compile`` made; older releases do not number them."""
_GENERATED = re.compile(r"^triton_(?:poi|red|per|tem|mm|bmm|for|spl)_")
"""Kernels, and the ops around them, that Inductor names."""


class FallenBack(Rule):
    """Keep the compiled model compiled.

    ## What it does
    In a model that `torch.compile` compiled, finds code that was compiled again, graphs that broke in two, and kernels
    that ran outside every compiled region.

    ## Why it costs
    A recompile takes seconds. After eight of one function, torch gives up and runs it eagerly, without a word. What is
    between two graphs is not fused with either.

    ## Example
    ```python
    @torch.compile
    def f(x, n: int):
        return x * n  # compiled again for every n, until the limit
    ```

    ## Use instead
    `torch._dynamo.mark_dynamic(x, 0)` for a dimension that changes, tensors for numbers that change, and
    `TORCH_LOGS=recompiles,graph_breaks` to see each reason.

    ## When not to
    Where one or two recompiles at the start cover all shapes.
    """

    id = "FA304"

    def look(self, facts: Facts) -> Looked:
        """Read the compiled regions' numbers, and what ran outside them."""
        names = [str(name) for name in facts.timeline.ops["name"].cat.categories]
        kernels = (str(name) for name in facts.timeline.kernels["name"].cat.categories)
        if not any(map(_COMPILED.search, names)) and not any(map(_GENERATED.match, (*names, *kernels))):
            return Looked(skipped="nothing here was compiled by torch.compile")
        candidates = []
        regions = sorted(set(re.findall(r"Torch-Compiled Region: (\d+)/(\d+)", "\n".join(names))))
        again = {frame: max(int(n) for f, n in regions if f == frame) for frame, _ in regions}
        if many := {frame: n for frame, n in again.items() if n}:
            said = (
                f"{len(many)} of {len(again)} compiled functions were compiled again, one {max(many.values())} times."
            )
            candidates.append(Candidate((), NOTHING, "recompiled", step_us=NOTHING, evidence=(said,)))
        outside = self._outside(facts)
        count = round(sum(n.repeats for n in outside) / facts.steps)
        if len(outside) > EAGER_SHARE * len(facts.nodes):
            us = sum(n.us * n.repeats for n in outside)
            share = units.percent(us / facts.kernel_us)
            said = (
                f"{units.plural(count, 'op')} ({share} of kernel time) ran outside the compiled regions, first "
                f"{name(outside[0])}."
            )
            candidates.append(
                Candidate((), NOTHING, "outside", outside[0], step_us=NOTHING, evidence=(said,),
                          beside=tuple(n.index for n in outside))
            )  # fmt: skip
        return Looked(tuple(candidates))

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Ask torch for its reasons."""
        return "TORCH_LOGS=recompiles,graph_breaks python ..."

    def _outside(self, facts: Facts) -> list[Node]:
        """Nodes without a compiled region around them, optimizer aside."""
        parents: list[int] = facts.timeline.ops["parent"].tolist()
        names = facts.timeline.ops["name"]
        of_name = [bool(_COMPILED.search(str(name)) or _GENERATED.match(str(name))) for name in names.cat.categories]
        compiled = [of_name[code] for code in names.cat.codes.tolist()]
        op_ids: list[int] = facts.timeline.kernels["op_id"].tolist()
        found = []
        for node in facts.nodes:
            at = op_ids[node.kernels[0]]
            if at < 0 or node.phase in ("optimizer", "backward") or node.graphed:
                continue
            while at >= 0 and not compiled[at]:
                at = parents[at]
            if at < 0 and node.kind != "fused":
                found.append(node)
        return found
