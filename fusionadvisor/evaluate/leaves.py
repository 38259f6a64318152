"""What an output is made of: tensors and values with their paths, and whether two of them can be compared."""

import math
import types
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Trained(dict[str, Any]):
    """What a training step leaves: ``output``, ``gradients``, ``parameters``, ``buffers``.

    ``moved`` says how far each parameter has gone since the first step at the most, step by step, in any element.
    """

    moved: Mapping[str, float] = types.MappingProxyType({})


_CONTAINERS = (list, tuple, deque)
_PLAIN = (dict, OrderedDict, list, tuple, deque)
_WHOLE = (type, Enum, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.CodeType)
"""What has attributes and is a value by itself all the same."""
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, so that its attributes are all it holds


def leaves(value: object, path: str = "output", within: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Tensors and other values of nested outputs with their paths, ``output['logits'][0]``; objects by their parts.

    ``within`` holds the ids of what the value is part of, so that what holds itself ends.
    """
    parts = _parts(value)
    if not parts and not isinstance(value, Mapping | list | tuple | deque):
        yield path, torch.from_numpy(value) if _is_numbers(value) else value
    elif id(value) not in within:
        for name, part in parts:
            yield from leaves(part, f"{path}{name}", (*within, id(value)))
        if _has_more(value):
            yield f"{path}<{type(value).__name__}>", value


def _parts(value: object) -> list[tuple[str, Any]]:
    """What a value holds, each with the end of its path."""
    if isinstance(value, Tensor):
        return [(f"[{i}]", part) for i, part in enumerate(value.unbind())] if value.is_nested else []
    if isinstance(value, _WHOLE):
        return []
    items: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        items = [(f"[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, _CONTAINERS):
        items = [(f"[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, Trained):  # how far it moved is for the limits
        return items
    listed = {id(item) for _, item in items}  # a mapping may offer its items as attributes, too
    return items + [(f".{name}", item) for name, item in _attributes(value) if id(item) not in listed]


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Slots and attributes of an object that can be read, each once."""
    names = []
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        names += [_kept_as(kind, slot) for slot in ((slots,) if isinstance(slots, str) else slots)]
    for name in dict.fromkeys((*names, *getattr(value, "__dict__", ()))):
        if name not in ("__dict__", "__weakref__") and hasattr(value, name):
            yield name, getattr(value, name)


def _kept_as(kind: type, slot: str) -> str:
    """The attribute that a slot is kept as: private names are mangled."""
    return f"_{kind.__name__.lstrip('_')}{slot}" if slot.startswith("__") and not slot.endswith("__") else slot


def _has_more(value: object) -> bool:
    """Whether an object may hold more than its parts, as a subclass of an iterator or of a number does."""
    if isinstance(value, (Mapping, *_CONTAINERS, Tensor)):
        return False
    native = next(kind for kind in type(value).__mro__ if not kind.__flags__ & _HEAP_TYPE)
    return native is not object


def _is_numbers(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "bfciu" and value.dtype.isnative and value.size > 0


def other_kind(own: object, new: object, path: str = "output") -> str:
    """Say where an object, or a container of a class of its own, has become something else."""
    pairs: list[tuple[str, Any, Any]] = []
    if (parts := _parts(own)) and not isinstance(own, Tensor):
        if type(own) not in _PLAIN and type(new) is not type(own):
            return f"{path} is a {type(new).__name__} instead of a {type(own).__name__}"
        others = dict(_parts(new))
        if isinstance(own, (Mapping, *_CONTAINERS)):  # objects may hold themselves
            pairs = [(f"{path}{name}", part, others[name]) for name, part in parts if name in others]
    return next((reason for name, a, b in pairs if (reason := other_kind(a, b, name))), "")


def difference(own: Any, new: Any) -> str | None:
    """Compare two values that are no tensors.

    Returns:
        What differs, empty where nothing does; None where that cannot be told, as of an iterator.
    """
    if own is new:
        return ""
    if type(own) is not type(new):
        return f"is {type(new).__name__} instead of {type(own).__name__}"
    if isinstance(own, complex):
        same: bool | None = _close(own.real, new.real) and _close(own.imag, new.imag)
    elif isinstance(own, float):
        same = _close(own, new)
    elif isinstance(own, types.FunctionType):
        same = _bound_alike(own, new) or None
    elif isinstance(own, types.MethodType):
        same = (own.__func__ is new.__func__ and own.__self__ is new.__self__) or None
    else:
        same = _equal(own, new)
    return None if same is None else "" if same else f"is {new!r} instead of {own!r}"


def _equal(own: Any, new: Any) -> bool | None:
    """Whether two values of one class are equal; None where the class cannot tell."""
    if not isinstance(own, Enum) and _compares_by_identity(own):
        return None
    try:
        same = bool(own == new)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return None
    if not same and isinstance(own, set | frozenset) and any(map(_compares_by_identity, own ^ new)):
        return None
    return same


def _compares_by_identity(value: object) -> bool:
    """Whether it equals itself alone; a tensor in a set is one of those."""
    return isinstance(value, Tensor) or not any("__eq__" in vars(kind) for kind in type(value).__mro__[:-1])


def _bound_alike(own: types.FunctionType, new: types.FunctionType) -> bool:
    """Whether two functions have the same code, and the same values bound to it."""
    held = [[c.cell_contents for c in f.__closure__ or ()] + [f.__defaults__, f.__kwdefaults__] for f in (own, new)]
    return own.__code__ == new.__code__ and all(difference(a, b) == "" for a, b in zip(*held, strict=True))


def _close(own: float, new: float) -> bool:
    return (math.isnan(own) and math.isnan(new)) or math.isclose(own, new, rel_tol=1e-5, abs_tol=1e-8)
