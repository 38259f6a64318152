"""Attention written out, and rotary position embeddings."""

from collections import defaultdict
from collections.abc import Sequence

from fusionadvisor import units
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.nodes import Node
from fusionadvisor.report.model import Range
from fusionadvisor.rules.base import Candidate, Looked, Notes, Rule, Sentence, hook, name
from fusionadvisor.rules.horizontal import gemm_floor_us
from fusionadvisor.rules.match import at_most, chain, common, compile_snippet, is_forward

_SCORES = frozenset({"bmm", "baddbmm", "matmul"})
_BETWEEN = frozenset({"pointwise", "cast", "layout", "copy", "rng", "fill"})


class WrittenOutAttention(Rule):
    """Use scaled dot-product attention.

    ## What it does
    Finds a batched GEMM whose result goes through scale, mask and softmax straight into a second batched GEMM.

    ## Why it costs
    The scores have a row and a column for every pair of tokens. Written out, they are written and read again by each of
    these kernels. A fused attention kernel keeps a tile of them on chip and never writes them.

    ## Example
    ```python
    weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(d) + mask, dim=-1)
    y = weights @ v
    ```

    ## Use instead
    ```python
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    ```
    A boolean mask is True where attention is allowed; an additive one is added. `is_causal=True` aligns top left.

    ## When not to
    Where the attention weights themselves are returned or changed. With float32 inputs or an arbitrary mask the fused
    kernel may be a slower one; rows that are masked entirely give other values.
    """

    id = "FA107"
    trusted = True

    def look(self, facts: Facts) -> Looked:
        """Match GEMM → … → softmax → … → GEMM."""
        softmaxes = [n for n in facts.of_kind("softmax") if is_forward(n) and "log" not in n.op]
        if not softmaxes:
            fused = facts.of_kind("attention")
            return Looked() if fused else Looked(skipped="no attention or softmax ran")
        notes = Notes()
        for softmax in softmaxes:
            before = self._before(facts, softmax)
            after = self._after(facts, softmax)
            if before is None or after is None:
                continue
            inside = [*before, softmax, *after]
            if reason := self._obstacle(facts, inside[1:-1]):
                notes.miss(self, softmax, reason)
                continue
            notes.candidates.append(self._candidate(facts, inside))
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Call the library's attention."""
        members = [facts.nodes[i] for i in found[0].nodes]
        masked = any(n.op in ("add", "where", "masked_fill") for n in members)
        where = common(members)
        said = f"  # in {where}" if where else ""
        return f"y = F.scaled_dot_product_attention(q, k, v{', attn_mask=mask' if masked else ''}){said}"

    def _before(self, facts: Facts, softmax: Node) -> list[Node] | None:
        """The score GEMM and what is between it and the softmax, in order; None where there is no such GEMM."""
        found: list[Node] = []
        at = facts.dataflow.producer(softmax, 0)
        while at is not None and len(found) < 8:
            found.append(at)
            if at.op in _SCORES:
                return found[::-1]
            if at.kind not in _BETWEEN or at.out is None:
                return None
            sources = [facts.dataflow.producer(at, i) for i, t in enumerate(at.reads) if t.numel == at.out.numel]
            at = next((s for s in sources if s is not None and (s.op in _SCORES or s.kind in _BETWEEN)), None)
        return None

    def _after(self, facts: Facts, softmax: Node) -> list[Node] | None:
        """What is between the softmax and the value GEMM, and that GEMM; None where there is none."""
        found: list[Node] = []
        at: Node = softmax
        while len(found) < 8:
            users = facts.dataflow.consumers(at)
            following = next((u for u in users if u.op in _SCORES), None) or next(
                (u for u in users if u.kind in _BETWEEN and u.out is not None and at.out is not None), None
            )
            if following is None:
                return None
            found.append(following)
            if following.op in _SCORES:
                return found
            at = following
        return None

    def _obstacle(self, facts: Facts, inside: list[Node]) -> str:
        where = name(inside[0])
        if any(n.outer == "scaled_dot_product_attention" for n in inside):
            return f"scaled_dot_product_attention in {where} fell back to its math backend, which writes the scores out"
        if said := hook(facts, *inside):
            return f"attention in {where} is not fused: {said}"
        for node in inside:
            if node.escapes:
                return f"attention in {where} is not fused: its weights are returned or kept ({name(node)})"
        return ""

    def _candidate(self, facts: Facts, inside: list[Node]) -> Candidate:
        nodes = tuple(sorted({n.index for n in inside}))
        between = [n for n in inside if n.op not in _SCORES]
        scores = inside[0].out
        what = chain(facts.nodes[i] for i in nodes)
        said: list[Sentence] = [lambda mean: f"{mean.kernels}, {mean.time}: {what}."]
        if scores is not None:
            often = "once" if len(between) == 1 else f"{len(between)} times"
            said.append(f"The scores have {units.size_bytes(scores.bytes)} and pass through memory {often}.")
        us = sum(n.us for n in inside)
        if facts.bandwidth is None or facts.gpu is None:
            said.append(f"{at_most(facts)} the measured time of what is between the two GEMMs.")
            saving = Range(0.0, None, sum(n.us for n in between))
        else:
            floor = gemm_floor_us(facts, [n for n in inside if n.op in _SCORES], self._traffic(inside))
            saving = Range(0.0, None, max(0.0, us - floor))
        return Candidate(
            nodes, saving, what, inside[0], evidence=tuple(said),
        )  # fmt: skip

    def _traffic(self, inside: list[Node]) -> int:
        first, last = inside[0], inside[-1]
        return sum(t.bytes for t in (*first.reads, *last.reads[1:], *last.writes))


