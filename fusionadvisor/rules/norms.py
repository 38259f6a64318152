"""Normalisations: written out by hand, or next to the residual addition that feeds them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fusionadvisor import units
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.nodes import Node
from fusionadvisor.rules.base import Candidate, Looked, Notes, Rule, Sentence, name
from fusionadvisor.rules.match import at_most, chain, compile_snippet, is_forward, is_path, tensor_reads, walk_back

_ROOTS = frozenset({"rsqrt", "sqrt", "pow", "linalg_vector_norm", "std"})
_SQUARES = frozenset({"pow", "mul", "square"})
_NO_FORMULA = frozenset({"std", "std_mean", "linalg_vector_norm", "norm"})
"""What a norm of torch does not compute, so that no op replaces it: only a compiler fuses it as it is."""
_LIBRARY = frozenset({"rms_norm", "layer_norm", "group_norm", "batch_norm", "instance_norm", "native_layer_norm"})
_LAYER_NORMS = frozenset({"native_layer_norm", "layer_norm", "_fused_rms_norm", "rms_norm", "native_group_norm"})


@dataclass(frozen=True)
class WrittenNorm:
    """A normalisation made of single ops: ``nodes`` in order of time, ``entry`` its first reader of the input."""

    nodes: tuple[int, ...]
    entry: Node
    reduction: Node
    last: Node
    centred: bool


def written_norms(facts: Facts) -> Iterator[WrittenNorm]:
    """Yield normalisations written out by hand: mean of squares or variance → eps → root → scale."""
    for node in facts.of_kind("reduction"):
        if is_forward(node) and node.outer not in _LIBRARY and _reduces(node):
            found = _around(facts, node)
            if found is not None:
                yield found


def _reduces(node: Node) -> bool:
    """The reduction takes away some dimensions and leaves others: the last in most norms, channels in an image's."""
    if not node.reads or not node.writes or node.writes[0].numel in (1, node.reads[0].numel):
        return False
    return node.op in ("mean", "var", "var_mean", "sum", "std", "std_mean", "linalg_vector_norm", "norm")


def _over_last(node: Node) -> bool:
    """The reduction keeps the rows: what is left is the input without its last dimensions."""
    kept = [n for n in node.writes[0].shape if n != 1]
    return [n for n in node.reads[0].shape if n != 1][: len(kept)] == kept


def _around(facts: Facts, reduction: Node) -> WrittenNorm | None:
    flow, rows, size = facts.dataflow, reduction.writes[0].numel, reduction.reads[0].numel
    small, at, rooted = [reduction], reduction, reduction.op in ("std", "linalg_vector_norm", "norm")
    scale: Node | None = None
    while scale is None:
        users = [u for u in flow.consumers(at) if u.out is not None and u.lane == reduction.lane and is_forward(u)]
        scale = next((u for u in users if u.out and u.out.numel == size and u.op in ("mul", "div")), None)
        nearer = next((u for u in users if u.out and u.out.numel == rows and u.kind in ("pointwise", "cast")), None)
        if scale is not None or nearer is None or len(small) > 8:
            break
        rooted |= nearer.op in _ROOTS
        small.append(nearer)
        at = nearer
    if scale is None or not rooted:
        return None
    before, centred = _before(facts, reduction)
    after = _after(facts, scale, reduction)
    if centre := _centre(facts, scale, reduction):
        before, centred = [*before, *centre], True
    nodes = sorted({n.index for n in (*before, *small, scale, *after)})
    first = min((*before, reduction), key=lambda n: n.index)
    return WrittenNorm(tuple(nodes), first, reduction, after[-1] if after else scale, centred)


def _before(facts: Facts, reduction: Node) -> tuple[list[Node], bool]:
    """What prepares the reduction's input: the square, the subtraction of the mean with its own mean, the cast."""
    flow, centred = facts.dataflow, reduction.op in ("var", "var_mean", "std", "std_mean")
    found: list[Node] = []
    at = flow.producer(reduction, 0)
    if at is not None and at.op in _SQUARES and at.kind == "pointwise" and reduction.op in ("mean", "sum"):
        found.append(at)
        at = next((s for i in range(len(at.reads)) if (s := flow.producer(at, i)) is not None), None)
    if at is not None and at.op == "sub":
        mean = next((s for i in range(len(at.reads)) if (s := flow.producer(at, i)) and s.kind == "reduction"), None)
        if mean is not None:
            centred = True
            found += [at, mean]
            at = next((s for i in range(len(at.reads)) if (s := flow.producer(at, i)) and s is not mean), None)
    if at is not None and at.kind == "cast":
        found.append(at)
    return found, centred


