"""Paths hidden behind objects: classes, hooks, attributes, methods that are not the module's own.

As in ``hidden_python``.
"""

import functools
import operator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.strategies.hidden_python import Pythonic, wide


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
        return self.act(self.norm(y)) if wide(x) else self.act(self.norm(y) + 0)


def bare(_: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
    return out + given[0] if wide(out) else out


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
        head: Any = self.head
        return head(x)


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
            return self[0](x) if wide(x) else super().forward(x)  # type: ignore[no-untyped-call]

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


CLASSES = [
    kind for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Pythonic) and kind is not Pythonic
]  # fmt: skip
