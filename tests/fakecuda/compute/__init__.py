"""Ops computed on the fake device; see :mod:`ops` for eager ones and :mod:`compiled` for Inductor's."""


def install() -> None:
    """Have all that torch does on CUDA computed from here on."""
    from . import compiled, ops

    ops.install()
    compiled.install()
