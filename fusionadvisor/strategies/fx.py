"""Graph passes on what can be captured: formulas written out by hand become single ops; users add their own passes."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import fx, nn

from fusionadvisor.errors import StrategyError
from fusionadvisor.report.model import Refusal
from fusionadvisor.strategies import leaves
from fusionadvisor.strategies.base import Call, Plan, Site, Strategy, Subject
from fusionadvisor.strategies.modules import blocker, hooked
from fusionadvisor.strategies.passfile import PassFile, split
from fusionadvisor.strategies.patterns import Finder, Match, NearMiss
from fusionadvisor.strategies.pythonstate import PythonState
from fusionadvisor.strategies.traced import Exported, Traced
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.inputs import tensors_in

_NONE = "Of GELU, SiLU, layer norm and RMS norm it found no formula written out in a way that it knows."
Pass = Callable[[fx.GraphModule], fx.GraphModule | None]


@dataclass(frozen=True)
class FxPasses(Strategy):
    """Rewrite a captured graph.

    ## What it does
    Captures the model with ``torch.fx``, and where that fails the largest parts of it that can be captured, and where
    nothing is found there, the whole with the ``torch.export`` front-end. In the graphs it replaces what is written
    out by hand: ``x · sigmoid(x)`` by ``F.silu``, both forms of GELU by ``F.gelu``, layer norm and RMS norm by
    ``F.layer_norm`` and ``F.rms_norm``. ``--pass my_passes.py:fn`` adds your own pass: ``fn`` takes a
    ``torch.fx.GraphModule``, changes it or returns another; only verification tells whether it is right.

    ## When it helps
    Each formula becomes one kernel instead of two to eight. ``F.rms_norm`` is one kernel on CUDA; on the CPU it counts
    as one and runs several.

    ## When it refuses
    Training, hooks, code that changes Python state in forward; a graph that does not return exactly what the model
    returns. Formulas that only come close are left and named: epsilon in another place, an unbiased variance, another
    approximation of GELU, inner values that are read elsewhere.

    ## Example
    ```
    fusion-advisor apply model.py --strategy fx
    ```
    """

    id = "fx"
    order = 20

    runs: ClassVar[tuple[str, ...]] = ("passes",)

    passes: str = ""

    def plan(self, subject: Subject) -> Plan:
        """Capture a copy, look for formulas, and check that the captured graph does what the model does."""
        if subject.mode == "training" or subject.model.training:
            return Plan(blocker="A captured graph holds one mode, and this model is in training mode.")
        if reason := blocker(subject.model) or hooked(subject.model):
            return Plan(blocker=reason)
        work = duplicate(subject.model)
        capture = _capture(work, subject.calls, needed=bool(self.passes))
        for path in list(capture.graphs):
            if reason := capture.differs(path, subject.model, work, subject.calls):
                del capture.graphs[path]
                capture.unfit[path] = f"What {capture.front_end} captures of it {reason}."
        sites, refused = self._rewritten(capture)
        refused += (Refusal(path or "the model", reason) for path, reason in capture.unfit.items())
        notes = capture.notes if sites or refused else (*capture.notes, _NONE)
        return Plan(tuple(sites), tuple(refused), notes=notes)

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Capture the model again and rewrite its graphs.

        Raises:
            StrategyError: If a site of the plan is not found again.
        """
        free = next((site.data["free"] for site in plan.sites if site.data), None)
        capture = _capture(model, subject.calls, needed=bool(self.passes), free=free)
        self._rewritten(capture, wanted=plan.sites)
        capture.install(model)
        return model

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """The graph itself is captured again by :meth:`rewrite`."""
        if model.training:
            return "The model is in training mode."
        return blocker(model) or hooked(model)

    def _rewritten(self, capture: "_Capture", wanted: Sequence[Site] = ()) -> tuple[list[Site], list[Refusal]]:
        """Rewrite the captured graphs; say what was changed and what only came close.

        Raises:
            StrategyError: If a site that is wanted is not found; the user's own pass has not run then.
        """
        sites: list[Site] = []
        refused: dict[str, Refusal] = {}
        for path, graph in list(capture.graphs.items()):
            changed = list(_replace_formulas(graph))
            for found in changed:
                name = f"{_module_of(found.root, path)}: {found.name}"
                if isinstance(found, Match):
                    sites.append(Site(name, (_module_of(found.root, path),), data=capture.data))
                else:
                    refused[name] = Refusal(name, f"{found.reason[:1].upper()}{found.reason[1:]}.")
            if self.passes:
                # from a recipe the file lies in another folder: its name and its function are what stays
                name = f"{path or 'the model'}: {Path(self.passes).name}"
                sites.append(Site(name, (path,) if path else (), data=capture.data))
            elif not any(isinstance(found, Match) for found in changed):
                del capture.graphs[path]  # nothing to gain: its own code stays
        names = {site.name for site in sites}
        if missing := [site.name for site in wanted if site.name not in names]:
            raise StrategyError(f"fx does not find {missing[0]} in this model.", "Make the recipe again.")
        if self.passes:
            file, name = split(self.passes)
            own: Pass = PassFile(file).function(name)
            capture.graphs |= {path: own(graph) or graph for path, graph in capture.graphs.items()}
        return sites, list(refused.values())


