"""Vertical fusion: what follows a GEMM or convolution, or each other, and could be part of one kernel."""

from collections.abc import Sequence

from fusionadvisor import units
from fusionadvisor.analysis import cost
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.groups import Group
from fusionadvisor.analysis.nodes import Node
from fusionadvisor.report.model import Range
from fusionadvisor.rules.base import Candidate, Looked, Notes, Rule, Sentence, hook, name
from fusionadvisor.rules.match import (
    activation_of,
    at_most,
    batch_statistics,
    chain,
    common,
    compile_snippet,
    end_of,
    gated_by,
    is_batch_norm,
    is_path,
    label,
    producer,
    weight,
)


class FoldableNorm(Rule):
    """Fold batch norm into its convolution.

    ## What it does
    Finds a batch norm that normalises with stored statistics and reads the result of a convolution or linear layer that
    nothing else reads.

    ## Why it costs
    With stored statistics a batch norm is a multiplication and an addition a channel. Both can be done to the weights
    once. As a kernel of its own it reads and writes the whole activation on every call.

    ## Example
    ```python
    x = self.bn1(self.conv1(x))  # two kernels, the second moves 2 × the activation
    ```

    ## Use instead
    ```python
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    model.eval()
    model.conv1 = fuse_conv_bn_eval(model.conv1, model.bn1)
    model.bn1 = torch.nn.Identity()
    ```
    or `fusion-advisor apply --strategy fuse_modules`, which checks each place first. Eager cuDNN adds a convolution's
    bias in a kernel of its own: where the convolution had none, folding alone may bring little until something fuses
    that addition too. The low end of the bound charges it.

    ## When not to
    In training, where the statistics are those of the batch. Where the convolution's result is read elsewhere, or the
    convolution is called in several places: its weights are then no longer only this norm's.
    """

    id = "FA101"
    trusted = True

    def look(self, facts: Facts) -> Looked:
        """Match conv/linear → batch norm."""
        norms = [n for n in facts.of_kind("norm") if is_batch_norm(n)]
        if not norms:
            return Looked(skipped="no batch norm ran")
        if facts.training and all(batch_statistics(n, facts) for n in norms):
            return Looked(skipped="in training every batch norm uses the statistics of its batch")
        notes = Notes()
        for norm in norms:
            layer = producer(facts.dataflow, norm)
            if layer is None or layer.kind not in ("conv", "gemm"):
                continue
            if reason := self._obstacle(facts, layer, norm):
                notes.miss(self, norm, reason)
                continue
            notes.candidates.append(
                Candidate(
                    (norm.index,), self._saving(facts, layer, norm), f"{label(layer)} → batch_norm", norm,
                    beside=(layer.index,), evidence=self._evidence(facts, layer, norm),
                )
            )  # fmt: skip
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Fold by hand."""
        pairs = [(facts.nodes[c.beside[0]].module, facts.nodes[c.nodes[0]].module) for c in found]
        pairs = [p for p in dict.fromkeys(pairs) if is_path(p[0]) and is_path(p[1])]
        if not pairs:
            return ""
        fold = "fuse_linear_bn_eval" if facts.nodes[found[0].beside[0]].kind == "gemm" else "fuse_conv_bn_eval"
        return (
            f"from torch.nn.utils.fusion import {fold}\n\n"
            f"model.eval()\nfor layer, norm in {pairs!r}:\n"
            f"    folded = {fold}(model.get_submodule(layer), model.get_submodule(norm))\n"
            "    model.set_submodule(layer, folded)\n"
            "    model.set_submodule(norm, torch.nn.Identity())"
        )

    def _obstacle(self, facts: Facts, layer: Node, norm: Node) -> str:
        between = f"{name(layer)} → {name(norm)} is not folded: "
        if batch_statistics(norm, facts):
            return f"{between}{name(norm)} normalises with the statistics of the batch (training mode)"
        if said := hook(facts, layer, norm):
            return f"{between}{said}"
        last = end_of(facts.dataflow, layer)
        others = [n for n in facts.dataflow.consumers(last) if n.index != norm.index]
        if others:
            return f"{between}the result of {name(layer)} is also read by {name(others[0])}"
        if last.escapes:
            return f"{between}the result of {name(layer)} is returned or kept by the model"
        if facts.proven:
            calls = facts.dataflow.readers.get((layer.step, layer.inputs[weight(layer)]), ())
            if len(calls) > 1:
                return f"{between}{name(layer)} is called {len(calls)} times with the same weight"
        return ""

    def _saving(self, facts: Facts, layer: Node, norm: Node) -> Range:
        if facts.bandwidth is None or norm.out is None:
            return Range(0.0, None, norm.us)
        biased = len(layer.reads) > weight(layer) + 1 or end_of(facts.dataflow, layer) is not layer
        add = 0.0 if biased else cost.kernel_us(2 * norm.out.bytes, facts.bandwidth, **cost.ELEMENTWISE)
        low = max(0.0, norm.us - add)
        return Range(low, low if layer.kind == "conv" else norm.us, norm.us)

    def _evidence(self, facts: Facts, layer: Node, norm: Node) -> tuple[Sentence, ...]:
        said: list[Sentence] = [f"{name(norm)} is the only reader of {name(layer)} and uses stored statistics."]
        if facts.bandwidth is None:
            most = at_most(facts)
            said.append(lambda mean: f"{most} what {'each' if mean.repeats > 1 else 'the'} norm takes, {mean.time}.")
        elif norm.out is not None:
            said.append(f"It reads and writes {units.size_bytes(norm.out.bytes)} each.")
        return tuple(said)


class ActivationEpilogue(Rule):
    """Move the activation into the epilogue.

    ## What it does
    Finds an activation, bias or residual addition that only waits for the result of a convolution or linear layer (or
    of its foldable batch norm) and runs as a kernel of its own.

    ## Why it costs
    The GEMM has each value in a register when it is done with it. Writing it out, and reading it again to apply
    `relu`, moves the activation through memory twice more. A residual still has to be read: that is charged.

    ## Example
    ```python
    y = F.relu(self.conv(x) + identity)
    ```

    ## Use instead
    For a linear layer on CUDA, `torch._addmm_activation(bias, x, weight.t(), use_gelu=False)` is one kernel, for a
    convolution `torch.cudnn_convolution_relu` and `torch.cudnn_convolution_add_relu`; `fuse_modules` puts them in where
    they are exact. `torch.compile(mode="max-autotune")` has GEMM templates with epilogues.

    ## When not to
    Where the value before the activation is needed again (a skip connection that starts there). On CUDA
    `_addmm_activation(use_gelu=True)` is the tanh approximation of GELU; it is not the exact one.
    """

    id = "FA102"
    trusted = True

    def look(self, facts: Facts) -> Looked:
        """Match conv/linear (→ batch norm) → bias, residual, activation."""
        layers = facts.of_kind("gemm", "conv")
        if not layers:
            return Looked(skipped="no convolution or GEMM ran")
        notes = Notes()
        for layer in layers:
            if "backward" in layer.outer or layer.phase == "backward":
                continue
            tail = self._tail(facts, layer, notes)
            if tail and (said := hook(facts, layer, *tail)):
                notes.miss(self, tail[-1], f"{label(tail[-1])} stays outside {name(layer)}: {said}")
            elif tail:
                notes.candidates.append(self._candidate(facts, layer, tail))
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Compile the smallest regions that hold layer and activation."""
        return compile_snippet(common(facts.nodes[i] for i in (*c.nodes, *c.beside)) for c in found)

    def _tail(self, facts: Facts, layer: Node, notes: Notes) -> list[Node]:
        flow = facts.dataflow
        last = end_of(flow, layer)
        user = flow.sole_user(last)
        if user is not None and is_batch_norm(user) and not batch_statistics(user, facts):
            last = user
        tail: list[Node] = []
        while (user := flow.sole_user(last)) is not None and self._joins(facts, layer, last, user):
            tail.append(user)
            if activation_of(user):
                break
            last = user
        if not tail:
            self._near(facts, layer, last, notes)
        return tail

    def _joins(self, facts: Facts, layer: Node, last: Node, user: Node) -> bool:
        if user.graphed or user.lane != layer.lane or user.phase == "backward" or last.out is None or user.out is None:
            return False
        if user.out.numel != last.out.numel:
            return False
        if activation_of(user):
            return gated_by(facts.dataflow, user) is None  # a gate is fused with what it multiplies
        if user.op != "add" or user.kind != "pointwise":
            return False
        # of two layers whose results are added, the later one takes the other's as its residual
        others = [s for s in user.sources if s != last.index and s >= 0]
        return not any(self._layer_behind(facts, facts.nodes[s]) > layer.index for s in others)

    def _layer_behind(self, facts: Facts, node: Node) -> int:
        if is_batch_norm(node):
            node = producer(facts.dataflow, node) or node
        return node.index if node.kind in ("gemm", "conv") else -1

    def _near(self, facts: Facts, layer: Node, last: Node, notes: Notes) -> None:
        users = facts.dataflow.consumers(last)
        acts = [u for u in users if activation_of(u)]
        if acts and len(users) > 1:
            other = next(u for u in users if u is not acts[0])
            notes.miss(
                self, acts[0],
                f"{label(acts[0])} stays outside {name(layer)}: its input is also read by {name(other)}",
            )  # fmt: skip

    def _candidate(self, facts: Facts, layer: Node, tail: list[Node]) -> Candidate:
        nodes = tuple(n.index for n in tail)
        saving = facts.absorbed(nodes, end_of(facts.dataflow, layer))
        what, before = chain(tail), name(layer)
        said: list[Sentence] = [lambda mean: f"{what} takes {mean.time} after {before} and only waits for its result."]
        if facts.bandwidth is None:
            said.append(f"{at_most(facts)} the measured time of these kernels.")
        return Candidate(nodes, saving, chain([layer, *tail]), tail[-1], (layer.index,), evidence=tuple(said))


