"""Fused attention."""

from math import ceil

from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.kernels import Call, Entry, Kernel, Product, Work
from fusionadvisor.flow.graph import Value


def flash(call: Call, gpu: Silicon) -> list[Work]:
    """One kernel; when the queries fill too little of the GPU, the keys are split and a second one combines."""
    query, key = call.reads[:2]
    scores = _scores(call, query, key)
    depth = query.shape[-1]
    blocks = scores.batch * ceil(scores.m / 64)
    key_blocks = ceil(scores.n / _KEY_BLOCK[depth > 64, depth > 128])
    parts = 1 if call.number("dropout_p", 0) else _key_splits(blocks, 2 * gpu.multiprocessors, key_blocks)
    op = "aten::_flash_attention_forward"
    main = Kernel("attention", f"flash_fwd<{query.dtype}>", "attention", call.moved, op, scores)
    combine = Kernel("attention", "flash_fwd_splitkv_combine", "reduction", parts * query.touched_bytes, op)
    return [main] if parts == 1 else [main, combine]


_KEY_BLOCK = {(False, False): 256, (True, False): 128, (True, True): 64}
"""Keys a block takes, by whether the head is over 64 and over 128 wide (flash_api.cpp, set_params_splitkv)."""


def _scores(call: Call, query: Value, key: Value) -> Product:
    """Both products of attention as one: each row of queries with each key, twice over the head's width."""
    heads, rows = (2, 1) if call.name.startswith(("_flash_attention", "_efficient_attention")) else (1, 2)
    half = query.itemsize == 2
    return Product(
        query.shape[0] * query.shape[heads],
        query.shape[rows],
        key.shape[rows],
        2 * query.shape[-1],
        query.itemsize,
        half,
    )


def _key_splits(blocks: int, slots: int, key_blocks: int) -> int:
    """Into how many parts flash-attention splits the keys: the fewest that come within 15 % of the fullest waves."""
    if blocks >= 0.8 * slots:
        return 1
    most = min(128, slots, key_blocks)

    def useful(n: int) -> bool:
        return n == 1 or ceil(key_blocks / n) != ceil(key_blocks / (n - 1))

    filled = {n: (waves := blocks * n / slots) / ceil(waves) for n in range(1, most + 1) if useful(n)}
    best = max(filled.values(), default=1.0)
    return next((n for n, share in filled.items() if share >= 0.85 * best), 1)


def flash_backward(call: Call, gpu: Silicon) -> list[Work]:
    """Row sums of dO*O, the gradients, a cast of dQ; grouped heads are summed for keys and values."""
    query, key = call.reads[1:3]
    product = _scores(call, query, key)
    op = "aten::_flash_attention_backward"
    work: list[Work] = [
        Kernel("attention", "flash_bwd_dot_do_o", "reduction", 2 * query.touched_bytes, op),
        Kernel("attention", f"flash_bwd<{query.dtype}>", "attention", call.moved, op,
               Product(product.batch, product.m, product.n, product.k * 5 // 2, product.itemsize)),
        Kernel("attention", "flash_bwd_convert_dq", "cast", 3 * query.touched_bytes, op),
    ]  # fmt: skip
    if query.shape[1] != key.shape[1]:
        work += [Kernel("reduction", f"sum<{key.dtype}>", "reduction", 2 * query.touched_bytes, "aten::sum")] * 2
    return work


def efficient(call: Call, gpu: Silicon) -> list[Work]:
    """One kernel of CUTLASS's fused attention."""
    backward = "backward" in call.name
    query, key = call.reads[1:3] if backward else call.reads[:2]
    op = f"aten::_efficient_attention_{'backward' if backward else 'forward'}"
    label = f"fmha_cutlass{'B' if backward else 'F'}<{query.dtype}>"
    return [Kernel("attention", label, "attention", call.moved, op, _scores(call, query, key))]


def fast_encoder(call: Call, gpu: Silicon) -> list[Work]:
    """The fused eval path of nn.TransformerEncoderLayer and nn.MultiheadAttention, which runs as one op."""
    size = call.moved
    attention = ("gemm", "elementwise", "attention", "gemm")
    layer = (*attention, "elementwise", "norm", "gemm", "gemm", "elementwise", "norm")
    kinds = layer if call.name == "_transformer_encoder_layer_fwd" else attention
    return [Kernel(kind, f"{call.name.strip('_')}_{kind}", "", size) for kind in kinds]


TABLE = (
    Entry(
        "_scaled_dot_product_flash_attention _flash_attention_forward _scaled_dot_product_cudnn_attention",
        flash,
        "one kernel, or split keys and a combine (flash_api.cpp, num_splits_heuristic)",
    ),
    Entry(
        "_scaled_dot_product_flash_attention_backward _flash_attention_backward "
        "_scaled_dot_product_cudnn_attention_backward",
        flash_backward,
        "three kernels (flash_bwd_launch_template.h)",
    ),
    Entry(
        "_scaled_dot_product_efficient_attention _efficient_attention_forward "
        "_scaled_dot_product_efficient_attention_backward _efficient_attention_backward",
        efficient,
        "one kernel (attention.cu, attention_backward.cu)",
    ),
    Entry(
        "_transformer_encoder_layer_fwd _native_multi_head_attention",
        fast_encoder,
        "projection, bias and scale, attention, projection; add, norm, two products, add, norm (transformer.cpp)",
    ),
)
