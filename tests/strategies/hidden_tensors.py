"""Tensors that others hold.

As in ``hidden_python``.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from tests.strategies.hidden_objects import Doubling
from tests.strategies.hidden_python import Pythonic, wide


class CapturedByAHook(Pythonic):
    """What a hook keeps is looked at by another method."""

    methods = ("encode",)

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Any] = []
        self.between = Doubling()
        self.between.register_forward_hook(functools.partial(keep, self.outputs))

    def __deepcopy__(self, memo: dict[int, Any]) -> "CapturedByAHook":
        made = type(self)()
        made.load_state_dict(self.state_dict())
        return made.to(self.conv.weight.dtype).train(self.training)

    def forward(self, x: Tensor) -> Any:
        return self.norm(self.between(self.conv(x)))

    def encode(self, x: Tensor) -> Any:
        self(x)
        return self.outputs[-1]


def keep(outputs: list[Any], _: nn.Module, given: Any, out: Tensor) -> None:
    outputs.append(out)


class InPlaceLazily(Pythonic):
    """The activation may not overwrite what a generator reads later."""

    def forward(self, x: Tensor) -> Any:
        y = self.norm(self.conv(x))
        later = (y * 2 for _ in range(1))
        return self.act(y) + next(later)


class InPlaceOut(Pythonic):
    methods = ("encode",)

    def forward(self, x: Tensor) -> Any:
        return self.act(torch.mul(x, 2.0, out=x) if wide(x) else x * 2)

    def encode(self, x: Tensor) -> Any:
        return self.act(torch.add(x, 1.0, out=x)) + x


class InPlaceCached(Pythonic):
    def forward(self, x: Tensor) -> Any:
        return self.act(shifted(x.shape[-1])) + x.mean()


@functools.lru_cache(maxsize=4)
def shifted(width: int) -> Tensor:
    return torch.linspace(-1, 1, width) + torch.linspace(-1, 0, width)


CLASSES = [
    kind for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Pythonic) and kind is not Pythonic
]  # fmt: skip
