"""Graph passes on what can be captured: formulas written out by hand become single ops; users add their own passes."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import fx, nn

from fusionadvisor.errors import StrategyError
from fusionadvisor.report.model import Refusal
from fusionadvisor.strategies import captured, leaves
from fusionadvisor.strategies.base import Call, Plan, Site, Strategy, Subject
from fusionadvisor.strategies.forms import Form
from fusionadvisor.strategies.modules import blocker, hooked
from fusionadvisor.strategies.nodes import simplify
from fusionadvisor.strategies.passfile import PassFile, split
from fusionadvisor.strategies.patterns import Finder, Match, NearMiss
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.usercode import one_line

_CURVES = frozenset({"aten::sigmoid", "aten::tanh", "aten::erf", "aten::rsqrt", "aten::sqrt"})
"""Each formula that is known has one of these."""
_NONE = "Of GELU, SiLU, layer norm and RMS norm it found no formula written out in a way that it knows."
Pass = Callable[[fx.GraphModule], fx.GraphModule | None]


@dataclass(frozen=True)
class FxPasses(Strategy):
    """Rewrite a captured graph.

    ## What it does
    Captures with ``torch.fx`` the forward of each module whose ops may be a formula, its submodules left as they are,
    and replaces what is written out by hand: ``x · sigmoid(x)`` by ``F.silu``, both forms of GELU by ``F.gelu``, layer
    norm and RMS norm by ``F.layer_norm`` and ``F.rms_norm``. What the capture took for constant is compared at each
    call: how the module is called, the attributes, globals and state of torch that its code read, the sizes it went by.
    Where one is another, the module's own code runs; ``fusionadvisor.strategies.leaves.counts(model)`` says how often
    and why.
    ``--pass my_passes.py:fn`` adds your own pass: ``fn`` takes a ``torch.fx.GraphModule`` of the whole model, or of the
    largest parts that can be captured, changes it or returns another; only verification tells whether it is right.

    ## When it helps
    Each formula becomes one kernel instead of two to eight. ``F.rms_norm`` is one kernel on CUDA; on the CPU it counts
    as one and runs several.

    ## When it refuses
    Training, hooks; code that goes another way by the values of a tensor, changes Python state, draws random numbers in
    Python or calls something for its effect alone. Formulas that only come close are left and named: epsilon in another
    place, an unbiased variance, another approximation of GELU, inner values that are read elsewhere.

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
        """Capture the modules whose ops may be a formula, and check that each graph does what its module does."""
        if subject.mode == "training" or subject.model.training:
            return Plan(blocker="A captured graph holds one mode, and this model is in training mode.")
        if reason := blocker(subject.model) or hooked(subject.model):
            return Plan(blocker=reason)
        failed: dict[str, str] = {}
        sites: list[Site] = []
        refused: list[Refusal] = []
        own_pass = self._own_pass()
        for path, forward, calls in (self._largest if self.passes else _each)(subject, failed):
            data = _data(path, forward.captured)
            matches: list[Site] = []
            for found in list(_replace_formulas(forward)):
                name = f"{path or 'the model'}: {found.name}"
                if isinstance(found, Match):
                    matches.append(Site(name, (path,), data=data))
                else:
                    refused.append(Refusal(name, f"{found.reason[:1].upper()}{found.reason[1:]}."))
            if not _close(forward, calls):
                refused.append(Refusal(path or "the model", "The op of torch returns something else here."))
                continue
            sites += matches
            if own_pass is not None:
                _passed(forward, own_pass)
                sites.append(Site(self._pass_site(path), (path,) if path else (), data=data))
        if self.passes:
            notes = (f"torch.fx cannot capture the whole: {failed['']}",) if "" in failed else ()
            refused += [] if sites or refused else [Refusal("the model", failed.get("", _NONE))]
            return Plan(tuple(sites), tuple(dict.fromkeys(refused)), notes=notes)
        refused += [Refusal(path or "the model", reason) for path, reason in failed.items()]
        notes = () if sites or refused else (_NONE,)
        return Plan(tuple(sites), tuple(dict.fromkeys(refused)), notes=notes)

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Capture the modules again and rewrite their graphs.

        Raises:
            StrategyError: If a site of the plan is not found again; the user's own pass has not run then.
        """
        forwards: dict[str, leaves.Rewritten] = {}
        names: set[str] = set()
        for site in plan.sites:
            path = str(site.data["module"])
            if path not in forwards:
                forwards[path] = _again(model.get_submodule(path), site)
                found = list(_replace_formulas(forwards[path]))
                names |= {f"{path or 'the model'}: {f.name}" for f in found if isinstance(f, Match)}
                names |= {self._pass_site(path)} if self.passes else set()
        if missing := [site.name for site in plan.sites if site.name not in names]:
            raise StrategyError(f"fx does not find {missing[0]} in this model.", "Make the recipe again.")
        own_pass = self._own_pass()
        for path, forward in forwards.items():
            module: Any = model.get_submodule(path)
            module.forward = forward.again(forward.graph) if own_pass is None else _passed(forward, own_pass)
        return model

    def _largest(self, subject: Subject, failed: dict[str, str]) -> Iterator[tuple[str, leaves.Rewritten, list[Call]]]:
        """The forward of the whole, else of the largest parts of it that can be captured, for a user's own pass."""
        todo = [""]
        while todo:
            path = todo.pop()
            calls = captured.calls_of(subject.model, subject.calls, [path])[path]
            module = duplicate(subject.model.get_submodule(path))
            forward = _forward(module, calls, path, whole=True)
            if isinstance(forward, leaves.Rewritten):
                yield path, forward, calls
                continue
            failed[path] = forward
            todo += [f"{path}.{name}" if path else name for name, child in module.named_children()
                     if not type(child).__module__.startswith("torch.nn.modules.activation")]  # fmt: skip

    def _own_pass(self) -> Pass | None:
        if not self.passes:
            return None
        file, name = split(self.passes)
        made: Pass = PassFile(file).function(name)
        return made

    def _pass_site(self, path: str) -> str:
        # from a recipe the file lies in another folder: its name and its function are what stays
        return f"{path or 'the model'}: {Path(self.passes).name}"

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """The graph itself is captured again by :meth:`rewrite`."""
        if model.training:
            return "The model is in training mode."
        if any("module" not in site.data for site in plan.sites):
            return "The recipe does not say which module each formula is in."
        return blocker(model) or hooked(model)


