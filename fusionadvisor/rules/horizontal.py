"""Horizontal fusion: independent layers that read one input and could be one larger kernel."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from fusionadvisor import units
from fusionadvisor.analysis import cost
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.nodes import Node
from fusionadvisor.report.model import Range
from fusionadvisor.rules.base import Candidate, Looked, Mean, Notes, Rule
from fusionadvisor.rules.match import at_most, end_of, is_forward, is_path, left, weight

TILE_EFFICIENCY = 0.76
"""Share of the tensor-core peak that the best cuBLAS tile (128×256) reached on an H100."""


TILE = 128 * 128
"""Elements of the result a GEMM tile covers, one a multiprocessor at a time."""
APART = 16
"""Nodes between two GEMMs of one loop, or two layers on one input."""


def gemm_floor_us(facts: Facts, gemms: Sequence[Node], traffic: int) -> float:
    """Return the least time in which one kernel could do these GEMMs' arithmetic and move ``traffic`` bytes, in µs.

    Needs a GPU of the table: its bandwidth and its tensor-core peak.
    """
    if facts.bandwidth is None or facts.gpu is None:
        return 0.0
    single = any(n.reads[left(n)].dtype in ("", "float32", "float64") for n in gemms if len(n.reads) > left(n))
    names = facts.timeline.kernels["name"]
    if not single:
        rate = TILE_EFFICIENCY * facts.gpu.tensor_tflops
    elif any("tf32" in str(names.iloc[k]) for n in gemms for k in n.first):
        rate = TILE_EFFICIENCY * facts.gpu.tensor_tflops / 2
    else:
        rate = facts.gpu.fp32_tflops
    return cost.GEMM_START_US + max(
        cost.moved_us(traffic, facts.bandwidth, cost.BEST_FRACTION),
        sum(flops(n) for n in gemms) / (rate * 1e6),
    )


def flops(node: Node) -> float:
    """Floating-point operations of a GEMM or convolution; 0 where its shapes are not known."""
    if node.out is None or len(node.reads) <= left(node):
        return 0.0
    if node.kind == "conv":
        return 2.0 * node.out.numel * prod(node.reads[weight(node)].shape[1:]) if len(node.reads) > 1 else 0.0
    return 2.0 * node.reads[left(node)].shape[-1] * node.out.numel


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
        layers = [n for n in facts.of_kind(self.kind) if self._is_layer(facts, n)]
        if not layers:
            return Looked(skipped=self.absent)
        notes = Notes()
        families: dict[tuple[object, ...], list[Node]] = defaultdict(list)
        for layer in layers:
            families[self._family(facts, layer)].append(layer)
        for family in (part for same in families.values() for part in self._near(facts, same)):
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

    def _is_layer(self, facts: Facts, node: Node) -> bool:
        wrapped = node.op in ("addmm", "mm", "linear") and (facts.proven or node.outer == "linear")
        return wrapped and node.phase in ("", "forward") and len(node.inputs) > weight(node)

    def _width(self, node: Node) -> int:
        return node.out.shape[-1] if node.out is not None else 0

    def _family(self, facts: Facts, node: Node) -> tuple[object, ...]:
        source = node.inputs[left(node)]
        part = 0 if facts.proven else node.part
        return (node.step, source, node.reads[left(node)].shape, len(node.reads), part, node.lane)

    def _near(self, facts: Facts, family: list[Node]) -> Iterator[list[Node]]:
        """Where the flow is assumed, only neighbours can be taken to read the same tensor."""
        part: list[Node] = []
        for layer in family:
            if part and not facts.proven and layer.index - part[-1].index > APART:
                yield part
                part = []
            part.append(layer)
        yield part

    def _candidate(self, facts: Facts, family: list[Node]) -> Candidate:
        shared = family[0].reads[left(family[0])]
        saved = (len(family) - 1) * shared.bytes
        moved = sum(t.bytes for n in family for t in (*n.reads, *n.writes))
        us = sum(n.us for n in family)
        widths = " + ".join(str(self._width(n)) for n in family)
        said = [f"{len(family)} {self.what} ({widths} wide) read the same {units.size_bytes(shared.bytes)}."]
        if facts.bandwidth is None or facts.gpu is None:
            said.append(
                f"{at_most(facts)} that share of their measured time which the repeated read is of their traffic."
            )
        return Candidate(
            tuple(n.index for n in family), self._saving(facts, family, us, saved, moved),
            f"{len(family)} {self.what} on one input", family[0], evidence=tuple(said),
        )  # fmt: skip

    def _saving(self, facts: Facts, family: list[Node], us: float, saved: int, moved: int) -> Range:
        if facts.bandwidth is None or facts.gpu is None:
            return Range(0.0, None, us * saved / moved if moved else 0.0)
        return Range(0.0, None, max(0.0, us - gemm_floor_us(facts, family, moved - saved)))


class SiblingConvolutions(Siblings):
    """Merge the convolutions that read one input.

    ## What it does
    Finds convolutions of equal kernel size, stride, padding, dilation and groups that read the same tensor.

    ## Why it costs
    Each reads the input again and launches its own kernels. Side by side they are one convolution with the filters
    stacked. Where their results are only added, they are one convolution with the filters added.

    ## Example
    ```python
    y = self.a(x) + self.b(x) + self.c(x)
    ```

    ## Use instead
    ```python
    merged = nn.Conv2d(3, 64, 3, padding=1)
    with torch.no_grad():
        merged.weight.copy_(a.weight + b.weight + c.weight)  # torch.cat([...]) where the results are not added
        merged.bias.copy_(a.bias + b.bias + c.bias)
    ```

    ## When not to
    In training with different regularisation a branch, or where hooks sit on single branches.
    """

    id = "FA202"
    kind = "conv"
    what = "convolutions"
    absent = "no convolution ran"

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Stack or add the filters."""
        paths = [facts.nodes[i].module for i in found[0].nodes]
        if not all(map(is_path, paths)):
            return ""
        summed = found[0].pattern.endswith("summed")
        join = "sum({0})" if summed else "torch.cat({0})"
        return (
            f"convs = [model.get_submodule(path) for path in {paths!r}]\n"
            "merged = copy.deepcopy(convs[0])\n"
            f"merged.weight = torch.nn.Parameter({join.format('[c.weight for c in convs]')})\n"
            "if merged.bias is not None:\n"
            f"    merged.bias = torch.nn.Parameter({join.format('[c.bias for c in convs]')})\n"
            "merged.out_channels = merged.weight.shape[0]"
        )

    def _is_layer(self, facts: Facts, node: Node) -> bool:
        # without its strides and paddings, two convolutions cannot be told to be alike
        return is_forward(node) and len(node.reads) > 1 and "transpose" not in node.op and bool(node.arguments)

    def _width(self, node: Node) -> int:
        return node.reads[1].shape[0]

    def _family(self, facts: Facts, node: Node) -> tuple[object, ...]:
        return (*super()._family(facts, node), node.reads[1].shape[1:], *map(str, node.arguments.items()))

    def _candidate(self, facts: Facts, family: list[Node]) -> Candidate:
        found = super()._candidate(facts, family)
        if not self._summed(facts, family):
            return found
        evidence = (
            *found.evidence,
            "Their results are only added: one convolution with the filters added does it all.",
        )
        longest = max(n.us for n in family)
        saving = Range(0.0, None, sum(n.us for n in family) - longest)
        return replace(found, pattern=f"{found.pattern}, summed", evidence=evidence, saving=saving)

    def _summed(self, facts: Facts, family: list[Node]) -> bool:
        """True where every result only goes into one sum."""
        todo, sums = {end_of(facts.dataflow, n).index for n in family}, 0
        while len(todo) > 1:
            user = facts.dataflow.sole_user(facts.nodes[min(todo)])
            if user is None or user.op != "add" or not set(user.sources) <= todo:
                return False
            todo -= set(user.sources)
            todo.add(user.index)
            sums += 1
        return sums == len(family) - 1


