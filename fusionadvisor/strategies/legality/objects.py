"""What live objects are: whose code they run, what they are called, which special methods are the user's."""

import functools
import inspect
from types import BuiltinFunctionType, FunctionType
from typing import Any

from fusionadvisor.strategies.legality.code import trusted


def home_of(obj: Any) -> str:
    """The module whose code a callable runs, whatever it is called."""
    if isinstance(obj, functools.partial):
        return home_of(obj.func)
    namespace = getattr(obj, "__globals__", None)
    if namespace is not None:
        return str(namespace.get("__name__", ""))
    if not isinstance(obj, type) and not isinstance(obj, BuiltinFunctionType):
        member = inspect.getattr_static(type(obj), "__call__", None)
        if isinstance(member, FunctionType):
            return home_of(member)
    return str(getattr(obj, "__module__", None) or type(obj).__module__)


def name_of(obj: Any) -> str:
    """What a callable is called."""
    return str(getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None) or type(obj).__name__)


def own_method(kind: type, name: str) -> Any:
    """A special method that a class of the user's defines, None where it has that of Python or torch."""
    member = inspect.getattr_static(kind, name, None)
    return member if isinstance(member, FunctionType) and not trusted(member.__globals__.get("__name__")) else None
