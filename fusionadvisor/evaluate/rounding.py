"""Is the difference of two tensors rounding? The limits come from the original's own error against float64.

Three checks, as a whole hides what is small and wrong: the error of the whole, of each row (along the last dimension)
and of each element. Each may be a few times what the original itself makes of such a row or element; how many times was
measured on pairs of the same model computed in two ways (``benchmarks/verification.py``). docs/numbers.md derives it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FLOOR = 1e-5
"""Of an output's size, or of one where it is larger: what ``torch._dynamo.utils.same`` (torch 2.13) lets pass."""
FLOOR_OF_DOUBLES = 1e-7
"""``torch.testing``'s tolerance of float64."""
SMALL = 1000
"""Tensors with fewer elements have noisier errors."""
TIMES_ROW = 4.0
TIMES_ELEMENT = 8.0
"""Twice the largest ratio seen between two ways to compute the same model, for tensors that are not small."""
FEW = 8
"""With fewer rows, or fewer elements in a row, how large errors are there cannot be told apart from chance."""
OF_LARGEST_GRADIENT = 0.1
"""What one element of a gradient may be off by: a unit at its threshold passes a gradient on or does not."""

_TOLERANCES = {torch.float16: 1e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-7, torch.complex128: 1e-7}
"""Relative tolerances of ``torch.testing.assert_close``; float32's where none is named."""


@dataclass
class Worst:
    """The largest errors seen, over leaves and inputs."""

    error: float = 0.0
    ratio: float | None = None
    limit: float | None = None
    row: float | None = None
    element: float | None = None

    def see(self, ratio: float | None, limit: float) -> None:
        """Note a tensor's error over the original's own."""
        if ratio is not None and math.isfinite(ratio) and (self.ratio is None or ratio > self.ratio):
            self.ratio, self.limit = ratio, limit


@dataclass(frozen=True)
class Allowed:
    """What else than rounding may show in a tensor of a training step.

    Args:
        whole: Root mean square of what is rounding alone.
        where: Elements that may be apart by ``reach``, whatever their error.
        reach: How far apart an optimizer can have moved an element; where given, only wholes are judged.
        gradient: Whether it is one, whose elements are judged by the largest.
    """

    whole: float = 0.0
    where: Tensor | None = None
    reach: float | None = None
    gradient: bool = False


def compare(
    own: Tensor, new: Tensor, truth: Any, worst: Worst, allowed: Allowed | None = None, others: Sequence[Any] = ()
) -> str:
    """Say in what two tensors of one shape and dtype differ beyond rounding; empty where they do not.

    Args:
        own: The original's; where it is not finite, ``new`` is not, either.
        new: The candidate's.
        truth: The same in float64, or None where it does not run in that.
        worst: Takes note of the errors.
        allowed: In training.
        others: More of what the original returns; of all, the largest errors are its own.
    """
    allowed = allowed or Allowed()
    counted = torch.isfinite(own)
    if allowed.where is not None and allowed.reach is not None:
        counted &= ~(allowed.where & ((own - new).abs() <= allowed.reach))
    if not bool(counted.any()):
        return ""
    a, b = (torch.where(counted, wide(t), 0.0) for t in (own, new))
    apart = (a - b).abs()
    error = float(apart.max())
    worst.error = max(worst.error, error)
    share = math.sqrt(apart.numel() / int(counted.sum()))  # a mean over what counts
    if allowed.whole and rms(apart) * share <= allowed.whole:
        return ""
    size = rms(a) * share
    floor = (FLOOR_OF_DOUBLES if own.dtype in (torch.float64, torch.complex128) else FLOOR) * min(1.0, size)
    if not (isinstance(truth, Tensor) and truth.shape == own.shape and bool(truth[counted].isfinite().all())):
        if bool((apart <= floor + _TOLERANCES.get(own.dtype, 1.3e-6) * a.abs()).all()):
            return ""
        return f"differs by up to {error:.2g}, and there is no float64 run to tell whether that is rounding"
    c = torch.where(counted, wide(truth), 0.0)
    e, f = (a - c).abs(), (b - c).abs()
    for other in others:
        if isinstance(other, Tensor) and other.shape == c.shape:
            e = torch.fmax(e, torch.where(counted, (wide(other) - c).abs(), 0.0))
    ulp = torch.finfo(own.dtype).eps
    own_error, new_error = rms(e) * share, rms(f) * share
    times = 3.0 if own.dtype in (torch.float16, torch.bfloat16) or own.numel() < SMALL else 2.0
    worst.see(new_error / own_error if own_error > 0 else None, times)
    if error == 0:
        return ""
    if not new_error <= max(times * own_error, ulp / 2 * size) + floor:
        off = f"differs by up to {error:.2g}: its error against float64"
        return f"{off} is {new_error:.2g}, the original's {own_error:.2g}"
    floor += ulp / 2 * size
    if allowed.gradient:
        most = max(TIMES_ELEMENT * float(e.max()), OF_LARGEST_GRADIENT * float(c.abs().max())) + floor
        return _element(f, e, torch.full_like(f, most), worst)
    if allowed.reach is not None:
        return ""
    return _row(e, f, c, floor, worst) or _element(f, e, TIMES_ELEMENT * _around(e, c, ulp) + floor, worst)


