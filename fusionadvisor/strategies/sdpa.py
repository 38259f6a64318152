"""Let attention that is written out run as ``scaled_dot_product_attention``, where it is proven to mean that."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from fusionadvisor.errors import StrategyError
from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.report.model import Refusal, Source
from fusionadvisor.strategies import leaves
from fusionadvisor.strategies.attend import fits
from fusionadvisor.strategies.attention import Attention, Reader
from fusionadvisor.strategies.base import Plan, Site, Strategy, Subject
from fusionadvisor.strategies.modules import blocker
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.inputs import Call, tensors_in
from fusionadvisor.workload.usercode import one_line

_SOFTMAX = frozenset({"aten::_softmax", "aten::softmax", "aten::_safe_softmax"})
_PLAIN = (bool, int, float, str, type(None))
_DROPS = (nn.Dropout, nn.Softmax)


class Sdpa(Strategy):
    """Use scaled dot-product attention.

    ## What it does
    Captures the forward of each module that computes a softmax between two matrix products, its submodules left as
    they are, and replaces scores, scale, mask, softmax and product by ``F.scaled_dot_product_attention``. What is
    captured is checked against the recorded values: scale, polarity and fill of the mask, dtypes, repeated heads. The
    captured forward runs only when the module is called as it was recorded and in the same mode; otherwise its own
    code does. Tensors of another kind than was proven are computed as written.

    ## When it helps
    The scores, a row and a column for every pair of tokens, are never written to memory. On CUDA it is one kernel in
    half precision; in float32 or with an arbitrary mask a slower one.

    ## When it refuses
    The weights or scores are returned, kept or read elsewhere; the softmax is over another dimension or in another
    dtype; the scale is a tensor; a mask is scaled, there are two, or it fills with a value near the scores; rows that
    are masked entirely; dropout that is applied in evaluation, or in training; shapes that broadcast; forward writes
    in place or to Python state, or cannot be captured.

    ## Example
    ```
    fusion-advisor apply model.py --strategy sdpa
    ```
    """

    id = "sdpa"
    order = 17

    def plan(self, subject: Subject) -> Plan:
        """Look at every module that computes a softmax."""
        if reason := blocker(subject.model):
            return Plan(blocker=reason)
        sites: list[Site] = []
        refused: list[Refusal] = []
        bare: list[str] = []
        for path in _owners(subject):
            found, reasons = _Proof(subject, path).result()
            refused += [Refusal(path or "The model", f"{reason}.", _line(subject, path)) for reason in reasons]
            if found is not None:
                sites.append(found)
            elif not reasons:
                bare.append(path or "the model")
        said = (
            f"No products of a query, a key and a value (@, matmul, bmm) are around the softmax in {', '.join(bare)}."
        )
        return Plan(tuple(sites), tuple(refused), notes=(said,) if bare else ())

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Capture each module again and let it run the rewritten graph.

        Raises:
            StrategyError: If the attention of the plan is not found again.
        """
        for site in plan.sites:
            module: Any = model.get_submodule(site.data["module"])
            form = _Form(site.data["args"], site.data["kwargs"])
            try:
                graph = leaves.trace(module, form.literals(module), lengths=site.data["lengths"])
            except leaves.FAILURES as error:
                raise StrategyError(f"{site.name} cannot be captured: {_first_sentence(error)}.") from error
            wanted = dict(site.data["attentions"])
            for found in list(Reader(module, graph).found()):
                if found.root.name in wanted:
                    (found if wanted.pop(found.root.name) else replace(found, repeats=None)).write(graph)
            if wanted:
                raise StrategyError(f"{site.name} has no attention at {next(iter(wanted))}.", "Make the recipe again.")
            module.forward = Guarded(module, graph, form)
        return model

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """The modules must be there, with their own forward; what they compute is captured again by the rewrite."""
        if reason := blocker(model):
            return reason
        known = dict(model.named_modules())
        for site in plan.sites:
            module = known.get(site.data["module"])
            if type(module).__name__ != site.data["class"]:
                return f"{site.name} is no {site.data['class']} here."
            if module is not None and "forward" in vars(module):
                return f"{site.name} has a forward of its own set on the instance."
        return ""


