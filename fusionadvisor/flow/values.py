"""An id for every state of every tensor, without keeping any tensor alive."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch._C import _WeakTensorRef  # type: ignore[attr-defined]
from torch.multiprocessing.reductions import StorageWeakRef

from fusionadvisor.flow.graph import Role, Value

_UNREAD = -1
_BEFORE = -1
_Geometry = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass(frozen=True, slots=True)
class _Write:
    """An in-place write: by which op, when, and the range of elements (in bytes of the storage) it can have touched."""

    op: int
    time: int
    low: int
    high: int


class Values:
    """The values of one run.

    Tensors and storages are known by the address of their C++ object. A weak reference to each is kept, which frees
    the memory but not the address, so an address never comes to mean another tensor while this lives.
    """

    def __init__(self) -> None:
        self.all: list[Value] = []
        self.late: dict[int, list[int]] = {}
        """By op: states it made of aliases of what it wrote, found out when they were read later."""
        self._born: list[int] = []
        self._extent: list[tuple[int, int]] = []
        self._time = 0
        self._tensors: dict[int, tuple[object, int]] = {}
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._latest: dict[_Geometry, int] = {}
        self._writes: dict[int, list[_Write]] = {}
        self._maker: dict[int, int] = {}
        self._names: dict[int, tuple[Role, str]] = {}
        self._owners: dict[int, tuple[Role, str]] = {}

    def name(self, tensor: torch.Tensor, role: Role, name: str) -> None:
        """Say what a tensor that exists before the run is; the first name given stays."""
        storage = self._storage(tensor)
        self._names.setdefault(tensor._cdata, (role, name))
        self._owners.setdefault(storage, (role, name))
        self._maker.setdefault(storage, _BEFORE)
        self._keep(tensor, _UNREAD)

    def existed(self, tensor: torch.Tensor) -> bool:
        """True where no op of the run made the storage of this tensor, which was read before."""
        return self._maker[self._storage(tensor)] == _BEFORE

    def read(self, tensor: torch.Tensor) -> int:
        """The id of a tensor's present state."""
        storage = self._storage(tensor)
        known = self._tensors.get(tensor._cdata, (None, _UNREAD))[1]
        if known == _UNREAD or self.all[known].storage != storage:
            known = self._latest.get(_geometry(tensor, storage), _UNREAD)
            if known == _UNREAD:
                return self._unseen(tensor, storage)
        write = self._write_since(known, storage)
        return known if write is None else self._late(tensor, storage, write.op, _role(self.all[known]))

    def _write_since(self, value: int, storage: int) -> _Write | None:
        """The latest write that can have changed what a value holds."""
        low, high = self._extent[value]
        for write in reversed(self._writes.get(storage, ())):
            if write.time <= self._born[value]:
                return None
            if write.low < high and low < write.high:
                return write
        return None

    def made(self, tensor: torch.Tensor, op: int) -> int:
        """A new value: what an op returned."""
        storage = self._storage(tensor)
        self._maker.setdefault(storage, op)
        return self._add(tensor, storage, ("activation", ""))

    def wrote(self, tensor: torch.Tensor, op: int) -> int:
        """A new state of a tensor that an op wrote in place. Call it after :meth:`read` of the state before."""
        storage = self._storage(tensor)
        role = _role(self.all[self._tensors[tensor._cdata][1]])
        self._time += 1
        self._writes.setdefault(storage, []).append(_Write(op, self._time, *_extent(tensor)))
        return self._add(tensor, storage, role)

    def alive(self) -> Iterable[int]:
        """Ids of the latest states of the tensors that still exist."""
        return [value for ref, value in self._tensors.values() if value != _UNREAD and not ref.expired()]  # type: ignore[attr-defined]

    def _unseen(self, tensor: torch.Tensor, storage: int) -> int:
        """A tensor no op was seen to make: it existed before, or is an alias made without an op (``.data``)."""
        maker = self._maker.setdefault(storage, _BEFORE)
        role = self._names.get(tensor._cdata) or self._owners.get(storage)
        writes = self._writes.get(storage)
        if maker == _BEFORE and not writes:
            return self._add(tensor, storage, role or ("constant", ""))
        return self._late(tensor, storage, writes[-1].op if writes else maker, role or ("activation", ""))

    def _late(self, tensor: torch.Tensor, storage: int, op: int, role: tuple[Role, str]) -> int:
        value = self._add(tensor, storage, role)
        self.late.setdefault(op, []).append(value)
        return value

    def _add(self, tensor: torch.Tensor, storage: int, role: tuple[Role, str]) -> int:
        value = Value(
            id=len(self.all), storage=storage, shape=tuple(int(s) for s in tensor.shape), dtype=str(tensor.dtype)[6:],
            strides=_strides(tensor), offset=_offset(tensor), device=str(tensor.device), role=role[0], name=role[1],
            requires_grad=tensor.requires_grad, itemsize=tensor.element_size(),
        )  # fmt: skip
        self.all.append(value)
        self._born.append(self._time)
        self._extent.append(_extent(tensor))
        self._keep(tensor, value.id)
        self._latest[_geometry(tensor, storage)] = value.id
        return value.id

    def _keep(self, tensor: torch.Tensor, value: int) -> None:
        known = self._tensors.get(tensor._cdata)
        self._tensors[tensor._cdata] = (known[0] if known else _WeakTensorRef(tensor), value)

    def _storage(self, tensor: torch.Tensor) -> int:
        if tensor.layout is not torch.strided:
            return self._storages.setdefault(-tensor._cdata, (None, len(self._storages)))[1]  # type: ignore[arg-type]
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            self._storages[key] = (StorageWeakRef(storage), len(self._storages))  # type: ignore[no-untyped-call]
        return self._storages[key][1]


def _role(value: Value) -> tuple[Role, str]:
    return value.role, value.name


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    if tensor.layout is torch.strided:
        return tuple(int(s) for s in tensor.stride())
    dense = [1]
    for size in reversed(tensor.shape[1:]):
        dense.append(dense[-1] * int(size))
    return tuple(reversed(dense))[: tensor.dim()] if tensor.dim() else ()


def _offset(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) if tensor.layout is torch.strided else 0


def _geometry(tensor: torch.Tensor, storage: int) -> _Geometry:
    return storage, _offset(tensor), tuple(tensor.shape), _strides(tensor), tensor.dtype


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte and one past the last byte of its elements in the storage."""
    if not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, _strides(tensor), strict=True))
    start = _offset(tensor)
    return start * tensor.element_size(), (start + last + 1) * tensor.element_size()
