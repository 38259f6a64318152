"""Horizontal fusion: independent layers that read one input and could be one larger kernel."""

from collections import defaultdict
from collections.abc import Sequence

from fusionadvisor import units
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.nodes import Node
from fusionadvisor.report.model import Range
from fusionadvisor.rules.base import Candidate, Looked, Notes, Rule
from fusionadvisor.rules.match import is_path, left, weight

TILE_EFFICIENCY = 0.76
"""Share of the tensor-core peak that the best cuBLAS tile (128×256) reached on an H100."""


class Siblings(Rule):
    """Merge the linear layers that read one input.

    ## What it does
    Finds linear layers that read the same tensor, one after the other: query, key and value, gate and up.

    ## Why it costs
    Each GEMM reads the input again, and each has its own tail in which the GPU runs empty. One GEMM with the weights
    stacked reads it once and fills the GPU better, the more so the smaller the layers are.

    ## Example
    ```python
    q, k, v = self.q(x), self.k(x), self.v(x)
    ```

    ## Use instead
    ```python
    qkv = torch.nn.Linear(width, 3 * width)
    with torch.no_grad():
        qkv.weight.copy_(torch.cat([self.q.weight, self.k.weight, self.v.weight]))
        qkv.bias.copy_(torch.cat([self.q.bias, self.k.bias, self.v.bias]))
    q, k, v = qkv(x).chunk(3, dim=-1)
    ```

    ## When not to
    Where the GEMMs fill the GPU already (the bound is then near zero), where adapters or hooks sit on single layers, or
    where a checkpoint has to keep its names and nobody splits the weights on saving.
    """

    id = "FA201"
    kind = "gemm"
    what = "linear layers"
    absent = "no linear layer ran"

    def look(self, facts: Facts) -> Looked:
        """Match layers of one kind on one input."""
        layers = [n for n in facts.of_kind(self.kind) if self._is_layer(n)]
        if not layers:
            return Looked(skipped=self.absent)
        notes = Notes()
        families: dict[tuple[object, ...], list[Node]] = defaultdict(list)
        for layer in layers:
            families[self._family(facts, layer)].append(layer)
        for family in families.values():
            distinct = {n.inputs[weight(n)]: n for n in family} if facts.proven else {n.index: n for n in family}
            if len(distinct) > 1 and len(distinct) == len(family):
                notes.candidates.append(self._candidate(facts, family))
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Stack the weights."""
        paths = [facts.nodes[i].module for i in found[0].nodes]
        if not all(map(is_path, paths)):
            return ""
        return (
            f"layers = [model.get_submodule(path) for path in {paths!r}]\n"
            "merged = torch.nn.Linear(layers[0].in_features, sum(m.out_features for m in layers),\n"
            "                         bias=layers[0].bias is not None).to(layers[0].weight)\n"
            "with torch.no_grad():\n"
            "    merged.weight.copy_(torch.cat([m.weight for m in layers]))\n"
            "    if merged.bias is not None:\n"
            "        merged.bias.copy_(torch.cat([m.bias for m in layers]))\n"
            "# in forward: a, b, ... = merged(x).split([m.out_features for m in layers], dim=-1)"
        )

    def _is_layer(self, node: Node) -> bool:
        wrapped = node.op in ("addmm", "mm", "linear") and node.outer in ("linear", "addmm", "mm")
        return wrapped and node.phase in ("", "forward") and len(node.inputs) > weight(node)

    def _family(self, facts: Facts, node: Node) -> tuple[object, ...]:
        source = node.inputs[left(node)]
        # an unknown source: only neighbours can be taken to read the same tensor
        near = node.index // 16 if source < 0 and not facts.proven else 0
        return (node.step, source, node.reads[left(node)].shape, len(node.reads), near, node.lane)

    def _candidate(self, facts: Facts, family: list[Node]) -> Candidate:
        shared = family[0].reads[left(family[0])]
        saved = (len(family) - 1) * shared.bytes
        moved = sum(t.bytes for n in family for t in (*n.reads, *n.writes))
        us = sum(n.us for n in family)
        widths = " + ".join(str(n.out.shape[self._axis(n)]) for n in family if n.out is not None)
        said = [f"{len(family)} {self.what} ({widths} wide) read the same {units.size_bytes(shared.bytes)}."]
        if facts.bandwidth is None or facts.gpu is None:
            said.append("Bound: the share of their traffic that is the repeated read, of their measured time.")
        return Candidate(
            tuple(n.index for n in family), self._saving(facts, family, us, saved, moved),
            f"{len(family)} {self.what} on one input", family[0], evidence=tuple(said),
        )  # fmt: skip

    def _axis(self, node: Node) -> int:
        return -1

    def _saving(self, facts: Facts, family: list[Node], us: float, saved: int, moved: int) -> Range:
        if facts.bandwidth is None or facts.gpu is None:
            return Range(0.0, None, us * saved / moved if moved else 0.0)
        flops = sum(self._flops(n) for n in family)
        floor = max(
            2.0,
            (moved - saved) / (0.9 * facts.bandwidth * 1e3),
            flops / (TILE_EFFICIENCY * facts.gpu.tensor_tflops * 1e6),
        )
        return Range(0.0, None, max(0.0, us - floor))

    def _flops(self, node: Node) -> float:
        source, out = node.reads[left(node)], node.out
        return 2.0 * source.shape[-1] * out.numel if out is not None else 0.0
