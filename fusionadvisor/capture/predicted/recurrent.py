"""Recurrent layers as CUDA runs them: one op of cuDNN for all layers and steps (RNN.cpp)."""

from typing import Any

import torch

aten = torch.ops.aten

MODES = {torch.rnn_relu: 0, torch.rnn_tanh: 1, torch.lstm: 2, torch.gru: 3}
"""Functions of torch and cuDNN's number for them (cudnnRNNMode_t)."""
_LSTM = 2


def cudnn(func: Any, data: torch.Tensor, second: Any, third: Any, *rest: Any) -> Any:
    """Call cuDNN's op in place of ``torch.lstm`` and its like, which take packed sequences in another order.

    Padded: ``(input, hidden, weights, biased, layers, dropout, train, bidirectional, batch_first)``. Packed:
    ``(data, batch sizes, hidden, weights, biased, layers, dropout, train, bidirectional)``.
    """
    packed = not isinstance(rest[0], bool)
    if packed:
        hidden, weights, sizes = third, rest[0], second
        biased, layers, dropout, train, bidirectional = rest[1:6]
        batch_first = False
    else:
        hidden, weights, sizes = second, third, None
        biased, layers, dropout, train, bidirectional, batch_first = rest
    state, cell = hidden if MODES[func] == _LSTM else (hidden, None)
    width = weights[1].shape[1] if cell is None else cell.shape[-1]
    projected = state.shape[-1] if state.shape[-1] != width else 0
    steps = sizes.tolist() if sizes is not None else []
    flat = torch.empty(
        sum(w.numel() for w in weights), dtype=data.dtype, device=data.device
    )  # as flatten_parameters() made
    out, last, last_cell, *_ = aten._cudnn_rnn(
        data, list(weights), 4 if biased else 2, flat, state, cell, MODES[func], width, projected, layers, batch_first,
        dropout, train, bidirectional, steps, None,
    )  # fmt: skip
    return (out, last, last_cell) if MODES[func] == _LSTM else (out, last)