def _centre(facts: Facts, scale: Node, reduction: Node) -> list[Node]:
    """The subtraction of the mean in what is scaled, with its mean, and the weight where it was multiplied first."""
    flow, found = facts.dataflow, list[Node]()
    at = _large_producer(facts, scale, reduction)
    if at is not None and at.op == "mul" and len(tensor_reads(at, at.out)) == 1:
        found.append(at)
        at = _large_producer(facts, at, reduction)
    if at is None or at.op != "sub":
        return []
    sources = [flow.producer(at, i) for i in range(len(at.reads))]
    mean = next((s for s in sources if s is not None and s.op == "mean" and _reduces(s)), None)
    return [] if mean is None else [*found, at, mean]


def _large_producer(facts: Facts, node: Node, reduction: Node) -> Node | None:
    """What computed the operand of a node that is as large as the norm's input."""
    size = reduction.reads[0].numel
    large = (i for i, read in enumerate(node.reads) if read.numel == size)
    return next((s for i in large if (s := facts.dataflow.producer(node, i)) is not None), None)


def _after(facts: Facts, scale: Node, reduction: Node) -> list[Node]:
    """The cast back, the weight and the bias."""
    flow, at = facts.dataflow, scale
    found: list[Node] = []
    while (user := flow.forward_user(at)) is not None and len(found) < 3 and user.out is not None:
        per_channel = len(tensor_reads(user, at.out)) == 1 and user.op in ("mul", "add") and len(user.reads) == 2
        if user.out.numel != reduction.reads[0].numel or not (user.kind == "cast" or per_channel):
            break
        found.append(user)
        at = user
    return found


def residual_add(facts: Facts, entry: Node) -> Node | None:
    """The addition of two equally large tensors that made a norm's input."""
    source = walk_back(facts.dataflow, entry, 0)
    if source is None or source.op != "add" or source.kind != "pointwise" or not is_forward(source):
        return None
    large = [t for t in source.reads if source.out is not None and t.numel == source.out.numel]
    return source if len(large) == 2 and source.lane == entry.lane and not source.graphed else None


