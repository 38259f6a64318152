"""Let attention that is written out run as ``scaled_dot_product_attention``, where it is proven to mean that."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from fusionadvisor.errors import StrategyError
from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.report.model import Refusal, Source
from fusionadvisor.strategies import captured, leaves
from fusionadvisor.strategies.attend import fits
from fusionadvisor.strategies.attention import Attention, Reader, sized
from fusionadvisor.strategies.base import Plan, Site, Strategy, Subject
from fusionadvisor.strategies.forms import Form
from fusionadvisor.strategies.modules import blocker
from fusionadvisor.strategies.nodes import simplify
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.inputs import Call
from fusionadvisor.workload.usercode import one_line

_SOFTMAX = frozenset({"aten::_softmax", "aten::softmax", "aten::_safe_softmax"})


class Sdpa(Strategy):
    """Use scaled dot-product attention.

    ## What it does
    Captures the forward of each module that computes a softmax between two matrix products, its submodules left as
    they are, and replaces scores, scale, mask, softmax and product by ``F.scaled_dot_product_attention``. What is
    captured is checked against the recorded values: scale, polarity and fill of the mask, dtypes, repeated heads. What
    the capture took for constant is compared at each call: how the module is called, the attributes, globals and state
    of torch that its code read, the sizes it went by. Where one is another, the module's own code runs;
    ``fusionadvisor.strategies.leaves.counts(model)`` says how often and why. Tensors of another kind than was proven
    are computed as written.

    ## When it helps
    The scores, a row and a column for every pair of tokens, are never written to memory. On CUDA it is one kernel in
    half precision; in float32 or with an arbitrary mask a slower one.

    ## When it refuses
    The weights or scores are returned, kept or read elsewhere; the softmax is over another dimension or in another
    dtype; the scale is a tensor; a mask is scaled, there are two, or it fills with a value near the scores; dropout
    that is applied in evaluation, or in training; shapes that broadcast; forward writes in place or to Python state,
    goes another way by the values of a tensor, or cannot be captured.

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
        paths = _owners(subject)
        run = subject.run if subject.mode == "training" else None
        calls = captured.calls_of(subject.model, subject.calls, paths, run) if paths else {}
        for path in paths:
            found, reasons = _Proof(subject, path, calls[path]).result()
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
            form = Form(site.data["args"], site.data["kwargs"])
            try:
                own = captured.capture(module, form, answers=site.data.get("answers", ()))
            except leaves.FAILURES as error:
                raise StrategyError(f"{site.name} cannot be captured: {_first_sentence(error)}.") from error
            wanted = dict(site.data["attentions"])
            attentions = [found for found in Reader(module, own.graph).found() if found.root.name in wanted]
            for found in attentions:
                _write(found if wanted.pop(found.root.name) else replace(found, repeats=None), module, own)
            if wanted:
                raise StrategyError(f"{site.name} has no attention at {next(iter(wanted))}.", "Make the recipe again.")
            module.forward = leaves.Rewritten(module, own.graph, own)
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


def _write(attention: Attention, module: nn.Module, own: captured.Captured) -> None:
    """Put the fused op in; what decides in the layers that it takes the place of is compared from then on."""
    for path in attention.layers:
        own.guard.hold(module, path)
    attention.write(own.graph)
    simplify(own.graph)


@dataclass
class _Proof:
    """What can be said of one module's attention, given what it is called with."""

    subject: Subject
    path: str
    calls: list[Call]

    def result(self) -> tuple[Site | None, list[str]]:
        """The site, or None, and the reasons for what is left as it is."""
        module: Any = self.subject.model.get_submodule(self.path)
        name = self.path or "the model"
        if reason := self._unfit(module, name):
            return None, [reason]
        forms = [Form.of(call.args, call.kwargs) for call in self.calls]
        if not forms or any(form != forms[0][0] for form, _ in forms):
            return None, [f"{name} is not always called alike"]
        form, tensors = forms[0]
        if form.unknown:
            return None, [f"{name} is given a {form.unknown}, which is neither tensor nor constant"]
        work = duplicate(module)
        try:
            own = captured.capture(work, form, given=tensors)
            calls = captured.fitting(work, own, self.calls)
            reader = Reader(work, own.graph)
            found = list(reader.found())
            values = [_values(work, own, call) for call in calls] if found else []
        except leaves.FAILURES as error:
            return None, [f"{name} cannot be captured: {_first_sentence(error)}"]
        if not calls:
            return None, [f"{name} reads what changes from call to call"]
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
        if reason := self._differs(work, own, proven, calls):
            return None, [f"{name}: {reason}"]
        data = {
            "module": self.path, "class": type(module).__name__, "args": form.args, "kwargs": dict(form.kwargs),
            "attentions": roots, "answers": own.answers,
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
        return ""

    def _against(self, reader: Reader, found: Attention, row: dict[fx.Node, Any]) -> str:
        """What speaks against an attention in the values of one call."""
        if any(reader.dropout(node) for node in found.dropouts):
            training = self.subject.model.get_submodule(self.path).training
            return "its dropout would draw other random numbers" if training else "dropout is applied in evaluation too"
        weights = row[found.softmax]
        if found.flipped is not None:
            before = row[found.dropouts[-1] if found.dropouts else found.softmax]
            if not torch.equal(row[found.flipped], before.transpose(-2, -1).to(row[found.flipped].dtype)):
                return "its weights are changed before the product with the values"
            row = row | {found.v: row[found.v].transpose(-2, -1)}
        q, k, v = row[found.q], row[found.kt].transpose(-2, -1), row[found.v]
        layer = reader._layer(found.softmax, nn.Softmax)
        dim = layer.dim if layer is not None else found.softmax.kwargs.get("dim", *found.softmax.args[1:2])
        if dim not in (-1, weights.dim() - 1):
            return f"its softmax is over dimension {dim}, not the last"
        scale = row[found.scale] if isinstance(found.scale, fx.Node) else found.scale
        if isinstance(found.scale, fx.Node) and not isinstance(scale, int | float) and not sized(found.scale):
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
        return ""

    def _differs(self, work: nn.Module, own: captured.Captured, found: list[Attention], calls: list[Call]) -> str:
        """Say whether the captured forward differs in a bit, or the rewritten one by more than rounding."""
        if not captured.same(work, own, calls, 0.0):
            return "what was captured does not return exactly what the module returns"
        for attention in found:
            _write(attention, work, own)
        return "" if captured.same(work, own, calls, 1e-2) else "the fused attention returns something else"


def _owners(subject: Subject) -> list[str]:
    """Modules of the user's whose own code computes a softmax."""
    kinds = {path: type(subject.model.get_submodule(path)) for path in captured.owners(subject, _SOFTMAX, "torch.")}
    return [path for path, kind in kinds.items() if not kind.__module__.startswith("torch.")]


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


def _values(module: nn.Module, own: captured.Captured, call: Call) -> dict[fx.Node, Any]:
    watching = _Watching(module, own.graph)
    with torch.no_grad(), torch.random.fork_rng():
        watching.run(*own.tensors(call.args, call.kwargs))
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


def _line(subject: Subject, path: str) -> Source | None:
    for graph in subject.graphs:
        for op in graph.within(path):
            if op.name in _SOFTMAX and op.source is not None:
                return Source(op.source.file, op.source.line)
    return None


def _first_sentence(error: Exception) -> str:
    return one_line(error).partition(". ")[0]
