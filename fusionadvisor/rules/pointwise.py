"""Pointwise idioms that core torch has one op for, or a compiler one kernel."""

from collections.abc import Sequence

from fusionadvisor import units
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.nodes import FUSIBLE, Node
from fusionadvisor.report.model import Range
from fusionadvisor.rules.base import Candidate, Looked, Notes, Rule, Sentence, name
from fusionadvisor.rules.match import (
    at_most,
    chain,
    common,
    compile_snippet,
    dropout_noise,
    gated_by,
    is_dropout,
    is_forward,
    producer,
    tensor_reads,
)

_ARITHMETIC = frozenset({"mul", "div", "add", "sub", "pow", "square"})
_CURVES = {"erf": "GELU", "tanh": "tanh GELU", "sigmoid": "SiLU"}
_LOSS_STEPS = frozenset(
    {"log", "gather", "index", "mul", "neg", "sum", "mean", "div", "add", "clamp", "nll_loss_forward"}
)


class WrittenOutActivation(Rule):
    """Fuse the gate, or the activation written out.

    ## What it does
    Finds GELU, SiLU or QuickGELU made of single ops, and gates: an activation whose result only multiplies another
    projection (SwiGLU, GeGLU).

    ## Why it costs
    An activation written out passes over the tensor once an op. A gate writes the activation only for the
    multiplication to read it again.

    ## Example
    ```python
    y = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    h = F.silu(self.gate(x)) * self.up(x)
    ```

    ## Use instead
    ```python
    y = F.gelu(x)  # exact; approximate="tanh" for the other one


    @torch.compile
    def gated(gate, up):
        return F.silu(gate) * up
    ```

    ## When not to
    QuickGELU (`x * sigmoid(1.702 * x)`) is neither of the two GELUs: only a compiler fuses it as it is.
    """

    id = "FA106"
    trusted = True

    def look(self, facts: Facts) -> Looked:
        """Match written-out activations, then gates."""
        notes = Notes()
        acts = [n for n in facts.of_kind("pointwise") if is_forward(n)]
        if not acts:
            return Looked(skipped="no pointwise op ran")
        for node in acts:
            if node.op in _CURVES and (found := self._written(facts, node)) is not None:
                nodes, what = found
                notes.candidates.append(self._candidate(facts, nodes, what))
            elif (gate := gated_by(facts.dataflow, node)) is not None:
                notes.candidates.append(self._candidate(facts, [node, gate], f"{node.op} gate"))
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Use the op, or compile the region."""
        what = found[0].pattern.partition(":")[0]
        gate = " * gate" if what.endswith("gate") else ""
        if what.startswith("GELU"):
            return f"y = F.gelu(x){gate}"
        if what.startswith("tanh GELU"):
            return f'y = F.gelu(x, approximate="tanh"){gate}'
        if what.startswith("SiLU by hand"):
            return f"y = F.silu(x){gate}"
        return compile_snippet(common(facts.nodes[i] for i in c.nodes) for c in found)

    def _written(self, facts: Facts, curve: Node) -> tuple[list[Node], str] | None:
        """The nodes of an activation around its curve: arithmetic before, and after up to a product with the input."""
        if curve.out is None or curve.outer in ("gelu", "silu"):
            return None
        flow, size = facts.dataflow, curve.out.numel
        inside, todo = {curve.index: curve}, [curve]
        while todo:
            at = todo.pop()
            for i, tensor in enumerate(at.reads):
                source = flow.producer(at, i)
                unary = source is not None and len(tensor_reads(source, curve.out)) == 1 and len(source.reads) == 1
                if source is None or tensor.numel != size or source.op not in _ARITHMETIC or source.index in inside:
                    continue
                if unary or any(s in inside for s in source.sources) or self._cubic(facts, source):
                    inside[source.index] = source
                    todo.append(source)
        entries = {i for n in inside.values() for s, i in zip(n.sources, n.inputs, strict=True) if s not in inside}
        at, product = curve, False
        while (user := flow.forward_user(at)) is not None and user.op in ("mul", "add", "div") and user.out is not None:
            others = [(s, i) for s, i in zip(user.sources, user.inputs, strict=True) if s != at.index]
            scaled = [facts.nodes[s] for s, _ in others if s >= 0 and self._scales(facts.nodes[s], entries)]
            inside.update((n.index, n) for n in scaled)
            known = all(s in inside or i in entries for s, i in others)
            if user.out.numel != size or not known or (product and others):
                break
            product |= bool(others) and user.op == "mul"
            inside[user.index] = user
            at = user
        if not product:
            return None
        before_scaled = any(n.op in ("mul", "div") and n.index < curve.index for n in inside.values())
        what = f"{_CURVES[curve.op]} by hand"
        if curve.op == "sigmoid" and before_scaled:
            what = "QuickGELU"
        if (gate := gated_by(flow, at, anything=True)) is not None:
            inside[gate.index] = gate
            what += " gate"
        return [inside[i] for i in sorted(inside)], what

    def _scales(self, node: Node, entries: set[int]) -> bool:
        """``0.5 * x``: the input times a number."""
        return node.op in ("mul", "div") and len(node.reads) == 1 and node.inputs[0] in entries

    def _cubic(self, facts: Facts, node: Node) -> bool:
        """``x + 0.044715 x³``: an addition with a cube behind it."""
        if node.op != "add":
            return False
        for i in range(len(node.reads)):
            at = facts.dataflow.producer(node, i)
            if at is not None and at.op == "mul":
                at = facts.dataflow.producer(at, 0)
            if at is not None and at.op == "pow":
                return True
        return False

    def _candidate(self, facts: Facts, members: list[Node], what: str) -> Candidate:
        nodes = tuple(n.index for n in members)
        said: list[Sentence] = [lambda mean: f"{what}: {mean.kernels}, {mean.time}: {chain(members)}."]
        if facts.bandwidth is None:
            said.append(f"{at_most(facts)} the measured times of its kernels, all but the longest.")
        by_hand = what.startswith(tuple(f"{curve} by hand" for curve in _CURVES.values()))
        return Candidate(
            nodes, facts.bound(nodes), f"{what}: {chain(members)}", members[-1], evidence=tuple(said),
            remedies=None if by_hand else ("compile",),  # no op of torch is QuickGELU, or a gate
        )  # fmt: skip


class DropoutResidual(Rule):
    """Fuse bias, dropout and residual.

    ## What it does
    Finds a dropout whose result is only added to a residual, with the bias addition before it where there is one.

    ## Why it costs
    Each of the three passes over the activation. One kernel reads the projection and the residual, draws the mask, and
    writes the sum.

    ## Example
    ```python
    x = residual + F.dropout(self.proj(h), p=0.1, training=self.training)
    ```

    ## Use instead
    ```python
    @torch.compile
    def dropout_add(x, residual, p: float, training: bool):
        return residual + F.dropout(x, p, training)
    ```

    ## When not to
    In evaluation, where dropout does nothing and does not run. A compiled dropout draws another random sequence.
    """

    id = "FA109"

    def look(self, facts: Facts) -> Looked:
        """Match (bias →) dropout → add."""
        drops = [n for n in facts.of_kind("rng", "pointwise") if is_dropout(facts.dataflow, n) and is_forward(n)]
        if not drops:
            return Looked(skipped="no dropout ran")
        notes = Notes()
        for drop in drops:
            add = facts.dataflow.forward_user(drop)
            if add is None or add.op != "add" or len(tensor_reads(add, drop.out)) != 2:
                continue
            members = [*self._mask(facts, drop), drop, add]
            bias = producer(facts.dataflow, drop)
            if bias is not None and bias.op == "add" and facts.dataflow.forward_user(bias) is drop:
                members.insert(0, bias)
            nodes = tuple(sorted({n.index for n in members}))
            what = chain(facts.nodes[i] for i in nodes)
            notes.candidates.append(
                Candidate(nodes, facts.bound(nodes), what, drop, evidence=(self._said(what, name(drop)),))
            )
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Compile the function that does both."""
        return (
            "@torch.compile\ndef dropout_add(x, residual, p: float, training: bool):\n"
            "    return residual + F.dropout(x, p, training)"
        )

    def _said(self, what: str, drop: str) -> Sentence:
        return lambda mean: f"{what} after {drop}: {mean.kernels}."

    def _mask(self, facts: Facts, drop: Node) -> list[Node]:
        """On the CPU, the kernels that draw and scale the mask."""
        at, found = drop, []
        while (noise := dropout_noise(facts.dataflow, at)) is not None:
            found.append(noise)
            at = noise
        return found[::-1]