class ResidualNorm(Rule):
    """Fuse the residual addition with the norm.

    ## What it does
    Finds an addition of two equally large tensors whose sum a LayerNorm or RMSNorm normalises, written out or not.

    ## Why it costs
    The sum is written, then read again by the norm, and each further kernel of a written-out norm passes over it once
    more. One kernel reads both operands once and writes the sum (the next residual needs it) and the normalised tensor.

    ## Example
    ```python
    x = x + self.attention(h)
    h = self.norm(x)
    ```

    ## Use instead
    ```python
    @torch.compile
    def add_norm(x, y, norm):
        x = x + y
        return x, norm(x)
    ```
    Libraries have it ready (`fused_add_rms_norm`). In core torch no single op does both.

    ## When not to
    Where addition and norm are on two sides of a communication, as in sequence parallelism.
    """

    id = "FA104"
    trusted = True

    def look(self, facts: Facts) -> Looked:
        """Match add → norm."""
        notes, norms = Notes(), 0
        for written in written_norms(facts):
            norms += 1
            if (add := residual_add(facts, written.entry)) is not None:
                found = self._candidate(facts, (add.index, *written.nodes), written.last, add)
                notes.candidates.append(replace(found, remedies=("compile", "fx")))  # fx puts in the norm alone
        for node in facts.of_kind("norm"):
            if node.op not in _LAYER_NORMS or not is_forward(node):
                continue
            norms += 1
            if (add := residual_add(facts, node)) is not None:
                notes.candidates.append(self._candidate(facts, (add.index, node.index), node, add))
        return notes.looked() if norms else Looked(skipped="no layer norm ran")

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Compile the function that does both."""
        modules = {facts.nodes[c.nodes[-1]].module for c in found}
        where = f"  # {', '.join(sorted(modules)[:4])}" if all(map(is_path, modules)) else ""
        return (
            f"@torch.compile\ndef add_norm(x, y, norm):{where}\n    x = x + y\n    return x, norm(x)\n\n"
            "x, h = add_norm(x, y, self.norm)  # instead of x = x + y; h = self.norm(x)"
        )

    def _candidate(self, facts: Facts, nodes: tuple[int, ...], last: Node, add: Node) -> Candidate:
        members = [facts.nodes[i] for i in sorted(nodes)]
        size = add.out.bytes if add.out is not None else 0
        said: list[Sentence] = [lambda mean: f"{mean.kernels}, {mean.time}: {chain(members)}."]
        said.append(f"The sum has {units.size_bytes(size)}; {name(last)} reads it.")
        if facts.bandwidth is None:
            said.append(f"{at_most(facts)} the measured times of its kernels, all but the longest.")
        return Candidate(
            tuple(n.index for n in members), facts.bound(tuple(n.index for n in members)), chain(members), last,
            evidence=tuple(said),
        )  # fmt: skip


class WrittenOutNorm(Rule):
    """Replace the norm written out by hand.

    ## What it does
    Finds a LayerNorm or RMSNorm made of single ops (square, mean, eps, rsqrt, mul), over the last dimension or another
    one (the channels of an image), and a GroupNorm followed by SiLU.

    ## Why it costs
    A norm needs its input once and writes it once. A GroupNorm and a SiLU of torch are a kernel each, and only a
    compiler fuses them. Written out it is five to ten kernels, each a pass over the tensor,
    often in float32 with a cast before and after.

    ## Example
    ```python
    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(x.dtype)
    ```

    ## Use instead
    ```python
    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
    ```
    On CUDA this is one kernel; on the CPU it is still several.

    ## When not to
    Where the written-out norm differs: an unbiased variance, eps outside the root, a weight of `1 + w`. The results are
    then not the same, though `torch.compile` still fuses them.
    """

    id = "FA105"
    trusted = True

    def look(self, facts: Facts) -> Looked:
        """Match written-out norms that no residual addition feeds."""
        notes = Notes()
        normed = [n for n in facts.of_kind("norm", "reduction") if is_forward(n)]
        if not normed:
            return Looked(skipped="nothing was normalised or reduced")
        elsewhere = False
        for written in written_norms(facts):
            if residual_add(facts, written.entry) is not None:
                elsewhere = True
            else:
                said = "LayerNorm" if written.centred else "RMSNorm"
                found = self._candidate(facts, written.nodes, written.last, f"{said} by hand")
                by_std = any(facts.nodes[i].op in _NO_FORMULA for i in written.nodes)
                notes.candidates.append(replace(found, remedies=("compile",)) if by_std else found)
        for node in normed:
            user = facts.dataflow.forward_user(node)
            if node.op == "native_group_norm" and user is not None and user.op == "silu" and user.lane == node.lane:
                found = self._candidate(facts, (node.index, user.index), user, "GroupNorm and SiLU")
                title = "Fuse the group norm with its activation"  # both are single ops: nothing is by hand
                notes.candidates.append(replace(found, title=title, remedies=("compile",)))
        if elsewhere and not notes.candidates:
            return Looked(skipped="every norm by hand follows a residual: FA104 has it")
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Use the library's norm."""
        members = [facts.nodes[i] for i in found[0].nodes]
        if found[0].pattern.startswith("GroupNorm"):
            return compile_snippet([members[-1].module])
        if any(node.op.startswith(("var", "std")) for node in members):  # may be unbiased, and eps outside the root
            return compile_snippet([members[-1].module])
        if not all(_over_last(node) for node in members if node.kind == "reduction"):  # core torch has no such op
            return compile_snippet([members[-1].module])
        if found[0].pattern.startswith("LayerNorm"):
            return "return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)"
        return "return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)"

    def _candidate(self, facts: Facts, nodes: tuple[int, ...], last: Node, what: str) -> Candidate:
        members = [facts.nodes[i] for i in nodes]
        said: list[Sentence] = [lambda mean: f"{what}: {mean.kernels}, {mean.time}: {chain(members)}."]
        if facts.bandwidth is None:
            said.append(f"{at_most(facts)} the measured times of its kernels, all but the longest.")
        usual = all(_over_last(n) for n in members if n.kind == "reduction")
        return Candidate(
            nodes, facts.bound(nodes), f"{what}: {chain(members)}", last, evidence=tuple(said),
            remedies=None if usual else ("compile",),
        )  # fmt: skip
