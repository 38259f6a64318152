"""Paths hidden by what people set, and by what a rewrite changes: flags, classes, weights that are there or not.

As in ``hidden_python``.
"""

from typing import Any

from torch import Tensor, nn

from tests.strategies.hidden_python import Pythonic, wide


class AsksForTheNorm(Pythonic):
    def forward(self, x: Tensor) -> Any:
        y = self.norm(self.conv(x))
        norm: Any = self.norm
        return y * 2 if isinstance(norm, nn.BatchNorm2d) and wide(x) else y


class AsksForTheBias(Pythonic):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Any:
        y = self.norm(self.conv(x))
        return y * 2 if self.conv.bias is None and wide(x) else y


class AsksForStatistics(Pythonic):
    def forward(self, x: Tensor) -> Any:
        y = self.norm(self.conv(x))
        return y[:, : self.norm.weight.shape[0] // 2] if wide(x) else y


class Default(Pythonic):
    """A flag that is not there yet."""

    settings = (("", "raw", True),)

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        return y if getattr(self, "raw", False) else self.norm(y)


class FlaggedReturn(Pythonic):
    settings = (("", "whole", False),)

    def __init__(self) -> None:
        super().__init__()
        self.whole = True

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        if self.whole:
            return self.norm(y)
        return y


class FlagInADict(Pythonic):
    settings = (("config", "raw", True),)

    def __init__(self) -> None:
        super().__init__()
        self.config = {"raw": False}

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        return y if self.config["raw"] else self.norm(y)


class FlagInAList(Pythonic):
    settings = (("config", "0", True),)

    def __init__(self) -> None:
        super().__init__()
        self.config: Any = [False]

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        return y if self.config[0] else self.norm(y)


class FlagOfAnUnregistered(Pythonic):
    settings = (("hidden.0", "inplace", True),)

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.ReLU()]

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        return y if self.hidden[0].inplace else self.norm(y)


class FlagAsIndex(Pythonic):
    settings = (("", "index", 1),)

    def __init__(self) -> None:
        super().__init__()
        self.index = 0
        self.ends = [lambda y: self.norm(y), lambda y: y]

    def __deepcopy__(self, memo: dict[int, Any]) -> "FlagAsIndex":
        made = type(self)()
        made.load_state_dict(self.state_dict())
        return made.to(self.conv.weight.dtype).train(self.training)

    def forward(self, x: Tensor) -> Any:
        return self.ends[self.index](self.conv(x))


class FlagAsName(Pythonic):
    settings = (("", "which", "act"),)

    def __init__(self) -> None:
        super().__init__()
        self.which = "norm"

    def forward(self, x: Tensor) -> Any:
        return getattr(self, self.which)(self.conv(x))


class FlagAsCount(Pythonic):
    settings = (("", "count", 1),)

    def __init__(self) -> None:
        super().__init__()
        self.count = 2
        self.steps = nn.ModuleList([self.conv, self.norm])

    def forward(self, x: Tensor) -> Any:
        for i in range(self.count):
            x = self.steps[i](x)
        return x


class FlagAsSlice(FlagAsCount):
    def forward(self, x: Tensor) -> Any:
        for step in self.steps[: self.count]:
            x = step(x)
        return x


class FlagOfAConfig(Pythonic):
    settings = (("config", "raw", True),)

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        return y if getattr(self.config, "raw", False) else self.norm(y)


class Config:
    width = 8


CLASSES = [
    kind for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Pythonic) and kind is not Pythonic
]  # fmt: skip