@dataclass
class _Capture:
    """Captured graphs by module path, and how they were come by."""

    front_end: str
    graphs: dict[str, fx.GraphModule]
    notes: tuple[str, ...] = field(default=())
    unfit: dict[str, str] = field(default_factory=dict)
    """Modules that could be captured, and why their graphs cannot stand for their code."""
    free: list[list[int]] | None = None
    """The dimensions of each input that torch.export left free."""

    @property
    def data(self) -> dict[str, Any]:
        """What a recipe needs to capture the same again, when all it has is inputs of one size."""
        return {} if self.free is None else {"free": self.free}

    def install(self, model: nn.Module) -> None:
        """Let each captured module run its graph; attributes and state dict stay as they were."""
        for path, graph in self.graphs.items():
            part = model.get_submodule(path)
            part.forward = _forward(part, graph)

    def differs(self, path: str, model: nn.Module, work: nn.Module, calls: tuple[Call, ...]) -> str:
        """Say how ``work`` differs from ``model`` with the graph at ``path``, not rewritten yet; empty if in no bit."""
        part = work.get_submodule(path)
        held = vars(part).get("forward")
        forward = part.forward = _forward(part, self.graphs[path])
        try:
            if any(not _same(_run(model, call), _run(work, call)) for call in calls):
                return "does not return exactly what it returns"
        except leaves.FAILURES:
            return "does not return exactly what it returns"
        finally:
            del part.forward
            if held is not None:
                part.forward = held
        if isinstance(forward, Traced) and calls and not forward.ran:
            return "stands for calls that give every argument, and none of those recorded does"
        return ""


def _forward(part: nn.Module, graph: fx.GraphModule) -> Callable[..., Any]:
    """What runs a graph in a module's place; where a strategy wrote the forward anew, under the same conditions."""
    if known := leaves.rewritten(part):
        return known.again(graph.graph)
    with torch.no_grad():
        return (Exported if hasattr(graph, "_out_spec") else Traced)(part, graph)


def _capture(model: nn.Module, calls: tuple[Call, ...], needed: bool, free: list[list[int]] | None = None) -> _Capture:
    """Capture the whole; else the largest parts that can be; else, where those hold no formula, with torch.export.

    ``free`` is which dimensions may have another size, where the calls do not show it.
    """
    state = PythonState.of(model)
    search = _Search(needed, state)
    parts = dict(search.traced(model, ""))
    if parts or "" not in search.failed:
        return _Capture("torch.fx", parts, search.notes(), search.stateful)
    free = _free(calls) if free is None else free
    exported = _exported(model, calls[-1], free) if calls and free is not None and not search.stateful else None
    if exported is not None and (needed or _has_formula(exported)):
        if reason := state.changed(model):
            return _Capture("torch.export", {}, search.notes(), {"": reason})
        return _Capture("torch.export", {"": exported}, search.notes(), free=free)
    return _Capture("torch.fx", {}, search.notes(), search.stateful)


