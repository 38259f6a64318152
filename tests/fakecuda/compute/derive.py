"""What the twins share."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

NAN = object()
"""In place of a result: nobody computes it, so it is to be NaN."""


def gradients(
    function: Callable[..., Any], inputs: Sequence[Tensor | None], grads: Sequence[Tensor | None]
) -> list[Any]:
    """The gradients of the inputs for these of the outputs, by autograd; None for an input that is none."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [None if t is None else _wide(t).detach().clone().requires_grad_() for t in inputs]
        outputs = function(*leaves)
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=False) if g is not None and o.requires_grad]
        wanted = [t for t in leaves if t is not None]
        found = iter(
            torch.autograd.grad(
                [o for o, _ in pairs], wanted, [g.clone().to(o.dtype) for o, g in pairs], allow_unused=True
            )
        )
    return [None if t is None else next(found) for t in leaves]


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
