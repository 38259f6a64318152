"""What a captured graph took for granted about its module, and whether that still holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_OVERLAPPING = 1
"""``at::MemOverlap::Yes``: an expanded tensor, which cannot be written element by element."""


class Assumptions:
    """Addresses of parameters, buffers and tensor attributes, submodules, training flags and hooks, as captured.

    A graph reads memory, not names: after ``weight.data = …``, ``module.weight = …`` or ``.to()`` it would go on with
    the old values. Checked before every replay, so kept to flat lists. Which parameters train matters only to graphs
    with ``gradients``.
    """

    def __init__(self, module: nn.Module, *, gradients: bool) -> None:
        modules = list(module.modules())
        self._modules = modules
        self._slots = [(table, name) for m in modules for table in _tables(m) for name in table_tensors(table)]
        self._places = [(m._modules, name) for m in modules for name in m._modules]
        self._children = self._current_children()
        # the module's own hooks run around a graph; those below would be skipped
        self._hooks = [getattr(m, kind) for m in modules[1:] for kind in _HOOKS]
        self._addresses = self._current_addresses()
        # held, so that the allocator cannot give an address to another tensor while the graph still reads it
        self._held = [table[name].untyped_storage() for table, name in self._slots]
        self._parameters = list(module.parameters()) if gradients else []
        self._trainable = [p.requires_grad for p in self._parameters]

    def broken(self) -> str:
        """Say what changed since the capture, empty if nothing did."""
        try:
            if self._current_addresses() != self._addresses:
                return "a parameter or buffer was reassigned"
            if self._current_children() != self._children:
                return "a submodule was replaced"
        except (KeyError, AttributeError):
            return "a parameter, buffer or submodule was removed"
        if [p.requires_grad for p in self._parameters] != self._trainable:
            return "a parameter was frozen or unfrozen"
        return ""

    def hooked(self) -> bool:
        """Whether a hook was registered on a submodule since."""
        return any(self._hooks)

    def _current_children(self) -> list[nn.Module | None]:
        return [table[name] for table, name in self._places]

    def _current_addresses(self) -> list[int]:
        return [table[name].data_ptr() for table, name in self._slots]


def _tables(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """Where a module keeps tensors: parameters, buffers, plain attributes."""
    return module._parameters, module._buffers, module.__dict__


def table_tensors(table: dict[str, Any]) -> list[str]:
    """Names of the tensors in one of a module's tables."""
    return [name for name, value in table.items() if isinstance(value, Tensor) and value.layout is torch.strided]


@contextmanager
def contents_kept(module: nn.Module) -> Iterator[None]:
    """Restore what warm-ups write: buffers and tensor attributes in place, and the random state of every device.

    Parameters are left out: a forward does not write them. A module without tensors, such as a dropout, does not show
    which device it draws on: the state of all of them is kept.
    """
    held = {
        id(tensor): tensor
        for m in module.modules()
        for table in _tables(m)[1:]
        for tensor in table.values()
        if isinstance(tensor, Tensor) and torch._debug_has_internal_overlap(tensor) != _OVERLAPPING
    }
    saved = [(tensor, tensor.detach().clone()) for tensor in held.values()]
    generators = {id(v): v for m in module.modules() for v in vars(m).values() if isinstance(v, torch.Generator)}
    states = [(generator, generator.get_state()) for generator in generators.values()]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for tensor, content in saved:
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.copy_(content)
            for generator, state in states:
                generator.set_state(state)
