"""What the generated models of ``branch_models`` are made of: ways to call a module, to hold a value."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn


def call(m: Any, v: Any) -> Any:
    return m(v)


def spread(*args: Any, **kwargs: Any) -> Any:
    return call(*args, **kwargs)


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


@bare
def decorated(m: Any, v: Any) -> Any:
    return m(v)


@wrapped
def decorated_well(m: Any, v: Any) -> Any:
    return m(v)


def maker(m: Any) -> Callable[..., Any]:
    def run(v: Any) -> Any:
        return m(v)

    return run


def stepwise(steps: list[Any], v: Any) -> Iterator[Any]:
    for step in steps:
        v = step(v)
        yield v


class Runner:
    def __init__(self, m: Any) -> None:
        self.m = m

    def __call__(self, v: Any) -> Any:
        return self.m(v)

    def run(self, v: Any) -> Any:
        return self(v)


@dataclass
class State:
    y: Any
    z: Any = None


@contextlib.contextmanager
def giving(m: Any, v: Any) -> Iterator[Any]:
    yield m(v)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c, self.n, self.r = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()

    def stem(self, x: Any) -> Any:
        return self.c(x)

    def forward(self, x: Any) -> Any:
        return self.r(self.n(self.stem(x)))
