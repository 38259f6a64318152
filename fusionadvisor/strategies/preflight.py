"""Whether a graph could be captured, found out without capturing one: on any machine, with or without CUDA."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fusionadvisor.report.model import Refusal
from fusionadvisor.strategies.base import Subject
from fusionadvisor.strategies.graphs.obstacle import Obstacle
from fusionadvisor.strategies.graphs.recordings import obstacles, unknown_ops, written_inputs
from fusionadvisor.strategies.graphs.rehearsal import rehearse
from fusionadvisor.strategies.graphs.replay import CONSTANTS

_HOOKS = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}
_WRAPPERS = {
    "DataParallel": "is wrapped in DataParallel",
    "DistributedDataParallel": "is wrapped in DistributedDataParallel",
    "FullyShardedDataParallel": "is sharded by FSDP",
    "OptimizedModule": "is compiled already",
}
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
        found = list(_structural(subject.model, subject.mode == "training"))
        found += _given(subject)
        result = None
        if subject.calls:
            rehearsed, result = rehearse(subject.model, subject.calls[0], grad=subject.mode == "training")
            found += rehearsed
        found += obstacles(subject.graphs)
        self._found = _once(found)
        self._returned = [leaf for leaf in tree_leaves(result) if not isinstance(leaf, (Tensor, *CONSTANTS))]

    def verdict(self, site: str = "") -> Verdict:
        """Judge the module at this path; empty for the model."""
        own = self._own(site)
        notes = [
            f"{name} is not torch's own: whether it waits for the GPU is not known here."
            for graph in self.subject.graphs[:1]
            for name in unknown_ops(graph, site)
        ]
        return Verdict(site, tuple(own), tuple(notes), self._instead() if own and not site else "")

    def _own(self, site: str) -> list[Obstacle]:
        found = [o for o in self._found if o.within(site)]
        for graph in self.subject.graphs:
            found += written_inputs(graph, site)
            calls = graph.calls_of(site) if site else ()
            if site and not calls:
                found.append(Obstacle(site, "was not called in the recordings"))
            if len(calls) > 1 and self.subject.mode == "training":
                found.append(
                    Obstacle(
                        site,
                        f"is called {len(calls)} times before a backward, which needs every call's own activations",
                    )
                )
        if not site and self._returned:
            found.append(Obstacle("", f"returns a {type(self._returned[0]).__name__}, in which tensors cannot be found",
                                  "Register it with torch.utils._pytree"))  # fmt: skip
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


def _once(found: list[Obstacle]) -> list[Obstacle]:
    """Each line once: the first that was found there says it."""
    kept: dict[object, Obstacle] = {}
    for obstacle in found:
        kept.setdefault(obstacle.source or (obstacle.module, obstacle.why), obstacle)
    return list(kept.values())


def _structural(model: nn.Module, training: bool) -> Iterator[Obstacle]:
    """What can be read off the modules."""
    devices = {t.device for t in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        yield Obstacle("", f"has tensors on several devices ({', '.join(sorted(map(str, devices)))})")
    for path, module in model.named_modules():
        if type(module).__name__ in _WRAPPERS and type(module).__module__.startswith("torch."):
            yield Obstacle(path, _WRAPPERS[type(module).__name__], "Pass the module inside it")
        if isinstance(module, torch.jit.ScriptModule) and not path:
            yield Obstacle(path, "is a TorchScript module, whose forward cannot be replaced")
        if "forward" in vars(module):
            yield Obstacle(path, "has a forward of its own set on the instance; a graph would not run it again")
        for attribute, word in _HOOKS.items():
            if hooks := getattr(module, attribute):
                hook = next(iter(hooks.values()))
                yield Obstacle(
                    path, f"has a {word} ({getattr(hook, '__qualname__', type(hook).__name__)}); a graph would skip it"
                )
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) or tensor.is_meta:
                yield Obstacle(path, f"holds {name}, a {'meta tensor' if tensor.is_meta else type(tensor).__name__}")
        if training:
            yield from _training_conditions(path, module)


def _training_conditions(path: str, module: nn.Module) -> Iterator[Obstacle]:
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.requires_grad:
            yield Obstacle(path, f"has a buffer that requires grad ({name})", "Make it a parameter")
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
        yield Obstacle(path, "makes sparse gradients, whose size depends on the data", "Use sparse=False")


def _given(subject: Subject) -> list[Obstacle]:
    """Inputs that cannot be copied into static ones."""
    found = []
    devices = {t.device for t in subject.model.parameters()}
    for call in subject.calls[:1]:
        for name, tensor in call.tensors():
            if devices and tensor.device not in devices:
                found.append(
                    Obstacle("", f"takes {name} on {tensor.device} while its parameters are on {devices.pop()}")
                )
            if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided:
                found.append(Obstacle("", f"takes {name}, a {type(tensor).__name__} of layout {tensor.layout}"))
        others = [
            leaf for leaf in tree_leaves((call.args, dict(call.kwargs))) if not isinstance(leaf, (Tensor, *CONSTANTS))
        ]
        found += [Obstacle("", f"takes a {type(leaf).__name__}, which may hold anything") for leaf in others]
    return found
