"""Fold batch norms into the convolutions and linear layers beside them, where that is proven legal."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from fusionadvisor.flow.graph import FlowGraph, ModuleCall, Op
from fusionadvisor.report.model import Refusal, Source
from fusionadvisor.strategies import folding, pairing
from fusionadvisor.strategies.base import Plan, Site, Strategy, Subject
from fusionadvisor.strategies.modules import Sharing, blocker, replace, unfit
from fusionadvisor.strategies.survey import Survey

_ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.Hardswish, nn.ELU)


class FuseModules(Strategy):
    """Fold batch norm, join activations.

    ## What it does
    In evaluation a batch norm multiplies and adds a constant per channel. Both constants move into the weight and bias
    of the convolution, transposed convolution or linear layer before it (or of the unpadded layer after it), and the
    batch norm becomes an identity. The fold is computed in float64 and cast once. Hooks, sharing, other readers and
    the code around the pair are checked first; ``torch.fx`` is not needed, so models it cannot trace are folded too.

    ## When it helps
    Convolutional networks in inference: each pair loses one kernel that reads and writes the whole activation.
    Joining a linear layer or a convolution with its activation needs a kernel that does both; PyTorch has none on the
    CPU, so there nothing is claimed for it.

    ## When it refuses
    The batch norm is in training mode, is switched to it by forward, or has no running statistics; the output of the
    layer is also read elsewhere, returned or kept; layer or batch norm is called more than once, is registered twice
    or shares its memory; its weight is read elsewhere; it has a hook, a parametrization, a forward of its own, or is
    quantised; a linear layer feeds a batch norm that normalises another dimension; the layer after the batch norm pads
    its input; another path through the source might use either of them alone. The folded model cannot go back to
    training mode.

    ## Example
    ```
    fusion-advisor apply model.py --strategy fuse_modules
    ```
    """

    id = "fuse_modules"
    order = 10

    def plan(self, subject: Subject) -> Plan:
        """Look at every batch norm beside a convolution or linear layer."""
        if subject.mode == "training":
            return Plan(blocker="In training a batch norm uses its batch's statistics; it folds in inference only.")
        if reason := blocker(subject.model):
            return Plan(blocker=reason)
        survey = _Survey.of(subject)
        sites: list[Site] = []
        refused: list[Refusal] = []
        taken: set[str] = set()
        for pair in survey.pairs():
            if pair.norm in taken:
                continue
            reason, where = survey.refusal(pair)
            if not reason and pair.layer in taken:
                reason = f"{pair.layer} is folded with another batch norm already"
            if reason:
                refused.append(Refusal(pair.name, f"{reason}.", where))
            else:
                taken.update((pair.norm, pair.layer))
                sites.append(_site(subject.model, pair))
        folded = {site.data["norm"] for site in sites}
        refused += survey.parted()
        refused = [r for r in refused if not folded & set(r.site.split(" → "))]
        return Plan(tuple(sites), tuple(refused), notes=survey.joins(subject.device))

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Fold every site of the plan."""
        for site in plan.sites:
            layer, norm = (model.get_submodule(site.data[key]) for key in ("layer", "norm"))
            if site.data["after"]:
                folding.fold_after(layer, norm)
            else:
                folding.fold_before(norm, layer)
            replace(model, site.data["norm"], folding.FoldedNorm().eval())
        return model

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """Check the modules of every site again; the recording is not needed."""
        if reason := blocker(model):
            return reason
        sharing = Sharing(model)
        for site in plan.sites:
            pair = _Pair(site.data["layer"], site.data["norm"], site.data["after"])
            try:
                layer, norm = model.get_submodule(pair.layer), model.get_submodule(pair.norm)
            except AttributeError:
                return f"{pair.name} is not in this model."
            found = _built(layer, norm)
            if found != site.data["structure"]:
                return f"{pair.name} is built differently here: {found} instead of {site.data['structure']}."
            if reason := _structure(model, pair, sharing):
                return f"{reason}."
        return ""


@dataclass(frozen=True)
class _Pair:
    """A layer and a batch norm: ``after`` where the norm comes after the layer."""

    layer: str
    norm: str
    after: bool

    @property
    def first(self) -> str:
        return self.layer if self.after else self.norm

    @property
    def second(self) -> str:
        return self.norm if self.after else self.layer

    @property
    def name(self) -> str:
        return f"{self.first} → {self.second}"