class WrittenOutLoss(Rule):
    """Use cross_entropy.

    ## What it does
    Finds a softmax or log-softmax over classes followed by a logarithm, a gather or a product with one-hot targets, and
    a sum: a cross-entropy written out.

    ## Why it costs
    Each step writes a tensor of batch × classes; with a vocabulary of 100 000 that is the largest activation of the
    model. `log(softmax(x))` also loses precision where the probability is small.

    ## Example
    ```python
    loss = -torch.log(torch.softmax(logits, -1)).gather(1, target[:, None]).mean()
    ```

    ## Use instead
    ```python
    loss = F.cross_entropy(logits, target)
    ```

    ## When not to
    Where the probabilities are needed anyway.
    """

    id = "FA110"

    def look(self, facts: Facts) -> Looked:
        """Match (log-)softmax → log, gather or one-hot product → sum."""
        softmaxes = [n for n in facts.of_kind("softmax") if is_forward(n)]
        if not softmaxes:
            return Looked(skipped="no softmax ran")
        notes = Notes()
        for softmax in softmaxes:
            if softmax.outer in ("cross_entropy_loss", "scaled_dot_product_attention"):
                continue
            members = [softmax]
            while (user := facts.dataflow.forward_user(members[-1])) is not None and user.op in _LOSS_STEPS:
                members.append(user)
            ops = [n.op for n in members]
            logs = "log" in softmax.op or "log" in ops
            picks = "gather" in ops or "index" in ops or ("mul" in ops and "sum" in ops)
            by_hand = picks or ("log" in ops and "nll_loss_forward" in ops)
            if logs and by_hand:
                notes.candidates.append(self._candidate(facts, members))
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Use the library's loss."""
        return "loss = F.cross_entropy(logits, target)"

    def _candidate(self, facts: Facts, members: list[Node]) -> Candidate:
        nodes = tuple(n.index for n in members)
        size = members[0].out.bytes if members[0].out is not None else 0
        what = chain(members)
        said: Sentence = lambda mean: f"{what}: {mean.kernels} over {units.size_bytes(size)}."  # noqa: E731
        return Candidate(nodes, facts.bound(nodes), what, members[0], evidence=(said,))


