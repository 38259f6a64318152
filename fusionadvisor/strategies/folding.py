"""The algebra of folding batch normalisation into the layer before or after it.

In evaluation a batch norm is ``y = scale · x + shift`` per channel, with ``scale = gamma / sqrt(var + eps)`` and
``shift = beta − mean · scale``. The fold is computed in float64 and cast once: folding in bfloat16 would double the
layer's own rounding error.
"""

from typing import Any

import torch
from torch import Tensor, nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYERS = (*CONVOLUTIONS, *TRANSPOSED, nn.Linear)


class FoldedNorm(nn.Identity):
    """Stands where a batch norm was folded away. It cannot train: the statistics it would update are gone."""

    def train(self, mode: bool = True) -> "FoldedNorm":
        """Refuse training mode.

        Raises:
            RuntimeError: If ``mode`` is true.
        """
        if mode:
            raise RuntimeError("a batch norm was folded into a weight here; train the original model and fold again")
        return super().train(mode)


def scale_and_shift(norm: Any) -> tuple[Tensor, Tensor]:
    """Return what a batch norm with running statistics multiplies by and adds, per channel, in float64."""
    mean, var = _double(norm.running_mean), _double(norm.running_var)
    scale = (var + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * _double(norm.weight)
    shift = -mean * scale
    if norm.bias is not None:
        shift = shift + _double(norm.bias)
    return scale, shift


@torch.no_grad()
def fold_after(layer: Any, norm: Any) -> None:
    """Make ``layer`` compute ``norm(layer(x))``: scale its output channels, shift its bias."""
    scale, shift = scale_and_shift(norm)
    weight, bias = _double(layer.weight), _bias(layer)
    if isinstance(layer, TRANSPOSED):  # weight is (in, out / groups, *kernel)
        groups = layer.groups
        blocks = _split(weight, groups)
        weight = (blocks * _per(_split(scale, groups).unsqueeze(1), blocks)).flatten(0, 1)
    else:
        weight = weight * _per(scale, weight)
    _assign(layer, weight, bias * scale + shift)


@torch.no_grad()
def fold_before(norm: Any, layer: Any) -> None:
    """Make ``layer`` compute ``layer(norm(x))``: right only where the layer pads nothing and is not transposed."""
    scale, shift = scale_and_shift(norm)
    weight, bias = _double(layer.weight), _bias(layer)
    groups = layer.groups if isinstance(layer, CONVOLUTIONS) else 1
    blocks = _split(weight, groups)  # (groups, out / groups, in / groups, *kernel)
    per_input = [_split(x, groups).unsqueeze(1) for x in (scale, shift)]
    added = (blocks * _per(per_input[1], blocks)).flatten(0, 1).flatten(1).sum(1)
    _assign(layer, (blocks * _per(per_input[0], blocks)).flatten(0, 1), bias + added)


def pads(layer: Any) -> bool:
    """Whether a convolution reads values that are not in its input."""
    return isinstance(layer, CONVOLUTIONS) and any(layer._reversed_padding_repeated_twice)


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().double()


def _bias(layer: Any) -> Tensor:
    if layer.bias is not None:
        return _double(layer.bias)
    count = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    return torch.zeros(count, dtype=torch.float64, device=layer.weight.device)


def _split(tensor: Tensor, groups: int) -> Tensor:
    """Split dimension 0 into (groups, size of a group)."""
    return tensor.reshape(groups, tensor.shape[0] // groups, *tensor.shape[1:])


def _per(values: Tensor, like: Tensor) -> Tensor:
    """Append dimensions of size 1 until ``values`` broadcasts over ``like``'s leading dimensions."""
    return values.reshape(*values.shape, *([1] * (like.dim() - values.dim())))


def _assign(layer: Any, weight: Tensor, bias: Tensor) -> None:
    """Put the cast tensors in the layer, in the weight's own memory format."""
    old = layer.weight
    folded = torch.empty_like(old).copy_(weight)
    layer.weight = nn.Parameter(folded, requires_grad=old.requires_grad)
    layer.bias = nn.Parameter(bias.to(old.dtype), requires_grad=old.requires_grad)
