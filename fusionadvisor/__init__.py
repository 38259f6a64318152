"""Find unfused GPU kernels in a PyTorch model or trace, fuse what can be fused, prove it right and faster.

The public names are imported on first use, so that ``import fusionadvisor`` costs nothing and a production process
that only calls :func:`apply_recipe` never loads the tools around it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusionadvisor.advisor import analyze as analyze
    from fusionadvisor.advisor import optimize as optimize
    from fusionadvisor.advisor import profile as profile
    from fusionadvisor.recipe import apply_recipe as apply_recipe
    from fusionadvisor.report.model import Report as Report

__version__ = "0.1.0"
__all__ = ["Report", "__version__", "analyze", "apply_recipe", "optimize", "profile"]

_HOMES = {
    "analyze": "fusionadvisor.advisor",
    "apply_recipe": "fusionadvisor.recipe",
    "optimize": "fusionadvisor.advisor",
    "profile": "fusionadvisor.advisor",
    "Report": "fusionadvisor.report.model",
}


def __getattr__(name: str) -> object:
    if home := _HOMES.get(name):
        return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
