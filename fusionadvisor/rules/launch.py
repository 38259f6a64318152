"""Launching: where the GPU waits for the CPU."""

from collections.abc import Sequence

from fusionadvisor import units
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.report.model import Range
from fusionadvisor.rules.base import Candidate, Looked, Rule

WORTH_SHARE = 0.1
"""Idle time below this share of a step is within what the queue model and run-to-run noise explain."""


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
        if launch.saving_us is None:
            return self._unknown(facts) if launch.idle_share >= WORTH_SHARE else Looked()
        step = launch.saving_us / facts.steps
        if not facts.step_us or step < WORTH_SHARE * facts.step_us:
            return Looked()
        likely = None if facts.latency_us is not None else launch.saving_us
        evidence = (
            f"{units.plural(round(launch.kernels / facts.steps), 'kernel')} a step, busy "
            f"{units.time_us(launch.busy_us / facts.steps)} of {units.time_us(facts.step_us)}.",
            f"Break-even: {launch.break_even_us:.2f} µs of CPU time a kernel.",
            *self._obstacles(facts),
        )
        return Looked(
            (Candidate((), Range(0.0, 0.0, 0.0), "step", step_us=Range(0.0, likely, launch.saving_us),
                       evidence=evidence),)
        )  # fmt: skip

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Compile with graphs, or capture by hand."""
        return 'model = torch.compile(model, mode="reduce-overhead")  # captures CUDA graphs where it can'

    def _unknown(self, facts: Facts) -> Looked:
        launch = facts.launch
        limit = f"{launch.break_even_us or 0.0:.2f} µs"
        evidence = (
            f"Launch-bound if the CPU needs more than {limit} a kernel; unknown from this recording: {launch.reason}.",
            f"The device is idle for {units.percent(launch.idle_share)} of the window, how much of it without the "
            "profiler is not known.",
            *self._obstacles(facts),
        )
        nothing = Range(0.0, None, 0.0)
        return Looked((Candidate((), nothing, "step", step_us=nothing, evidence=evidence),))

    def _obstacles(self, facts: Facts) -> tuple[str, ...]:
        """What would keep the step from being captured."""
        if facts.flow is None:
            return ()
        waits = [op for op in facts.flow.ops if op.sync]
        lines = list(dict.fromkeys(f"{op.source.file}:{op.source.line}" for op in waits if op.source))
        if not waits:
            return ()
        where = f" at {', '.join(lines[:3])}" if lines else ""
        return (f"A graph cannot hold what waits for the GPU: {waits[0].name}{where}.",)
