"""What a training step does a parameter at a time."""

from collections import defaultdict
from collections.abc import Sequence

from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.nodes import Node
from fusionadvisor.report.model import Range
from fusionadvisor.rules.base import Candidate, Looked, Notes, Rule, Sentence

FEWEST = 16
"""Kernels in a row of one small job a parameter: fewer are a small model, not a loop."""
_FOREACH = ("_foreach_", "_fused_", "_amp_foreach")
_NORMS = frozenset({"linalg_vector_norm", "norm"})


class ForLoopOptimizer(Rule):
    """Update all parameters in one kernel.

    ## What it does
    Finds an optimizer step, a `zero_grad` or a gradient clipping that runs a kernel or more for every parameter.

    ## Why it costs
    A ResNet-50 has 161 parameters; SGD with momentum in a loop is 484 kernels of a few µs. They are launch-bound, and
    each reads and writes what the next reads again.

    ## Example
    ```python
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    optimizer.zero_grad(set_to_none=False)
    ```

    ## Use instead
    ```python
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    optimizer.zero_grad(set_to_none=True)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    ```
    `foreach` is the default on CUDA since torch 2.0; `fused` does the whole update in one pass.

    ## When not to
    `foreach` holds temporaries of the size of all parameters; where memory is short, use `fused`.
    """

    id = "FA204"

    def look(self, facts: Facts) -> Looked:
        """Match long runs of small kernels that an optimizer or a clipping launched."""
        if not facts.training:
            return Looked(skipped="no backward pass or optimizer ran")
        notes = Notes()
        jobs: dict[tuple[int, str], list[Node]] = defaultdict(list)
        for node in facts.nodes:
            if not node.graphed and (job := self._job(node)):
                jobs[node.step, job].append(node)
        stretch_of = {k: len(s.kernels) for s in facts.stretches for k in s.kernels}
        for (_, job), nodes in jobs.items():
            run = max(stretch_of.get(k, 1) for n in nodes for k in n.kernels)
            if len(nodes) >= FEWEST and run >= FEWEST:
                notes.candidates.append(self._candidate(facts, job, nodes, run))
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Name the options."""
        if found[0].pattern == "zero_grad":
            return "optimizer.zero_grad(set_to_none=True)"
        if found[0].pattern == "gradient norms":
            return "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, foreach=True)"
        return (
            "optimizer = type(optimizer)(model.parameters(), **optimizer.defaults | {'foreach': False, 'fused': True})"
        )

    def _job(self, node: Node) -> str:
        if node.op.startswith(_FOREACH) or node.kind in ("fused", "collective", "other", "gemm", "conv"):
            return ""
        if node.kind == "fill" and (node.phase == "optimizer" or "zero" in (node.op, node.outer)):
            return "zero_grad"
        if node.phase == "optimizer" and node.kind in ("pointwise", "copy", "cast"):
            return "optimizer"
        return "gradient norms" if node.op in _NORMS and node.out is not None and node.out.numel == 1 else ""

    def _candidate(self, facts: Facts, job: str, nodes: list[Node], run: int) -> Candidate:
        indices = tuple(n.index for n in nodes)
        said: tuple[Sentence, ...] = (
            lambda mean: f"{mean.kernels} of {mean.each} on average.",
            f"The longest run of consecutive fusible kernels here is {run}.",
        )
        saving = facts.bound(indices)
        return Candidate(indices, Range(0.0, saving.likely, saving.high), job, nodes[0], evidence=said)
