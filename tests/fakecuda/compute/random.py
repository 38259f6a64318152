"""Random numbers: drawn on the CPU from what CUDA would draw from, the generator's seed and offset.

The CUDA code moves its generator on by itself, in graphs, too. So the same seed gives the same numbers, in eager mode
and in a replay; they are others than a GPU's.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


class _Philox(ctypes.Structure):
    """``at::PhiloxCudaState``: values, or in a capture pointers to what each replay fills in."""

    _fields_ = [
        ("seed", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("offset_in_graph", ctypes.c_uint64),
        ("captured", ctypes.c_bool),
    ]


_MIX = 0x9E3779B97F4A7C15
_state_of: Any = None


def _philox(generator: torch.Generator) -> _Philox:
    global _state_of
    if _state_of is None:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cuda.so"))
        _state_of = library._ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm
        _state_of.restype = None
        _state_of.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
    # a Python generator is its header and the pointer to the C++ one
    pointer = ctypes.c_void_p.from_address(id(generator) + object.__basicsize__).value
    state = _Philox()
    _state_of(ctypes.byref(state), pointer, 0)
    return state


def seed(generator: torch.Generator | None, device: int) -> Callable[[], int]:
    """What the next draw depends on, as one number, to be asked for when the draw is computed."""
    state = _philox(generator if generator is not None else torch.cuda.default_generators[device])
    if not state.captured:
        return lambda: _mixed(state.seed, state.offset)
    seed, offset = (ctypes.c_int64.from_address(pointer) for pointer in (state.seed, state.offset))
    return lambda: _mixed(seed.value, offset.value + state.offset_in_graph)


def _mixed(seed: int, offset: int) -> int:
    return (seed * _MIX ^ (offset + 1) * 0xBF58476D1CE4E5B9) & (2**63 - 1)


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Whatever is drawn on the CPU in here comes from this seed, and leaves the CPU's generator as it was."""
    kept = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(kept)