def _each(subject: Subject, failed: dict[str, str]) -> Iterator[tuple[str, leaves.Rewritten, list[Call]]]:
    """The forward of each module that may hold a formula, its submodules left as they are."""
    paths = captured.owners(subject, _CURVES, "torch.nn.")
    calls = captured.calls_of(subject.model, subject.calls, paths) if paths else {}
    for path in paths:
        forward = _forward(duplicate(subject.model.get_submodule(path)), calls[path], path)
        if isinstance(forward, leaves.Rewritten):
            yield path, forward, calls[path]
        else:
            failed[path] = forward


def _forward(module: nn.Module, calls: list[Call], path: str, *, whole: bool = False) -> leaves.Rewritten | str:
    """The module's forward as a graph that is not rewritten yet, or why there is none."""
    if (known := leaves.rewritten(module)) is not None:
        return known.again(copy.deepcopy(known.graph))
    if "forward" in vars(module):
        return f"{path or 'The model'} has a forward of its own set on the instance."
    forms = [Form.of(call.args, call.kwargs) for call in calls]
    if not forms or any(form != forms[0][0] for form, _ in forms):
        return f"{path or 'The model'} is not always called alike."
    if unknown := forms[0][0].unknown:
        return f"{path or 'The model'} is given a {unknown}, which is neither tensor nor constant."
    try:
        own = captured.capture(module, forms[0][0], given=forms[0][1], whole=whole)
        fits = captured.fitting(module, own, calls)
        if not fits:
            return "What it reads is another in each call: a graph would never run."
        if not captured.same(module, own, fits, 0.0):
            return "What torch.fx captures of it does not return exactly what it returns."
    except leaves.FAILURES as error:
        return f"It cannot be captured: {one_line(error)}."
    return leaves.Rewritten(module, own.graph, own)


