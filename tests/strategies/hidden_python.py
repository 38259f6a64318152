# mypy: ignore-errors
"""More hidden paths, by what Python allows: each model is right on every path after a rewrite, or is refused.

As in ``hidden_paths``, images wider than 32 take another path; ``settings`` are attributes that people set afterwards,
by the path of the object that has them.
"""

import contextlib
import functools
import operator
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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
        parts = {"kind": "wide" if wide(x) else "narrow", "out": {"y": self.conv(x)}}
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
        steps = other = [self.conv]
        if not wide(x):
            other += [self.norm]
        for step in steps:
            x = step(x)
        return x


class CopiedList(Pythonic):
    def forward(self, x: Tensor) -> Any:
        steps = [self.conv]
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
        found = weakref.ref(self.conv)
        return found()(x) if wide(x) else self.norm(self.conv(x))


class PostInit(Pythonic):
    def forward(self, x: Tensor) -> Any:
        state = State(self, x)
        return state.y if wide(x) else self.norm(self.conv(x))


@dataclass
class State:
    net: Any
    x: Tensor
    y: Any = None

    def __post_init__(self) -> None:
        self.y = self.net.conv(self.x)


class Allocated(Pythonic):
    def forward(self, x: Tensor) -> Any:
        return Allocation(self, x).y if wide(x) else self.norm(self.conv(x))


class Allocation:
    y: Any

    def __new__(cls, net: Any, x: Tensor) -> "Allocation":
        made = super().__new__(cls)
        made.y = net.conv(x)
        return made


class Held(Pythonic):
    """The model is reached by a global."""

    def __init__(self) -> None:
        super().__init__()
        HOLDER[0] = self

    def forward(self, x: Tensor) -> Any:
        return Taker().take(x) if wide(x) else self.norm(self.conv(x))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Held":
        made = type(self)()
        made.load_state_dict(self.state_dict())
        return made.to(self.conv.weight.dtype).train(self.training)


HOLDER: list[Any] = [None]


class Taker:
    def __init__(self) -> None:
        self.net = HOLDER[0]

    def take(self, x: Tensor) -> Any:
        return self.net.conv(x)


class InstanceMethod(Pythonic):
    """A public method that was set on the instance."""

    methods = ("encode",)

    def __init__(self) -> None:
        super().__init__()
        self.encode = functools.partial(raw, self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "InstanceMethod":
        made = type(self)()
        made.load_state_dict(self.state_dict())
        return made.to(self.conv.weight.dtype).train(self.training)


def raw(net: Any, x: Tensor) -> Any:
    return net.conv(x)


class PartialMethod(Pythonic):
    methods = ("encode",)

    def _run(self, bare: bool, x: Tensor) -> Any:
        return self.conv(x) if bare else self.norm(self.conv(x))

    encode = functools.partialmethod(_run, True)


class Forwarded(Pythonic):
    def forward(self, x: Tensor) -> Any:
        return self.conv.forward(x) if wide(x) else self.norm(self.conv(x))


class Unbound(Pythonic):
    def forward(self, x: Tensor) -> Any:
        return nn.Module.__call__(self.conv, x) if wide(x) else self.norm(self.conv(x))


class OfItsType(Pythonic):
    def forward(self, x: Tensor) -> Any:
        return type(self).other(self, x) if wide(x) else self.norm(self.conv(x))

    def other(self, x: Tensor) -> Any:
        return self.conv(x)


class Getattribute(Pythonic):
    def __getattribute__(self, name: str) -> Any:
        if name == "plain":
            return self._modules["conv"]
        return super().__getattribute__(name)

    def forward(self, x: Tensor) -> Any:
        run: Any = self.plain
        return run(x) if wide(x) else self.norm(self.conv(x))


class Setattr(Pythonic):
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "last":
            super().__setattr__("kept", self.conv(value))

    def forward(self, x: Tensor) -> Any:
        self.last = x
        return self.kept if wide(x) else self.norm(self.conv(x))


class Proxy:
    def __init__(self, net: Any) -> None:
        self.net = net

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)


class Proxied(Pythonic):
    def forward(self, x: Tensor) -> Any:
        return Proxy(self).conv(x) if wide(x) else self.norm(self.conv(x))


class Namespace(Pythonic):
    def forward(self, x: Tensor) -> Any:
        self.__dict__["y"] = self.conv(x)
        return self.y if wide(x) else self.norm(self.y)


class Owner(Pythonic):
    def run(self, x: Tensor) -> Any:
        return self.norm(self.conv(x))

    def forward(self, x: Tensor) -> Any:
        run: Any = self.run
        return run.__self__.conv(x) if wide(x) else run(x)


class Globals(Pythonic):
    def forward(self, x: Tensor) -> Any:
        return globals()["raw"](self, x) if wide(x) else self.norm(self.conv(x))


class PropertyByUnknownName(Pythonic):
    @property
    def stem_wide(self) -> Any:
        return self.conv

    @property
    def stem_narrow(self) -> Any:
        return nn.Sequential(self.conv, self.norm)

    def forward(self, x: Tensor) -> Any:
        return getattr(self, "stem_" + ("wide" if wide(x) else "narrow"))(x)


