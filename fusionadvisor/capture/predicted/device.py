"""A CUDA device that is not here. For a child process alone: it cannot be undone.

A backend in Python takes the place of CUDA, and tensors on it are fake: they have a shape, a type, strides and a
device, and no memory. What torch decides by asking whether a tensor is on CUDA, in C++, is decided here as it would be
there: which attention kernel runs, which optimizer loop, what autocast casts.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.utils import clip_grad
from torch.optim.optimizer import _foreach_supported_types
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration

from fusionadvisor.capture.predicted import autocast, recurrent
from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.known import Known, know
from fusionadvisor.workload.inputs import Call

NAME = "fakegpu"
aten = torch.ops.aten

FLASH_HEAD, EFFICIENT_ALIGNMENT = 256, 8
"""Widest head of flash attention; alignment in elements of half precision (sdp_utils.cpp)."""
MASK_ALIGNMENT = 16
"""Columns a mask is padded to a multiple of (attention.cpp, pad_bias)."""


class _Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


@functools.cache
def register() -> None:
    """Make the device known to torch, once in the life of a process."""
    backend_registration._setup_privateuseone_for_python_backend(rename=NAME, backend_module=_Backend())
    autocast.register(NAME)
    # fake tensors are plain tensors to what chooses its loop by their type
    _foreach_supported_types.append(FakeTensor)
    clip_grad.__dict__["_has_foreach_support"] = lambda _, device: device.type == NAME
    # and to the fast path of the transformer layers, which gives way where something listens in
    torch.overrides.has_torch_function = lambda *_: False
    for name, shapes in _CUDA_KERNELS.items():
        _OWN.impl(name, shapes, "PrivateUse1")  # type: ignore[no-untyped-call]


def _rms_norm_shapes(input: torch.Tensor, shape: list[int], weight: Any, eps: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows = input.dim() - len(shape)
    return torch.empty_like(input), input.new_empty((*input.shape[:rows], *(1,) * len(shape)), dtype=torch.float32)


def _rms_norm_backward_shapes(
    grad: torch.Tensor, input: torch.Tensor, shape: list[int], rstd: torch.Tensor, weight: Any, mask: list[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    return torch.empty_like(input) if mask[0] else None, torch.empty_like(weight) if mask[1] else None


_OWN = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
_CUDA_KERNELS: dict[str, Callable[..., Any]] = {
    "_fused_rms_norm": _rms_norm_shapes,
    "_fused_rms_norm_backward": _rms_norm_backward_shapes,
    "mish_backward": lambda grad, _: torch.empty_like(grad),
}
"""Ops with a kernel on CUDA that torch takes apart on a backend without one (native_functions.yaml)."""


class Session:
    """What is alive while a model is built and run on the fake device.

    Args:
        gpu: What the device is.
        as_here: The code that builds the model and its inputs is not told of it.
    """

    def __init__(self, gpu: Silicon, *, as_here: bool = False) -> None:
        self.gpu = gpu
        self.as_here = as_here
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.known = Known(self.fake)

    @contextmanager
    def on_cpu(self) -> Iterator[None]:
        """Build without memory: tensors are fake, small constants are followed."""
        with self.building(), self.fake, self.known:
            yield

    @contextmanager
    def on_gpu(self) -> Iterator[None]:
        """Run: ``cuda`` means the fake device, and torch's choices are CUDA's."""
        chosen = _AsOnCuda(self.gpu)
        with (
            self.pretence(),
            self.fake,
            self.known,
            chosen,
            mock.patch.object(F, _ATTENTION.__name__, chosen.attention),
        ):
            yield

    @contextmanager
    def building(self) -> Iterator[None]:
        """Have torch answer the code that builds as it is to answer; modules can be moved."""
        with mock.patch.object(nn.Module, "_apply", _apply) if self.as_here else self.pretence():
            yield

    @contextmanager
    def pretence(self) -> Iterator[None]:
        """Have torch answer as if a CUDA device were here."""
        answers: dict[str, Callable[..., Any]] = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "get_device_capability": lambda *_: self.gpu.capability,
            "get_device_name": lambda *_: self.gpu.recorded_name,
            "is_bf16_supported": lambda *_, **__: self.gpu.capability >= (8, 0),
            "synchronize": lambda *_: None,
            "empty_cache": lambda: None,
            "manual_seed": lambda *_: None,
            "manual_seed_all": lambda *_: None,
        }
        with ExitStack() as stack:
            for name, answer in answers.items():
                stack.enter_context(mock.patch.object(torch.cuda, name, answer))
            stack.enter_context(autocast.as_cuda(NAME))
            stack.enter_context(mock.patch.object(nn.Module, "_apply", _apply))
            yield

    def move(self, model: nn.Module) -> nn.Module:
        """Put a model's tensors on the fake device, keeping ties, and what is known of small buffers."""
        moved = _Replaced(self.place)
        model._apply(moved)  # type: ignore[no-untyped-call]
        for module in model.modules():
            for name, value in list(vars(module).items()):
                # a tensor kept as a plain attribute stays where it is, unless it is a buffer's second name
                if isinstance(value, torch.Tensor) and id(value) in moved.made:
                    setattr(module, name, moved(value))
        return model

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like this one on the fake device. What it holds is followed where it is small and whole."""
        fresh = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=NAME)
        real = self.known.value(tensor)
        if real is not None and not (isinstance(tensor, nn.Parameter) or tensor.is_floating_point()):
            know(fresh, real)
        return fresh.requires_grad_(tensor.requires_grad) if tensor.is_leaf else fresh

    def place_call(self, call: Call, names: Sequence[str], apart: Mapping[str, str]) -> Call:
        """A call's inputs on the fake device, but for those ``apart`` on a device of their own, by name."""
        placed = call.map(lambda name, tensor: tensor if apart.get(name) == "cpu" else self.place(tensor), names)
        for value in (*placed.args, *placed.kwargs.values()):
            if hasattr(value, "__dict__") and not isinstance(value, torch.Tensor):  # a cache of keys and values
                vars(value).update(Call(kwargs=vars(value)).map(lambda _, tensor: self.place(tensor)).kwargs)
        return placed


