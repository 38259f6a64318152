"""What makes a module unfit for a rewrite, whatever the rewrite: who else holds it, hooks, wrappers, odd tensors."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from fusionadvisor.workload.usercode import HOOKS

_WRAPPERS = {
    "DataParallel": "is wrapped in DataParallel",
    "DistributedDataParallel": "is wrapped in DistributedDataParallel",
    "FullyShardedDataParallel": "is sharded by FSDP",
    "OptimizedModule": "is compiled already",
}
_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


def blocker(model: nn.Module) -> str:
    """Say why no part of this model may be rewritten: compiled, scripted, wrapped, sharded; empty where it may."""
    from torch.nn.modules import module as registry

    for kind in ("forward", "forward_pre", "backward", "backward_pre"):
        if getattr(registry, f"_global_{kind}_hooks", None):
            return "A hook is registered on all modules of this process; a rewrite would change what it sees."
    for path, module in model.named_modules():
        name = path or "The model"
        if isinstance(module, torch.jit.ScriptModule):
            return f"{name} is a TorchScript module already."
        if type(module).__name__ in _WRAPPERS and type(module).__module__.startswith("torch."):
            return f"{name} {_WRAPPERS[type(module).__name__]}; pass the module inside it."
        if module._compiled_call_impl is not None:
            return f"{name} is compiled already."
        if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
            return f"{name} is sharded by FSDP."
    for path, tensor in _tensors(model):
        if type(tensor).__name__ == "DTensor":
            return f"{path} is a DTensor: this model is sharded over devices."
        if tensor.is_meta:
            return f"{path} has no data (meta device)."
    return ""


def unfit(module: nn.Module, path: str, known: tuple[type[nn.Module], ...]) -> str:
    """Say why one module may not be replaced or absorbed; empty where it may."""
    from torch.nn.utils import parametrize

    if parametrize.is_parametrized(module):
        names = ", ".join(getattr(module, "parametrizations", {}))
        return f"{path} has a parametrization on {names}"
    if type(module).__module__.startswith(("torch.ao.", "torch.nn.quantized", "torch.nn.intrinsic")):
        return f"{path} is a quantisation module ({type(module).__name__})"
    if type(module) not in known:
        return f"{path} is a subclass, {type(module).__name__}, that may compute something else"
    if "forward" in vars(module):
        return f"{path} has a forward of its own set on the instance"
    if reason := hook(module, path):
        return reason
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        if type(tensor) not in _PLAIN or tensor.is_quantized:
            kind = "quantised tensor" if tensor.is_quantized else type(tensor).__name__
            return f"{path}.{name} is a {kind}"
        if tensor.is_complex():
            return f"{path}.{name} is complex"
    return ""


def hook(module: nn.Module, path: str) -> str:
    """Say which hook a module has; empty where it has none."""
    for attribute, word in HOOKS.items():
        if hooks := getattr(module, attribute):
            return f"{path} has a {word} ({_written(next(iter(hooks.values())))})"
    return ""


def hooked(model: nn.Module) -> str:
    """Say which module of a model has a hook, in a sentence; empty where none has."""
    found = (hook(module, path or "The model") for path, module in model.named_modules())
    return next((f"{reason}." for reason in found if reason), "")


def _written(hook: Callable[..., Any]) -> str:
    """A hook's name and where it was written: ``log_norms, train.py:88``."""
    code = getattr(hook, "__code__", None)
    name = getattr(hook, "__qualname__", type(hook).__qualname__)
    if code is None:
        return str(name)
    return f"{name}, {code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


class Sharing:
    """Which modules and which tensor storages of a model are held under more than one name."""

    def __init__(self, model: nn.Module) -> None:
        self._modules: dict[int, list[str]] = defaultdict(list)
        self._storages: dict[int, list[str]] = defaultdict(list)
        for path, module in model.named_modules(remove_duplicate=False):
            self._modules[id(module)].append(path)
        for path, tensor in _tensors(model):
            if tensor.numel() and tensor.layout is torch.strided:
                self._storages[tensor.untyped_storage().data_ptr()].append(path)

    def of(self, module: nn.Module, path: str) -> str:
        """Say who else holds this module or one of its tensors; empty where nobody does."""
        others = [other for other in self._modules[id(module)] if other != path]
        if others:
            return f"{path} is also registered as {others[0]}"
        return self.memory(module, path)

    def memory(self, module: nn.Module, path: str) -> str:
        """Say what else holds one of this module's tensors; empty where nothing does."""
        names = self._modules[id(module)]
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if tensor.numel() and tensor.layout is torch.strided:
                own = {f"{known}.{name}" for known in names}
                shared = [other for other in self._storages[tensor.untyped_storage().data_ptr()] if other not in own]
                if shared:
                    return f"{path}.{name} shares its memory with {shared[0]}"
        return ""


def described(model: nn.Module) -> dict[str, str]:
    """Each module path with its class and the shapes and dtypes of its own tensors."""
    found = {}
    for path, module in model.named_modules(remove_duplicate=False):
        own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        shapes = [f"{name} {str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for name, t in own]
        found[path] = ", ".join((class_name(module), *shapes))
    return found


def class_name(module: nn.Module) -> str:
    """The name of a module's class; of a captured graph the one that its copies have as well."""
    return "GraphModule" if isinstance(module, torch.fx.GraphModule) else type(module).__name__


def replace(model: nn.Module, path: str, module: nn.Module) -> None:
    """Put ``module`` in the place of the one at ``path``."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
