"""What a run changes, remembered so that it can be put back."""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


class Kept:
    """The state of a model and its optimizers before a run.

    Tensors are copied when the run first writes to them, so a run that writes nothing costs nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [
            (m, getattr(m, "training", None), dict(m._parameters), dict(m._buffers)) for m in model.modules()
        ]
        self._gradients = [(p, p.grad) for p in model.parameters()]
        self._contents: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._copied: set[int] = set()
        self._optimizers: dict[int, tuple[Optimizer, dict[Any, dict[str, Any]]]] = {}

    def content(self, tensor: torch.Tensor) -> None:
        """Keep what a tensor holds; it is about to be written."""
        if id(tensor) not in self._copied:
            self._copied.add(id(tensor))
            self._contents.append((tensor, tensor.detach().clone()))

    def optimizer(self, optimizer: Optimizer) -> None:
        """Keep which state an optimizer has; it is about to step."""
        if id(optimizer) not in self._optimizers:
            state = {parameter: dict(entries) for parameter, entries in optimizer.state.items()}
            self._optimizers[id(optimizer)] = (optimizer, state)

    def put_back(self) -> None:
        """Restore everything, the latest change first."""
        for tensor, content in reversed(self._contents):
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                tensor.copy_(content)
        for optimizer, state in self._optimizers.values():
            optimizer.state.clear()
            optimizer.state.update(state)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for module, training, parameters, buffers in self._modules:
            if training is not None:  # a frozen script has no mode
                module.training = training
            if not isinstance(module, torch.jit.ScriptModule):  # whose tensors cannot be exchanged
                module._parameters.update(parameters)
                module._buffers.update(buffers)