class PrivateByUnknownName(Pythonic):
    def __init__(self) -> None:
        super().__init__()
        self._wide, self._narrow = [self.conv], [self.conv, self.norm]

    def forward(self, x: Tensor) -> Any:
        for step in getattr(self, f"_{'wide' if wide(x) else 'narrow'}"):
            x = step(x)
        return x


class Dispatches(Pythonic):
    def forward(self, x: Tensor) -> Any:
        return chosen(1 if wide(x) else "", self, x)


@functools.singledispatch
def chosen(key: Any, net: Any, x: Tensor) -> Any:
    return net.norm(net.conv(x))


@chosen.register
def _(key: int, net: Any, x: Tensor) -> Any:
    return net.conv(x)


class EntersAnObject(Pythonic):
    def forward(self, x: Tensor) -> Any:
        with Entered(self, x) as y:
            return y if wide(x) else self.norm(self.conv(x))


class Entered:
    def __init__(self, net: Any, x: Tensor) -> None:
        self.net, self.x = net, x

    def __enter__(self) -> Any:
        return self.net.conv(self.x)

    def __exit__(self, *_: object) -> None:
        return None


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x


class HookOnAnotherModule(Pythonic):
    """The input of a module between the two is changed by a hook, for wide images."""

    def __init__(self) -> None:
        super().__init__()
        self.between = Doubling()
        self.between.register_forward_pre_hook(doubled)

    def forward(self, x: Tensor) -> Any:
        return self.norm(self.between(self.conv(x)))


def doubled(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    return (given[0] * 2,) if wide(given[0]) else given


class HookReadsInputs(HookOnAnotherModule):
    def __init__(self) -> None:
        super().__init__()
        self.between = Doubling()
        self.act.register_forward_hook(bare)

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        return self.act(self.norm(y), *((y,) if False else ()))


def bare(_: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
    return out


class AsksForTheNorm(Pythonic):
    def forward(self, x: Tensor) -> Any:
        y = self.norm(self.conv(x))
        return y * 2 if isinstance(self.norm, nn.BatchNorm2d) and wide(x) else y


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


class FlagInAList(FlagInADict):
    settings = (("config", 0, True),)

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


class Checkpoints(Pythonic):
    def body(self, x: Tensor, y: Tensor | None = None) -> Any:
        return self.norm(self.conv(x)) if y is None else y

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x) if wide(x) else None
        return checkpoint(self.body, x, use_reentrant=False, y=y)


class CallsByName(Pythonic):
    def forward(self, x: Tensor) -> Any:
        return operator.methodcaller("encode", x)(self) if wide(x) else self.norm(self.conv(x))

    def encode(self, x: Tensor) -> Any:
        return self.norm(self.conv(x))


class SortedLayers(Pythonic):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [nn.Sequential(self.conv), nn.Sequential(self.norm)]

    def forward(self, x: Tensor) -> Any:
        for part in sorted(self.parts, key=len)[: 1 if wide(x) else 2]:
            x = part(x)
        return x


class LazyItem(Pythonic):
    def forward(self, x: Tensor) -> Any:
        y = x
        later = (self.norm(y) for _ in [0])
        y = self.conv(x)
        return y if wide(x) else next(later)


class Recursive(Pythonic):
    def forward(self, x: Tensor) -> Any:
        def go(n: int, y: Any) -> Any:
            return y if n == 0 else go(n - 1, self.norm(y) if n == 1 else y)

        return go(0 if wide(x) else 5, self.conv(x))


class ReboundLayer(Pythonic):
    methods = ("encode",)

    def encode(self, x: Tensor) -> Any:
        self.__dict__.update(head=self.conv)
        return self.head(x)


class ModuleOfADict(Pythonic):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a": self.conv, "b": self.norm})

    def forward(self, x: Tensor) -> Any:
        y = self.parts["a"](x)
        return self.parts["a" if wide(x) else "b"](y if not wide(x) else x)


class Deleted(Pythonic):
    methods = ("encode",)

    def encode(self, x: Tensor) -> Any:
        kept = self.norm
        del self.norm
        y = nn.Sequential(*self.children())(x)
        self.norm = kept
        return y


class Classmethod(Pythonic):
    @classmethod
    def run(cls, net: Any, x: Tensor, *steps: str, **more: Any) -> Any:
        for name in steps:
            x = getattr(net, name)(x)
        return x

    def forward(self, x: Tensor) -> Any:
        names = ["conv", *([] if wide(x) else ["norm"])]
        return self.run(self, x, *names, last=True)


class Reduced(Pythonic):
    def forward(self, x: Tensor) -> Any:
        return functools.reduce(lambda y, step: step(y), [self.conv, self.norm][: 1 if wide(x) else 2], x)


class InheritsFromAModule(Pythonic):
    class Own(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            return self[0](x) if wide(x) else super().forward(x)

    def __init__(self) -> None:
        super().__init__()
        self.seq = InheritsFromAModule.Own(self.conv, self.norm)

    def forward(self, x: Tensor) -> Any:
        return self.seq(x)


class CachedPart(Pythonic):
    methods = ("stem",)

    @functools.cached_property
    def stem(self) -> Any:
        return self.conv

    def forward(self, x: Tensor) -> Any:
        return self.stem(x) if wide(x) else self.norm(self.conv(x))


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
