"""Strategies: model + FlowGraph → the same model, fused. One file a strategy, imported when it is asked for.

The built-in ones are listed in :mod:`fusionadvisor.catalog`; other packages add theirs through the entry-point group
``fusionadvisor.strategies``, under the id that users type.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fusionadvisor import catalog
from fusionadvisor.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fusionadvisor.strategies.base import Strategy


def ids() -> tuple[str, ...]:
    """Every strategy id: the built-in ones, then those of other packages."""
    return tuple(entry.id for entry in catalog.strategies())


def get(identifier: str, parameters: "Mapping[str, str] | None" = None) -> "Strategy":
    """Return the strategy of this id, in any case, with these parameters.

    Raises:
        InputError: If there is none of that name (the message names the closest), another package's cannot be loaded,
            or a parameter does not fit.
    """
    for entry in catalog.strategies():
        if entry.id.lower() == identifier.lower():
            return _load(entry).configure(parameters or {})
    raise InputError(f"No strategy is called '{identifier}'.", did_you_mean(identifier, ids()))


def _load(entry: catalog.Entry) -> "type[Strategy]":
    from fusionadvisor.strategies.base import Strategy

    module, name = entry.home.split(":")
    try:
        kind = getattr(import_module(module), name)
    except Exception as error:  # whatever another package raises while it is imported
        if not entry.package:
            raise
        hint = f"Mend or uninstall {entry.package}."
        raise InputError(
            f"Strategy {entry.id} of {entry.package} cannot be loaded: {type(error).__name__}: {error}.", hint
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise InputError(
            f"Strategy {entry.id} of {entry.package}: {entry.home} is no subclass of "
            "fusionadvisor.strategies.base.Strategy."
        )
    if kind.id != entry.id:
        raise InputError(f"Strategy {entry.id} of {entry.package} calls itself '{kind.id}'.", "The two have to agree.")
    return kind
