"""Equal matrix products on inputs of their own as one batched product, and what stands where their layers were.

Nothing is assumed about the inputs: where they do not have one shape after all, or a gradient may be wanted, each
product is computed alone.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fusionadvisor.strategies import parts


class Row(parts.Part):
    """Stands where one of the batched layers was. The first of them owns the weights of all, one below the other."""

    def forward(self, x: Any) -> Any:
        """Compute what the layer in this place computes; given a list, what all of them compute, each on its own."""
        if not isinstance(x, list | tuple):
            return self._alone(x)
        layer, count = self.layer, len(self.sizes)
        weights = layer.weight.unflatten(0, (count, -1))
        return linears(x, weights, layer.bias.unflatten(0, (count, -1)) if self.has_bias else None)


def linears(inputs: Sequence[Tensor], weights: Tensor, biases: Tensor | None) -> Sequence[Tensor]:
    """``F.linear`` of each input with a weight of its own.

    Args:
        inputs: ``n`` tensors of ``[..., k]``.
        weights: ``[n, m, k]``.
        biases: ``[n, m]``.
    """
    if not _alike(inputs):
        each: Sequence[Any] = [None] * len(inputs) if biases is None else biases.unbind(0)
        return [F.linear(*row) for row in zip(inputs, weights.unbind(0), each, strict=True)]
    x = stacked(inputs)
    flat = x.reshape(len(inputs), -1, x.shape[-1])
    turned = weights.transpose(1, 2)
    y = torch.bmm(flat, turned) if biases is None else torch.baddbmm(biases.unsqueeze(1), flat, turned)
    return y.view(*x.shape[:-1], y.shape[-1]).unbind(0)


def shared(inputs: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> Sequence[Tensor]:
    """``F.linear`` of each input with the same weight."""
    if not _alike(inputs):
        return [F.linear(x, weight, bias) for x in inputs]
    x = stacked(inputs)
    y = F.linear(x.reshape(-1, x.shape[-1]), weight, bias)
    return y.view(*x.shape[:-1], y.shape[-1]).unbind(0)


def separate(inputs: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor] | None) -> Sequence[Tensor]:
    """``F.linear`` of each input with a weight and a bias of its own that are not kept side by side."""
    if not (_alike(weights) and (biases is None or _alike(biases))):
        each: Sequence[Any] = [None] * len(inputs) if biases is None else biases
        return [F.linear(*row) for row in zip(inputs, weights, each, strict=True)]
    return linears(inputs, stacked(weights), None if biases is None else stacked(biases))


def products(lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> Sequence[Tensor]:
    """``left @ right`` of each pair, the right ones matrices."""
    if not (_alike(lefts) and _alike(rights) and lefts[0].dim() > 1 and rights[0].dim() == 2):
        return [left @ right for left, right in zip(lefts, rights, strict=True)]
    x = stacked(lefts)
    y = torch.bmm(x.reshape(len(lefts), -1, x.shape[-1]), stacked(rights))
    return y.view(*x.shape[:-1], y.shape[-1]).unbind(0)


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.stack``; where the tensors are slices of one, at equal distances, that one again and no copy."""
    first, second = tensors[0], tensors[1]
    step = int(second.storage_offset() - first.storage_offset())
    if step <= 0 or torch.compiler.is_compiling() or not _evenly_spaced(tensors, step):
        return torch.stack(list(tensors))
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()))


def _evenly_spaced(tensors: Sequence[Tensor], step: int) -> bool:
    first = tensors[0]
    start, strides = first.storage_offset(), first.stride()
    memory = first.untyped_storage().data_ptr()
    return all(
        t.storage_offset() == start + i * step
        and t.stride() == strides
        and t.untyped_storage().data_ptr() == memory
        and not (t.is_conj() or t.is_neg())
        for i, t in enumerate(tensors)
    )


def _alike(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors can be stacked, and nobody wants a gradient."""
    first = tensors[0]
    if torch.is_grad_enabled() or not first.numel():
        return False
    kind = torch.strided, first.shape, first.dtype, first.device
    return all((t.layout, t.shape, t.dtype, t.device) == kind for t in tensors)
