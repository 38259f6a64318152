"""Python state that a model's forward may change, and who reads it: a captured graph holds it as it was."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from fusionadvisor.strategies import source


@dataclass(frozen=True)
class PythonState:
    """What of a model's attributes its forward may set.

    Args:
        stored: Attributes by name, each with where it is set.
        unreadable: Why that cannot be told; empty where it can.
    """

    stored: dict[str, str]
    unreadable: str = ""

    @classmethod
    def of(cls, model: nn.Module) -> "PythonState":
        """Read a model's code."""
        code = source.read(model)
        stored: dict[str, str] = {}
        for function in code.functions:
            for node in ast.walk(function.node):
                for name in _set_by(node):
                    stored.setdefault(name, source.where(function, node))
        name = code.unreadable[0] if code.unreadable else ""
        why = f"The source of {name} cannot be read, so Python state it may change cannot be ruled out." if name else ""
        return cls(stored, why)

    def changed(self, part: nn.Module) -> str:
        """Say where a part of the model changes state, or reads what is changed elsewhere; empty where it does not."""
        if self.unreadable:
            return self.unreadable
        for place in PythonState.of(part).stored.values():
            return f"{place} changes Python state, which a graph would not do again."
        for function in source.read(part).functions:
            for node in ast.walk(function.node):
                if isinstance(node, ast.Attribute) and (where := self.stored.get(node.attr, self.stored.get(_ANY))):
                    reader = source.where(function, node)
                    return f"{where} changes {node.attr}, which {reader} reads: a graph would hold it as it was."
        return ""


_ANY = "*"
_SETTERS = {"register_buffer": 0, "register_parameter": 0, "add_module": 0, "register_module": 0, "setattr": 1}
"""Functions that set an attribute, and which argument names it."""


def _set_by(node: ast.AST) -> Iterator[str]:
    """Names of the attributes that a node of code sets; :data:`_ANY` where it does not say which."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node.attr
    elif isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
    elif isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        position = _SETTERS.get(called)
        if position is not None:
            given = node.args[position] if len(node.args) > position else None
            yield str(given.value) if isinstance(given, ast.Constant) else _ANY
