"""Whether a graph could be captured, found out without capturing one: on any machine, with or without CUDA."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fusionadvisor.report.model import Refusal
from fusionadvisor.strategies.base import Call, Subject
from fusionadvisor.strategies.graphs.captured import CONSTANTS
from fusionadvisor.strategies.graphs.obstacle import Obstacle
from fusionadvisor.strategies.graphs.recordings import calls_pending, obstacles, unknown_ops, written_inputs
from fusionadvisor.strategies.graphs.rehearsal import HOST_READS, Rehearsal, rehearse
from fusionadvisor.strategies.graphs.state import contents_kept
from fusionadvisor.strategies.graphs.where import short
from fusionadvisor.strategies.modules import hook
from fusionadvisor.strategies.source import Code, read
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.inputs import forward_names

_REGISTER = "Register it with torch.utils._pytree"
_WORTH = 0.25
"""Least share of the ops a part must have to be proposed instead of the whole."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What speaks against capturing one site, and what could not be looked into."""

    site: str
    obstacles: tuple[Obstacle, ...] = ()
    notes: tuple[str, ...] = ()
    instead: str = ""
    """A part of the model that could be captured where the whole cannot."""

    @property
    def clear(self) -> bool:
        """Nothing was found against it."""
        return not self.obstacles

    def refusals(self, name: str) -> tuple[Refusal, ...]:
        """The obstacles in words, the first with the way out if there is one."""
        found = [Refusal(name, o.sentence(), o.source) for o in self.obstacles]
        if found and self.instead:
            sentence = f"{found[0].reason.rstrip('.')}, or graph {self.instead} only: --site {self.instead}."
            found[0] = Refusal(name, sentence, found[0].source)
        return tuple(found)


