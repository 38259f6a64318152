"""Fold batch norms into the convolutions and linear layers beside them, where that is proven legal."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from fusionadvisor.flow.graph import FlowGraph, ModuleCall, Op
from fusionadvisor.report.model import Refusal, Source
from fusionadvisor.strategies import affine, folding
from fusionadvisor.strategies.base import Plan, Site, Strategy, Subject
from fusionadvisor.strategies.legality import observe
from fusionadvisor.strategies.legality.values import Flag
from fusionadvisor.strategies.modules import Sharing, blocker, unfit

_ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.Hardswish, nn.ELU)


class FuseModules(Strategy):
    """Fold batch norm, join activations.

    ## What it does
    In evaluation a batch norm multiplies and adds a constant per channel. Both constants move into the weight and bias
    of the convolution, transposed convolution or linear layer before it (or of the unpadded layer after it), and the
    batch norm becomes an identity. The fold is computed in float64 and cast once. A synchronised batch norm, a frozen
    one whose arithmetic is written out, and one that runs an activation behind it are folded as well; so is a pair
    with a dropout, an identity or a transposing view between. The code of every public method is followed to see that
    nobody else uses either of the two; ``torch.fx`` need not be able to trace the model.

    Where another number of dimensions, or another value of a flag, would take another path, the pair keeps the
    original beside the folded form and checks that at each call.

    ## When it helps
    Convolutional networks in inference: each pair loses one kernel that reads and writes the whole activation.
    Joining a linear layer or a convolution with its activation needs a kernel that does both; PyTorch has none on the
    CPU, so there nothing is claimed for it.

    ## When it refuses
    The batch norm is in training mode, is switched to it by forward, or has no running statistics; the output of the
    layer is also used elsewhere, returned or kept, by forward or by another public method; either of them is given to
    code that cannot be followed; its weight is read elsewhere or shared; it has a hook, a parametrization, a forward of
    its own, or is quantised; a linear layer feeds a batch norm that normalises another dimension; the layer after the
    batch norm pads its input. The folded model cannot go back to training mode.

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
        survey = _Survey(subject)
        sites: list[Site] = []
        refused: list[Refusal] = []
        taken: set[str] = set()
        for pair in survey.pairs():
            if pair.norm in taken:
                continue
            found = survey.judged(pair)
            if isinstance(found, Site) and pair.layer in taken:
                found = Refusal(pair.name, f"{pair.layer} is folded with another batch norm already.")
            if isinstance(found, Refusal):
                refused.append(found)
            else:
                taken.update((pair.norm, pair.layer))
                sites.append(found)
        folded = {site.data["norm"] for site in sites}
        refused = [r for r in refused if not folded & set(r.site.split(" → "))]
        return Plan(tuple(sites), tuple(refused), notes=survey.joins(subject.device))

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Fold every site of the plan."""
        for site in plan.sites:
            layer, norm = (model.get_submodule(site.data[key]) for key in ("layer", "norm"))
            what = affine.read(norm, site.data["dims"][1])
            assert what is not None  # recheck and plan have read it
            for path in site.data["between"]:
                dropout = model.get_submodule(path)
                if not isinstance(dropout, nn.Identity):
                    dropout.__class__ = folding.FoldedDropout
            folding.fold(layer, norm, what, after=site.data["after"], guards=_guards(model, site))
        return model

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """Check the modules of every site again; the recording is not needed."""
        if reason := blocker(model):
            return reason
        sharing = Sharing(model)
        known = dict(model.named_modules(remove_duplicate=False))
        for site in plan.sites:
            pair = _Pair(site.data["layer"], site.data["norm"], site.data["after"])
            if missing := [p for p in (pair.layer, pair.norm, *site.data["between"]) if p not in known]:
                return f"{missing[0]} is not in this model."
            layer, norm = known[pair.layer], known[pair.norm]
            found = _built(layer, norm)
            if found != site.data["structure"]:
                return f"{pair.name} is built differently here: {found} instead of {site.data['structure']}."
            if reason := _structure(model, pair, sharing, site.data["dims"][1]):
                return f"{reason}."
            for path, name, value in site.data["flags"]:
                if getattr(model.get_submodule(path), name, folding.ABSENT) != value:
                    return f"{path or 'the model'}.{name} is not {value!r} here."
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


def _guards(model: nn.Module, site: Site) -> tuple[folding.Guard, folding.Guard] | None:
    """The guards of the layer and of the norm; None where the pair needs none."""
    flags = tuple((model.get_submodule(path), name, value) for path, name, value in site.data["flags"])
    by_rank = isinstance(model.get_submodule(site.data["norm"]), nn.BatchNorm1d) and site.data["dims"][0] > 0
    if not (flags or by_rank):
        return None
    layer_dims, norm_dims = site.data["dims"]
    return folding.Guard(layer_dims if by_rank else 0, flags), folding.Guard(norm_dims if by_rank else 0, flags)


def _built(layer: Any, norm: Any) -> list[Any]:
    shape = list(layer.weight.shape) if isinstance(layer, folding.LAYERS) else []
    return [type(layer).__name__, shape, type(norm).__name__]


def _structure(model: nn.Module, pair: _Pair, sharing: Sharing, dims: int) -> str:
    """What can be said without a recording."""
    layer: Any = model.get_submodule(pair.layer)
    norm: Any = model.get_submodule(pair.norm)
    reason = unfit(layer, pair.layer, folding.LAYERS) or unfit(norm, pair.norm, (type(norm),))
    if reason := reason or sharing.memory(layer, pair.layer) or sharing.memory(norm, pair.norm):
        return reason
    if norm.training:
        return f"{pair.norm} is in training mode"
    if getattr(norm, "running_mean", None) is None or getattr(norm, "running_var", None) is None:
        return f"{pair.norm} keeps no running statistics, so it normalises each batch by itself"
    if not pair.after:
        if isinstance(layer, folding.TRANSPOSED):
            return f"{pair.layer} is transposed: its output edges would see another shift"
        if folding.pads(layer):
            return f"{pair.layer} pads its input: the padding would see no shift"
    what = affine.read(norm, dims)
    features = _features(layer, pair.after)
    known = type(norm) in affine.NORMS
    if what is None or (not known and what.scale.numel() != features) or (what.rest and not pair.after):
        return f"{pair.norm} is a subclass, {type(norm).__name__}, that may compute something else"
    if what.scale.numel() != features:
        return f"{pair.norm} normalises {what.scale.numel()} features where {pair.layer} has {features} channels"
    return ""


def _features(layer: nn.Module, out: bool) -> int:
    names = ("out_features", "in_features") if isinstance(layer, nn.Linear) else ("out_channels", "in_channels")
    return int(getattr(layer, names[0] if out else names[1]))


class _Survey:
    """Layers with a batch norm beside them, and what speaks against folding it."""

    def __init__(self, subject: Subject) -> None:
        self.model, self.graphs = subject.model, subject.graphs
        self.sharing = Sharing(subject.model)
        self.code = observe.read(subject.model)
        self.paths = {id(module): path for path, module in subject.model.named_modules()}
        self.layers = {p: m for p, m in subject.model.named_modules() if isinstance(m, folding.LAYERS)}
        self.norms = {p: m for p, m in subject.model.named_modules() if affine.is_norm(m)}

    def pairs(self) -> Iterator[_Pair]:
        """Neighbours in any recording: those with the norm after the layer first."""
        found: dict[_Pair, None] = {}
        for graph in self.graphs:
            made = {c.outputs[0]: c.module for c in graph.calls if len(c.outputs) == 1 and c.module in self.layers}
            read = {c.inputs[0]: c.module for c in graph.calls if c.inputs and c.module in self.layers}
            for path in self.norms:
                for call in graph.calls_of(path):
                    before = self._behind(graph, call.inputs[0], made)[0] if call.inputs else None
                    after = read.get(call.outputs[0]) if call.outputs else None
                    if before:
                        found.setdefault(_Pair(before, path, True))
                    if after:
                        found.setdefault(_Pair(after, path, False))
        return iter(sorted(found, key=lambda pair: not pair.after))

    def _behind(self, graph: FlowGraph, value: int, made: dict[int, str]) -> tuple[str | None, Op | None]:
        """The layer that made a value, through views, and the first of these."""
        view = None
        while value not in made:
            op = graph.producer(value)
            if op is None or not op.view or not op.reads:
                return None, None
            value, view = op.reads[0], op
        return made[value], view

    def judged(self, pair: _Pair) -> Site | Refusal:
        """A site where the pair may be folded, else the reason why not, and where that is in the user's code."""
        dims = self._dims(pair)
        if reason := _structure(self.model, pair, self.sharing, dims[1]):
            return Refusal(pair.name, f"{reason}.", self._line(pair.second))
        for graph in self.graphs:
            if pair.norm in graph.switched:
                reason = f"forward switches {pair.norm} to training mode while it runs"
                return Refusal(pair.name, f"{reason}.", self._line(pair.second))
            reason, op = self._flow(graph, pair)
            if reason:
                return Refusal(pair.name, f"{reason}.", _source(op) or self._line(pair.second))
        layer, norm = self.layers[pair.layer], self.norms[pair.norm]
        first, second = (layer, norm) if pair.after else (norm, layer)
        for verdict in self._asked(pair):
            if verdict.reason or verdict.flags:
                reason = verdict.reason or f"the code asks for what becomes of {pair.name}"
                return Refusal(pair.name, f"{reason}.", _place(verdict) or self._line(pair.second))
        views = pair.after and isinstance(layer, nn.Linear)
        verdict = self.code.feeds(first, second, (pair.first, pair.second), views=views)
        if verdict.reason:
            return Refusal(pair.name, f"{verdict.reason}.", _place(verdict) or self._line(pair.second))
        if not pair.after and not self.code.at_once(first, second):
            reason = f"something may change the input of {pair.norm} before {pair.layer} reads it"
            return Refusal(pair.name, f"{reason}.", self._line(pair.second))
        between = [self.paths[id(module)] for module in verdict.between]
        if active := [path for path in between if self.model.get_submodule(path).training]:
            return Refusal(pair.name, f"{active[0]} between them is in training mode.", self._line(pair.second))
        if "rows" in verdict.views:
            dims = (0, dims[1])  # whatever the rank, the norm is given rows
        return self._site(pair, dims, between, self._to_guard(verdict.flags, pair.norm))

    def _asked(self, pair: _Pair) -> Iterator[observe.Verdict]:
        """Whether the code asks for something that folding changes: the class, that a weight is or is not there."""
        layer, norm = self.layers[pair.layer], self.norms[pair.norm]
        gone = frozenset((*norm._parameters, *norm._buffers))
        yield self.code.asks_for(norm, folding.FoldedNorm, gone, pair.norm)
        yield self.code.asks_for(
            layer, type(layer), frozenset({"bias"}) if layer.bias is None else frozenset(), pair.layer
        )

    def _site(self, pair: _Pair, dims: tuple[int, int], between: list[str], flags: list[list[Any]]) -> Site:
        layer, norm = self.layers[pair.layer], self.norms[pair.norm]
        data = {
            "layer": pair.layer, "norm": pair.norm, "after": pair.after, "structure": _built(layer, norm),
            "dims": list(dims), "between": between, "flags": flags,
        }  # fmt: skip
        detail = "the model must stay in evaluation"
        if flags:
            detail += (
                f"; runs as before where {', '.join(f'{p}.{n}'.lstrip('.') for p, n, _ in flags)} is set otherwise"
            )
        return Site(pair.name, (pair.layer, pair.norm), detail, data)

    def _to_guard(self, flags: frozenset[Flag], norm: str) -> list[list[Any]]:
        """The flags to check at each call; the folded norm itself checks the training mode of what holds it."""
        kept = []
        for flag in sorted(flags, key=lambda flag: (flag.path, flag.name)):
            around = not flag.path or norm == flag.path or norm.startswith(f"{flag.path}.")
            if not (flag.name == "training" and flag.value is False and around):
                kept.append([flag.path, flag.name, flag.value])
        return kept

    def _dims(self, pair: _Pair) -> tuple[int, int]:
        """Dimensions of the inputs of the layer and of the norm in the recordings."""
        for graph in self.graphs:
            layers, norms = graph.calls_of(pair.layer), graph.calls_of(pair.norm)
            if layers and norms and layers[0].inputs and norms[0].inputs:
                return tuple(len(graph.values[calls[0].inputs[0]].shape) for calls in (layers, norms))  # type: ignore[return-value]
        return 0, 0

    def _flow(self, graph: FlowGraph, pair: _Pair) -> tuple[str, Op | None]:
        """What a recording shows against a pair."""
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
        if len(first.outputs) != 1 or not second.inputs:
            return f"{pair.second} does not read the output of {pair.first} for some inputs", None
        made = {first.outputs[0]: pair.first}
        if self._behind(graph, second.inputs[0], made)[0] is None:
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
        layer: Any = self.layers[pair.layer]
        normed = graph.values[second.inputs[0] if pair.after else first.inputs[0]]
        outer = graph.values[value] if pair.after else result
        if isinstance(layer, nn.Linear):
            # the features, last of the layer's output, have to be dimension 1 of what is normalised, view or not
            moved = self._behind(graph, second.inputs[0], {value: ""})[1] if pair.after else None
            fits = len(normed.shape) == 2 or (moved is not None and len(normed.shape) == 3 == len(outer.shape))
        else:
            fits = len(normed.shape) == layer.weight.dim() and normed.shape == (
                outer.shape if pair.after else normed.shape
            )
        if not fits:
            return f"{pair.norm} normalises dimension 1 of a {len(normed.shape)}-D tensor, not the channels", None
        return self._other_readers(graph, pair)

    def _other_readers(self, graph: FlowGraph, pair: _Pair) -> tuple[str, Op | None]:
        for path in (pair.layer, pair.norm):
            for value in graph.values:
                if value.name.rpartition(".")[0] != path or value.role not in ("parameter", "buffer"):
                    continue
                for alias in graph.aliases_of(value.id):
                    for op in graph.readers(alias):
                        if op.module != path and not op.module.startswith(f"{path}."):
                            return f"{value.name} is also read by {op.name}", op
        return "", None

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
            made = {c.outputs[0]: c.module for c in graph.calls if len(c.outputs) == 1 and c.module in self.layers}
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


def _place(verdict: observe.Verdict) -> Source | None:
    """Where the reason for a refusal is in the user's code."""
    event = verdict.event
    if event is None or event.function is None or not getattr(event.node, "lineno", 0):
        return None
    return Source(event.function.file, event.node.lineno)  # type: ignore[attr-defined]