class CastPingPong(Rule):
    """Keep one dtype instead of casting back and forth.

    ## What it does
    Finds a cast that is undone a few kernels later, and a tensor that is cast to the same dtype more than once.

    ## Why it costs
    A cast reads and writes the tensor and computes nothing. Under autocast they appear around every op that wants
    float32.

    ## Example
    ```python
    with torch.autocast("cuda", torch.bfloat16):
        y = self.proj(self.norm(x))  # bf16 → float32 for the norm → bf16 for the projection
    ```

    ## Use instead
    Keep the model in bfloat16 (`model.to(torch.bfloat16)`); norms and softmax accumulate in float32 inside. Cast a
    tensor once and pass the result on. Or compile: the casts become part of their neighbours.

    ## When not to
    Where the float32 result itself is needed: losses, optimizer states, long sums.
    """

    id = "FA111"

    def look(self, facts: Facts) -> Looked:
        """Match casts undone soon after, and repeated casts."""
        casts = [n for n in facts.of_kind("cast") if n.reads and n.writes and n.phase != "optimizer"]
        if not casts:
            return Looked(skipped="nothing was cast")
        notes = Notes()
        first: dict[tuple[int, int, str], Node] = {}
        for cast in casts:
            again = first.setdefault((cast.step, cast.inputs[-1], cast.writes[0].dtype), cast)
            if again is not cast and facts.proven:
                said = f"{name(cast)} casts to {cast.writes[0].dtype} what was cast before."
                notes.candidates.append(self._candidate(facts, [cast], "the same tensor cast again", said))
            elif (back := self._undone(facts, cast)) is not None:
                said = f"{cast.reads[-1].dtype} → {cast.writes[0].dtype} → {back.writes[0].dtype} around {name(back)}."
                pattern = f"{cast.reads[-1].dtype} → {cast.writes[0].dtype} → {back.writes[0].dtype}"
                notes.candidates.append(self._candidate(facts, [cast, back], pattern, said))
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Keep one dtype, or compile."""
        return compile_snippet(common(facts.nodes[i] for i in c.nodes) for c in found)

    def _undone(self, facts: Facts, cast: Node) -> Node | None:
        """The cast that returns to the dtype this one left, at most three fusible kernels on."""
        at = cast
        for _ in range(4):
            user = facts.dataflow.forward_user(at)
            if user is None or user.graphed or user.kind not in FUSIBLE:
                return None
            if user.kind == "cast" and user.writes and user.writes[0].dtype == cast.reads[-1].dtype:
                return user
            at = user
        return None

    def _candidate(self, facts: Facts, casts: list[Node], pattern: str, said: str) -> Candidate:
        us = sum(n.us for n in casts)
        saving = facts.gone(us)
        return Candidate(
            tuple(n.index for n in casts), Range(0.0, saving.likely, saving.high), pattern, casts[-1],
            evidence=(said, lambda mean: f"The casts take {mean.time}."), specific=False,
        )  # fmt: skip