def _site(model: nn.Module, pair: _Pair) -> Site:
    layer, norm = model.get_submodule(pair.layer), model.get_submodule(pair.norm)
    data = {"layer": pair.layer, "norm": pair.norm, "after": pair.after, "structure": _built(layer, norm)}
    return Site(pair.name, (pair.layer, pair.norm), "the model must stay in evaluation", data)


def _built(layer: Any, norm: Any) -> list[Any]:
    shape = list(layer.weight.shape) if isinstance(layer, folding.LAYERS) else []
    return [type(layer).__name__, shape, type(norm).__name__]


def _structure(model: nn.Module, pair: _Pair, sharing: Sharing) -> str:
    """What can be said without a recording."""
    layer: Any = model.get_submodule(pair.layer)
    norm: Any = model.get_submodule(pair.norm)
    for module, path, known in ((layer, pair.layer, folding.LAYERS), (norm, pair.norm, folding.NORMS)):
        if reason := unfit(module, path, known) or sharing.of(module, path):
            return reason
    if norm.training:
        return f"{pair.norm} is in training mode"
    if norm.running_mean is None or norm.running_var is None:
        return f"{pair.norm} keeps no running statistics, so it normalises each batch by itself"
    if not pair.after:
        if isinstance(layer, folding.TRANSPOSED):
            return f"{pair.layer} is transposed: its output edges would see another shift"
        if folding.pads(layer):
            return f"{pair.layer} pads its input: the padding would see no shift"
    features = _features(layer, pair.after)
    if norm.num_features != features:
        return f"{pair.norm} normalises {norm.num_features} features where {pair.layer} has {features} channels"
    return ""


def _features(layer: nn.Module, out: bool) -> int:
    names = ("out_features", "in_features") if isinstance(layer, nn.Linear) else ("out_channels", "in_channels")
    return int(getattr(layer, names[0] if out else names[1]))


