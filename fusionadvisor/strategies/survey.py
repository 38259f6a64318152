"""What the editing strategies look at: a model with its recordings, what its modules share, and its code."""

from dataclasses import dataclass
from typing import Self

from torch import nn

from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.strategies import source
from fusionadvisor.strategies.base import Subject
from fusionadvisor.strategies.modules import Sharing


@dataclass(frozen=True)
class Survey:
    """Subclasses say what they find in it."""

    model: nn.Module
    graphs: tuple[FlowGraph, ...]
    sharing: Sharing
    code: source.Code

    @classmethod
    def of(cls, subject: Subject) -> Self:
        """Read the code of a subject's model, and who shares what in it."""
        return cls(subject.model, subject.graphs, Sharing(subject.model), source.read(subject.model))