class _Replaced:
    """A function of tensors that gives the same result for the same tensor: ties between parameters stay."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.change = change
        self.made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self.made:
            with torch.no_grad():
                fresh = self.change(tensor)
            if isinstance(tensor, nn.Parameter):
                fresh = nn.Parameter(fresh, requires_grad=tensor.requires_grad)
            self.made[id(tensor)] = (tensor, fresh)
            self.made[id(fresh)] = (fresh, fresh)
        return self.made[id(tensor)][1]


def _apply(module: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
    """``nn.Module._apply`` (``to``, ``half``, ``cuda``) by replacing: torch would swap fake tensors, and cannot."""
    replace = fn if isinstance(fn, _Replaced) else _Replaced(fn)
    if recurse:
        for child in module.children():
            child._apply(replace)  # type: ignore[no-untyped-call]
    for table in (module._parameters, module._buffers):
        for name, tensor in list(table.items()):
            if tensor is not None:
                table[name] = replace(tensor)  # type: ignore[assignment]
    return module


class _AsOnCuda(TorchFunctionMode):
    """Decides before dispatch what torch decides by the device."""

    def __init__(self, gpu: Silicon) -> None:
        super().__init__()
        self.gpu = gpu

    def attention(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for the function where other functions of torch call it: those are not listened in to."""
        return attention(self.gpu, _ATTENTION, *args, **kwargs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is _ATTENTION:
            return attention(self.gpu, func, *args, **kwargs)
        if func in recurrent.MODES:
            return recurrent.cudnn(func, *args, **kwargs)
        if func in _RMS_NORM:
            return rms_norm(func, *args, **kwargs)
        if func is torch.Tensor.cuda:
            return args[0].to(NAME)
        if func is torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return args[0].device.type == NAME
        if kwargs.get("device") is not None:
            kwargs["device"] = _here(kwargs["device"])
        if func in _FROM_DATA and (kwargs.get("device") or _device_of(func, args)).type == NAME:
            return func(*args, **{**kwargs, "device": "cpu"}).to(NAME)  # made from a list, then copied: also on CUDA
        if func in _INDEXING:
            args = (args[0], _indices(args[1], args[0].device), *args[2:])
        if func is torch.Tensor.to:
            args = (args[0], *map(_here, args[1:]))
        return func(*args, **kwargs)


_ATTENTION = F.scaled_dot_product_attention
_INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
_FROM_DATA = (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor)
_RMS_NORM = (torch.rms_norm, F.rms_norm)


def _indices(index: Any, device: torch.device) -> Any:
    """Lists among indices as the tensors they are made into: on the CPU, then copied."""
    if isinstance(index, tuple):
        return tuple(_indices(part, device) for part in index)
    return torch.tensor(index).to(device) if isinstance(index, list) else index


def _device_of(func: Any, args: Any) -> torch.device:
    given = func is torch.Tensor.new_tensor
    return args[0].device if given else torch.device("cpu")


def _here(value: Any) -> Any:
    """The fake device for whatever names a CUDA device."""
    if isinstance(value, str | torch.device):
        return torch.device(NAME if str(value).partition(":")[0] == "cuda" else value)
    return value


def rms_norm(func: Any, input: torch.Tensor, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """One kernel on CUDA (torch 2.9 and later), a chain of ops elsewhere (layer_norm.cpp, rms_norm_symint)."""
    shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    if weight is not None and weight.dtype != input.dtype:
        return func(input, normalized_shape, weight, eps)
    return aten._fused_rms_norm(input, shape, weight, eps)[0]


def attention(
    gpu: Silicon,
    func: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Choose the kernel as CUDA does: flash, else memory-efficient, else written out (sdp_utils.cpp, priority_order).

    cuDNN's attention, which recent versions prefer on Hopper, launches as many kernels as flash attention.
    """
    plain = query.dim() == key.dim() == value.dim() == 4 and query.device.type == NAME
    half = query.dtype in (torch.float16, torch.bfloat16)
    if query.dtype is torch.bfloat16 and gpu.capability < (8, 0):
        plain = False
    depth = query.shape[-1]
    equal_depth = depth == key.shape[-1] == value.shape[-1]
    grouped = query.shape[-3] != key.shape[-3] if plain else False
    if not plain or (grouped and not enable_gqa):
        return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    factor = depth**-0.5 if scale is None else scale
    if half and attn_mask is None and equal_depth and depth <= FLASH_HEAD and gpu.capability >= (8, 0):
        width = -depth % EFFICIENT_ALIGNMENT
        q, k, v = (F.pad(t, (0, width)) if width else t for t in (query, key, value))
        out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=factor)[0]
        return out[..., :depth] if width else out
    aligned = EFFICIENT_ALIGNMENT if half else 4
    if not grouped and depth % aligned == 0 and value.shape[-1] % aligned == 0 and query.dtype is not torch.float64:
        mask = None if attn_mask is None else _bias(attn_mask, query, key)
        gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, gradient, dropout_p, is_causal, scale=factor
        )[0]
    return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask as the kernel takes it: added, aligned, expanded (attention.cpp, preprocess_mask)."""
    if mask.dtype is torch.bool:
        low = torch.scalar_tensor(float("-inf"), dtype=query.dtype, device=mask.device)
        mask = torch.where(mask, torch.scalar_tensor(0.0, dtype=query.dtype, device=mask.device), low)
    columns = mask.shape[-1]
    if columns % MASK_ALIGNMENT:
        mask = F.pad(mask, (0, -columns % MASK_ALIGNMENT))[..., :columns]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


@functools.cache
def is_pointwise(name: str) -> bool:
    """Whether torch tags an op as working element by element."""
    namespace, _, op = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), op, None)
    return packet is not None and any(torch.Tag.pointwise in getattr(packet, o).tags for o in packet.overloads())
