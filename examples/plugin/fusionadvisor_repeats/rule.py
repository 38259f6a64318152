"""The rule: runs in ``profile`` and ``analyze``, on whatever is known of the kernels and what feeds what."""

from fusionadvisor.analysis.facts import Facts
from fusionadvisor.rules.base import Candidate, Looked, Notes, Rule, hook, name

IDEMPOTENT = frozenset({"relu", "relu6", "abs"})
"""Ops that change nothing the second time, named as nodes name them: no ``aten::``, no trailing underscore."""


class RepeatedActivation(Rule):
    """Drop the activation that is applied twice.

    ## What it does
    Finds an activation whose input is the result of the same activation.

    ## Why it costs
    The second one reads and writes the whole tensor and changes no element of it.

    ## Example
    ```python
    y = self.act(self.block(x))  # and the block ends with a ReLU
    ```

    ## Use instead
    ```python
    y = self.block(x)
    ```

    ## When not to
    Where a hook on the second activation reads what passes through it.
    """

    id = "RR101"
    remedies = ("drop_repeats",)
    passed = "no repeated activations"
    trusted = False

    def look(self, facts: Facts) -> Looked:
        """Match an activation with the one that feeds it."""
        acts = [node for node in facts.of_kind("pointwise") if node.op in IDEMPOTENT]
        if not acts:
            return Looked(skipped="no activation ran")
        notes = Notes()
        for act in acts:
            before = facts.dataflow.producer(act, 0)
            if before is None or before.op != act.op:
                continue
            if said := hook(facts, before, act):
                notes.miss(self, act, f"{name(act)} is not dropped: {said}")
                continue
            notes.candidates.append(
                Candidate(
                    nodes=(act.index,),
                    beside=(before.index,),
                    anchor=act,
                    saving=facts.gone(act.us),
                    pattern=f"{act.op} → {act.op}",
                    evidence=(f"{name(act)} is given the result of {name(before)}, the same {act.op}.",),
                )
            )
        return notes.looked()
