"""What a strategy is: it plans on recordings, then rewrites a copy. It never changes the model it was given."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.report.model import Mode, Refusal


@dataclass(frozen=True)
class Call:
    """The arguments of one call of the model."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A model with what is known of how it runs.

    Args:
        model: The module; read, never written.
        graphs: Recordings of it on different inputs (three or more) and, where its inputs allow, two batch sizes.
        calls: The inputs of those recordings, in the same order.
        mode: inference (under no_grad, in eval mode unless the user's model says otherwise) or training.
    """

    model: nn.Module
    graphs: tuple[FlowGraph, ...]
    calls: tuple[Call, ...]
    mode: Mode = "inference"


@dataclass(frozen=True)
class Site:
    """One place a strategy will change: ``name`` for people, ``members`` the module paths it involves."""

    name: str
    members: tuple[str, ...] = ()
    detail: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the rewrite needs to know, as JSON values: it is written into recipes."""


@dataclass(frozen=True)
class Plan:
    """Sites found legal, and those refused, each in words. ``blocker`` refuses the strategy as a whole."""

    sites: tuple[Site, ...] = ()
    refused: tuple[Refusal, ...] = ()
    blocker: str = ""
    notes: tuple[str, ...] = ()


class Strategy(ABC):
    """One way to fuse. Subclass docstrings are the user's page; state is the strategy's parameters alone."""

    id: ClassVar[str]
    needs_cuda: ClassVar[bool] = False
    """True where the effect exists only on a CUDA device; planning still works without one."""

    @abstractmethod
    def plan(self, subject: Subject) -> Plan:
        """Check every site against the recordings; refuse in a sentence naming the module and the reason."""

    @abstractmethod
    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Return ``model``, a copy this strategy owns, with the plan's sites rewritten; it may be a wrapper."""
