"""Keep a convolutional model in channels-last memory format."""

import traceback

import torch
from torch import nn

from fusionadvisor.flow.frames import is_user_file
from fusionadvisor.flow.graph import FlowGraph, Op
from fusionadvisor.report.model import Refusal, Source
from fusionadvisor.strategies.base import Plan, Site, Strategy, Subject
from fusionadvisor.strategies.modules import blocker
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.usercode import one_line

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
_LAYOUT_READERS = frozenset({"aten::as_strided", "aten::set_", "aten::resize_", "aten::_reshape_alias"})
"""Ops that go by the position of elements in memory, and so see another tensor in another layout."""


class ChannelsLast(Strategy):
    """Keep the model in channels-last.

    ## What it does
    Puts the weights of 2-D convolutions into channels-last memory format. A convolution whose weight is in that format
    returns its output in it, and what follows keeps it, so the conversions around each convolution go.

    ## When it helps
    Convolutional networks in half precision on tensor cores; on the CPU, networks whose convolutions run in oneDNN.
    Outputs come back in channels-last too: same values, other strides.

    ## When it refuses
    Code that reads the memory order: ``.view`` on the output of a convolution fails (the line is named),
    ``as_strided`` would see other elements. Compiled, scripted and sharded models.

    Training with batch norms can end as "outputs differ" on the CPU: there, PyTorch's channels-last batch norm sums in
    float32 and its usual one in float64, so the gradients lie some ten to fifty times further from float64. With the
    batch norms computed in float64 both agree. That is said, and not kept.

    ## Example
    ```
    fusion-advisor apply model.py --strategy channels_last
    ```
    """

    id = "channels_last"
    order = 40
    changes_ops = False

    def plan(self, subject: Subject) -> Plan:
        """Look for code that reads the memory order, then run a converted copy once on each recorded input."""
        if reason := blocker(subject.model):
            return Plan(blocker=reason)
        paths = _convolutions(subject.model)
        if not paths:
            return Plan(notes=("There is no 2-D convolution in this model.",))
        refusal = _reader(subject.graphs, subject.model)
        if refusal is None and subject.mode == "inference":  # a training step is run by the verification alone
            refusal = _failure(subject)
        if refusal is not None:
            return Plan(refused=(refusal,))
        detail = "outputs come back in channels-last strides"
        return Plan((Site("the convolutions", paths, detail, {"paths": list(paths)}),))

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Convert the weights."""
        return _converted(model)

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """The same convolutions must be there."""
        if reason := blocker(model):
            return reason
        missing = [path for path in plan.sites[0].data["paths"] if path not in _convolutions(model)]
        return f"{missing[0]} is no 2-D convolution here." if missing else ""


def _convolutions(model: nn.Module) -> tuple[str, ...]:
    return tuple(path for path, module in model.named_modules() if isinstance(module, _CONVOLUTIONS))


def _converted(model: nn.Module) -> nn.Module:
    """Convert the 2-D convolutions; a model may hold 3-D ones beside them, whose weights have another format."""
    for path in _convolutions(model):
        model.get_submodule(path).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _reader(graphs: tuple[FlowGraph, ...], model: nn.Module) -> Refusal | None:
    """The first op of the user's code that goes by memory order and reads what a convolution made."""
    for graph in graphs:
        made = {value for op in graph.ops if op.name == "aten::convolution" for value in op.writes}
        for op in graph.ops:
            if made.intersection(op.reads):
                if op.name in _LAYOUT_READERS:
                    return Refusal(
                        op.module or type(model).__name__, f"{op.name} goes by the order in memory.", _line(op)
                    )
                made.update(op.writes)
    return None


def _failure(subject: Subject) -> Refusal | None:
    """What a converted copy raises, and where in the user's code."""
    candidate = _converted(duplicate(subject.model))
    for call in subject.calls:
        inputs = call.map(lambda _, tensor: tensor.clone())
        try:
            with torch.no_grad():
                candidate(*inputs.args, **inputs.kwargs)
        except RuntimeError as error:
            frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_file(f.filename)]
            where = Source(frames[-1].filename, frames[-1].lineno or 0) if frames else None
            at = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
            what = one_line(error).partition(" (")[0].rstrip(".")
            return Refusal("the convolutions", f"In channels-last it fails{at}: {what}.", where)
    return None


def _line(op: Op) -> Source | None:
    return None if op.source is None else Source(op.source.file, op.source.line)
