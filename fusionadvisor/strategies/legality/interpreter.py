"""Runs a model's code on abstract values, every branch of it, over the live objects of the model.

Statements and expressions are here; what calls and attributes mean is in ``calls`` and ``attributes``.
"""

import ast
import builtins
import importlib.util
import operator
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch import nn

from fusionadvisor.strategies.legality.attributes import SOME, Attributes
from fusionadvisor.strategies.legality.code import Function, digest, where
from fusionadvisor.strategies.legality.events import Event, Kind, Log
from fusionadvisor.strategies.legality.frame import Frame, Names, merge
from fusionadvisor.strategies.legality.values import (
    NONE, NOTHING, OPAQUE, UNKNOWN, Arguments, Atom, Box, Closure, Constant, Flag, Live, Reach, Result, Value, Weight,
    constant, join, known, live,
)  # fmt: skip

_ROUNDS = 5
"""How often all public methods are run until what they store no longer changes."""
_STACK, _RECURSION = 512 << 20, 60_000
"""Of the thread that interprets: bytes, and Python calls."""
_PASSES = 12
"""How often a loop's body is run until its names no longer change."""
_UNROLLED = 96
"""The longest sequence whose items are followed one by one."""
_CONSTANTS = 3
"""From that many constants on, what a name denotes in a loop is not known any more."""

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b, ast.IsNot: lambda a, b: a is not b,
}  # fmt: skip


_LARGE = "its code is too large to follow"


class OverrunError(Exception):
    """The model's code takes more steps than are allowed."""


class Interpreter(Attributes):
    """Interprets all public methods of a model's modules.

    After :meth:`run`, ``log`` holds what happened, ``functions`` the functions that were run, and ``unreadable`` the
    names of those that could not be. ``overrun`` is set where the code did not come to an end.
    """

    def run(self) -> None:
        """Run every public method until what they store no longer changes."""
        limit, size = sys.getrecursionlimit(), threading.stack_size(_STACK)
        sys.setrecursionlimit(_RECURSION)
        try:  # models nest deeper than Python's own limit allows for the interpreter around their code
            with ThreadPoolExecutor(1) as pool:
                pool.submit(self._run_rounds).result()
        finally:
            sys.setrecursionlimit(limit)
            threading.stack_size(size)

    def _run_rounds(self) -> None:
        try:
            for _ in range(_ROUNDS):
                self.begin()
                for entry in self.entries():
                    self.enter(entry)
                if not self.changed:
                    return
            self.overrun = "what its methods store keeps changing"
        except OverrunError as error:
            self.overrun = str(error)
        except RecursionError:
            self.overrun = "its code calls too deep to follow"

    @property
    def fingerprint(self) -> str:
        """What identifies the code that was run; empty where some of it could not be read."""
        return "" if self.unreadable else digest(self.functions.values())

    # Statements

    def body(self, statements: list[ast.stmt]) -> None:
        """Run statements until no path leads on."""
        for statement in statements:
            if self.frame.names is None:
                return
            self.steps -= 1
            if self.steps < 0:
                raise OverrunError(_LARGE)
            getattr(self, f"_do_{type(statement).__name__}", self._do_other)(statement)

    def _do_other(self, node: ast.stmt) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)

    def _do_Expr(self, node: ast.Expr) -> None:  # noqa: N802
        self.value(node.value)

    def _do_Return(self, node: ast.Return) -> None:  # noqa: N802
        self.frame.returns |= self.value(node.value) if node.value is not None else NONE
        self.frame.names = None

    def _do_Raise(self, node: ast.Raise) -> None:  # noqa: N802
        self._do_other(node)
        self.frame.names = None

    def _do_Assert(self, node: ast.Assert) -> None:  # noqa: N802
        self.condition(node.test)

    def _do_Pass(self, node: ast.Pass) -> None:  # noqa: N802
        pass

    def _do_Break(self, node: ast.Break) -> None:  # noqa: N802
        self.frame.breaks[-1].append(self.frame.current)
        self.frame.names = None

    def _do_Continue(self, node: ast.Continue) -> None:  # noqa: N802
        self.frame.continues[-1].append(self.frame.current)
        self.frame.names = None

    def _do_Global(self, node: ast.Global) -> None:  # noqa: N802
        self.frame.current.update({f"global {name}": NOTHING for name in node.names})

    def _do_Nonlocal(self, node: ast.Nonlocal) -> None:  # noqa: N802
        self.frame.current.update({f"nonlocal {name}": NOTHING for name in node.names})

    def _do_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        value = self.value(node.value)
        for target in node.targets:
            self.store(target, value)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802
        if node.value is not None:
            self.store(node.target, self.value(node.value))

    def _do_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        load = self.loads.get(node)
        if load is None:
            load = self.loads[node] = ast.copy_location(_loaded(node.target), node.target)
        before, added = self.value(load), self.value(node.value)
        name = f"i{type(node.op).__name__.lower()}"
        computed = self._binary(node, type(node.op), before, added, name)
        tensors = frozenset(atom for atom in before if isinstance(atom, Result | Weight))
        if tensors:  # a tensor is written in place and stays the tensor it is
            self.record(Kind.WRITE, name, node, (tensors, added))
        self.store(node.target, join(tensors, computed))

    def _do_Delete(self, node: ast.Delete) -> None:  # noqa: N802
        for target in node.targets:
            if isinstance(target, ast.Name) and self.frame.names is not None:
                self.frame.names = {name: v for name, v in self.frame.names.items() if name != target.id}

    def _do_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:  # noqa: N802
        made = self._made(node, f"{self.frame.function.name}.<locals>.{node.name}")
        for decorator in reversed(node.decorator_list):
            made = self.call(self.value(decorator), Arguments((made,)), decorator)
        self.assign(node.name, made)

    _do_AsyncFunctionDef = _do_FunctionDef

    def _do_ClassDef(self, node: ast.ClassDef) -> None:  # noqa: N802
        held = [value for name, value in self.frame.current.items() if any(_reads(n, name) for n in ast.walk(node))]
        self.escape(f"class {node.name}", node, held)
        self.assign(node.name, UNKNOWN)

    def _do_Import(self, node: ast.Import) -> None:  # noqa: N802
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            self.assign(alias.asname or name, _imported(name))

    def _do_ImportFrom(self, node: ast.ImportFrom) -> None:  # noqa: N802
        package = self.frame.function.globals.get("__package__") or ""
        name = "." * node.level + (node.module or "")
        try:
            absolute = importlib.util.resolve_name(name, package) if node.level else name
        except ImportError:
            absolute = ""
        for alias in node.names:
            self.assign(alias.asname or alias.name, _imported(absolute, alias.name))

    def _do_If(self, node: ast.If) -> None:  # noqa: N802
        truth, flags = self.condition(node.test)
        self._either(truth, flags, node, lambda: self.body(node.body), lambda: self.body(node.orelse))

    def _either(
        self, truth: bool | None, flags: frozenset[Flag], node: ast.If | ast.IfExp, yes: Callable[[], object],
        no: Callable[[], object],
    ) -> None:  # fmt: skip
        """Follow one branch where the test is decided, else both; a branch that only flags rule out is looked at."""
        start = self.frame.current
        if truth is not None:
            taken, other = (yes, no) if truth else (no, yes)
            if flags:
                self._ruled_out(flags, node, {**start, **self.narrowed(node.test, not truth)}, other)
            self.frame.names = start
            taken()
            return
        self.frame.names = {**start, **self.narrowed(node.test, True)}
        with self.branch():
            yes()
        first, self.frame.names = self.frame.names, {**start, **self.narrowed(node.test, False)}
        with self.branch():
            no()
        self.frame.names = merge((first, self.frame.names))

    def _ruled_out(self, flags: frozenset[Flag], node: ast.AST, names: Names, branch: Callable[[], object]) -> None:
        """Run a branch that the flags rule out, and note what it would give to the code after it."""
        frame, start, returned = self.frame, self.frame.current, self.frame.returns
        before, self.flags = self.flags, self.flags | flags
        frame.names, frame.returns = dict(names), NOTHING
        with self.branch():
            branch()
        if frame.returns:
            self.record(Kind.LOST, "return", node, (frame.returns,))
        for name, value in (frame.names or {}).items():
            kept = start.get(name, NOTHING)
            if value is kept or value == names.get(name):
                continue
            if kept and all(isinstance(atom, Constant) for atom in kept):
                start = {**start, name: join(kept, value)}
            else:
                self.record(Kind.LOST, name, node, (value, kept))
        self.flags, frame.returns, frame.names = before, returned, start

    def _do_For(self, node: ast.For | ast.AsyncFor) -> None:  # noqa: N802
        items, each = self.elements(self.value(node.iter), node.iter)
        frame = self.frame
        frame.breaks.append([])
        if items is not None and len(items) <= _UNROLLED:
            for index, item in enumerate(items):
                if frame.names is None:
                    break
                frame.continues.append([])
                with self.inside(node, index):
                    self.store(node.target, item)
                    self.body(node.body)
                frame.names = merge((frame.names, *frame.continues.pop()))
        else:
            self._repeat(node, lambda: self.store(node.target, each), node.body)
        if frame.names is not None:
            self.body(node.orelse)
        frame.names = merge((frame.names, *frame.breaks.pop()))

    _do_AsyncFor = _do_For

    def _do_While(self, node: ast.While) -> None:  # noqa: N802
        self.frame.breaks.append([])
        endless = self.condition(node.test) == (True, frozenset())
        self._repeat(node, lambda: self.condition(node.test), node.body)
        if endless:
            self.frame.names = None
        else:
            self.body(node.orelse)
        self.frame.names = merge((self.frame.names, *self.frame.breaks.pop()))

    def _repeat(self, node: ast.AST, start: Callable[[], object], body: list[ast.stmt]) -> None:
        """Run a body until the names no longer change; after it, it may have run any number of times."""
        frame = self.frame
        reached: Names | None = frame.current
        for turn in range(_PASSES):
            growth = self.growth
            frame.names = dict(reached or {})
            frame.continues.append([])
            with self.branch():
                start()
                self.body(body)
            again = merge((reached, frame.names, *frame.continues.pop()))
            again = {name: _widened(value, turn) for name, value in (again or {}).items()}
            if again == reached and growth == self.growth:
                break
            reached = again
        else:
            raise OverrunError(f"what a loop computes keeps changing at {where(frame.function, node)}")
        frame.names = reached

    def _do_With(self, node: ast.With | ast.AsyncWith) -> None:  # noqa: N802
        managers = []
        for item in node.items:
            manager = self.value(item.context_expr)
            entered = self.entered(manager, item.context_expr)
            managers.append((manager, item.context_expr))
            if item.optional_vars is not None:
                self.store(item.optional_vars, entered)
        self.body(node.body)
        for manager, expression in reversed(managers):
            self.left(manager, expression)

    _do_AsyncWith = _do_With

    def _do_Try(self, node: ast.Try) -> None:  # noqa: N802
        start = self.frame.current
        self.frame.trails.append({})
        with self.branch():
            self.body(node.body)
        done, trail = self.frame.names, self.frame.trails.pop()
        for outer in self.frame.trails:
            outer.update({name: join(outer.get(name, NOTHING), value) for name, value in trail.items()})
        paths: list[Names | None] = []
        for handler in node.handlers:
            self.frame.names = merge((start, done, trail))
            if handler.name:
                self.assign(handler.name, UNKNOWN)
            with self.branch():
                self.body(handler.body)
            paths.append(self.frame.names)
        self.frame.names = done
        if done is not None:
            self.body(node.orelse)
        self.frame.names = merge((self.frame.names, *paths))
        if node.finalbody:
            ended = self.frame.names is None
            self.frame.names = start if ended else self.frame.names
            self.body(node.finalbody)
            self.frame.names = None if ended else self.frame.names

    _do_TryStar = _do_Try

    def _do_Match(self, node: ast.Match) -> None:  # noqa: N802
        subject, start = self.value(node.subject), self.frame.current
        paths: list[Names | None] = [start]
        for case in node.cases:
            self.frame.names = dict(start)
            for pattern in ast.walk(case.pattern):
                if isinstance(name := getattr(pattern, "name", None), str):
                    self.assign(name, join(subject, *self.contents(subject)))
            if case.guard is not None:
                self.condition(case.guard)
            with self.branch():
                self.body(case.body)
            paths.append(self.frame.names)
        self.frame.names = merge(paths)

    # Names

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

    # Expressions

    def value(self, node: ast.expr | None) -> Value:
        """What an expression may denote."""
        if node is None or self.frame.names is None:
            return NOTHING if node is not None else NONE
        self.steps -= 1
        if self.steps < 0:
            raise OverrunError(_LARGE)
        found: Value = getattr(self, f"_get_{type(node).__name__}", self._get_other)(node)
        return found

    def _get_other(self, node: ast.expr) -> Value:
        parts = [self.value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return self.operation(type(node).__name__.lower(), parts, node) if parts else UNKNOWN

    def _get_Constant(self, node: ast.Constant) -> Value:  # noqa: N802
        return constant(node.value) if isinstance(node.value, bool | int | float | str | None) else live(node.value)

    def _get_Name(self, node: ast.Name) -> Value:  # noqa: N802
        return self.lookup(node.id)

    def _get_Attribute(self, node: ast.Attribute) -> Value:  # noqa: N802
        return self.attribute(self.value(node.value), node.attr, node)

    def _get_NamedExpr(self, node: ast.NamedExpr) -> Value:  # noqa: N802
        value = self.value(node.value)
        self.store(node.target, value)
        return value

    def _get_Starred(self, node: ast.Starred) -> Value:  # noqa: N802
        return self.value(node.value)

    def _get_Await(self, node: ast.Await) -> Value:  # noqa: N802
        return self.value(node.value)

    def _get_Yield(self, node: ast.Yield) -> Value:  # noqa: N802
        self.frame.yields |= self.value(node.value)
        return UNKNOWN

    def _get_YieldFrom(self, node: ast.YieldFrom) -> Value:  # noqa: N802
        self.frame.yields |= self.elements(self.value(node.value), node)[1]
        return UNKNOWN

    def _get_Lambda(self, node: ast.Lambda) -> Value:  # noqa: N802
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

    def _get_Tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Value:  # noqa: N802
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

    def _get_Dict(self, node: ast.Dict) -> Value:  # noqa: N802
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

    def _get_Subscript(self, node: ast.Subscript) -> Value:  # noqa: N802
        return self.item(self.value(node.value), self.value(node.slice), node)

    def _get_Slice(self, node: ast.Slice) -> Value:  # noqa: N802
        bounds = [self.value(part) if part is not None else NONE for part in (node.lower, node.upper, node.step)]
        constants = [known(bound) for bound in bounds]
        if all(bound is not None for bound in constants):
            numbers = tuple(bound.value for bound in constants if bound is not None)
            return self.once(("slice", numbers), lambda: slice(*numbers))
        return frozenset({Live(SOME)})

    def _get_JoinedStr(self, node: ast.JoinedStr) -> Value:  # noqa: N802
        parts = [self.value(part.value) if isinstance(part, ast.FormattedValue) else self.value(part) for part in node.values]
        constants = [known(part) for part in parts]
        plain = all(not isinstance(p, ast.FormattedValue) or (p.format_spec is None and p.conversion == -1) for p in node.values)
        if plain and all(part is not None for part in constants):
            flags = frozenset(flag for part in constants if part is not None for flag in part.flags)
            return constant("".join(str(part.value) for part in constants if part is not None), flags)
        if Reach.of(parts).results:
            self.operation("format", [frozenset(a for a in part if isinstance(a, Result | Box)) for part in parts], node)
        return UNKNOWN

    def _get_IfExp(self, node: ast.IfExp) -> Value:  # noqa: N802
        truth, flags = self.condition(node.test)
        values: list[Value] = []

        def take(expression: ast.expr, live_branch: bool) -> None:
            value = self.value(expression)
            if live_branch:
                values.append(value)
            else:
                self.record(Kind.LOST, "value", node, (value,))

        self._either(
            truth, flags, node,
            lambda: take(node.body, truth is not False), lambda: take(node.orelse, truth is not True),
        )  # fmt: skip
        return join(*values)

    def _get_BoolOp(self, node: ast.BoolOp) -> Value:  # noqa: N802
        values = []
        for part in node.values:
            value = self.value(part)
            values.append(value)
            truth, flags = self.truth(value)
            if truth is (isinstance(node.op, ast.Or)) and not flags:
                break
        return join(*values)

    def _get_UnaryOp(self, node: ast.UnaryOp) -> Value:  # noqa: N802
        if isinstance(node.op, ast.Not):
            truth, flags = self.condition(node)
            return UNKNOWN if truth is None else constant(truth, flags)
        value = self.value(node.operand)
        number = known(value)
        if number is not None and isinstance(number.value, int | float):
            computed = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}[type(node.op)]
            try:
                return constant(computed(number.value), number.flags)
            except TypeError:
                return UNKNOWN
        return self.operation(type(node.op).__name__.lower(), [value], node)

    def _get_BinOp(self, node: ast.BinOp) -> Value:  # noqa: N802
        return self._binary(
            node, type(node.op), self.value(node.left), self.value(node.right), type(node.op).__name__.lower()
        )

    def _binary(self, node: ast.AST, kind: type[ast.operator], left: Value, right: Value, name: str) -> Value:
        one, other = known(left), known(right)
        if one is not None and other is not None:
            small = not (isinstance(one.value, str) or isinstance(other.value, str)) or kind in (ast.Add, ast.Mod)
            if small and kind not in (ast.Pow, ast.LShift):
                try:
                    return constant(_BINARY[kind](one.value, other.value), one.flags | other.flags)
                except (TypeError, ValueError, ArithmeticError):
                    return UNKNOWN
        boxes = [atom for value in (left, right) for atom in value if isinstance(atom, Box) or _is_sequence(atom)]
        if boxes:
            first, second = self.elements(left, node)[0], self.elements(right, node)[0]
            if kind is ast.Add and first is not None and second is not None:
                return self.box(list, node, [*first, *second])
            return self.box(list, node, None, None, join(*self.contents(left), *self.contents(right)))
        return self.operation(name, [left, right], node)

    def _get_Compare(self, node: ast.Compare) -> Value:  # noqa: N802
        truth, flags = self.condition(node)
        return UNKNOWN if truth is None else constant(truth, flags)

    def _get_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:  # noqa: N802
        start = self.frame.current
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
        self.frame.names = {**start, **{n: v for n, v in self.frame.current.items() if n in start and _walrus(node, n)}}
        kind = {ast.ListComp: list, ast.SetComp: set, ast.GeneratorExp: list, ast.DictComp: dict}[type(node)]
        exact_items = items if kind is not dict else None
        return self.box(kind, node, exact_items, None, NOTHING if exact_items is not None else join(*loose))

    _get_SetComp = _get_GeneratorExp = _get_DictComp = _get_ListComp

    def _comprehended(self, generators: list[ast.comprehension], node: ast.AST) -> Iterator[bool]:
        """Go through what a comprehension runs over, its names set; whether each pass surely is one item."""
        first, *rest = generators
        items, each = self.elements(self.value(first.iter), first.iter)
        exact = items is not None and len(items) <= _UNROLLED
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

    # Conditions

    def condition(self, node: ast.expr) -> tuple[bool | None, frozenset[Flag]]:
        """Whether a test holds on every path, or on none, and the attributes that decide it."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            truth, flags = self.condition(node.operand)
            return (None if truth is None else not truth), flags
        if isinstance(node, ast.BoolOp):
            return self._junction(node)
        if isinstance(node, ast.Compare):
            return self._compared(node)
        return self.truth(self.value(node))

    def _junction(self, node: ast.BoolOp) -> tuple[bool | None, frozenset[Flag]]:
        ends = isinstance(node.op, ast.Or)
        everything: frozenset[Flag] = frozenset()
        unsure = False
        start = self.frame.current
        for index, part in enumerate(node.values):
            truth, flags = self.condition(part)
            if truth is ends:
                if flags:
                    flags = self._rest_of(node, index + 1, flags)
                self.frame.names = {**self.frame.current, **{n: v for n, v in start.items() if n in self.frame.current}}
                return ends, flags
            unsure |= truth is None
            everything |= flags
            self.frame.names = {**self.frame.current, **self.narrowed(part, not ends)}
        self.frame.names = {**self.frame.current, **{n: v for n, v in start.items() if not _walrus(node, n)}}
        return (None, frozenset()) if unsure else (not ends, everything)

    def _rest_of(self, node: ast.BoolOp, start: int, flags: frozenset[Flag]) -> frozenset[Flag]:
        """Look at the operands that flags rule out; the flags of one of them where those are checked anyway."""
        best = [flags]

        def look() -> None:
            for part in node.values[start:]:
                truth, others = self.condition(part)
                if truth is isinstance(node.op, ast.Or) and {flag.name for flag in others} <= {"training"}:
                    best.append(others)

        self._ruled_out(flags, node, self.frame.current, look)
        return best[-1]

    def _compared(self, node: ast.Compare) -> tuple[bool | None, frozenset[Flag]]:
        values = [self.value(node.left), *(self.value(part) for part in node.comparators)]
        if len(node.ops) == 1:
            decided = self._pair(node.ops[0], *values)
            if decided[0] is not None:
                return decided
        if not all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            self.operation("compare", [frozenset(a for a in v if isinstance(a, Result | Weight)) for v in values], node)
        return None, frozenset()

    def _pair(self, op: ast.cmpop, left: Value, right: Value) -> tuple[bool | None, frozenset[Flag]]:
        one, other = known(left), known(right)
        identity = isinstance(op, ast.Is | ast.IsNot)
        if one is not None and other is not None:
            if identity and (one.kind, one.value) != (other.kind, other.value):
                return isinstance(op, ast.IsNot), one.flags | other.flags
            try:
                return bool(_COMPARED[type(op)](one.value, other.value)), one.flags | other.flags
            except TypeError:
                return None, frozenset()
        if identity and other is not None and other.value is None and left:
            if all(isinstance(atom, Live | Box | Closure | Result) for atom in left):
                return isinstance(op, ast.IsNot), frozenset()
        if isinstance(op, ast.In | ast.NotIn) and one is not None:
            items = self.elements(right, None)[0] if right and all(_is_sequence(a) or isinstance(a, Box) for a in right) else None
            names = [known(item) for item in items or ()]
            if items is not None and all(name is not None for name in names):
                held = any(name.value == one.value for name in names if name is not None)
                return held is isinstance(op, ast.In), one.flags
        return None, frozenset()

    def truth(self, value: Value) -> tuple[bool | None, frozenset[Flag]]:
        """Whether a value is true on every path, or on none."""
        truths: set[bool | None] = set()
        flags: frozenset[Flag] = frozenset()
        for atom in value:
            if isinstance(atom, Constant):
                truths.add(bool(atom.value))
                flags |= atom.flags
            elif isinstance(atom, Closure):
                truths.add(True)
            elif isinstance(atom, Box) and atom.items is not None:
                truths.add(bool(atom.items))
            elif isinstance(atom, Live) and isinstance(atom.obj, nn.Module) and not hasattr(type(atom.obj), "__len__"):
                truths.add(True)
            elif isinstance(atom, Live) and callable(atom.obj) and not isinstance(atom.obj, nn.Module):
                truths.add(True)
            else:
                truths.add(None)
        return (truths.pop(), flags) if len(truths) == 1 else (None, frozenset())

    def narrowed(self, test: ast.expr, holds: bool) -> Names:
        """What names can only denote where a test of their kind holds, or does not."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.narrowed(test.operand, not holds)
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == holds:
            return {n: v for part in test.values for n, v in self.narrowed(part, holds).items()}
        if (
            isinstance(test, ast.Call)
            and isinstance(test.func, ast.Name)
            and test.func.id == "isinstance"
            and len(test.args) == 2
            and isinstance(test.args[0], ast.Name)
        ):
            kinds = self.kinds(self.value(test.args[1]))
            name = test.args[0].id
            if kinds is not None and name in self.frame.current:
                left = (a for a in self.frame.current[name] if not isinstance(a, Live) or isinstance(a.obj, kinds) == holds)
                return {name: frozenset(left)}
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.left, ast.Name):
            against, name = test.comparators[0], test.left.id
            identity = isinstance(test.ops[0], ast.Is | ast.IsNot)
            if identity and isinstance(against, ast.Constant) and against.value is None and name in self.frame.current:
                none = isinstance(test.ops[0], ast.Is) == holds
                value = self.frame.current[name]
                left = (a for a in value if not isinstance(a, Constant) or (a.value is None) == none)
                return {name: frozenset(left) if not none else frozenset(left) or value}
        return {}

    @contextmanager
    def inside(self, node: ast.AST, turn: int) -> Iterator[None]:
        """Tell one pass through a loop from another."""
        before = self.frame.context
        self.frame.context = self.context(before, node, turn)
        yield
        self.frame.context = before


def _loaded(target: ast.expr) -> ast.expr:
    """The expression that reads what an augmented assignment writes."""
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    assert isinstance(target, ast.Subscript)
    return ast.Subscript(target.value, target.slice, ast.Load())


def _widened(value: Value, turn: int) -> Value:
    constants = [atom for atom in value if isinstance(atom, Constant)]
    if turn < 2 or len(constants) < _CONSTANTS:
        return value
    return (value - frozenset(constants)) | UNKNOWN


def _imported(name: str, attribute: str = "") -> Value:
    module = sys.modules.get(name)
    if not attribute:
        return live(module) if module is not None else UNKNOWN
    found = getattr(module, attribute, None) or sys.modules.get(f"{name}.{attribute}")
    return live(found) if found is not None else UNKNOWN


def _is_sequence(atom: Atom) -> bool:
    return isinstance(atom, Live) and isinstance(atom.obj, list | tuple | set | frozenset | range)


def _reads(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _walrus(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.NamedExpr) and _reads(n.target, name) for n in ast.walk(node))