class PointwiseChain(Rule):
    """Fuse the pointwise chain.

    ## What it does
    Finds kernels that feed each other and walk over the same elements: pointwise ops, casts, copies, one reduction.

    ## Why it costs
    Each kernel reads its inputs from memory and writes its result there. In one kernel, what is between them stays in
    registers; only what comes from outside is read, and what somebody else needs is written.

    ## Example
    ```python
    y = torch.relu(x + bias) * scale  # three kernels, six passes over the tensor
    ```

    ## Use instead
    ```python
    @torch.compile
    def scaled(x, bias, scale):
        return torch.relu(x + bias) * scale  # one kernel, two passes
    ```
    `module.compile()` does it for a module in place.

    ## When not to
    Where the tensors are so small that launching dominates: a graph removes launches without changing kernels.
    """

    id = "FA103"

    def look(self, facts: Facts) -> Looked:
        """Take every group that is worth a kernel."""
        if not facts.dataflow.shaped:
            return Looked(skipped="the recording has no shapes, so what feeds what is unknown")
        candidates = []
        for group in facts.groups:
            members = [facts.nodes[i] for i in group.nodes]
            if any(n.phase == "optimizer" for n in members):
                continue
            candidates.append(
                Candidate(
                    group.nodes, facts.bound(group.nodes), chain(members), members[-1],
                    evidence=self._evidence(facts, group), specific=False,
                )
            )  # fmt: skip
        return Looked(tuple(candidates))

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Compile the smallest region that holds the chain."""
        return compile_snippet(common(facts.nodes[i] for i in c.nodes) for c in found)

    def _passed_on(self, facts: Facts, group: Group) -> int:
        """Bytes that members read of each other's results."""
        members = [facts.nodes[i] for i in group.nodes]
        read = (r for n in members for r in zip(n.sources, n.inputs, n.reads, strict=True))
        return sum({identity: tensor.bytes for source, identity, tensor in read if source in group.nodes}.values())

    def _evidence(self, facts: Facts, group: Group) -> tuple[str, ...]:
        members, rest = chain(facts.nodes[i] for i in group.nodes), units.size_bytes(group.external)
        if group.internal:
            kept = f"writes, then re-reads, {units.size_bytes(group.internal)} that one kernel keeps in registers"
        elif passed := self._passed_on(facts, group):
            kept = f"reads back {units.size_bytes(passed)} that others need as well, which one kernel only writes"
        else:
            kept = "each reads the same tensor, which one kernel reads once"
        said = [f"{members}: {kept}; {rest} remain."]
        if facts.bandwidth is None:
            said.append(f"{at_most(facts)} the measured times of its kernels, all but the longest.")
        return tuple(said)
