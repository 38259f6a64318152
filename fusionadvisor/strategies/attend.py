"""What written-out attention becomes: the fused op where it means the same, else the formula again."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx


@fx.wrap
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | Tensor | None = None,
    divided: bool = False,
    masking: str = "",
    fill: float | Tensor = -math.inf,
    open_rows: bool = False,
    grouped: bool = False,
) -> Tensor:
    """Fused attention; written out where the tensors of this call are of another kind than what was proven.

    Args:
        q: Query, (batch, heads, L, E) or (batch, L, E).
        k: Key, its last two dimensions exchanged; for ``grouped`` as it is, with fewer heads.
        v: Value, (…, S, Ev).
        mask: Broadcasts to (…, L, S).
        scale: What the scores are multiplied with.
        divided: They are divided by it instead.
        masking: ``add``, or whether True in the mask is ``fill`` or ``keep``; empty without a mask.
        fill: The score where it masks.
        open_rows: No row is masked entirely.
        grouped: Each head of key and value serves several of the query.
    """
    key = k if grouped else k.transpose(-2, -1)
    if not fits(q, key, v, mask, masking, grouped):
        return written_out(q, key, v, mask, scale, divided, masking, fill)
    factor = 1.0 if scale is None else 1.0 / scale if divided else scale
    allowed = mask
    if mask is not None:
        allowed = ~mask if masking == "fill" else mask
        if allowed.dim() < 2:
            allowed = allowed.expand(q.shape[-2], key.shape[-2])
    out = F.scaled_dot_product_attention(q, key, v, attn_mask=allowed, scale=float(factor), enable_gqa=grouped)
    return out if mask is None or open_rows else _with_dead_rows(out, v, mask, masking, fill)


@fx.wrap
def scores_shape(q: Tensor, kt: Tensor) -> torch.Size:
    """The shape of the product of query and key, which is not computed."""
    outer = torch.broadcast_shapes(q.shape[:-2], kt.shape[:-2])  # type: ignore[no-untyped-call]
    return torch.Size((*outer, q.shape[-2], kt.shape[-1]))


def fits(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, masking: str, grouped: bool) -> bool:
    """Whether the fused op means for these tensors what the formula does."""
    if not (q.dim() == k.dim() == v.dim() and q.dim() in (3, 4) and q.dtype == k.dtype == v.dtype):
        return False
    if torch.is_autocast_enabled(q.device.type) or not q.dtype.is_floating_point or 0 in (*q.shape, *k.shape, *v.shape):
        return False
    if grouped:
        if q.dim() != 4 or q.shape[0] != k.shape[0] or k.shape[:2] != v.shape[:2] or q.shape[1] % k.shape[1]:
            return False
    elif not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        return False
    if k.shape[-2] != v.shape[-2] or q.shape[-1] != k.shape[-1]:
        return False
    if mask is None:
        return True
    scores = (*q.shape[:-1], k.shape[-2])
    sizes = zip(reversed(mask.shape), reversed(scores), strict=False)
    if mask.dim() > len(scores) or any(size not in (1, whole) for size, whole in sizes):
        return False
    return mask.dtype == (q.dtype if masking == "add" else torch.bool)


def _with_dead_rows(out: Tensor, v: Tensor, mask: Tensor, masking: str, fill: Any) -> Tensor:
    """Where nothing is allowed a softmax gives NaN, or equal weights for a finite fill; the fused one gives zeros."""
    if masking == "add":
        dead = (mask == -math.inf).all(-1, keepdim=True)
    else:
        dead = mask.all(-1, keepdim=True) if masking == "fill" else ~mask.any(-1, keepdim=True)
    if masking == "add" or fill == -math.inf:
        return out.masked_fill(dead, math.nan)
    mean = v.mean(-2, keepdim=True)
    if v.dim() == 4 and v.shape[1] != out.shape[1]:
        mean = mean.repeat_interleave(out.shape[1] // v.shape[1], 1)
    return torch.where(dead, mean, out)


def written_out(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: Any, divided: bool, masking: str, fill: Any
) -> Tensor:
    """The formula as the model has it."""
    if q.dim() == 4 and k.dim() == 4 and q.shape[1] != k.shape[1] and k.shape[1] > 1 and v.dim() == 4:
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-2, -1)
    if scale is not None:
        scores = scores / scale if divided else scores * scale
    if mask is not None:
        hidden = mask if masking != "keep" else ~mask
        scores = scores + mask if masking == "add" else scores.masked_fill(hidden, fill)
    return scores.softmax(-1) @ v