class Guarded(leaves.Rewritten):
    """A module's forward from a captured graph, for calls like those recorded; its own code for all others."""

    def __init__(self, module: nn.Module, graph: fx.Graph, form: "_Form") -> None:
        super().__init__(module, graph)
        self.form = form
        self._flags = _flags(module)

    def again(self, graph: fx.Graph) -> "Guarded":
        """See :class:`~fusionadvisor.strategies.leaves.Rewritten`."""
        return Guarded(self.module, graph, self.form)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph, or the module's own forward."""
        if any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values())):
            raise fx.proxy.TraceError("a forward that sdpa wrote compares its arguments")
        if _Form.of(args, kwargs) == self.form and _flags(self.module) == self._flags:
            return self._run(self.module, *args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


@dataclass(frozen=True)
class _Form:
    """How a module is called: for each argument what it is, a tensor's dimensions, and the value of a constant."""

    args: list[Any]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "_Form":
        return cls([_kind(value) for value in args], {name: _kind(value) for name, value in kwargs.items()})

    @property
    def unknown(self) -> str:
        """The type of an argument that is neither tensor nor constant; empty where there is none."""
        kinds = [*self.args, *self.kwargs.values()]
        return next((kind[1] for kind in kinds if kind[0] == "other"), "")

    def literals(self, module: nn.Module) -> dict[str, Any]:
        """The arguments that are constants, defaults included, by name."""
        bound = inspect.signature(module.forward).bind(*self.args, **self.kwargs)
        found = {name: kind[1] for name, kind in bound.arguments.items() if kind and kind[0] == "constant"}
        parameters = inspect.signature(module.forward).parameters
        left = {n: p.default for n, p in parameters.items() if n not in bound.arguments and p.default is not p.empty}
        return found | left


def _kind(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return ["tensor", value.dim()]
    if isinstance(value, tuple) and value and all(isinstance(item, Tensor) for item in value):
        return ["tensors", [item.dim() for item in value]]
    return ["constant", value] if type(value) in _PLAIN else ["other", type(value).__name__]


def _flags(module: nn.Module) -> dict[str, Any]:
    """What a captured forward has taken for constant: the module's plain attributes, and its dropouts'."""
    found = {name: value for name, value in vars(module).items() if type(value) in _PLAIN}
    for name, child in module._modules.items():
        if isinstance(child, _DROPS):
            found |= {f"{name}.{n}": v for n, v in vars(child).items() if type(v) in _PLAIN}
    return found


@dataclass
class _Proof:
    """What can be said of one module's attention."""

    subject: Subject
    path: str

    def result(self) -> tuple[Site | None, list[str]]:
        """The site, or None, and the reasons for what is left as it is."""
        module: Any = self.subject.model.get_submodule(self.path)
        name = self.path or "the model"
        if reason := self._unfit(module, name):
            return None, [reason]
        calls = self._calls()
        forms = [_Form.of(call.args, call.kwargs) for call in calls]
        if not forms or any(form != forms[0] for form in forms):
            return None, [f"{name} is not always called alike"]
        if forms[0].unknown:
            return None, [f"{name} is given a {forms[0].unknown}, which is neither tensor nor constant"]
        bound = inspect.signature(module.forward).bind(*calls[0].args, **calls[0].kwargs).arguments
        try:
            work, graph, lengths = leaves.unpacked(module, forms[0].literals(module), bound)
            reader = Reader(work, graph)
            found = list(reader.found())
            values = [_values(work, graph, call) for call in calls] if found else []
        except leaves.FAILURES as error:
            return None, [f"{name} cannot be captured: {_first_sentence(error)}"]
        reasons = [f"{name}: {reason}" for _, reason in reader.refused]
        proven = []
        for attention in found:
            if reason := next((r for row in values if (r := self._against(reader, attention, row))), ""):
                reasons.append(f"{name}: {reason}")
            else:
                confirmed = attention.repeats is not None and all(_repeated(attention, row) for row in values)
                proven.append(attention if confirmed else replace(attention, repeats=None))
        if not proven:
            return None, reasons
        roots = [[attention.root.name, attention.repeats is not None] for attention in proven]
        if reason := self._differs(work, graph, proven, calls):
            return None, [f"{name}: {reason}"]
        data = {
            "module": self.path, "class": type(module).__name__, "args": forms[0].args,
            "kwargs": dict(forms[0].kwargs), "attentions": roots, "lengths": lengths,
        }  # fmt: skip
        return Site(name, (self.path,), f"{name} runs its own code when it is called in another way", data), reasons

    def _unfit(self, module: nn.Module, name: str) -> str:
        if "forward" in vars(module):
            return f"{name} has a forward of its own set on the instance"
        for graph in self.subject.graphs:
            for op in graph.within(self.path):
                if op.phase == "forward" and any(not _drawn(graph, value) for value in op.mutates):
                    return f"{name} writes in place ({op.name})"
                if op.name in _SOFTMAX and any(graph.escapes(value) for value in op.writes):
                    return f"the attention weights of {name} are returned or kept"
        return leaves.impure(module, name)

    def _calls(self) -> list[Call]:
        """What the module is called with, in a copy of the model."""
        work, found = duplicate(self.subject.model), []

        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found.append(Call(args, dict(kwargs)).map(lambda _, tensor: tensor.detach().clone()))

        handle = work.get_submodule(self.path).register_forward_pre_hook(keep, prepend=False, with_kwargs=True)
        with torch.random.fork_rng(), torch.no_grad():
            for call in self.subject.calls:
                if self.subject.run is not None and self.subject.mode == "training":
                    with torch.enable_grad():
                        self.subject.run(work, call)
                else:
                    own = call.map(lambda _, tensor: tensor.clone())
                    work(*own.args, **own.kwargs)
        handle.remove()
        return found

    def _against(self, reader: Reader, found: Attention, row: dict[fx.Node, Any]) -> str:
        """What speaks against an attention in the values of one call."""
        if any(reader.dropout(node) for node in found.dropouts):
            training = self.subject.model.get_submodule(self.path).training
            return "its dropout would draw other random numbers" if training else "dropout is applied in evaluation too"
        q, k, v = row[found.q], row[found.kt].transpose(-2, -1), row[found.v]
        weights = row[found.softmax]
        layer = reader._layer(found.softmax, nn.Softmax)
        dim = layer.dim if layer is not None else found.softmax.kwargs.get("dim", *found.softmax.args[1:2])
        if dim not in (-1, weights.dim() - 1):
            return f"its softmax is over dimension {dim}, not the last"
        scale = row[found.scale] if isinstance(found.scale, fx.Node) else found.scale
        if scale is not None and not isinstance(scale, int | float):
            return "its scale is a tensor, which may differ from head to head"
        if scale == 0:
            return "its scale is 0"
        if weights.dtype != q.dtype:
            return f"its softmax is computed in {weights.dtype} where the query is {q.dtype}"
        mask = row[found.mask] if found.mask is not None else None
        if not fits(q, k, v, None, "", False):
            return f"its shapes or dtypes do not fit: {[list(t.shape) for t in (q, k, v)]}"
        if mask is None:
            return ""
        if not fits(q, k, v, mask, found.masking, False):
            return f"its mask does not fit: {mask.dtype} {list(mask.shape)}"
        return "a row of its mask leaves nothing to attend to" if _dead(mask, found.masking) else ""

    def _differs(self, work: nn.Module, graph: fx.Graph, found: list[Attention], calls: list[Call]) -> str:
        """Say whether the captured forward differs in a bit, or the rewritten one by more than rounding."""
        own = [_outputs(type(work).forward, work, call) for call in calls]
        captured = leaves.function(graph)
        if not all(_close(a, _outputs(captured, work, call), 0.0) for a, call in zip(own, calls, strict=True)):
            return "what was captured does not return exactly what the module returns"
        for attention in found:
            attention.write(graph)
        fused = leaves.function(graph)
        if not all(_close(a, _outputs(fused, work, call), 1e-2) for a, call in zip(own, calls, strict=True)):
            return "the fused attention returns something else"
        return ""


def _owners(subject: Subject) -> list[str]:
    """Modules of the user's whose own code computes a softmax."""
    found: dict[str, None] = {}
    for graph in subject.graphs:
        for op in graph.ops:
            if op.name in _SOFTMAX and op.phase == "forward":
                path = op.module
                while path and type(subject.model.get_submodule(path)).__module__.startswith("torch."):
                    path = path.rpartition(".")[0]
                if not type(subject.model.get_submodule(path)).__module__.startswith("torch."):
                    found.setdefault(path)
    return list(found)


def _drawn(graph: FlowGraph, value: int) -> bool:
    """Whether a value lives in what dropout makes and fills for itself."""
    makers = [op for alias in graph.aliases_of(value) if (op := graph.producer(alias)) is not None]
    return any(op.name == "aten::bernoulli_" for op in makers)


class _Watching(fx.Interpreter):
    """Runs a graph and keeps every value."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(module, garbage_collect_values=False, graph=graph)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.seen[n] = result = super().run_node(n)
        return result


def _values(module: nn.Module, graph: fx.Graph, call: Call) -> dict[fx.Node, Any]:
    bound = inspect.signature(module.forward).bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    watching = _Watching(module, graph)
    with torch.no_grad(), torch.random.fork_rng():
        watching.run(*bound.arguments.values())
    return watching.seen


def _repeated(found: Attention, row: dict[fx.Node, Any]) -> bool:
    """Whether the values show key and value to be their heads, each repeated."""
    assert found.repeats is not None
    q = row[found.q]
    for node, whole in zip(found.repeats, (row[found.kt].transpose(-2, -1), row[found.v]), strict=True):
        few = row[node]
        if few.dim() != 4 or q.dim() != 4 or q.shape[1] % few.shape[1] or q.shape[1] == few.shape[1]:
            return False
        if not torch.equal(few.repeat_interleave(q.shape[1] // few.shape[1], 1), whole):
            return False
    return True


def _dead(mask: Tensor, masking: str) -> bool:
    if masking == "add":
        return bool((mask <= torch.finfo(mask.dtype).min).all(-1).any())
    return bool((mask if masking == "fill" else ~mask).all(-1).any())


def _outputs(forward: Any, module: nn.Module, call: Call) -> list[Tensor]:
    own = call.map(lambda _, tensor: tensor.clone())
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        return [tensor for _, tensor in tensors_in(forward(module, *own.args, **own.kwargs))]


def _close(one: list[Tensor], other: list[Tensor], tolerance: float) -> bool:
    return len(one) == len(other) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) and torch.allclose(a, b, tolerance, tolerance, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def _line(subject: Subject, path: str) -> Source | None:
    for graph in subject.graphs:
        for op in graph.within(path):
            if op.name in _SOFTMAX and op.source is not None:
                return Source(op.source.file, op.source.line)
    return None


def _first_sentence(error: Exception) -> str:
    return one_line(error).partition(". ")[0]
