"""Syntax nodes for what no expression of its own stands for."""

import ast
from collections.abc import Hashable

_STAND_INS: dict[tuple[int, Hashable], tuple[object, ast.AST]] = {}


def stand_in(owner: object, mark: Hashable) -> ast.AST:
    """A node for something that no expression of its own stands for; always the same for one owner and mark."""
    kept = _STAND_INS.get((id(owner), mark))
    if kept is None or kept[0] is not owner:
        kept = _STAND_INS[id(owner), mark] = owner, ast.Pass(lineno=getattr(owner, "lineno", 0))
    return kept[1]
