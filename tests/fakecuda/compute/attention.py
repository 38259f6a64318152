"""Attention as the fused kernels compute it: softmax(q k^T scale + bias) v; gradients by autograd over the same."""

import math
from typing import Any

import torch
from torch import Tensor

from .derive import NAN, gradients


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: int, scale: float | None, p: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp for [batch, heads, length, size]; causal: 1 from the top left, 2 from the bottom right."""
    q, k, v = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (q, k, v))
    if k.size(1) != q.size(1):
        k, v = (t.repeat_interleave(q.size(1) // t.size(1), 1) for t in (k, v))
    scores = (q * (scale if scale is not None else 1 / math.sqrt(q.size(-1)))) @ k.transpose(-1, -2)
    if bias is not None:
        scores = scores.masked_fill(~bias, -math.inf) if bias.dtype is torch.bool else scores + bias
    if causal:
        rows, columns = scores.shape[-2:]
        seen = torch.ones(rows, columns, dtype=torch.bool).tril(0 if causal == 1 else columns - rows)
        scores = scores.masked_fill(~seen, -math.inf)
    log_sum = scores.logsumexp(-1)
    weights = (scores - log_sum.clamp_min(torch.finfo(scores.dtype).min).unsqueeze(-1)).exp()
    if p > 0:
        kept = torch.rand(weights.shape, generator=torch.Generator().manual_seed(seed)) >= p
        weights = weights * kept / (1 - p)
    return weights @ v, log_sum


def _number(tensor: Any) -> int:
    return int(tensor.reshape(-1)[0]) if isinstance(tensor, Tensor) and tensor.numel() else 0


def _gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Any, causal: int, scale: Any, p: float, seed: Any
) -> list[Any]:
    needed = bias if isinstance(bias, Tensor) and bias.numel() and bias.is_floating_point() else None
    fixed = bias if needed is None and isinstance(bias, Tensor) and bias.numel() else None

    def forward(q: Tensor, k: Tensor, v: Tensor, *bias: Tensor) -> Tensor:
        return attend(q, k, v, bias[0] if bias else fixed, causal, scale, p, _number(seed))[0]

    inputs = [q, k, v] + ([needed] if needed is not None else [])
    return gradients(forward, inputs, [grad]) + ([] if needed is not None else [None])


def efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, log_sum_exp: bool, p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, seed: int = 0,
) -> Any:  # fmt: skip
    out, log_sum = attend(q, k, v, bias, int(is_causal), scale, p, seed)
    length = -(-q.size(2) // 32) * 32 if log_sum_exp else 0
    padded = torch.full((*log_sum.shape[:2], length), math.inf)
    if log_sum_exp:
        padded[..., : q.size(2)] = log_sum
    return out, padded, torch.tensor(seed), torch.tensor(0)


def efficient_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Any, out: Tensor, log_sum: Tensor, philox: Any, offset: Any,
    p: float, mask: list[bool], is_causal: bool = False, *, scale: float | None = None, seed: int = 0,
) -> Any:  # fmt: skip
    return tuple(_gradients(grad, q, k, v, bias, int(is_causal), scale, p, philox))


def flash(
    q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, is_causal: bool = False, debug: bool = False, *,
    scale: float | None = None, seed: int = 0,
) -> Any:  # fmt: skip
    out, log_sum = attend(q, k, v, None, int(is_causal), scale, p, seed)
    return out, log_sum, None, None, 0, 0, torch.tensor([seed, 0]), None, NAN


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sum: Tensor, cum_q: Any, cum_k: Any, max_q: int,
    max_k: int, p: float, is_causal: bool, philox: Any, offset: Any, *, scale: float | None = None, seed: int = 0,
) -> Any:  # fmt: skip
    return tuple(_gradients(grad, q, k, v, None, int(is_causal), scale, p, philox)[:3])


def cudnn(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, log_sum_exp: bool, p: float = 0.0, is_causal: bool = False,
    debug: bool = False, *, scale: float | None = None, seed: int = 0,
) -> Any:  # fmt: skip
    out, log_sum = attend(q, k, v, bias, int(is_causal), scale, p, seed)
    log_sums = log_sum.unsqueeze(-1) if log_sum_exp else None
    return out, log_sums, None, None, 0, 0, torch.tensor(seed), torch.tensor(0), NAN


def cudnn_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sum: Tensor, philox: Any, offset: Any, bias: Any,
    cum_q: Any, cum_k: Any, max_q: int, max_k: int, p: float, is_causal: bool, *, scale: float | None = None,
    seed: int = 0,
) -> Any:  # fmt: skip
    return tuple(_gradients(grad, q, k, v, bias, int(is_causal), scale, p, philox)[:3])


TWINS = {
    "_scaled_dot_product_efficient_attention": efficient,
    "_scaled_dot_product_efficient_attention_backward": efficient_backward,
    "_scaled_dot_product_flash_attention": flash,
    "_scaled_dot_product_flash_attention_backward": flash_backward,
    "_scaled_dot_product_cudnn_attention": cudnn,
    "_scaled_dot_product_cudnn_attention_backward": cudnn_backward,
}
