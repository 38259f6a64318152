"""The algebra of folding batch normalisation into the layer before or after it.

In evaluation a batch norm is ``y = scale · x + shift`` per channel, with ``scale = gamma / sqrt(var + eps)`` and
``shift = beta − mean · scale``. The fold is computed in float64 and cast once: folding in bfloat16 would double the
layer's own rounding error.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fusionadvisor.strategies import affine

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (*CONVOLUTIONS, *TRANSPOSED, nn.Linear)


class FoldedNorm(nn.Identity):
    """Stands where a batch norm was folded away. It cannot train: the statistics it would update are gone."""

    rest: tuple[str, ...] = ()
    """Names of its own submodules that run on its input: an activation, say."""

    def train(self, mode: bool = True) -> "FoldedNorm":
        """Refuse training mode.

        Raises:
            RuntimeError: If ``mode`` is true.
        """
        if mode:
            raise RuntimeError("a batch norm was folded into a weight here; train the original model and fold again")
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, after what came behind the norm in its own module."""
        for name in self.rest:
            x = self._modules[name](x)  # type: ignore[misc]
        return x


@dataclass
class Guard:
    """What has to be as it was when a pair was folded; otherwise both run as they were before.

    Args:
        dims: How many dimensions the input of this module has; 0 for any number.
        flags: Attributes that decide a branch of the model's code: the module, the name and the value.
    """

    dims: int = 0
    flags: tuple[tuple[nn.Module, str, Any], ...] = ()
    misses: int = 0
    """How often it was not."""

    def holds(self, x: Tensor) -> bool:
        """Whether everything is, for a call on ``x``."""
        if (self.dims in (0, x.dim())) and all(_attribute(*flag[:2]) == flag[2] for flag in self.flags):
            return True
        if not torch.compiler.is_compiling():
            self.misses += 1
        return False


ABSENT = "absent"
"""The value of a flag that is not there."""


def _attribute(module: nn.Module, name: str) -> Any:
    return getattr(module, name, ABSENT)


class GuardedNorm(FoldedNorm):
    """A folded batch norm that keeps the original beside it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the input where the layer before was folded for such a call; else do what the norm did."""
        return super().forward(x) if self.__dict__["guard"].holds(x) else self._modules["unfolded"](x)  # type: ignore[misc]


class _GuardedLayer(nn.Module):
    """A layer that a batch norm was folded into and that keeps the original beside it."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute with the folded weight where that is right, else with the original one."""
        if self.__dict__["guard"].holds(x):
            return super().forward(x)  # type: ignore[no-any-return]
        return self._modules["unfolded"](x)  # type: ignore[misc,no-any-return]


GUARDED = {kind: type(f"Guarded{kind.__name__}", (_GuardedLayer, kind), {"__module__": __name__}) for kind in LAYERS}
globals().update({kind.__name__: kind for kind in GUARDED.values()})  # so that they can be pickled


@torch.no_grad()
def fold(layer: Any, norm: Any, what: affine.Affine, *, after: bool, guards: tuple[Guard, Guard] | None) -> None:
    """Fold a norm into a layer. Both stay the objects they are: whoever holds them sees the change.

    Args:
        layer: A convolution or linear layer.
        norm: The norm; it becomes a :class:`FoldedNorm`.
        what: What the norm computes.
        after: Whether it comes after the layer.
        guards: Of the layer and of the norm, where the pair may be called in another way than was proven.
    """
    originals = copy.deepcopy((layer, norm)) if guards is not None else None
    (fold_after if after else fold_before)(layer, what.scale, what.shift)
    norm._parameters.clear()
    norm._buffers.clear()
    norm.__class__ = FoldedNorm if guards is None else GuardedNorm
    norm.rest = what.rest
    nn.Module.train(norm, False)
    if guards is not None and originals is not None:
        layer.__class__ = GUARDED[type(layer)]
        for module, guard, original in zip((layer, norm), guards, originals, strict=True):
            module.__dict__["guard"] = guard
            module.unfolded = original.eval()


class FoldedDropout(FoldedNorm):
    """Stands where a dropout was between a layer and a norm that was folded into it: it could drop nothing alone."""


@torch.no_grad()
def fold_after(layer: Any, scale: Tensor, shift: Tensor) -> None:
    """Make ``layer`` compute ``scale · layer(x) + shift``: scale its output channels, shift its bias."""
    weight, bias = _double(layer.weight), _bias(layer)
    if isinstance(layer, TRANSPOSED):  # weight is (in, out / groups, *kernel)
        groups = layer.groups
        blocks = _split(weight, groups)
        weight = (blocks * _per(_split(scale, groups).unsqueeze(1), blocks)).flatten(0, 1)
    else:
        weight = weight * _per(scale, weight)
    _assign(layer, weight, bias * scale + shift)


@torch.no_grad()
def fold_before(layer: Any, scale: Tensor, shift: Tensor) -> None:
    """Make ``layer`` compute ``layer(scale · x + shift)``: right only where it pads nothing and is not transposed."""
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
