"""What statements do, on every path."""

import ast
import importlib.util
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from fusionadvisor.strategies.legality.code import where
from fusionadvisor.strategies.legality.conditions import reads
from fusionadvisor.strategies.legality.events import Kind
from fusionadvisor.strategies.legality.expressions import LARGE, UNROLLED, Expressions
from fusionadvisor.strategies.legality.frame import Names, merge
from fusionadvisor.strategies.legality.standin import stand_in
from fusionadvisor.strategies.legality.values import (
    NONE,
    NOTHING,
    UNKNOWN,
    Arguments,
    Box,
    Constant,
    Flag,
    Live,
    Method,
    Other,
    OverrunError,
    Reach,
    Result,
    Value,
    Weight,
    join,
    live,
)

_PASSES = 12
"""How often a loop's body is run until its names no longer change."""
_RESULTS = 6
"""From that many results on, those of a loop are taken together."""
_CONSTANTS = 3
"""From that many constants on, what a name denotes in a loop is not known any more."""


class Statements(Expressions):
    """Statements."""

    def body(self, statements: list[ast.stmt]) -> None:
        """Run statements until no path leads on."""
        for statement in statements:
            if self.frame.names is None:
                return
            self.steps -= 1
            if self.steps < 0:
                raise OverrunError(LARGE)
            getattr(self, f"_do_{type(statement).__name__}", self._do_other)(statement)

    def _do_other(self, node: ast.stmt) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)

    def _do_Expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    def _do_Return(self, node: ast.Return) -> None:
        self.frame.returns |= self.value(node.value) if node.value is not None else NONE
        self.frame.leave()

    def _do_Raise(self, node: ast.Raise) -> None:
        for part in (node.exc, node.cause):
            self._raised(part)
        self.frame.leave()

    def _raised(self, node: ast.expr | None) -> None:
        """Note that an exception carries a value: whoever catches it has that."""
        value = self.value(node) if node is not None else NOTHING
        reach = Reach.of([value])
        if reach.results or reach.weights or reach.modules:
            self.escape("an exception", node or ast.Pass(), [value])

    def _do_Assert(self, node: ast.Assert) -> None:
        self.condition(node.test)
        self._raised(node.msg)

    def _do_Pass(self, node: ast.Pass) -> None:
        pass

    def _do_Break(self, node: ast.Break) -> None:
        self.frame.breaks[-1].append(self.frame.current)
        self.frame.names = None

    def _do_Continue(self, node: ast.Continue) -> None:
        self.frame.continues[-1].append(self.frame.current)
        self.frame.names = None

    def _do_Global(self, node: ast.Global) -> None:
        self.frame.current.update({f"global {name}": NOTHING for name in node.names})

    def _do_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.frame.current.update({f"nonlocal {name}": NOTHING for name in node.names})

    def _do_Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.store(target, value)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.store(node.target, self.value(node.value))

    def _do_AugAssign(self, node: ast.AugAssign) -> None:
        load = self.loads.get(node)
        if load is None:
            load = self.loads[node] = ast.copy_location(_loaded(node.target), node.target)
        before, added = self.value(load), self.value(node.value)
        name = f"i{type(node.op).__name__.lower()}"
        computed = self.binary(node, type(node.op), before, added, name)
        tensors = frozenset(atom for atom in before if isinstance(atom, Result | Weight))
        if tensors:  # a tensor is written in place and stays the tensor it is
            self.record(Kind.WRITE, name, node, (tensors, added))
        lists = frozenset(
            a for a in before if isinstance(a, Box) or (isinstance(a, Live) and not isinstance(a.obj, tuple))
        )
        if lists:  # so is a list, and others may hold it
            self.call(frozenset({Method("extend", lists)}), Arguments((added,)), node)
        self.store(node.target, join(tensors, lists, computed))

    def _do_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name) and self.frame.names is not None:
                self.frame.names = {name: v for name, v in self.frame.names.items() if name != target.id}
            elif isinstance(target, ast.Attribute):
                self.remove(self.value(target.value), target)
            elif isinstance(target, ast.Subscript):
                self.value(target.slice)
                self.remove(self.value(target.value), target)

    def _do_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        made = self._made(node, f"{self.frame.function.name}.<locals>.{node.name}")
        for decorator in reversed(node.decorator_list):
            made = self.call(self.value(decorator), Arguments((made,)), decorator)
        self.assign(node.name, made)

    _do_AsyncFunctionDef = _do_FunctionDef

    def _do_ClassDef(self, node: ast.ClassDef) -> None:
        held = [value for name, value in self.frame.current.items() if any(reads(n, name) for n in ast.walk(node))]
        self.escape(f"class {node.name}", node, held)
        self.assign(node.name, UNKNOWN)

    def _do_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            self.assign(alias.asname or name, _imported(name))

    def _do_ImportFrom(self, node: ast.ImportFrom) -> None:
        package = self.frame.function.globals.get("__package__") or ""
        name = "." * node.level + (node.module or "")
        try:
            absolute = importlib.util.resolve_name(name, package) if node.level else name
        except ImportError:
            absolute = ""
        for alias in node.names:
            self.assign(alias.asname or alias.name, _imported(absolute, alias.name))

    def _do_If(self, node: ast.If) -> None:
        truth, flags = self.condition(node.test)
        self.either(truth, flags, node, lambda: self.body(node.body), lambda: self.body(node.orelse))

    def _do_For(self, node: ast.For | ast.AsyncFor) -> None:
        given = self.value(node.iter)
        others = [atom for atom in given if isinstance(atom, Other)]
        items, each = self.elements(given.difference(others), node.iter)
        frame = self.frame
        ends = []
        for other in others:
            run = partial(self._loop, node, None, self.elements(other.value, node.iter)[1])
            ends.append((self.ruled_out(other.flags, node, frame.current, run), other.flags))
        with self.branch() if others else nullcontext():
            self._loop(node, items, each)
        for end, flags in ends:
            self.reconcile(end, flags, node)

    _do_AsyncFor = _do_For

    def _loop(self, node: ast.For | ast.AsyncFor, items: list[Value] | None, each: Value) -> None:
        """Run a loop over items that are known one by one, or over any number of such as ``each``."""
        frame = self.frame
        frame.breaks.append([])
        if items is not None and len(items) <= UNROLLED:
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

    def _do_While(self, node: ast.While) -> None:
        self.frame.breaks.append([])
        truth: tuple[bool | None, frozenset[Flag]] = None, frozenset()

        def test() -> None:
            nonlocal truth
            truth = self.condition(node.test)

        self._repeat(node, test, node.body)
        if truth == (True, frozenset()):  # whatever the body has done
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
                tested = frame.names
                self.body(body)
            again = merge((reached, tested, frame.names, *frame.continues.pop()))
            again = {name: self._together(name, _widened(value, turn), node) for name, value in (again or {}).items()}
            if again == reached and growth == self.growth:
                break
            reached = again
        else:
            raise OverrunError(f"what a loop computes keeps changing at {where(frame.function, node)}")
        frame.names = reached

    def _together(self, name: str, value: Value, node: ast.AST) -> Value:
        """Take many results that a name may denote in a loop for one that was computed from them all."""
        results = frozenset(atom for atom in value if isinstance(atom, Result))
        if len(results) < _RESULTS:
            return value
        return (value - results) | self.operation("a loop", [results], stand_in(node, name))

    def _do_With(self, node: ast.With | ast.AsyncWith) -> None:
        managers = []
        start = self.frame.current
        self.frame.trails.append({})
        for item in node.items:
            manager = self.value(item.context_expr)
            entered = self.entered(manager, item.context_expr)
            managers.append((manager, item.context_expr))
            if item.optional_vars is not None:
                self.store(item.optional_vars, entered)
        self.body(node.body)
        trail = self._end_trail()
        for manager, expression in reversed(managers):
            result = self.left(manager, expression)
            if self._swallows(expression, result):
                self.frame.names = merge((self.frame.names, start, trail))

    _do_AsyncWith = _do_With

    def _swallows(self, expression: ast.expr, result: Value) -> bool:
        """Whether a context manager may end an exception, given what its ``__exit__`` returns if that was run."""
        if result:
            return self.truth(result) != (False, frozenset())
        made = self.value(expression.func) if isinstance(expression, ast.Call) else NOTHING
        return not made or not all(isinstance(atom, Live) and self.passes_on(atom.obj) for atom in made)

    def _do_Try(self, node: ast.Try) -> None:
        start = self.frame.current
        self.frame.trails.append({})
        with self.branch():
            self.body(node.body)
        done, trail = self.frame.names, self._end_trail()
        paths: list[Names | None] = []
        for handler in node.handlers:
            self.frame.names = merge((start, trail))
            if handler.name:
                self.assign(handler.name, UNKNOWN)
            with self.branch():
                self.body(handler.body)
            paths.append(self.frame.names)
        self.frame.names = done
        if done is not None:
            self.body(node.orelse)
        self.frame.names = merge((self.frame.names, *paths))
        if node.finalbody:  # it runs on the way out, too: of what is assigned there nothing leads on
            after = self.frame.names
            self.frame.names = merge((start, trail, after, *paths))
            with self.branch():
                self.body(node.finalbody)
            self.frame.names = after
            self.body(node.finalbody)

    _do_TryStar = _do_Try

    def _end_trail(self) -> Names:
        """What names denoted since the innermost trail began."""
        trail = self.frame.trails.pop()
        for outer in self.frame.trails:
            outer.update({name: join(outer.get(name, NOTHING), value) for name, value in trail.items()})
        return trail

    def _do_Match(self, node: ast.Match) -> None:
        subject, start = self.value(node.subject), self.frame.current
        paths: list[Names | None] = [start]
        for case in node.cases:
            self.frame.names = dict(start)
            for pattern in ast.walk(case.pattern):
                for name in (getattr(pattern, "name", None), getattr(pattern, "rest", None)):
                    if isinstance(name, str):
                        self.assign(name, self._inside_of(subject, node))
            if case.guard is not None:
                self.condition(case.guard)
            with self.branch():
                self.body(case.body)
            paths.append(self.frame.names)
        self.frame.names = merge(paths)

    def _inside_of(self, value: Value, node: ast.AST) -> Value:
        """A value and all that it holds, however deep: any part that a pattern may name."""
        parts = value
        while True:
            inner = join(parts, *self.contents(parts))
            if inner == parts:
                break
            parts = inner
        if any(isinstance(a, Live) and not isinstance(a.obj, list | tuple | dict | set) for a in parts):
            self.escape("a pattern", node, [parts])
        return join(parts, self.box(dict, node, None, None, parts))


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
