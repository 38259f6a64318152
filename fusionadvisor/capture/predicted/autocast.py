"""Autocast on the fake device, with the policy it has on CUDA (autocast_mode.h, the CUDA op lists).

The lists decide only which casts there are; casts of parameters are kept until the outermost context ends, as torch
keeps them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

KEY = "AutocastPrivateUse1"

LOW = """
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
    convolution prelu addmm addmv addr matmul einsum mm mv
    linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
    lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
""".split()  # noqa: SIM905
"""Run in the lower precision."""

FULL = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
    pow.Scalar softplus layer_norm native_layer_norm group_norm cosine_similarity poisson_nll_loss cosine_embedding_loss
    nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist
    pdist cdist renorm logsumexp upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d
    norm.Scalar
""".split()  # noqa: SIM905
"""Run in float32."""

INTO_FULL = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm sum sum.dim_IntList
""".split()  # noqa: SIM905
"""Asked for a float32 result, whatever they read."""

WIDEST = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add".split()  # noqa: SIM905
"""Run in the widest type among their arguments."""


def register(device: str) -> None:
    """Install the policy for the fake device. Once in the life of a process."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    others = torch.library.Library("_", "IMPL", KEY)  # type: ignore[no-untyped-call]
    others.fallback(torch.library.fallthrough_kernel)  # type: ignore[no-untyped-call]
    _libraries.extend((library, others))
    policies: tuple[tuple[list[str], Callable[[list[torch.Tensor]], torch.dtype]], ...] = (
        (LOW, lambda _: torch.get_autocast_dtype(device)),
        (FULL, lambda _: torch.float32),
        (WIDEST, _widest),
    )
    for names, pick in policies:
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
            if op is not None:
                library.impl(name, _casting(op, pick), KEY)  # type: ignore[no-untyped-call]

    for name in INTO_FULL:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(name, _into_full(op, packet), KEY)  # type: ignore[no-untyped-call]


_libraries: list[torch.library.Library] = []
_casts: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}


def _widest(tensors: list[torch.Tensor]) -> torch.dtype:
    floats = [t.dtype for t in tensors if t.is_floating_point()]
    return torch.float32 if torch.float32 in floats or not floats else floats[0]


def _casting(op: Any, pick: Callable[[list[torch.Tensor]], torch.dtype]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        dtype = pick(tensors)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))):
            args, kwargs = torch.utils._pytree.tree_map(lambda leaf: _cast(leaf, dtype), (args, kwargs))
            return op(*args, **kwargs)

    return kernel


def _into_full(op: Any, name: str) -> Callable[..., Any]:
    def kernel(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.dtype in (torch.float16, torch.bfloat16) and kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))):
            if name in ("softmax", "log_softmax") and tensor.dtype is torch.float16 and len(args) == 1:
                # reads half precision and writes float32 in one kernel (SoftMax.cpp, softmax)
                return getattr(torch.ops.aten, f"_{name}")(tensor, args[0], True)
            return op(tensor, *args, **kwargs)

    return kernel


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    eligible = isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype is not torch.float64
    if not eligible or leaf.dtype is dtype:
        return leaf
    if not (leaf.is_leaf and leaf.requires_grad and dtype is not torch.float32):
        return leaf.to(dtype)
    kept = _casts.get((id(leaf), dtype))
    if kept is None:
        kept = _casts[id(leaf), dtype] = (leaf, leaf.to(dtype))
    return kept[1]


@contextmanager
def as_cuda(device: str) -> Iterator[None]:
    """``torch.autocast("cuda")`` means the fake device, and forgets its casts at its end."""
    original = torch.autocast.__init__
    clear = torch.clear_autocast_cache

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, device if device_type == "cuda" else device_type, *args, **kwargs)

    def cleared() -> None:
        _casts.clear()
        clear()

    with mock.patch.object(torch.autocast, "__init__", init), mock.patch.object(torch, "clear_autocast_cache", cleared):
        yield
