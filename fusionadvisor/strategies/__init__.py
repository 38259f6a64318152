"""Strategies: model + FlowGraph → the same model, fused. One file a strategy, imported when it is asked for.

The built-in ones are listed in :mod:`fusionadvisor.catalog`; other packages add theirs through the entry-point group
``fusionadvisor.strategies``, under the id that users type.
"""

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from fusionadvisor.catalog import STRATEGIES
from fusionadvisor.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fusionadvisor.strategies.base import Strategy

GROUP = "fusionadvisor.strategies"


def ids() -> tuple[str, ...]:
    """Every strategy id: the built-in ones, then those of other packages."""
    return (*(entry.id for entry in STRATEGIES), *(point.name for point in _plugins()))


def get(identifier: str, parameters: "Mapping[str, str] | None" = None) -> "Strategy":
    """Return the strategy of this id, in any case, with these parameters.

    Raises:
        InputError: If there is none of that name (the message names the closest), or a parameter does not fit.
    """
    wanted = identifier.lower()
    for entry in STRATEGIES:
        if entry.id == wanted:
            module, name = entry.home.split(":")
            kind: type[Strategy] = getattr(import_module(module), name)
            return kind.configure(parameters or {})
    for point in _plugins():
        if point.name.lower() == wanted:
            return _load(point).configure(parameters or {})
    raise InputError(f"No strategy is called '{identifier}'.", did_you_mean(identifier, ids()))


def _plugins() -> tuple[EntryPoint, ...]:
    builtin = {entry.id for entry in STRATEGIES}
    return tuple(point for point in entry_points(group=GROUP) if point.name not in builtin)


def _load(point: EntryPoint) -> "type[Strategy]":
    from fusionadvisor.strategies.base import Strategy

    try:
        kind = point.load()
    except ImportError as error:
        raise InputError(f"Strategy {point.name} of {point.value} cannot be imported: {error}.") from None
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise InputError(f"Strategy {point.name} of {point.value} is no subclass of Strategy.")
    return kind
