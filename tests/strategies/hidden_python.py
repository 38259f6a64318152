# mypy: ignore-errors
"""More hidden paths, by what Python allows: each model is right on every path after a rewrite, or is refused.

As in ``hidden_paths``, images wider than 32 take another path; ``settings`` are attributes that people set afterwards,
by the path of the object that has them.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from tests.strategies.hidden_paths import Pair


def wide(x: Tensor) -> bool:
    return x.shape[-1] > 32


class Pythonic(Pair):
    """A pair with an activation behind it."""

    settings: tuple[tuple[str, str, Any], ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()


class EndsALoopByItsTest(Pythonic):
    def forward(self, x: Tensor) -> Any:
        again = True
        while again:
            y = self.conv(x)
            again = False
        return y if wide(x) else self.norm(y)


class ClosureOfAFinishedCall(Pythonic):
    def made(self) -> Callable[[Tensor], Any]:
        conv, norm = self.conv, self.norm

        def run(x: Tensor) -> Any:
            y = conv(x)
            return y if wide(x) else norm(y)

        return run

    def forward(self, x: Tensor) -> Any:
        return self.made()(x)


class Mangled(Pythonic):
    def __raw(self, x: Tensor) -> Any:
        return self.conv(x)

    def forward(self, x: Tensor) -> Any:
        return self.__raw(x) if wide(x) else self.norm(self.conv(x))


class Suppressed(Pythonic):
    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        with contextlib.suppress(ValueError):
            if wide(x):
                raise ValueError
            y = self.norm(y)
        return y


class FinallyReturns(Pythonic):
    def forward(self, x: Tensor) -> Any:
        y = x
        try:
            y = self.conv(x)
            return self.norm(y)
        finally:
            if wide(x):
                return y  # noqa: B012


class Carried(Pythonic):
    def forward(self, x: Tensor) -> Any:
        try:
            if wide(x):
                raise LookupError(self.conv(x))
            return self.norm(self.conv(x))
        except LookupError as error:
            return error.args[0]


class MatchedRest(Pythonic):
    def forward(self, x: Tensor) -> Any:
        parts: dict[str, Any] = {"kind": "wide" if wide(x) else "narrow", "out": {"y": self.conv(x)}}
        match parts:
            case {"kind": "wide", **rest}:
                return rest["out"]["y"]
            case {"out": {"y": y}}:
                return self.norm(y)


class MatchedDeep(Pythonic):
    def forward(self, x: Tensor) -> Any:
        match ((self.conv(x),), wide(x)):
            case [[y], True]:
                return y
            case [[y], _]:
                return self.norm(y)


class Reversed(Pythonic):
    def forward(self, x: Tensor) -> Any:
        steps = [self.conv, self.norm]
        if wide(x):
            steps.pop()
        for step in steps:
            x = step(x)
        return x


class DeletedItem(Pythonic):
    def forward(self, x: Tensor) -> Any:
        steps = [self.conv, self.norm]
        if wide(x):
            del steps[1]
        for step in steps:
            x = step(x)
        return x


class SharedList(Pythonic):
    def forward(self, x: Tensor) -> Any:
        steps: list[nn.Module] = [self.conv]
        other = steps
        if not wide(x):
            other += [self.norm]
        for step in steps:
            x = step(x)
        return x


class CopiedList(Pythonic):
    def forward(self, x: Tensor) -> Any:
        steps: list[nn.Module] = [self.conv]
        longer = list(steps)
        longer.append(self.norm)
        for step in steps if wide(x) else longer:
            x = step(x)
        return x


class KeyInABranch(Pythonic):
    def forward(self, x: Tensor) -> Any:
        steps: dict[str, Any] = {"conv": self.conv}
        if not wide(x):
            steps["norm"] = self.norm
        y = steps["conv"](x)
        return steps["norm"](y) if "norm" in steps else y


class WalrusInAnd(Pythonic):
    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        if not wide(x) and (y := self.norm(y)) is not None:
            pass
        return y


class WalrusAlone(Pythonic):
    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        _ = not wide(x) and (y := self.norm(y)).shape
        return y


class WalrusInAComprehension(Pythonic):
    def forward(self, x: Tensor) -> Any:
        done = [self.norm(y := self.conv(x)) for _ in range(1)]
        return y if wide(x) else done[0]


class Sent(Pythonic):
    def steps(self) -> Iterator[Any]:
        x = yield None
        y = yield self.conv(x)
        yield self.norm(y)

    def forward(self, x: Tensor) -> Any:
        steps: Any = self.steps()
        next(steps)
        y = steps.send(x)
        return y if wide(x) else steps.send(y)


class Suspended(Pythonic):
    """A generator that was left suspended holds the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = self.layers()
        next(self.turns)

    def layers(self) -> Iterator[Any]:
        conv, norm = self.conv, self.norm
        while True:
            yield conv, norm

    def __deepcopy__(self, memo: dict[int, Any]) -> "Suspended":
        made = type(self)()
        made.load_state_dict(self.state_dict())
        return made.to(self.conv.weight.dtype).train(self.training)

    def forward(self, x: Tensor) -> Any:
        conv, norm = next(self.turns)
        y = conv(x)
        return y if wide(x) else norm(y)


class Weak(Pythonic):
    def __init__(self) -> None:
        super().__init__()
        self.other: Any = None

    def forward(self, x: Tensor) -> Any:
        found: Any = weakref.ref(self.conv)
        return found()(x) if wide(x) else self.norm(self.conv(x))


CLASSES = [
    kind for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Pythonic) and kind is not Pythonic
]  # fmt: skip