def _row(e: Tensor, f: Tensor, c: Tensor, floor: float, worst: Worst) -> str:
    """Compare rows: the original's error is what it is in that row, or what it is in any row of that size."""
    if c.dim() < 2 or c.shape[-1] < 2:
        return ""
    mine, theirs, sizes = ((t.abs().square().mean(-1).sqrt()) for t in (e, f, c))
    relative = torch.where(mine > 0, mine / sizes, 0.0).max()
    usual = torch.fmin(mine.max(), sizes * relative)  # a row of zeros says nothing of its size: fmin passes over NaN
    limit = TIMES_ROW * torch.maximum(mine, usual) + floor
    share = theirs / limit
    worst.row = max(worst.row or 0.0, float(share.max()))
    if bool((theirs <= limit).all()):
        return ""
    at = _place(share)
    row = f"in row [{', '.join(map(str, at))}] its error against float64 is {float(theirs[at]):.2g}"
    return f"differs in {int((theirs > limit).sum())} of {limit.numel()} rows: {row}, {float(limit[at]):.2g} is allowed"


def _around(e: Tensor, c: Tensor, ulp: float) -> Tensor:
    """The original's largest error around each element: in its row and in its column the smaller of the two."""
    most = e.max()
    if c.dim() >= 2 and c.shape[-1] >= FEW and c.numel() >= max(SMALL, FEW * c.shape[-1]):
        rows = e.amax(-1, keepdim=True)
        most = torch.minimum(rows, e.flatten(0, -2).amax(0))
    return torch.maximum(most, ulp / 2 * c.abs())


def _element(f: Tensor, e: Tensor, limit: Tensor, worst: Worst) -> str:
    share = f / limit
    share = torch.where(f > 0, share, 0.0)
    worst.element = max(worst.element or 0.0, float(share.max()))
    if bool((f <= limit).all()):
        return ""
    at = _place(share)
    where = f"at [{', '.join(map(str, at))}] its error against float64 is {float(f[at]):.2g}" if at else "by itself"
    return (
        f"differs in {int((f > limit).sum())} of {f.numel()} elements: {where}, {float(limit[at]):.2g} is allowed "
        f"(the original's largest is {float(e.max()):.2g})"
    )


def _place(share: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(share.argmax(), share.shape))


def wide(tensor: Tensor) -> Tensor:
    """In double precision."""
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def rms(difference: Tensor) -> float:
    """Root mean square."""
    return float(difference.abs().square().mean().sqrt())
