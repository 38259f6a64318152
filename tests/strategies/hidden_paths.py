# mypy: ignore-errors
"""Models with a path that small inputs do not take: each is right on every path, or refused with its line.

A class has a pair of a convolution and a batch norm. Images wider than 32 take the other path; so may other public
methods, listed in ``methods``.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.strategies import hidden_helpers


class Pair(nn.Module):
    methods: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Any:
        return self.norm(self.conv(x))


class FunctionOfAModule(Pair):
    def forward(self, x: Tensor) -> Any:
        return hidden_helpers.raw(self, x) if x.shape[-1] > 32 else super().forward(x)


class ImportedInside(Pair):
    def forward(self, x: Tensor) -> Any:
        from tests.strategies.hidden_helpers import raw as inner

        return inner(self, x) if x.shape[-1] > 32 else self.norm(self.conv(x))


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(self: Any, x: Tensor) -> Any:
        return function(self, x)

    return inner


class Decorated(Pair):
    @timed
    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        return y if x.shape[-1] > 32 else self.norm(y)


class Processor:
    def __call__(self, block: Any, x: Tensor) -> Any:
        y = block.conv(x)
        return y if x.shape[-1] > 32 else block.norm(y)


class Processed(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.processor = Processor()

    def forward(self, x: Tensor) -> Any:
        return self.processor(self, x)


class Dispatched(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.table = {True: self.wide, False: self.narrow}

    def wide(self, x: Tensor) -> Any:
        return self.conv(x)

    def narrow(self, x: Tensor) -> Any:
        return self.norm(self.conv(x))

    def forward(self, x: Tensor) -> Any:
        return self.table[x.shape[-1] > 32](x)


class OfPartial(Pair):
    def forward(self, x: Tensor) -> Any:
        run = functools.partial(hidden_helpers.either, self.conv, self.norm)
        return run(x)


class OfLambda(Pair):
    def forward(self, x: Tensor) -> Any:
        finish: Any = (lambda y: y) if x.shape[-1] > 32 else (lambda y: self.norm(y))
        return finish(self.conv(x))


class InAList(Pair):
    def __init__(self) -> None:
        super().__init__()
        self.steps = [self.conv, self.norm]

    def forward(self, x: Tensor) -> Any:
        for step in self.steps[: 1 if x.shape[-1] > 32 else 2]:
            x = step(x)
        return x


class ByName(Pair):
    def forward(self, x: Tensor) -> Any:
        y = getattr(self, "conv")(x)  # noqa: B009
        return y if x.shape[-1] > 32 else getattr(self, "norm")(y)  # noqa: B009


class ByUnknownName(Pair):
    def forward(self, x: Tensor) -> Any:
        for name in sorted(self._modules)[: 1 if x.shape[-1] > 32 else 2]:
            x = getattr(self, name)(x)
        return x


class Getter(Pair):
    @property
    def stem(self) -> Any:
        return self.conv

    def forward(self, x: Tensor) -> Any:
        return self.stem(x) if x.shape[-1] > 32 else self.norm(self.conv(x))


class Base(Pair):
    def run(self, x: Tensor) -> Any:
        return self.conv(x)


class OfSuper(Base):
    def run(self, x: Tensor) -> Any:
        return super().run(x) if x.shape[-1] > 32 else self.norm(self.conv(x))

    def forward(self, x: Tensor) -> Any:
        return self.run(x)


class Static(Pair):
    @staticmethod
    def choose(pair: Any, x: Tensor) -> Any:
        return pair.conv(x) if x.shape[-1] > 32 else pair.norm(pair.conv(x))

    def forward(self, x: Tensor) -> Any:
        return Static.choose(self, x)


class Generator(Pair):
    def parts(self, x: Tensor) -> Any:
        y = self.conv(x)
        yield y
        yield self.norm(y)

    def forward(self, x: Tensor) -> Any:
        made = self.parts(x)
        first = next(made)
        return first if x.shape[-1] > 32 else next(made)


class Caught(Pair):
    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        try:
            if x.shape[-1] > 32:
                raise ValueError
            y = self.norm(y)
        except ValueError:
            pass
        return y


class Features(Pair):
    methods = ("stem_features",)

    def stem_features(self, x: Tensor) -> Any:
        return self.conv(x)


class Encodes(Pair):
    methods = ("encode",)

    def encode(self, x: Tensor) -> Any:
        return F.conv2d(x, self.conv.weight, padding=1)


class EncodesCopy(Pair):
    methods = ("encode",)

    def encode(self, x: Tensor) -> Any:
        weight = self.conv.weight.detach().clone()
        return F.conv2d(x, weight, padding=1)


class EncodesNorm(Pair):
    methods = ("encode",)

    def encode(self, x: Tensor) -> Any:
        return x / self.conv.weight.norm()


class EncodesMask(Pair):
    methods = ("encode",)

    def encode(self, x: Tensor) -> Any:
        kept = self.conv.weight > 0
        return x * kept.float().mean()


class EncodesFilled(Pair):
    methods = ("encode",)

    def encode(self, x: Tensor) -> Any:
        weight = torch.empty(8, 3, 3, 3)
        weight.copy_(self.conv.weight)
        return F.conv2d(x, weight, padding=1)


class EncodesThrough(Pair):
    methods = ("encode",)

    def __init__(self) -> None:
        super().__init__()
        self.squash = nn.Tanh()

    def encode(self, x: Tensor) -> Any:
        return F.conv2d(x, self.squash(self.conv.weight), padding=1)


class Shows(Pair):
    """Methods that compute no output do no harm."""

    methods = ("count",)

    def count(self, x: Tensor) -> Any:
        return torch.tensor(sum(p.numel() for p in self.norm.parameters()) * 0)

    def reset(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)


class Flagged(Pair):
    """A flag that nothing sets decides: folded, with a guard."""

    raw = False

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        return y if self.raw else self.norm(y)


class Named(Pair):
    """Nothing is hidden here: names are matched with what they belong to."""

    def forward(self, x: Tensor) -> Any:
        import logging
        import sys

        if "torch" in sys.modules:
            logging.getLogger(__name__).debug("%s", self)
        return self.norm(self.conv(x))


class Checkpointed(Pair):
    def forward(self, x: Tensor) -> Any:
        from torch.utils.checkpoint import checkpoint

        y = checkpoint(self.conv, x, use_reentrant=False)
        return y if x.shape[-1] > 32 else self.norm(y)


WRONG_IF_FOLDED = (
    FunctionOfAModule, ImportedInside, Decorated, Processed, Dispatched, OfPartial, OfLambda, InAList, ByName,
    ByUnknownName, Getter, OfSuper, Static, Generator, Caught, Features, Encodes, EncodesCopy, EncodesNorm,
    EncodesMask, EncodesFilled, EncodesThrough, Checkpointed,
)  # fmt: skip
FOLDED = (Shows, Flagged, Named)
