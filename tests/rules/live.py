"""Facts of a live CPU model: its recorded flow, with a made-up time of 10 µs an op in place of a profile."""

from collections.abc import Callable

import torch
from torch import nn

from fusionadvisor.analysis.facts import Facts
from fusionadvisor.flow.graph import FlowGraph, Op
from fusionadvisor.flow.record import record
from fusionadvisor.trace.kinds import op_kind
from fusionadvisor.workload.inputs import Call as Arguments
from tests.builders import Call, call, timeline


def of(model: nn.Module, *inputs: torch.Tensor) -> Facts:
    """One inference call in eval mode."""
    model.eval()

    def run() -> object:
        with torch.no_grad():
            return model(*inputs)

    return facts(record(run, model, Arguments(inputs)))


def of_step(model: nn.Module, run: Callable[[], object]) -> Facts:
    """One training step, as ``run`` does it."""
    model.train()
    return facts(record(run, model))


def facts(flow: FlowGraph) -> Facts:
    """A step of this flow in which every op that does work is a stand-in of 10 µs."""
    calls = [_call(op) for op in flow.work() if "empty" not in op.name]
    return Facts(timeline(calls, gpu=None, stand_ins=True, shapes=False), flow)


def _call(op: Op) -> Call:
    source = f"{op.source.file}:{op.source.line}" if op.source else ""
    return call(op.name, us=10.0, kind=op_kind(op.name), module=op.module, source=source, phase=op.phase,
                flow_op=op.index)  # fmt: skip
