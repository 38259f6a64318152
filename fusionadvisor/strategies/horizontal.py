"""Merge layers that read one input, sum those that are only summed, and batch equal products of several inputs."""

import ast
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from types import FunctionType
from typing import Any

import torch
from torch import nn

from fusionadvisor.flow.graph import FlowGraph, ModuleCall, Op
from fusionadvisor.report.model import Refusal, Source
from fusionadvisor.strategies import batched, parts, source, sums
from fusionadvisor.strategies.base import Plan, Site, Strategy, Subject
from fusionadvisor.strategies.legality import code, observe
from fusionadvisor.strategies.legality.events import Kind
from fusionadvisor.strategies.legality.module_calls import CAPTURED
from fusionadvisor.strategies.modules import Sharing, blocker, replace, unfit
from fusionadvisor.strategies.survey import Survey

_LAYOUT = frozenset(
    {"view", "view_as", "as_strided", "data_ptr", "stride", "is_contiguous", "untyped_storage", "numpy"}
)
"""What tells a part of a larger tensor from a tensor of its own."""
_VIEWS = frozenset({"aten::view", "aten::as_strided", "aten::_reshape_alias"})


class Horizontal(Strategy):
    """Merge layers that read one input, and batch equal products of several.

    ## What it does
    Linear layers that read the same tensor (query, key and value; gate and up) become one layer with their weights
    stacked, convolutions of one geometry likewise; each gets its part of the result as a view. The first of them
    computes, the others take their part if it was computed from the very tensor they are given, unchanged since, and
    compute alone if not: so it is right in models that cannot be traced and on paths that were not recorded.
    Convolutions or linear layers of one input whose outputs are only summed become one with the sum of their weights.

    Three or more small matrix products of one shape, each on an input of its own and none in need of another (experts,
    heads or towers in a loop), become one batched product: the forward of the module around them is captured and its
    lines put in another order, all inputs first. Slices of one tensor are read where they are, others stacked. The
    weights of linear layers are kept side by side; a layer called several times reads all its inputs at once.

    ## When it helps
    Small layers: one kernel that fills the device better instead of several, and the input is read once. Layers that
    fill it already gain nothing. Under ``torch.inference_mode`` and in a compiled model the layers compute alone:
    tensors do not count their changes there.

    ## When it refuses
    Training; hooks, parametrizations, subclasses, adapters, quantised layers; a layer registered twice or sharing its
    weight; a weight read elsewhere; another kernel size, stride, padding, dilation or dtype, grouped convolutions; the
    input changed between the layers; a result that is returned or kept (it would keep the others alive), or viewed in
    a way that a part of a larger tensor does not allow. Products are batched only in a forward that does the same
    every time, writes nothing in place, draws no random numbers and calls nothing of the user's between them; tied
    weights, and products that fill a GPU by themselves, are left as they are.

    ## Example
    ```
    fusion-advisor apply model.py --strategy horizontal
    ```
    """

    id = "horizontal"
    order = 15

    def plan(self, subject: Subject) -> Plan:
        """Look at every group of layers that read one value in the recordings."""
        if subject.mode == "training":
            return Plan(blocker="In training the optimizer holds the separate weights; layers merge in inference only.")
        if reason := blocker(subject.model):
            return Plan(blocker=reason)
        survey = _Survey.of(subject)
        sites: list[Site] = []
        refused: dict[str, Refusal] = {}
        for found in survey.found():
            if isinstance(found, Site):
                sites.append(found)
            else:
                refused.setdefault(found.site, found)
        merged = {member for site in sites for member in site.members}
        for found in batched.found(
            subject.model, subject.graphs, survey.code, survey.untouched, merged,
            {site.data["owner"] for site in sites if site.data["how"] == "summed"},
        ):  # fmt: skip
            if isinstance(found, Site):
                sites.append(found)
                merged.update(found.members)
            else:
                refused.setdefault(found.site, found)
        left = tuple(r for r in refused.values() if not merged.issuperset(r.site.split(" + ")))
        return Plan(tuple(sites), left)

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Merge the layers of every site."""
        for site in plan.sites:
            if site.data["how"] == "summed":
                sums.rewrite(model, site.data["owner"], list(site.members))
            elif site.data["how"] == "side by side":
                _merge(model, list(site.members))
        for owner, sites in groupby((s for s in plan.sites if s.data["how"] == "batched"), lambda s: s.data["owner"]):
            batched.rewrite(model, str(owner), list(sites))
        return model

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """The same layers must be there, fit to be merged."""
        if reason := blocker(model):
            return reason
        sharing, known = Sharing(model), dict(model.named_modules())
        for site in plan.sites:
            for path in site.members:
                if path not in known:
                    return f"{path} is not in this model."
                if not site.data["structure"]:
                    continue  # products without layers: rewriting finds them again, or says so
                if reason := unfit(known[path], path, parts.LAYERS) or sharing.of(known[path], path):
                    return f"{reason}."
            layers = [known[path] for path in site.members if site.data["structure"]]
            if parts.built(layers) != site.data["structure"]:
                return f"{site.name} is built differently here."
            if len({str(parts.geometry(layer)) for layer in layers}) > 1:
                return f"{site.name} differ here."
        return ""


def _merge(model: nn.Module, paths: list[str]) -> None:
    layers: list[Any] = [model.get_submodule(path) for path in paths]
    sizes = tuple(parts.width(layer) for layer in layers)
    handout = parts.Handout()
    first = parts.Part(layers[0], handout, 0, sizes, None)
    first.merged = parts.joined(layers)
    replace(model, paths[0], first)
    for index, path in enumerate(paths[1:], start=1):
        replace(model, path, parts.Part(layers[index], handout, index, sizes, first))


class _Survey(Survey):
    """Layers that read one value, and what speaks against merging them."""

    @cached_property
    def paths(self) -> observe.Code:
        """All that the model's code may do."""
        return observe.read(self.model)

    def found(self) -> Iterator[Site | Refusal]:
        """A site for each group that may be merged, and a refusal for each layer or group that may not."""
        for family in self._families():
            fit = []
            for path in family:
                if reason := self._alone(path):
                    yield self._refusal(path, reason)
                else:
                    fit.append(path)
            for group in self._alike(fit):
                if isinstance(group, Refusal):
                    yield group
                else:
                    yield from self._judged(group)

    def _families(self) -> list[list[str]]:
        """Paths of layers that read one value in the first recording in which they are called."""
        found: dict[str, list[str]] = {}
        for graph in self.graphs:
            readers: dict[tuple[int, ...], list[str]] = {}
            for call in graph.calls:
                if isinstance(self.model.get_submodule(call.module), parts.LAYERS) and call.module not in found:
                    inputs = tuple(c.inputs[0] for c in graph.calls_of(call.module) if c.inputs)
                    group = readers.setdefault(inputs, [])
                    if call.module not in group:
                        group.append(call.module)
            for group in readers.values():
                found.update(dict.fromkeys(group, group))
        return [list(group) for group in {id(g): g for g in found.values()}.values() if len(group) > 1]

    def untouched(self, path: str) -> str:
        """What speaks against a layer whose owner's forward is written anew."""
        return self._alone(path, captured=True)

    def _alone(self, path: str, *, captured: bool = False) -> str:
        """What speaks against one layer."""
        module: Any = self.model.get_submodule(path)
        if reason := unfit(module, path, parts.LAYERS) or self.sharing.of(module, path):
            return reason
        holder = self.model.get_submodule(path.rpartition(".")[0])
        if hasattr(holder, "base_layer") or "lora" in path.lower():
            return f"{path} belongs to an adapter"
        if module.training:
            return f"{path} is in training mode"
        for graph in self.graphs:
            if reason := _read_elsewhere(graph, path):
                return reason
        return self._mentioned(path, captured)

    def _mentioned(self, path: str, captured: bool) -> str:
        """Say where the code does more with a layer than to call it; empty where it does not.

        The owner's own forward may do so where it is ``captured``: its graph shows what it does.
        """
        layer = self.model.get_submodule(path)
        verdict = self.paths.only_called(layer, path)
        own = self._own_forward(path) if captured else None
        asked = self.paths.asks_for(layer, parts.Part, frozenset(), path)
        if asked.flags:
            return f"the code asks for the class of {path} once a flag is set"
        if reason := verdict.reason or asked.reason:
            event = verdict.event or asked.event
            function = event.function if event is not None else None
            if function is None or function.node is not own:
                return reason
        for call in self.paths.log.calls[id(layer)]:
            if len(call.inputs) != 1:
                return f"{call.place} does more with {path} than to call it"
        return ""

    def _own_forward(self, path: str) -> ast.AST | None:
        """The definition of the forward that calls a layer."""
        owner = self.model.get_submodule(source.owner(self.model, path)[0])
        forward = type(owner).forward
        read = code.read(forward) if isinstance(forward, FunctionType) else None
        return read.node if read is not None else None

    def _alike(self, paths: list[str]) -> Iterator[list[str] | Refusal]:
        groups: dict[str, list[str]] = {}
        for path in paths:
            layer = self.model.get_submodule(path)
            groups.setdefault(f"{type(layer).__name__} {parts.geometry(layer)}", []).append(path)
        for group in groups.values():
            if len(group) > 1:
                yield group
            elif len(paths) > 1:
                other = next(path for path in paths if path not in group)
                yield self._refusal(group[0], self._difference(group[0], other))

    def _difference(self, path: str, other: str) -> str:
        one, two = self.model.get_submodule(path), self.model.get_submodule(other)
        if type(one) is not type(two):
            return f"{path} is a {type(one).__name__}, {other} a {type(two).__name__}"
        own, its = parts.geometry(one), parts.geometry(two)
        name = next(name for name in own if own[name] != its[name])
        return f"{path} has {name} {own[name]} where {other} has {its[name]}"

    def _judged(self, group: list[str]) -> Iterator[Site | Refusal]:
        """A sum where it is one, else side by side."""
        name = " + ".join(group)
        if reason := self._together(group):
            yield self._refusal(name, reason)
            return
        data: dict[str, Any]
        for members in sums.groups(self.model, self.graphs, self.code, group):
            built = parts.built([self.model.get_submodule(path) for path in members])
            data = {"structure": built, "how": "summed", "owner": source.owner(self.model, members[0])[0]}
            yield Site(" + ".join(members), tuple(members), "the sum cannot be taken apart again", data)
            group = [path for path in group if path not in members]
        if len(group) < 2:
            return
        if reason := next((r for path in group if (r := self._part(path, group))), ""):
            yield self._refusal(" + ".join(group), reason)
            return
        layers = [self.model.get_submodule(path) for path in group]
        data = {"structure": parts.built(layers), "how": "side by side", "keys": parts.key_map(self.model, group)}
        yield Site(" + ".join(group), tuple(group), f"the weights are rows of {group[0]}.merged", data)

    def _together(self, group: list[str]) -> str:
        """The same inputs in every recording, unchanged from the first call to the last."""
        for graph in self.graphs:
            calls = [graph.calls_of(path) for path in group]
            for path, own in zip(group, calls, strict=True):
                if [c.inputs for c in own] != [c.inputs for c in calls[0]]:
                    return f"{path} does not read what {group[0]} reads for some inputs"
            for row in zip(*calls, strict=True):
                if written := _written(graph, row):
                    return f"the input of {group[0]} is overwritten by {written.name} before {row[-1].module} reads it"
        return ""

    def _part(self, path: str, group: list[str]) -> str:
        """What speaks against giving ``path`` a part of a larger tensor."""
        layer: Any = self.model.get_submodule(path)
        if getattr(layer, "groups", 1) != 1:
            return f"{path} is a grouped convolution"
        rows = sum(parts.width(self.model.get_submodule(p)) for p in group)
        for graph in self.graphs:
            for call in graph.calls_of(path):
                for value in call.outputs:
                    if graph.escapes(value):
                        return f"the output of {path} is returned or kept, and would keep the others' alive"
                    if reason := _misfit(graph, value, rows / parts.width(layer), isinstance(layer, nn.Linear)):
                        return f"the output of {path} {reason}"
        return self._unseen_view(path)

    def _unseen_view(self, path: str) -> str:
        """A line that no recording passed may need the output to be a tensor of its own."""
        seen = {(op.source.file, op.source.line) for g in self.graphs for op in g.ops if op.source and op.view}
        for module in self.model.modules():  # a forward that was captured already runs elsewhere than it was written
            seen |= getattr(vars(module).get("forward"), "lines", frozenset())
        for use in self.paths.views_of(self.model.get_submodule(path)):
            if use.name == "data" or (use.kind is Kind.WRITE and use.name == "data"):
                return f"{use.place} uses .data: what it changes there cannot be noticed"
            if use.kind is Kind.ESCAPE:
                return f"{use.place} gives the output of {path} to {use.name}, which cannot be followed"
            first, last = getattr(use.node, "lineno", 0), getattr(use.node, "end_lineno", None)
            lines = range(first, (last or first) + 1)
            file = use.function.file if use.function is not None else ""
            captured = file == CAPTURED  # has no branch: every input reached its lines
            if use.name in _LAYOUT and not captured and not any((file, line) in seen for line in lines):
                return f"{use.place}, which no input reached, may need {path}'s memory whole"
        return ""

    def _refusal(self, name: str, reason: str) -> Refusal:
        first = name.split(" + ")[0]
        for graph in self.graphs:
            for call in graph.calls_of(first):
                if call.source is not None:
                    return Refusal(name, f"{reason}.", Source(call.source.file, call.source.line))
        return Refusal(name, f"{reason}.")


