"""Device memory is host memory: CPU tensors over the memory of CUDA tensors, and poison for what nobody computed."""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

CPU = torch.device("cpu")


def host(tensor: Tensor) -> Tensor:
    """A CPU tensor over the memory of a CUDA tensor; any other tensor as it is."""
    if not is_dense(tensor):
        return tensor
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    if size == 0 or storage.data_ptr() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    raw = torch.frombuffer((ctypes.c_char * size).from_address(storage.data_ptr()), dtype=torch.uint8)
    view = torch.empty(0, dtype=tensor.dtype).set_(
        raw.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    if tensor.is_conj():
        view = torch._conj(view)
    if tensor.is_neg():
        view = torch._neg_view(view)
    return view


def is_dense(value: Any) -> bool:
    """Whether it is a plain CUDA tensor, with memory to compute over."""
    return isinstance(value, Tensor) and value.device.type == "cuda" and value.layout is torch.strided


def on_host(arguments: Any) -> Any:
    """The arguments with all that is on the device on the CPU: tensors as views, devices by name."""
    moved = tree_map_only(Tensor, host, arguments)
    moved = tree_map_only(torch.device, lambda _: CPU, moved)
    return tree_map_only(torch.Generator, lambda _: None, moved)


def poison(values: Any) -> None:
    """Overwrite with bytes that are NaN in each floating type and -1 in each integer."""
    for value in tree_leaves(values):
        if is_dense(value):
            fill(host(value))


def fill(view: Tensor) -> None:
    if view.numel() == 0:
        return
    if view.is_floating_point() or view.is_complex():
        view.fill_(float("nan"))
    elif view.dtype is torch.bool:
        view.fill_(True)
    else:
        view.fill_(-1 if view.dtype.is_signed else torch.iinfo(view.dtype).max)


def ranges(values: Any) -> list[tuple[int, int]]:
    """Where the CUDA tensors among the values lie: pointer and size."""
    storages = [value.untyped_storage() for value in tree_leaves(values) if is_dense(value)]
    return [(storage.data_ptr(), storage.nbytes()) for storage in storages if storage.nbytes()]