def _again(module: nn.Module, site: Site) -> leaves.Rewritten:
    """The forward of a site's module as a graph, as its plan had it."""
    if (known := leaves.rewritten(module)) is not None:
        return known.again(copy.deepcopy(known.graph))
    data = site.data
    try:
        own = captured.capture(module, Form(data["args"], data["kwargs"]), answers=data["answers"], whole=data["whole"])
    except leaves.FAILURES as error:
        raise StrategyError(f"{site.name} cannot be captured: {one_line(error)}.") from error
    return leaves.Rewritten(module, own.graph, own)


def _data(path: str, own: Any) -> dict[str, Any]:
    """What a recipe needs to capture the same again; nothing of how, where another strategy wrote the forward."""
    if not isinstance(own, captured.Captured):
        return {"module": path}
    form = own.form
    return {"module": path, "args": form.args, "kwargs": dict(form.kwargs), "answers": own.answers, "whole": own.whole}


def _close(forward: leaves.Rewritten, calls: list[Call]) -> bool:
    """Whether a rewritten forward returns what the module does, but for rounding."""
    own, module = forward.captured, forward.module
    if not isinstance(own, captured.Captured):
        return True
    try:
        return captured.same(module, own, captured.fitting(module, own, calls), 1e-2)
    except leaves.FAILURES:
        return False


def _replace_formulas(forward: leaves.Rewritten) -> Iterator[Match | NearMiss]:
    """Replace every match, outermost first, and yield it; yield what only came close too."""
    graph, own = forward.graph, forward.captured
    taken: set[fx.Node] = set()
    for found in list(Finder(forward.module, graph).matches()):
        if isinstance(found, NearMiss):
            if found.root not in taken:
                yield found
            continue
        if found.root in taken or taken & found.inner:
            continue
        if isinstance(own, captured.Captured):
            for node in found.inner:
                if node.op == "call_module":  # it decides by its class and its hooks what is computed
                    own.guard.hold(forward.module, str(node.target))
        with graph.inserting_before(found.root):
            new = found.make(graph)
        found.root.replace_all_uses_with(new)
        taken |= {found.root, *found.inner}
        yield found
    simplify(graph)


def _passed(forward: leaves.Rewritten, own_pass: Pass) -> leaves.Rewritten:
    """A forward after the user's pass; what that has added to the graph's module, the module itself gets."""
    given = fx.GraphModule(forward.module, forward.graph)
    result = own_pass(given) or given
    _adopt(forward.module, result)
    result.graph.owning_module = None  # else the graph would keep that module, and be checked against it
    return forward.again(result.graph)


def _adopt(module: nn.Module, graph: fx.GraphModule) -> None:
    """Give a module what a graph reads and the module does not have so: a pass may have added or replaced it."""
    names: dict[str, str] = {}
    for node in graph.graph.nodes:
        if node.op not in ("get_attr", "call_module"):
            continue
        target = str(node.target)
        if target not in names:
            value = _at(graph, target)
            names[target] = target if _at(module, target) is value else _added(module, target, value)
        node.target = names[target]


def _added(module: nn.Module, target: str, value: Any) -> str:
    name = f"fx_{target.replace('.', '_')}"
    while hasattr(module, name):
        name += "_"
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        module.register_buffer(name, value, persistent=False)
    else:
        setattr(module, name, value)
    return name


def _at(root: nn.Module, target: str) -> Any:
    value: Any = root
    for part in target.split("."):
        value = getattr(value, part, None)
    return value
