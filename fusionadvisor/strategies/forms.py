"""How a module is called: which arguments there are, which of them are tensors, and the values of all others."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

_PLAIN = (bool, int, float, str, type(None))
_TENSORS = (Tensor, nn.Parameter, nn.Buffer)


@dataclass(frozen=True)
class Form:
    """The arguments of a call, its tensors taken out.

    Args:
        args: By position, each as JSON: a tensor with its number of dimensions and whether it is of real numbers, a
            tensor that was there before, a constant, a tuple, list or dict of these, or another type.
        kwargs: By name.
    """

    args: list[Any]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple["Form", list[Tensor]]:
        """The form of a call, and its tensors in order."""
        tensors: list[Tensor] = []
        found = cls([_kind(a, tensors) for a in args], {name: _kind(a, tensors) for name, a in kwargs.items()})
        return found, tensors

    @property
    def unknown(self) -> str:
        """The type of an argument that is neither tensor nor constant; empty where there is none."""
        return next((found for kind in (*self.args, *self.kwargs.values()) for found in _others(kind)), "")

    def call(self, tensor: Callable[[str], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of this form, each tensor made by ``tensor`` of a name for it."""
        made: list[Any] = []
        args = tuple(_filled(kind, f"input{i}", tensor, made) for i, kind in enumerate(self.args))
        return args, {name: _filled(kind, name, tensor, made) for name, kind in self.kwargs.items()}


def _kind(value: Any, tensors: list[Tensor]) -> list[Any]:
    kind = type(value)
    if kind in _TENSORS:
        for index, other in enumerate(tensors):
            if other is value:
                return ["same", index]
        tensors.append(value)
        return ["tensor", value.dim(), value.is_floating_point()]
    if kind in _PLAIN:
        return ["constant", value, kind.__name__]
    if kind is tuple or kind is list:
        return [kind.__name__, [_kind(item, tensors) for item in value]]
    if kind is dict and all(isinstance(key, str) for key in value):
        return ["dict", [[key, _kind(item, tensors)] for key, item in value.items()]]
    return ["other", kind.__name__]


def _others(kind: list[Any]) -> Iterator[str]:
    if kind[0] == "other":
        yield kind[1]
    elif kind[0] in ("tuple", "list", "dict"):
        for item in kind[1]:
            yield from _others(item[1] if kind[0] == "dict" else item)


def _filled(kind: list[Any], name: str, tensor: Callable[[str], Any], made: list[Any]) -> Any:
    if kind[0] == "tensor":
        made.append(tensor(name))
        return made[-1]
    if kind[0] == "same":
        return made[kind[1]]
    if kind[0] == "dict":
        return {key: _filled(item, f"{name}_{key}", tensor, made) for key, item in kind[1]}
    if kind[0] in ("tuple", "list"):
        items = [_filled(item, f"{name}_{i}", tensor, made) for i, item in enumerate(kind[1])]
        return tuple(items) if kind[0] == "tuple" else items
    return kind[1]
