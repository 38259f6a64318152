"""Ops that exist on CUDA alone, computed from what they mean."""

from typing import Any

import torch
from torch import Tensor

from . import attention
from .derive import NAN, gradients

# ---- products with another output type


def mm(a: Tensor, b: Tensor, out_dtype: Any = None) -> Any:
    return torch.mm(a.to(out_dtype), b.to(out_dtype)) if out_dtype else torch.mm(a, b)


# ---- cuDNN's convolutions and norms


def convolution(
    x: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, *flags: bool, out: Any = None
) -> Tensor:
    return torch.convolution(x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)


def convolution_transpose(
    x: Tensor, weight: Tensor, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int, *flags: bool
) -> Tensor:
    return torch.convolution(x, weight, None, stride, padding, dilation, True, output_padding, groups)


def convolution_relu(
    x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups).relu()


def convolution_add_relu(
    x: Tensor, weight: Tensor, z: Tensor, alpha: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    y = torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)
    return (y + z * (1 if alpha is None else alpha)).relu()


def depthwise(x: Tensor, weight: Tensor, size: Any, bias: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), x.size(1))


def batch_norm(
    x: Tensor, weight: Tensor, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    out, saved_mean, saved_invstd = torch.native_batch_norm(x, weight, bias, mean, var, training, momentum, eps)
    return out, *((saved_mean, saved_invstd) if training else (NAN, NAN)), NAN


def batch_norm_backward(
    x: Tensor, grad: Tensor, weight: Tensor, mean: Any, var: Any, saved_mean: Any, saved_invstd: Any, eps: float,
    reserve: Any,
) -> Any:  # fmt: skip
    return torch.ops.aten.native_batch_norm_backward(
        grad, x, weight, mean, var, saved_mean, saved_invstd, True, eps, [True, True, True]
    )


# ---- recurrent layers

_LAYERS = {0: torch.rnn_relu, 1: torch.rnn_tanh, 2: torch.lstm, 3: torch.gru}
_LSTM = 2
_RESERVE = 1 << 20


def _layers(
    x: Tensor, weights: list[Tensor], per_layer: int, hx: Tensor, cx: Tensor | None, mode: int, layers: int,
    batch_first: bool, dropout: float, train: bool, bidirectional: bool, batch_sizes: list[int], seed: int,
) -> Any:  # fmt: skip
    state = (hx, cx) if mode == _LSTM else hx
    rest = (weights, per_layer >= 4, layers, dropout, train, bidirectional)
    kept = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        if batch_sizes:
            return _LAYERS[mode](x, torch.tensor(batch_sizes), state, *rest)  # type: ignore[operator]
        return _LAYERS[mode](x, state, *rest, batch_first)  # type: ignore[operator]
    finally:
        torch.set_rng_state(kept)


def rnn(
    x: Tensor, weights: list[Tensor], per_layer: int, buffer: Any, hx: Tensor, cx: Any, mode: int, hidden: int,
    proj: int, layers: int, batch_first: bool, dropout: float, train: bool, bidirectional: bool, batch_sizes: Any,
    dropout_state: Any, seed: int = 0,
) -> Any:  # fmt: skip
    out, *state = _layers(
        x, weights, per_layer, hx, cx, mode, layers, batch_first, dropout, train, bidirectional, batch_sizes, seed
    )
    reserve = None
    if train:  # what backward needs: where the dropout came from
        reserve = torch.zeros(_RESERVE, dtype=torch.uint8)
        reserve[:8].view(torch.int64)[0] = seed
    return out, state[0], state[1] if mode == _LSTM else None, reserve, None


def rnn_backward(
    x: Tensor, weights: list[Tensor], per_layer: int, buffer: Any, hx: Tensor, cx: Any, out: Tensor, grad: Any,
    grad_hy: Any, grad_cy: Any, mode: int, hidden: int, proj: int, layers: int, batch_first: bool, dropout: float,
    train: bool, bidirectional: bool, batch_sizes: Any, dropout_state: Any, reserve: Tensor, mask: Any,
) -> Any:  # fmt: skip
    seed = int(reserve[:8].view(torch.int64)[0])

    def forward(x: Tensor, hx: Tensor, cx: Any, *weights: Tensor) -> Any:
        return _layers(
            x, list(weights), per_layer, hx, cx, mode, layers, batch_first, dropout, train, bidirectional, batch_sizes,
            seed,
        )  # fmt: skip

    grads = [grad, grad_hy, grad_cy] if mode == _LSTM else [grad, grad_hy]
    dx, dhx, dcx, *dweights = gradients(forward, [x, hx, cx if mode == _LSTM else None, *weights], grads)
    return dx, dhx, dcx, dweights


def lstm_cell(input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, bias: Any = None, hidden_bias: Any = None) -> Any:
    gates = sum(t for t in (input_gates, hidden_gates, bias, hidden_bias) if t is not None)
    assert isinstance(gates, Tensor)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(grad_hy: Any, grad_cy: Any, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool) -> Any:
    i, f, g, o = workspace.chunk(4, 1)
    hy = torch.zeros_like(cx) if grad_hy is None else grad_hy
    tanh = cy.tanh()
    dcy = hy * o * (1 - tanh * tanh) + (0 if grad_cy is None else grad_cy)
    gates = torch.cat(
        [dcy * g * i * (1 - i), dcy * cx * f * (1 - f), dcy * i * (1 - g * g), hy * tanh * o * (1 - o)], 1
    )
    return gates, dcy * f, gates.sum(0) if has_bias else None


def gru_cell(input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, bias: Any = None, hidden_bias: Any = None) -> Any:
    a = input_gates if bias is None else input_gates + bias
    b = hidden_gates if hidden_bias is None else hidden_gates + hidden_bias
    (ar, az, an), (br, bz, bn) = a.chunk(3, 1), b.chunk(3, 1)
    r, z = (ar + br).sigmoid(), (az + bz).sigmoid()
    n = (an + r * bn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, bn], 1)


def gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> Any:
    r, z, n, hx, bn = workspace.chunk(5, 1)
    dn = grad * (1 - z) * (1 - n * n)
    dz = grad * (hx - n) * z * (1 - z)
    dr = dn * bn * r * (1 - r)
    inputs, hidden = torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1)
    return inputs, hidden, grad * z, *((inputs.sum(0), hidden.sum(0)) if has_bias else (None, None))


# ---- the rest


def rms_norm(x: Tensor, shape: list[int], weight: Any, eps: float | None) -> tuple[Tensor, Tensor]:
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    dims = list(range(-len(shape), 0))
    rstd = (wide.square().mean(dims, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt()
    return wide * rstd if weight is None else wide * rstd * weight, rstd


def rms_norm_backward(grad: Tensor, x: Tensor, shape: list[int], rstd: Tensor, weight: Any, mask: Any) -> Any:
    def forward(x: Tensor, weight: Any) -> Tensor:
        dims = list(range(-len(shape), 0))
        # the epsilon is not given, but what it did to rstd is
        eps = (rstd.pow(-2) - x.detach().square().mean(dims, keepdim=True)).to(x.dtype)
        y = x * (x.square().mean(dims, keepdim=True) + eps).rsqrt()
        return y if weight is None else y * weight

    return tuple(gradients(forward, [x, weight], [grad]))


def fused_dropout(x: Tensor, keep: float, generator: Any = None, seed: int = 0) -> Any:
    mask = torch.rand(x.shape) < keep
    return x * mask / keep, mask


def masked_scale(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return x * mask * scale


def grid_sampler(x: Tensor, grid: Tensor) -> Tensor:
    return torch.grid_sampler(x, grid, 0, 0, True)


def grid_sampler_backward(x: Tensor, grid: Tensor, grad: Tensor) -> Any:
    return tuple(gradients(grid_sampler, [x, grid], [grad]))


def affine_grid(theta: Tensor, n: int, c: int, h: int, w: int) -> Tensor:
    return torch.affine_grid_generator(theta, [n, c, h, w], True)


def affine_grid_backward(grad: Tensor, n: int, c: int, h: int, w: int) -> Tensor:
    return torch.ops.aten.affine_grid_generator_backward(grad, [n, c, h, w], True)  # type: ignore[no-any-return]


TWINS: dict[str, Any] = {
    **attention.TWINS,
    "cudnn_convolution": convolution,
    "cudnn_convolution_transpose": convolution_transpose,
    "cudnn_convolution_relu": convolution_relu,
    "cudnn_convolution_add_relu": convolution_add_relu,
    "_conv_depthwise2d": depthwise,
    "conv_depthwise3d": depthwise,
    "cudnn_batch_norm": batch_norm,
    "cudnn_batch_norm_backward": batch_norm_backward,
    "_cudnn_rnn": rnn,
    "_cudnn_rnn_backward": rnn_backward,
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
    "_fused_rms_norm": rms_norm,
    "_fused_rms_norm_backward": rms_norm_backward,
    "_fused_dropout": fused_dropout,
    "_masked_scale": masked_scale,
    "cudnn_grid_sampler": grid_sampler,
    "cudnn_grid_sampler_backward": grid_sampler_backward,
    "cudnn_affine_grid_generator": affine_grid,
    "cudnn_affine_grid_generator_backward": affine_grid_backward,
    "mm.dtype": mm,
}
"""By name, with the overload where only that one is meant."""
