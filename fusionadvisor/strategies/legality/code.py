"""The source of functions: from a live function to its syntax tree, and a fingerprint of many."""

import ast
import copy
import hashlib
import linecache
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import CodeType, FunctionType
from typing import Any

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, eq=False)
class Function:
    """A function's syntax tree with what its names refer to.

    Args:
        node: The definition.
        name: The qualified name.
        file: The file it was read from.
        globals: The namespace of its module.
        cells: The variables it closes over, by name; only those that are filled.
        defaults: The values of positional defaults, the last ones first to be bound.
        keyword_defaults: The values of keyword-only defaults.
    """

    node: Node
    name: str
    file: str
    globals: dict[str, Any]
    cells: dict[str, Any]
    defaults: tuple[Any, ...] = ()
    keyword_defaults: dict[str, Any] | None = None

    @cached_property
    def body(self) -> list[ast.stmt]:
        """The statements; of a lambda its expression, returned."""
        if isinstance(self.node, ast.Lambda):
            return [ast.copy_location(ast.Return(self.node.body), self.node.body)]
        return self.node.body


def read(function: FunctionType) -> Function | None:
    """The syntax tree of a live function; None where its source cannot be read."""
    code = function.__code__
    node = _find(code)
    if node is None:
        return None
    cells = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return Function(
        node, function.__qualname__, code.co_filename, function.__globals__, cells,
        function.__defaults__ or (), function.__kwdefaults__,
    )  # fmt: skip


def where(function: Function | None, node: ast.AST) -> str:
    """A place in a function, in words: ``model.py:12 (Block.forward)``."""
    if function is None:
        return "the model"
    return f"{function.file.rpartition('/')[2]}:{getattr(node, 'lineno', 0)} ({function.name})"


def trusted(namespace: str | None) -> bool:
    """Whether code belongs to torch, to this package or to the standard library."""
    root = (namespace or "").partition(".")[0]
    if root in ("__main__", "builtins"):  # what exec makes without a name of its own claims to be of builtins
        return False
    return root in ("torch", __name__.partition(".")[0]) or root in sys.stdlib_module_names


def digest(functions: Iterable[Function]) -> str:
    """A fingerprint of what functions do, whatever their comments, layout and place."""
    texts = sorted({f"{function.name}\n{ast.unparse(_undocumented(function.node))}" for function in functions})
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _undocumented(node: Node) -> ast.AST:
    if isinstance(node, ast.Lambda) or ast.get_docstring(node) is None:
        return node
    bare = copy.copy(node)
    bare.body = node.body[1:] or [ast.Pass()]
    return bare


def _find(code: CodeType) -> Node | None:
    linecache.checkcache(code.co_filename)
    candidates = _definitions(code.co_filename, "".join(linecache.getlines(code.co_filename))).get(
        (code.co_name, code.co_firstlineno), ()
    )
    if len(candidates) == 1:
        return candidates[0]
    spans = {(line, column) for line, _, column, _ in code.co_positions() if line is not None and column is not None}
    inside = [node for node in candidates if all(_contains(node, *span) for span in spans if span[1] > 0)]
    return inside[0] if len(inside) == 1 else None


def _contains(node: ast.AST, line: int, column: int) -> bool:
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    return start <= (line, column) <= end


@lru_cache(maxsize=512)
def _definitions(file: str, text: str) -> dict[tuple[str, int], tuple[Node, ...]]:
    """Every function of a file by its name and first line, decorators included."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    found: dict[tuple[str, int], tuple[Node, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            key = (node.name, first)
        elif isinstance(node, ast.Lambda):
            key = ("<lambda>", node.lineno)
        else:
            continue
        found[key] = (*found.get(key, ()), node)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name.strip("_"):
            _mangle(node, f"_{node.name.lstrip('_')}")
    return found


def _mangle(kind: ast.ClassDef, prefix: str) -> None:
    """Write the private names of a class as Python stores them."""
    todo: list[ast.AST] = [*kind.body]
    while todo:
        node = todo.pop()
        for field in ("attr", "id", "arg", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name.startswith("__") and not name.endswith("__"):
                setattr(node, field, prefix + name)
        if not isinstance(node, ast.ClassDef):
            todo += ast.iter_child_nodes(node)