class SmallGemms(Rule):
    """Batch the small GEMMs.

    ## What it does
    Finds four or more small GEMMs of the same shape, none of which needs another's result: experts, heads or branches
    computed in a loop.

    ## Why it costs
    A GEMM with fewer tiles than the GPU has multiprocessors leaves most of it idle, and pays a launch all the same.

    ## Example
    ```python
    outputs = [expert(x[i]) for i, expert in enumerate(self.experts)]
    ```

    ## Use instead
    ```python
    weights = torch.stack([e.weight for e in self.experts])
    outputs = torch.bmm(x, weights.transpose(1, 2))  # one kernel
    ```
    For parts of different lengths there is `torch._grouped_mm` on recent GPUs.

    ## When not to
    Where the GEMMs are large enough to fill the GPU one by one.
    """

    id = "FA203"

    def look(self, facts: Facts) -> Looked:
        """Match runs of equal, independent, small GEMMs."""
        gemms = [n for n in facts.of_kind("gemm") if n.reads and n.out is not None]
        if not gemms:
            return Looked(skipped="no GEMM with known shapes ran")
        runs: dict[tuple[object, ...], list[Node]] = defaultdict(list)
        for gemm in gemms:
            if gemm.out is not None and -(-gemm.out.numel // TILE) * 2 <= self._processors(facts):
                runs[(gemm.step, gemm.op, gemm.phase, *(t.shape for t in gemm.reads))].append(gemm)
        notes = Notes()
        for run in runs.values():
            for part in self._independent(facts, run):
                if len({n.inputs[left(n)] for n in part}) > 1:
                    notes.candidates.append(self._candidate(facts, part))
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Stack and multiply once."""
        return "outputs = torch.bmm(torch.stack(inputs), torch.stack(weights).transpose(1, 2))"

    def _processors(self, facts: Facts) -> int:
        known = [d.multiprocessors for d in facts.timeline.devices if d.multiprocessors]
        return max(known, default=132)

    def _independent(self, facts: Facts, run: list[Node]) -> Iterator[list[Node]]:
        """Cut a run wherever a member depends on an earlier one, or is far from it; keep parts of four or more."""
        part: list[Node] = []
        tainted: set[int] = set()
        for gemm in run:
            between = facts.nodes[part[-1].index + 1 : gemm.index + 1] if part else ()
            tainted.update(n.index for n in between if any(s in tainted for s in n.sources))
            if part and (gemm.index in tainted or len(between) > APART):
                if len(part) >= 4:
                    yield part
                part, tainted = [], set()
            part.append(gemm)
            tainted.add(gemm.index)
        if len(part) >= 4:
            yield part

    def _candidate(self, facts: Facts, part: list[Node]) -> Candidate:
        us, shapes = sum(n.us for n in part), " · ".join(str(list(t.shape)) for t in part[0].reads)

        def said(mean: Mean) -> str:
            each = units.time_us(mean.us / len(part))
            return f"{len(part)} GEMMs of {shapes}, {each} each, need nothing of each other."

        return Candidate(
            tuple(n.index for n in part), Range(0.0, None, us - max(n.us for n in part)),
            f"{len(part)} GEMMs of {shapes}", part[0],
            evidence=(said, f"{at_most(facts)} their measured times, all but the longest."),
        )  # fmt: skip