@dataclass
class _Search:
    """Looks for the largest parts of a model that torch.fx can capture.

    Args:
        needed: Whether a graph is wanted also where it holds no formula.
        state: What of the whole model's state may change.
        failed: Why a module could not be captured.
        stateful: Where the code of one that could changes Python state.
    """

    needed: bool
    state: PythonState
    failed: dict[str, str] = field(default_factory=dict)
    stateful: dict[str, str] = field(default_factory=dict)

    def traced(self, model: nn.Module, path: str) -> Iterator[tuple[str, fx.GraphModule]]:
        """The graphs of the module at ``path``, or of what is in it, by module path."""
        known = leaves.rewritten(model)
        try:
            graph = fx.GraphModule(model, copy.deepcopy(known.graph)) if known else _whole(model)
        except leaves.FAILURES as error:
            self.failed[path] = (str(error).strip().splitlines() or [type(error).__name__])[0]
        else:
            found = list(Finder(graph).matches())
            if not (self.needed or found or known):
                return  # nothing to gain, nothing to tell: its own code stays
            rewritten = self.needed or any(isinstance(match, Match) for match in found)
            reason = self.state.changed(model) if rewritten else ""
            if not reason and (found or self.needed):
                yield path, graph
            if not (reason or known):  # what was written anew calls its parts, which are not in its graph
                return
            self.stateful |= {path: reason} if reason else {}
        for name, child in model.named_children():
            if not type(child).__module__.startswith("torch.nn."):
                yield from self.traced(child, f"{path}.{name}" if path else name)
            else:
                for inner, grandchild in child.named_children():
                    yield from self.traced(grandchild, f"{path}.{name}.{inner}" if path else f"{name}.{inner}")

    def notes(self) -> tuple[str, ...]:
        """Why the whole could not be captured, if it could not."""
        return (f"torch.fx cannot capture the whole: {self.failed['']}",) if "" in self.failed else ()


def _whole(model: nn.Module) -> fx.GraphModule:
    """A module and all in it as one graph, of what it does without gradients, as it is run."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fx.symbolic_trace(model)


def _has_formula(graph: fx.GraphModule) -> bool:
    return any(isinstance(found, Match) for found in Finder(graph).matches())


def _free(calls: tuple[Call, ...]) -> list[list[int]] | None:
    """The dimensions of each input that differ between the calls; None where something else than tensors is given."""
    values = [(*c.args, *c.kwargs.values()) for c in calls]
    if not all(isinstance(value, torch.Tensor) for row in values for value in row):
        return None
    sizes = [list(zip(*(t.shape for t in column), strict=True)) for column in zip(*values, strict=True)]
    return [[dim for dim, size in enumerate(dims) if len(set(size)) > 1] for dims in sizes]


def _exported(model: nn.Module, call: Call, free: list[list[int]]) -> fx.GraphModule | None:
    """The model as torch.export captures it, with the dimensions ``free``, on inputs in which none of these is 1.

    A size of 0 or 1 is taken for a constant.
    """
    given = [_several(value, dims) for value, dims in zip((*call.args, *call.kwargs.values()), free, strict=True)]
    args, kwargs = tuple(given[: len(call.args)]), dict(zip(call.kwargs, given[len(call.args) :], strict=True))
    shapes = [dict.fromkeys(dims, torch.export.Dim.AUTO) for dims in free]
    dynamic = (*shapes[: len(args)],), dict(zip(kwargs, shapes[len(args) :], strict=True))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(model, args, kwargs, dynamic_shapes=_by_name(model, *dynamic), strict=True)
            module: Any = program.module()
    except leaves.FAILURES:
        return None
    return module if isinstance(module, fx.GraphModule) else None


def _several(tensor: torch.Tensor, dims: list[int]) -> torch.Tensor:
    for dim in dims:
        tensor = torch.cat([tensor, tensor], dim) if tensor.shape[dim] == 1 else tensor
    return tensor


def _by_name(model: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    import inspect

    return dict(zip(inspect.signature(model.forward).parameters, positional, strict=False)) | named


def _replace_formulas(module: fx.GraphModule) -> Iterator[Match | NearMiss]:
    """Replace every match, outermost first, and yield it; yield what only came close too."""
    taken: set[fx.Node] = set()
    for found in list(Finder(module).matches()):
        if isinstance(found, NearMiss):
            if found.root not in taken:
                yield found
            continue
        if found.root in taken or taken & found.inner:
            continue
        graph = module.graph
        with graph.inserting_before(found.root):
            new = found.make(graph)
        new.meta.update({k: v for k, v in found.root.meta.items() if k == "nn_module_stack"})
        found.root.replace_all_uses_with(new)
        taken |= {found.root, *found.inner}
        yield found
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()


def _module_of(node: fx.Node, path: str) -> str:
    """The path of the module a node came from."""
    stack = node.meta.get("nn_module_stack") or {}
    inner = [entry[0] for entry in stack.values()][-1] if stack else ""
    inner = inner.removeprefix("L['self'].") if isinstance(inner, str) else ""
    return ".".join(part for part in (path, inner) if part) or "the model"


def _run(model: nn.Module, call: Call) -> list[torch.Tensor]:
    torch.manual_seed(0)
    inputs = call.map(lambda _, tensor: tensor.clone())
    with torch.no_grad():
        return [tensor for _, tensor in tensors_in(model(*inputs.args, **inputs.kwargs))]


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )
