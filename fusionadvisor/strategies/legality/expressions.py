"""What expressions denote."""

import ast
import builtins
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fusionadvisor.strategies.legality.code import Function, trusted
from fusionadvisor.strategies.legality.conditions import Conditions, walrus
from fusionadvisor.strategies.legality.frame import merge
from fusionadvisor.strategies.legality.items import SOME
from fusionadvisor.strategies.legality.values import (
    NONE,
    NOTHING,
    UNKNOWN,
    Box,
    Closure,
    Live,
    Other,
    OverrunError,
    Reach,
    Result,
    Value,
    constant,
    join,
    known,
    live,
)

UNROLLED = 96
"""The longest sequence whose items are followed one by one."""

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
}  # fmt: skip


LARGE = "its code is too large to follow"


class Expressions(Conditions):
    """Names and expressions."""

    def store(self, target: ast.expr, value: Value) -> None:
        """Assign a value to a name, an attribute, an item, or several."""
        if isinstance(target, ast.Name):
            self.assign(target.id, value)
        elif isinstance(target, ast.Attribute):
            self.set_attribute(self.value(target.value), target.attr, value, target)
        elif isinstance(target, ast.Subscript):
            self.set_item(self.value(target.value), self.value(target.slice), value, target)
        elif isinstance(target, ast.Starred):
            self.store(target.value, self.box(list, target, None, None, value))
        elif isinstance(target, ast.Tuple | ast.List):
            items, each = self.elements(value, target)
            plain = not any(isinstance(part, ast.Starred) for part in target.elts)
            fits = items is not None and len(items) == len(target.elts) and plain
            for index, part in enumerate(target.elts):
                self.store(part, items[index] if fits and items is not None else each)

    def assign(self, name: str, value: Value) -> None:
        """Set a local name; or a global or outer one where it was declared to be."""
        names = self.frame.names
        if names is None:
            return
        if f"global {name}" in names:
            self.keep((id(self.frame.function.globals), name), value, ast.Name(name), f"global {name}")
        elif f"nonlocal {name}" in names and (holder := self.frame.holder(name)) is not None:
            holder.current[name] = join(holder.current[name], value)
        else:
            self.frame.names = {**names, name: value}
            for trail in self.frame.trails[-1:]:
                trail[name] = join(trail.get(name, NOTHING), value)

    def lookup(self, name: str) -> Value:
        """What a name denotes."""
        if name in self.frame.current:
            return self.frame.current[name]
        if (holder := self.frame.holder(name)) is not None:
            return holder.current[name]
        function = self.frame.function
        if name in function.cells:
            return self.lifted(function.cells[name])
        stored = self.heap.get((id(function.globals), name), NOTHING)
        if name in function.globals:
            return join(stored, self.lifted(function.globals[name]))
        if hasattr(builtins, name):
            return live(getattr(builtins, name))
        return stored or UNKNOWN

    def value(self, node: ast.expr | None) -> Value:
        """What an expression may denote."""
        if node is None or self.frame.names is None:
            return NOTHING if node is not None else NONE
        self.steps -= 1
        if self.steps < 0:
            raise OverrunError(LARGE)
        found: Value = getattr(self, f"_get_{type(node).__name__}", self._get_other)(node)
        return found

    def _get_other(self, node: ast.expr) -> Value:
        parts = [self.value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return self.operation(type(node).__name__.lower(), parts, node) if parts else UNKNOWN

    def _get_Constant(self, node: ast.Constant) -> Value:
        return constant(node.value) if isinstance(node.value, bool | int | float | str | None) else live(node.value)

    def _get_Name(self, node: ast.Name) -> Value:
        return self.lookup(node.id)

    def _get_Attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.value(node.value), node.attr, node)

    def _get_NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.store(node.target, value)
        return value

    def _get_Starred(self, node: ast.Starred) -> Value:
        return self.value(node.value)

    def _get_Await(self, node: ast.Await) -> Value:
        return self.value(node.value)

    def _get_Yield(self, node: ast.Yield) -> Value:
        self.frame.yields |= self.value(node.value)
        return UNKNOWN  # who sends something gives it away

    def _get_YieldFrom(self, node: ast.YieldFrom) -> Value:
        self.frame.yields |= self.elements(self.value(node.value), node)[1]
        return UNKNOWN

    def _get_Lambda(self, node: ast.Lambda) -> Value:
        return self._made(node, f"{self.frame.function.name}.<locals>.<lambda>")

    def _made(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str) -> Value:
        """A function that this code makes."""
        outer, arguments = self.frame.function, node.args
        defaults = [*zip([*arguments.posonlyargs, *arguments.args][::-1], arguments.defaults[::-1], strict=False)]
        defaults += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
        function = self.nested.get((id(node), id(outer)))
        if function is None:
            function = Function(node, name, outer.file, outer.globals, outer.cells)
            self.nested[id(node), id(outer)] = function
        given = tuple((argument.arg, self.value(default)) for argument, default in defaults)
        return frozenset({Closure(function, self.frame, given)})

    def _get_Tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        items: list[Value] | None = []
        loose: list[Value] = []
        for element in node.elts:
            value = self.value(element)
            if not isinstance(element, ast.Starred):
                loose.append(value)
                items = None if items is None else [*items, value]
                continue
            several, each = self.elements(value, element)
            loose.append(each)
            items = None if items is None or several is None else [*items, *several]
        kind = {ast.Tuple: tuple, ast.List: list, ast.Set: set}[type(node)]
        return self.box(kind, node, items, None, NOTHING if items is not None else join(*loose))

    _get_List = _get_Set = _get_Tuple

    def _get_Dict(self, node: ast.Dict) -> Value:
        keys: dict[Any, Value] | None = {}
        loose: list[Value] = []
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.value(item)
            name = known(self.value(key)) if key is not None else None
            loose += self.contents(value) if key is None else [value]
            if name is None:
                keys = None
            elif keys is not None:
                keys[name.value] = value
        return self.box(dict, node, None, keys, NOTHING if keys is not None else join(*loose))

    def _get_Subscript(self, node: ast.Subscript) -> Value:
        return self.item(self.value(node.value), self.value(node.slice), node)

    def _get_Slice(self, node: ast.Slice) -> Value:
        bounds = [self.value(part) if part is not None else NONE for part in (node.lower, node.upper, node.step)]
        constants = [known(bound) for bound in bounds]
        if all(bound is not None for bound in constants):
            numbers = tuple(bound.value for bound in constants if bound is not None)
            flags = frozenset(flag for bound in constants if bound is not None for flag in bound.flags)
            others = {Other(frozenset({Live(SOME)}), flags)} if flags else ()
            return self.once(("slice", numbers), lambda: slice(*numbers)).union(others)
        return frozenset({Live(SOME)})

    def _get_JoinedStr(self, node: ast.JoinedStr) -> Value:
        parts = [
            self.value(part.value) if isinstance(part, ast.FormattedValue) else self.value(part) for part in node.values
        ]
        constants = [known(part) for part in parts]
        plain = all(
            not isinstance(p, ast.FormattedValue) or (p.format_spec is None and p.conversion == -1) for p in node.values
        )
        if plain and all(part is not None for part in constants):
            flags = frozenset(flag for part in constants if part is not None for flag in part.flags)
            return constant("".join(str(part.value) for part in constants if part is not None), flags)
        if Reach.of(parts).results:
            self.operation(
                "format", [frozenset(a for a in part if isinstance(a, Result | Box)) for part in parts], node
            )
        return UNKNOWN

    def _get_IfExp(self, node: ast.IfExp) -> Value:
        truth, flags = self.condition(node.test)
        values: list[Value] = []
        others: list[Value] = []

        def take(expression: ast.expr, may_be: bool) -> None:
            (values if may_be else others).append(self.value(expression))

        self.either(
            truth, flags, node,
            lambda: take(node.body, truth is not False), lambda: take(node.orelse, truth is not True),
        )  # fmt: skip
        return self.otherwise(join(*values), join(*others), flags, node)

    def _get_BoolOp(self, node: ast.BoolOp) -> Value:
        values = []
        paths = []
        for part in node.values:
            value = self.value(part)
            values.append(value)
            paths.append(self.frame.names)
            truth, flags = self.truth(value)
            if truth is (isinstance(node.op, ast.Or)) and not flags:
                break
        self.frame.names = merge(paths)
        return join(*values)

    def _get_UnaryOp(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            truth, flags = self.condition(node)
            return UNKNOWN if truth is None else constant(truth, flags)
        value = self.value(node.operand)
        number = known(value)
        if number is not None and isinstance(number.value, int | float):
            signs: dict[type[ast.unaryop], Callable[[Any], Any]] = {
                ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
            }  # fmt: skip
            computed = signs[type(node.op)]
            try:
                return constant(computed(number.value), number.flags)
            except TypeError:
                return UNKNOWN
        return self.operation(type(node.op).__name__.lower(), [value], node)

    def _get_BinOp(self, node: ast.BinOp) -> Value:
        return self.binary(
            node, type(node.op), self.value(node.left), self.value(node.right), type(node.op).__name__.lower()
        )

    def overloaded(self, operands: list[Value], node: ast.AST) -> None:
        """Note that an operator may run a method of the user's."""
        for atom in (atom for operand in operands for atom in operand):
            kind = atom.kind if isinstance(atom, Box) else type(atom.obj) if isinstance(atom, Live) else object
            if not (
                issubclass(kind, list | tuple | dict | set | type)
                or trusted(kind.__module__)
                or kind.__module__ == "builtins"
            ):
                self.escape(f"an operator of {kind.__name__}", node, operands)

    def binary(self, node: ast.AST, kind: type[ast.operator], left: Value, right: Value, name: str) -> Value:
        """What an operator computes."""
        one, other = known(left), known(right)
        if one is not None and other is not None:
            small = not (isinstance(one.value, str) or isinstance(other.value, str)) or kind in (ast.Add, ast.Mod)
            if small and kind not in (ast.Pow, ast.LShift):
                try:
                    return constant(_BINARY[kind](one.value, other.value), one.flags | other.flags)
                except (TypeError, ValueError, ArithmeticError):
                    return UNKNOWN
        boxes = [atom for value in (left, right) for atom in value if isinstance(atom, Box | Live)]
        if boxes:
            first, second = self.elements(left, node)[0], self.elements(right, node)[0]
            self.overloaded([left, right], node)
            if kind is ast.Add and first is not None and second is not None:
                return self.box(list, node, [*first, *second])
            return self.box(list, node, None, None, join(*self.contents(left), *self.contents(right)))
        return self.operation(name, [left, right], node)

    def _get_Compare(self, node: ast.Compare) -> Value:
        truth, flags = self.condition(node)
        return UNKNOWN if truth is None else constant(truth, flags)

    def _get_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        start, deferred = self.frame.current, self.deferred
        self.deferred |= isinstance(node, ast.GeneratorExp)
        items: list[Value] | None = []
        loose: list[Value] = []
        for exact in self._comprehended(node.generators, node):
            if isinstance(node, ast.DictComp):
                self.value(node.key)
                value = self.value(node.value)
            else:
                value = self.value(node.elt)
            loose.append(value)
            items = [*items, value] if exact and items is not None else None
        self.deferred = deferred
        self.frame.names = merge((start, {n: v for n, v in self.frame.current.items() if walrus(node, n)}))
        kind = {ast.ListComp: list, ast.SetComp: set, ast.GeneratorExp: list, ast.DictComp: dict}[type(node)]
        exact_items = items if kind is not dict else None
        return self.box(kind, node, exact_items, None, NOTHING if exact_items is not None else join(*loose))

    _get_SetComp = _get_GeneratorExp = _get_DictComp = _get_ListComp

    def _comprehended(self, generators: list[ast.comprehension], node: ast.AST) -> Iterator[bool]:
        """Go through what a comprehension runs over, its names set; whether each pass surely is one item."""
        first, *rest = generators
        items, each = self.elements(self.value(first.iter), first.iter)
        exact = items is not None and len(items) <= UNROLLED
        for index, item in enumerate(items if exact and items is not None else [each, each]):
            with self.inside(node, index):
                self.store(first.target, item)
                tests = [self.condition(test) for test in first.ifs]
                if any(truth is False for truth, _ in tests):
                    continue
                narrowed = {n: v for test in first.ifs for n, v in self.narrowed(test, True).items()}
                self.frame.names = {**self.frame.current, **narrowed}
                sure = exact and all(truth is True for truth, _ in tests)
                if rest:
                    for inner in self._comprehended(rest, node):
                        yield inner and sure
                else:
                    yield sure

    @contextmanager
    def inside(self, node: ast.AST, turn: int) -> Iterator[None]:
        """Tell one pass through a loop from another."""
        before = self.frame.context
        self.frame.context = self.context(before, node, turn)
        yield
        self.frame.context = before