class RotaryEmbedding(Rule):
    """Fuse the rotary embedding.

    ## What it does
    Finds the multiplications with cosine and sine, the rotation of halves (slice, negate, concatenate) and the addition
    that make a rotary position embedding, for query and key together, with the layout copies that follow.

    ## Why it costs
    Five kernels for the query and five for the key, each a pass over it. One kernel reads both once and writes both.

    ## Example
    ```python
    def rotate_half(x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)


    q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
    ```

    ## Use instead
    ```python
    apply_rotary = torch.compile(apply_rotary)  # one or two kernels for both
    ```
    Core torch has no op for it; attention libraries have (`flash_attn.layers.rotary`).

    ## When not to
    In decoding with one token a step the kernels are tiny: a graph of the whole step saves more.
    """

    id = "FA108"
    trusted = True

    def look(self, facts: Facts) -> Looked:
        """Match both forms, then put query and key together."""
        anchors = [
            (cat, found)
            for cat in facts.of_kind("cat")
            if is_forward(cat) and len(cat.reads) == 2 and (found := self._rotated(facts, cat))
        ]
        if not anchors:
            return Looked() if facts.of_kind("cat") else Looked(skipped="nothing was concatenated")
        return Looked(tuple(self._candidate(facts, nodes) for nodes in self._together(facts, anchors)))

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Compile what rotates."""
        return compile_snippet(common(facts.nodes[i] for i in c.nodes) for c in found)

    def _rotated(self, facts: Facts, cat: Node) -> set[int] | None:
        """The nodes of one rotation around its concatenation, None where it is none."""
        flow = facts.dataflow
        parts = [flow.producer(cat, i) for i in range(2)]
        if any(p is not None and p.op == "neg" for p in parts):
            mul = flow.sole_user(cat)
            add = flow.sole_user(mul) if mul is not None and mul.op == "mul" else None
            if mul is None or add is None or add.op != "add" or not mul.reads or add.out is None:
                return None
            other = [
                s for i in range(len(add.reads)) if (s := flow.producer(add, i)) and s.op == "mul" and s is not mul
            ]
            negs = [p for p in parts if p is not None and p.op == "neg"]
            return {n.index for n in (cat, mul, add, *other, *negs)} if other else None
        if all(p is not None and p.op in ("sub", "add") for p in parts) and {p.op for p in parts if p} == {
            "sub",
            "add",
        }:
            nodes = {cat.index}
            for part in parts:
                if part is None:
                    return None
                muls = [s for i in range(len(part.reads)) if (s := flow.producer(part, i)) and s.op == "mul"]
                if not muls:
                    return None
                nodes |= {part.index, *(m.index for m in muls)}
            return nodes
        return None

    def _together(self, facts: Facts, anchors: list[tuple[Node, set[int]]]) -> list[set[int]]:
        """Join rotations of one module and step that are near each other, and the copies after them."""
        joined: dict[tuple[int, str, int], set[int]] = {}
        latest: dict[tuple[int, str], tuple[int, int]] = defaultdict(lambda: (-1, 0))
        for cat, nodes in anchors:
            place = (cat.step, cat.module)
            last, number = latest[place]
            if last >= 0 and min(nodes) - last > 24:
                number += 1
            latest[place] = (max(nodes), number)
            joined.setdefault((*place, number), set()).update(nodes)
        for nodes in joined.values():
            for index in list(nodes):
                user = facts.dataflow.sole_user(facts.nodes[index])
                while user is not None and user.kind in ("copy", "layout", "cast") and user.index not in nodes:
                    nodes.add(user.index)
                    user = facts.dataflow.sole_user(user)
        return list(joined.values())

    def _candidate(self, facts: Facts, nodes: set[int]) -> Candidate:
        members = [facts.nodes[i] for i in sorted(nodes)]
        said: list[Sentence] = [lambda mean: f"{mean.kernels}, {mean.time}: {chain(members)}."]
        if facts.bandwidth is None:
            said.append(f"{at_most(facts)} the measured times of its kernels, all but the longest.")
        rotations = sum(n.kind == "cat" for n in members)
        return Candidate(
            tuple(sorted(nodes)), facts.bound(tuple(sorted(nodes))),
            f"rotary embedding of {units.plural(rotations, 'tensor')}", members[-1], evidence=tuple(said),
        )  # fmt: skip
