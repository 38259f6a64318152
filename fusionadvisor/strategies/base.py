"""What a strategy is: it plans on recordings, then rewrites a copy. It never changes the model it was given."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import nn
from torch.optim import Optimizer

from fusionadvisor.errors import InputError, did_you_mean
from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.report.model import Mode, Refusal
from fusionadvisor.workload.inputs import Call as Call


@dataclass(frozen=True)
class Subject:
    """A model with what is known of how it runs.

    Args:
        model: The module; read, never written.
        graphs: Recordings of it on different inputs (three or more) and, where its inputs allow, two batch sizes.
        calls: The inputs of those recordings, in the same order.
        mode: inference (under no_grad, in eval mode unless the user's model says otherwise) or training.
        device: Where it runs, ``cpu`` or ``cuda``; what a rewrite brings depends on it.
        run: Runs another model in this one's place on one of the calls: in training a call is a batch, which only the
            training step knows how to use. None where nothing is known but how to call the model.
        optimizer: What trains the model, where the recorded steps used one.
    """

    model: nn.Module
    graphs: tuple[FlowGraph, ...]
    calls: tuple[Call, ...]
    mode: Mode = "inference"
    device: str = "cpu"
    run: Callable[[nn.Module, Call], object] | None = None
    optimizer: Optimizer | None = None


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
    """Sites found legal, and those refused, each in words. ``blocker`` refuses the strategy as a whole.

    ``notes`` say what is legal and would still bring nothing here, and why. ``graph_breaks`` counts the places where a
    compiler gives up on one graph, None where nothing is compiled.
    """

    sites: tuple[Site, ...] = ()
    refused: tuple[Refusal, ...] = ()
    blocker: str = ""
    notes: tuple[str, ...] = ()
    graph_breaks: int | None = None


class Strategy(ABC):
    """One way to fuse. Subclass docstrings are the user's page.

    A strategy with parameters is a frozen dataclass whose fields are bool, int, float or str, each with a default.
    """

    id: ClassVar[str]
    needs_cuda: ClassVar[bool] = False
    """True where the effect exists only on a CUDA device; planning still works without one."""
    order: ClassVar[int] = 50
    """Place in a composition: what edits modules comes before what compiles, what wraps the model comes last."""
    changes_ops: ClassVar[bool] = True
    """False where the same ops run, faster: then only a measurement tells whether it had an effect."""
    terminal: ClassVar[bool] = False
    """True where the result is no longer made of the user's modules, so that no editing strategy can follow."""

    slow: ClassVar[bool] = False
    """True where preparing takes far longer than a call: a search tries it last."""

    runs: ClassVar[tuple[str, ...]] = ()
    """Parameters that name a file of the user's and a function in it, ``FILE.py:NAME``. A recipe holds a copy of it."""

    def places(self, model: nn.Module) -> tuple[str, ...]:
        """Modules it may change, told at once, where planning takes long; empty for the whole model."""
        return ()

    @abstractmethod
    def plan(self, subject: Subject) -> Plan:
        """Check every site against the recordings; refuse in a sentence naming the module and the reason."""

    @abstractmethod
    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Return ``model``, a copy this strategy owns, with the plan's sites rewritten; it may be a wrapper.

        In production a recipe calls this with ``subject.graphs`` empty: what it needs is in the sites' ``data``.
        """

    def first_call(self, run: Callable[[], object]) -> tuple[str, ...]:
        """Have the rewritten model called for the first time, and return what there is to say about that, as notes."""
        run()
        return ()

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """Return why the plan no longer fits ``model``, loaded elsewhere; empty where it does. Needs no recording."""
        return ""

    @classmethod
    def configure(cls, parameters: Mapping[str, str]) -> Self:
        """Build the strategy from parameters as typed, ``{"clone_outputs": "false"}``.

        Raises:
            InputError: If a parameter is not known or its value does not fit.
        """
        known = {name: type(default) for name, default in _defaults(cls).items()}
        for name in parameters:
            if name not in known:
                hint = did_you_mean(name, tuple(known)) if known else "It takes no parameters."
                raise InputError(f"Strategy {cls.id} has no parameter '{name}'.", hint)
        return cls(**{name: _parse(cls.id, name, known[name], text) for name, text in parameters.items()})

    def parameters(self) -> dict[str, str]:
        """Return the parameters that differ from their defaults, as :meth:`configure` reads them."""
        return {
            name: str(getattr(self, name))
            for name, default in _defaults(type(self)).items()
            if getattr(self, name) != default
        }


def _defaults(kind: Any) -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}


def _parse(strategy: str, name: str, kind: Any, text: str) -> Any:
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() in words:
            return words[text.lower()]
    else:
        try:
            return kind(text)
        except ValueError:
            pass
    raise InputError(f"Strategy {strategy}: {name} is no {kind.__name__}: '{text}'.")
