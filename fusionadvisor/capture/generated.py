"""Kernels that Inductor generated for the CPU, made visible to the profiler, which by itself sees ATen's ops alone.

Inductor can build that into the kernels (``cpp.enable_kernel_profile``), but then each has a name of its own, blocks
that repeat share none, and what is measured is not what will run.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_PREFIX = "cpp_"
"""Of the C++ kernels in the modules that Inductor writes (torch 2.13)."""


@contextmanager
def named() -> Iterator[None]:
    """Each generated kernel is recorded under its name within, as an op is; those compiled later are not."""
    codecache = sys.modules.get("torch._inductor.codecache")
    modules = codecache.PyCodeCache.modules if codecache else []
    found = [
        (module, name, kernel)
        for module in modules
        for name, kernel in vars(module).items()
        if name.startswith(_PREFIX) and callable(kernel)
    ]
    for module, name, kernel in found:
        setattr(module, name, _recorded(name, kernel))
    try:
        yield
    finally:
        for module, name, kernel in found:
            setattr(module, name, kernel)


def _recorded(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with torch._C._profiler._RecordFunctionFast(name):
            return kernel(*args)

    return run