class Preflight:
    """Looks at a subject once; :meth:`verdict` answers for the whole model or a part of it."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        training = subject.mode == "training"
        call = arguments_of(subject)
        code = read(subject.model)
        found = list(_structural(subject.model, training))
        recorded = list(obstacles(subject.graphs))
        rehearsal = Rehearsal([])
        if call is not None:
            found += _given(subject.model, call)
            if not any("writes the parameter" in o.why for o in recorded):  # a rehearsal would, too
                rehearsal = rehearse(subject.model, call, code, grad=training)
        found += rehearsal.found
        found += [o for o in recorded if o.source is None or o.source not in rehearsal.excused]
        self._found = _once(found)
        self._unseen = _unseen(code, self._found)
        self._returned = [leaf for leaf in tree_leaves(rehearsal.result) if not isinstance(leaf, (Tensor, *CONSTANTS))]

    def verdict(self, site: str = "") -> Verdict:
        """Judge the module at this path; empty for the model."""
        own = self._own(site)
        notes = [
            f"{name} is not torch's own: whether it waits for the GPU is not known here."
            for graph in self.subject.graphs[:1]
            for name in unknown_ops(graph)
        ]
        notes += self._unseen
        return Verdict(site, tuple(own), tuple(notes), self._instead() if own and not site else "")

    def _own(self, site: str) -> list[Obstacle]:
        found = [o for o in self._found if o.within(site)]
        for graph in self.subject.graphs:
            found += written_inputs(graph, site)
            if site and not graph.calls_of(site):
                found.append(Obstacle(site, "was not called in the recordings"))
            if self.subject.mode == "training" and (times := calls_pending(graph, site)) > 1:
                found.append(Obstacle(site, f"is called {times} times before a backward; a graph keeps one call"))
        if not site and self._returned:
            kind = type(self._returned[0]).__name__
            found.append(Obstacle("", f"returns a {kind}, whose tensors cannot be found", _REGISTER))
        return _once(found)

    def _instead(self) -> str:
        """The largest part without an obstacle, up to two levels down."""
        if not self.subject.graphs:
            return ""
        graph = self.subject.graphs[0]
        work = [op for op in graph.work() if op.phase == "forward"]
        paths = [p for p, _ in self.subject.model.named_modules() if p and p.count(".") < 2]
        size = {p: sum(1 for op in work if op.module == p or op.module.startswith(f"{p}.")) for p in paths}
        for path in sorted(paths, key=lambda p: -size[p]):
            if size[path] < _WORTH * len(work):
                return ""
            if all(not self._own(part) for part in parts(self.subject.model, path)):
                return str(path)
        return ""


def parts(model: nn.Module, site: str) -> list[str]:
    """The modules to capture for a site: itself, or each of a container that is never called itself."""
    module = model.get_submodule(site)
    if not isinstance(module, nn.ModuleList | nn.ModuleDict):
        return [site]
    return [part for name in module._modules for part in parts(model, f"{site}.{name}" if site else name)]


def _unseen(code: Code, found: list[Obstacle]) -> list[str]:
    """Reads by the CPU that are in the source and were not seen running."""
    seen = {(o.source.file, o.source.line) for o in found if o.source}
    notes = []
    for function in code.functions:
        file = function.namespace.get("__file__") or ""
        for node in ast.walk(function.node):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in HOST_READS:
                lines = {(file, line) for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
                if not lines & seen:
                    where = f"{short(file)}:{node.lineno}"
                    notes.append(
                        f"{where} has .{node.func.attr}() in the source, not seen running: no graph of that path."
                    )
    return notes


def _once(found: list[Obstacle]) -> list[Obstacle]:
    """Each line once: the first that was found there says it."""
    kept: dict[object, Obstacle] = {}
    for obstacle in found:
        kept.setdefault(obstacle.source or (obstacle.module, obstacle.why), obstacle)
    return list(kept.values())


def arguments_of(subject: Subject) -> Call | None:
    """What the model itself is called with first; in training only a step, done by a copy, can tell."""
    if not subject.calls or (subject.mode == "training" and subject.run is None):
        return None
    if subject.run is None or subject.mode == "inference":
        return subject.calls[0]
    twin = duplicate(subject.model)
    seen: list[Call] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(Call(args, kwargs).map(_kept))

    twin.register_forward_pre_hook(note, with_kwargs=True)
    with contents_kept(twin):
        subject.run(twin, subject.calls[0].map(_kept))
    return seen[0] if seen else None


def _kept(_: str, tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _structural(model: nn.Module, training: bool) -> Iterator[Obstacle]:
    """What can be read off the modules."""
    devices = {t.device for t in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        yield Obstacle("", f"has tensors on several devices ({', '.join(sorted(map(str, devices)))})")
    for path, module in model.named_modules():
        if "forward" in vars(module):
            yield Obstacle(path, "has a forward of its own set on the instance; a graph would not run it again")
        if found := hook(module, ""):
            yield Obstacle(path, f"{found.strip()}; a graph would skip it")
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
                yield Obstacle(path, f"holds {name}, a {type(tensor).__name__}")
        if training:
            yield from _training_conditions(path, module)


def _training_conditions(path: str, module: nn.Module) -> Iterator[Obstacle]:
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.requires_grad:
            yield Obstacle(path, f"has a buffer that requires grad ({name})", "Make it a parameter")
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
        yield Obstacle(path, "makes sparse gradients, whose size depends on the data", "Use sparse=False")


def _given(model: nn.Module, call: Call) -> Iterator[Obstacle]:
    """Inputs that cannot be copied into static ones."""
    devices = {t.device for t in model.parameters()}
    own = ", ".join(sorted(map(str, devices)))
    for name, tensor in call.tensors(forward_names(model)):
        if devices and tensor.device not in devices:
            yield Obstacle("", f"takes {name} on {tensor.device} while its parameters are on {own}")
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided:
            yield Obstacle("", f"takes {name}, a {type(tensor).__name__} of layout {tensor.layout}")
    for leaf in tree_leaves((call.args, dict(call.kwargs))):
        if not isinstance(leaf, (Tensor, *CONSTANTS)):
            yield Obstacle("", f"takes a {type(leaf).__name__}, which may hold anything")