class _Survey(Survey):
    """Layers with a batch norm beside them, and what speaks against folding it."""

    def pairs(self) -> Iterator[_Pair]:
        """Neighbours in any recording: those with the norm after the layer first."""
        found: dict[_Pair, None] = {}
        for graph in self.graphs:
            made, read = self._by_output(graph), self._by_input(graph)
            for path, module in self.model.named_modules():
                if not isinstance(module, folding.NORMS):
                    continue
                for call in graph.calls_of(path):
                    before = made.get(call.inputs[0]) if call.inputs else None
                    after = read.get(call.outputs[0]) if call.outputs else None
                    if before:
                        found.setdefault(_Pair(before, path, True))
                    if after:
                        found.setdefault(_Pair(after, path, False))
        return iter(sorted(found, key=lambda pair: not pair.after))

    def parted(self) -> Iterator[Refusal]:
        """Norms that read the output of a layer in another shape."""
        known = {pair.norm for pair in self.pairs()}
        for graph in self.graphs[:1]:
            made = self._by_output(graph)
            for call in graph.calls:
                if call.module in known or not call.inputs or not self._is_norm(call.module):
                    continue
                value, view = call.inputs[0], None
                while (op := graph.producer(value)) is not None and op.view and op.reads and value not in made:
                    value, view = op.reads[0], op
                if view is not None and value in made:
                    where = _source(view) or self._line(call.module)
                    yield Refusal(f"{made[value]} → {call.module}", f"{view.name} comes between them.", where)

    def refusal(self, pair: _Pair) -> tuple[str, Source | None]:
        """Say why a pair cannot be folded, and where the reason is in the user's code; empty where it can."""
        if reason := _structure(self.model, pair, self.sharing):
            return reason, self._line(pair.second)
        for graph in self.graphs:
            if pair.norm in graph.switched:
                return f"forward switches {pair.norm} to training mode while it runs", self._line(pair.second)
            reason, op = self._flow(graph, pair)
            if reason:
                return reason, _source(op) or self._line(pair.second)
        # a norm folded into the layer after it becomes an alias of its input, which may not change in between
        if reason := pairing.always_follows(self.code, self.model, pair.first, pair.second, at_once=not pair.after):
            return reason, self._line(pair.second)
        return "", None

    def _flow(self, graph: FlowGraph, pair: _Pair) -> tuple[str, Op | None]:
        firsts, seconds = graph.calls_of(pair.first), graph.calls_of(pair.second)
        for path, calls in ((pair.first, firsts), (pair.second, seconds)):
            if len(calls) > 1:
                return f"{path} is called {len(calls)} times in one forward", None
        if len(firsts) != len(seconds):
            alone = pair.first if firsts else pair.second
            return f"{alone} is called without {pair.second if firsts else pair.first} for some inputs", None
        if not firsts:
            return "", None
        first, second = firsts[0], seconds[0]
        if len(first.outputs) != 1 or second.inputs[:1] != first.outputs:
            return f"{pair.second} does not read the output of {pair.first} for some inputs", None
        return self._between(graph, pair, first, second)

    def _between(self, graph: FlowGraph, pair: _Pair, first: ModuleCall, second: ModuleCall) -> tuple[str, Op | None]:
        value = first.outputs[0]
        for op in graph.readers(value):
            if not second.first_op <= op.index < second.end_op:
                return f"the output of {pair.first} is also read by {op.name}", op
        if graph.escapes(value):
            return f"the output of {pair.first} is also returned or kept", None
        written = None if pair.after else _written(graph, first.inputs[0], first.end_op, second.end_op)
        if written is not None:
            return f"the input of {pair.norm} is overwritten before {pair.layer} reads it", written
        result = graph.values[second.outputs[0]]
        if graph.values[value].dtype != result.dtype:
            return f"{pair.second} changes the dtype from {graph.values[value].dtype} to {result.dtype}", None
        layer: Any = self.model.get_submodule(pair.layer)
        normed = graph.values[value if pair.after else first.inputs[0]]
        wanted = 2 if isinstance(layer, nn.Linear) else layer.weight.dim()
        if len(normed.shape) != wanted:
            return f"{pair.norm} normalises dimension 1 of a {len(normed.shape)}-D tensor, not the channels", None
        return self._other_readers(graph, pair)

    def _other_readers(self, graph: FlowGraph, pair: _Pair) -> tuple[str, Op | None]:
        for path in (pair.layer, pair.norm):
            for value in graph.values:
                if value.name.rpartition(".")[0] != path or value.role not in ("parameter", "buffer"):
                    continue
                for alias in graph.aliases_of(value.id):
                    for op in graph.readers(alias):
                        if op.module != path:
                            return f"{value.name} is also read by {op.name}", op
        return "", None

    def _by_output(self, graph: FlowGraph) -> dict[int, str]:
        return {c.outputs[0]: c.module for c in graph.calls if len(c.outputs) == 1 and self._is_layer(c.module)}

    def _by_input(self, graph: FlowGraph) -> dict[int, str]:
        return {c.inputs[0]: c.module for c in graph.calls if c.inputs and self._is_layer(c.module)}

    def _is_layer(self, path: str) -> bool:
        return isinstance(self.model.get_submodule(path), folding.LAYERS)

    def _is_norm(self, path: str) -> bool:
        return isinstance(self.model.get_submodule(path), folding.NORMS)

    def _line(self, path: str) -> Source | None:
        for graph in self.graphs:
            for call in graph.calls_of(path):
                if call.source is not None:
                    return Source(call.source.file, call.source.line)
        return None

    def joins(self, device: str) -> tuple[str, ...]:
        """Say of each layer with an activation behind it why nothing is joined."""
        pairs: dict[str, None] = {}
        for graph in self.graphs[:1]:
            made = self._by_output(graph)
            for call in graph.calls:
                if isinstance(self.model.get_submodule(call.module), _ACTIVATIONS) and call.inputs[0] in made:
                    pairs.setdefault(f"{made[call.inputs[0]]} → {call.module}")
        if not pairs:
            return ()
        where = "on the CPU" if device == "cpu" else "yet"
        return (f"{', '.join(pairs)}: no kernel that joins them is used {where}, so nothing would go.",)


def _written(graph: FlowGraph, value: int, start: int, end: int) -> Op | None:
    """The first op in a range that writes in place where ``value`` lives."""
    alive = set(graph.aliases_of(value))
    return next((op for op in graph.ops[start:end] if alive.intersection(op.mutates)), None)


def _source(op: Op | None) -> Source | None:
    return None if op is None or op.source is None else Source(op.source.file, op.source.line)
