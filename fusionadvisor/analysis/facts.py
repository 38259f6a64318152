"""Facts: everything a rule may ask about one timeline, computed when first asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from fusionadvisor.analysis import cost, devices
from fusionadvisor.analysis.dataflow import Dataflow, build
from fusionadvisor.analysis.groups import Group, Stretch, describe, groups, stretches
from fusionadvisor.analysis.idle import costs, split
from fusionadvisor.analysis.launch import Launch, Queue, queue, study
from fusionadvisor.analysis.nodes import Node
from fusionadvisor.analysis.quantities import busy_us, in_steps
from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.report.model import Idle, Range
from fusionadvisor.trace import measures

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from fusionadvisor.trace.timeline import Timeline


@dataclass(frozen=True)
class Facts:
    """A timeline, what is known of its data flow, and the quantities that follow.

    Args:
        timeline: What ran.
        flow: The recording of a live run, None for a trace.
        latency_us: Unprofiled time of a step of a live run, None for a trace.
        peak_gbs: Bandwidth to reckon with, in GB/s, where it is known better than by the GPU's name.
        hooked: For the modules of a live model that have hooks, by path, in words: ``has a forward hook``.
    """

    timeline: "Timeline"
    flow: FlowGraph | None = None
    latency_us: float | None = None
    peak_gbs: float | None = None
    hooked: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def dataflow(self) -> Dataflow:
        """Nodes and edges."""
        return build(self.timeline, self.flow)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the steps, in order of time; equal steps once."""
        return self.dataflow.nodes

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Groups of two kernels or more."""
        return groups(self.dataflow)

    @cached_property
    def group_of_node(self) -> dict[int, Group]:
        """The group each grouped node is in."""
        return {n: group for group in self.groups for n in group.nodes}

    @cached_property
    def stretches(self) -> tuple[Stretch, ...]:
        """Runs of consecutive fusible kernels."""
        return stretches(self.timeline.kernels)

    @cached_property
    def launch(self) -> Launch:
        """Launch behaviour."""
        return study(self.timeline, self.latency_us)

    @cached_property
    def queue(self) -> Queue | None:
        """The queue to replay; None where launch times are not those of an unprofiled run, or not all recorded."""
        return queue(self.timeline) if self.latency_us is None else None

    @cached_property
    def idle(self) -> Idle | None:
        """Idle time a step by cause."""
        return split(self.timeline)

    @cached_property
    def wait_costs(self) -> "npt.NDArray[np.int64]":
        """For each row of ``Timeline.syncs`` how long the devices stood idle after it, in ns, all steps together."""
        return costs(self.timeline)

    @cached_property
    def gpu(self) -> devices.Gpu | None:
        """The table's entry of the GPU that ran the kernels; None where there was none, several, or an unknown one."""
        used = {int(d) for d in self.timeline.kernels["device"].unique()}
        found = {devices.find(d.name) for d in self.timeline.devices if d.index in used}
        return None if self.timeline.stand_ins or len(found) != 1 else found.pop()

    @cached_property
    def bandwidth(self) -> float | None:
        """GB/s to reckon with, None where times of fused kernels cannot be bounded from bytes."""
        if self.timeline.stand_ins:
            return None
        return self.peak_gbs or (self.gpu.peak_gbs if self.gpu else None)

    @cached_property
    def steps(self) -> int:
        """How many steps the recording holds, at least one."""
        return max(1, len(self.timeline.steps))

    @cached_property
    def _stepped(self) -> "pd.DataFrame":
        return in_steps(self.timeline.kernels)

    @cached_property
    def busy_us(self) -> float:
        """Time in which some kernel ran, all steps together."""
        return busy_us(self._stepped)

    @cached_property
    def kernel_us(self) -> float:
        """Sum of the kernels' durations, all steps together.

        Kernels without a launch ran beside the steps, in none that is known; they are part of the sum, as they are of
        the report's totals.
        """
        kernels = self.timeline.kernels
        counted = kernels["step"].to_numpy() >= 0
        if not self.timeline.stand_ins:
            counted |= kernels["launch_id"].to_numpy() < 0
        return float(kernels["dur_ns"].to_numpy()[counted].sum()) / 1e3

    @cached_property
    def step_us(self) -> float:
        """Time of a step: its unprofiled latency where known, else as recorded (:func:`measures.step_us`)."""
        return measures.step_us(self.timeline) if self.latency_us is None else self.latency_us

    @cached_property
    def training(self) -> bool:
        """True where a backward pass or an optimizer was recorded."""
        return any(n.phase in ("backward", "optimizer") or n.outer.endswith("_backward") for n in self.nodes)

    @property
    def proven(self) -> bool:
        """True where the data flow was recorded, not assumed."""
        return self.dataflow.flow == "proven"

    def of_kind(self, *kinds: str) -> list[Node]:
        """The nodes of these kinds that were launched one by one."""
        return [n for n in self.nodes if n.kind in kinds and not n.graphed]

    def bound(self, nodes: tuple[int, ...]) -> Range:
        """Return what one kernel in place of these nodes' kernels would save, all of them together."""
        group = describe(self.dataflow, nodes)
        if self.bandwidth is None or not all(self.nodes[i].reads for i in nodes):
            return cost.members(group.us, group.longest_us)
        return cost.save(group.us, cost.fused(group.external, self.bandwidth, rows=group.rows))

    def gone(self, us: float) -> Range:
        """Return what it saves when kernels of ``us`` need not run at all."""
        return Range(0.0, None, us) if self.bandwidth is None else cost.vanish(us, 0, self.bandwidth)

    def absorbed(self, nodes: tuple[int, ...], producer: Node) -> Range:
        """Return what moving these nodes into the kernel of their producer would save."""
        us = sum(self.nodes[i].us for i in nodes)
        if self.bandwidth is None or not all(self.nodes[i].reads for i in nodes):
            return Range(0.0, None, us)
        inside = {*nodes, producer.index}
        remaining = {
            identity: tensor.bytes
            for i in nodes
            for source, identity, tensor in zip(
                self.nodes[i].sources, self.nodes[i].inputs, self.nodes[i].reads, strict=True
            )
            if source not in inside
        }
        return cost.vanish(us, sum(remaining.values()), self.bandwidth)