def _read_elsewhere(graph: FlowGraph, path: str) -> str:
    for value in graph.values:
        if value.role not in ("parameter", "buffer") or value.name.rpartition(".")[0] != path:
            continue
        for alias in graph.aliases_of(value.id):
            for op in graph.readers(alias):
                if op.module != path:
                    return f"{value.name} is also read by {op.name}"
    return ""


def _written(graph: FlowGraph, calls: tuple[ModuleCall, ...]) -> Op | None:
    alive = set(graph.aliases_of(calls[0].inputs[0]))
    start, end = min(c.first_op for c in calls), max(c.end_op for c in calls)
    return next((op for op in graph.ops[start:end] if alive.intersection(op.mutates)), None)


def _misfit(graph: FlowGraph, value: int, ratio: float, linear: bool) -> str:
    """Say which recorded view a part of a larger tensor would not allow; empty where each is allowed."""
    known = graph.values[value]
    dim = len(known.shape) - 1 if linear else max(0, len(known.shape) - _spatial(graph, value) - 1)
    # dimensions before the one that is split are further apart; a size of 1 is taken for 2, as another batch may be
    shape = [max(size, 2) if i < dim else size for i, size in enumerate(known.shape)]
    strides, step = [0] * len(shape), 1
    for i in reversed(range(len(shape))):
        strides[i] = step
        step = round(step * shape[i] * (ratio if i == dim else 1))
    larger = torch.empty_strided(known.shape, strides, device="meta")
    for op in graph.consumers(value):
        if op.name not in _VIEWS:
            continue
        size = op.arguments.get("size")
        try:
            larger.view([int(n) for n in size])  # type: ignore[attr-defined]
        except (RuntimeError, TypeError):
            line = f" (line {op.source.line})" if op.source else ""
            return f"is viewed{line} as only a tensor of its own can be"
    return ""


def _spatial(graph: FlowGraph, value: int) -> int:
    op = graph.producer(value)
    stride = op.arguments.get("stride") if op is not None else None
    return len(stride) if isinstance(stride, list | tuple) else len(graph.values[value].shape) - 2
