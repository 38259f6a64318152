"""Which way a test goes: on every path, on none, or as flags decide; and what names denote where it holds."""

import ast
import operator
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from fusionadvisor.strategies.legality.attributes import Attributes
from fusionadvisor.strategies.legality.events import Kind
from fusionadvisor.strategies.legality.frame import Names, merge
from fusionadvisor.strategies.legality.values import (
    NOTHING,
    OPAQUE,
    Atom,
    Box,
    Closure,
    Constant,
    Flag,
    Live,
    Other,
    Result,
    Value,
    Weight,
    join,
    known,
)

_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b, ast.IsNot: lambda a, b: a is not b,
}  # fmt: skip


class Conditions(Attributes):
    """Tests."""

    @abstractmethod
    def overloaded(self, operands: list[Value], node: ast.AST) -> None:
        """Note that an operator may run a method of the user's."""

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
        paths: list[Names | None] = []
        decided: tuple[bool | None, frozenset[Flag]] | None = None
        for index, part in enumerate(node.values):
            truth, flags = self.condition(part)
            paths.append(self.frame.names)
            if truth is ends:
                decided = ends, self._rest_of(node, index + 1, flags) if flags else flags
                break
            unsure |= truth is None
            everything |= flags
            self.frame.names = {**self.frame.current, **self.narrowed(part, not ends)}
        after = merge(paths)
        assert after is not None  # an expression leads on
        self.frame.names = {**after, **{n: v for n, v in start.items() if n in after and not walrus(node, n)}}
        return decided or ((None, frozenset()) if unsure else (not ends, everything))

    def _rest_of(self, node: ast.BoolOp, start: int, flags: frozenset[Flag]) -> frozenset[Flag]:
        """Look at the operands that flags rule out; the flags of one of them where those are checked anyway."""
        best = [flags]

        def look() -> None:
            for part in node.values[start:]:
                truth, others = self.condition(part)
                if truth is isinstance(node.op, ast.Or) and {flag.name for flag in others} <= {"training"}:
                    best.append(others)

        self.reconcile(self.ruled_out(flags, node, self.frame.current, look), flags, node)
        return best[-1]

    def _compared(self, node: ast.Compare) -> tuple[bool | None, frozenset[Flag]]:
        values = [self.value(node.left), *(self.value(part) for part in node.comparators)]
        if len(node.ops) == 1:
            decided = self._pair(node.ops[0], *values)
            if decided[0] is not None:
                return decided
        if not all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            self.operation("compare", [frozenset(a for a in v if isinstance(a, Result | Weight)) for v in values], node)
            self.overloaded(values, node)
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
            plain = all(isinstance(atom, Live | Box | Closure | Result) for atom in left)
            return (isinstance(op, ast.IsNot) if plain else None), frozenset()
        if isinstance(op, ast.In | ast.NotIn) and one is not None:
            listed = right and all(is_sequence(a) or isinstance(a, Box) for a in right)
            items = self.elements(right, None)[0] if listed else None
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
            elif isinstance(atom, Live) and callable(atom.obj) and not _sized(atom.obj):
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
                left = (
                    a for a in self.frame.current[name] if not isinstance(a, Live) or isinstance(a.obj, kinds) == holds
                )
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

    def either(
        self, truth: bool | None, flags: frozenset[Flag], node: ast.If | ast.IfExp, yes: Callable[[], object],
        no: Callable[[], object],
    ) -> None:  # fmt: skip
        """Follow one branch where the test is decided, else both; a branch that only flags rule out is looked at."""
        start = self.frame.current
        if truth is not None:
            taken, other = (yes, no) if truth else (no, yes)
            if not flags:
                self.frame.names = start
                taken()
                return
            end = self.ruled_out(flags, node, {**start, **self.narrowed(node.test, not truth)}, other)
            self.frame.names = start
            with self.branch():
                taken()
            self.reconcile(end, flags, node)
            return
        self.frame.names = {**start, **self.narrowed(node.test, True)}
        with self.branch():
            yes()
        first, self.frame.names = self.frame.names, {**start, **self.narrowed(node.test, False)}
        with self.branch():
            no()
        self.frame.names = merge((first, self.frame.names))

    def ruled_out(
        self, flags: frozenset[Flag], node: ast.AST, names: Names, branch: Callable[[], object]
    ) -> Names | None:
        """Run a branch that the flags rule out; the names where it leads on to the code after it."""
        frame, start, returned = self.frame, self.frame.current, self.frame.returns
        before, self.flags = self.flags, self.flags | flags
        frame.names, frame.returns = dict(names), NOTHING
        with self.branch():
            branch()
        if frame.returns:
            frame.others.append((frame.returns, flags, node))
        end = frame.names
        self.flags, frame.returns, frame.names = before, returned, start
        return end

    def reconcile(self, end: Names | None, flags: frozenset[Flag], node: ast.AST) -> None:
        """Go on after a branch that was taken, minding what the names would denote after the one that was ruled out."""
        if end is None:
            return
        if self.frame.names is None:  # the code after this is only reached once a flag is set
            self.frame.names = end
            return
        current = self.frame.names
        changed = {name: value for name, value in end.items() if value is not current.get(name)}
        self.frame.names = {
            **current, **{n: self.otherwise(current.get(n, NOTHING), v, flags, node) for n, v in changed.items()},
        }  # fmt: skip

    def otherwise(self, value: Value, other: Value, flags: frozenset[Flag], node: ast.AST) -> Value:
        """A value that would be another one once a flag is set."""
        if other <= value:
            return value
        before, self.flags = self.flags, self.flags | flags
        self.record(Kind.LOST, "value", node, (frozenset(a for a in other if isinstance(a, Result | Weight)), value))
        self.flags = before
        plain = frozenset(atom for atom in value if isinstance(atom, Constant))
        decided = frozenset(Constant(a.kind, a.value, a.flags | flags) for a in plain)
        kept = {a for a in other if a is OPAQUE or (isinstance(a, Constant) and plain != value)}
        rest = frozenset(a for a in other if not isinstance(a, Result | Weight | Constant) and a is not OPAQUE)
        return join(value - plain, decided, frozenset(kept), frozenset({Other(rest, flags)}) if rest else NOTHING)


def _sized(obj: Any) -> bool:
    return hasattr(type(obj), "__len__") or hasattr(type(obj), "__bool__")


def is_sequence(atom: Atom) -> bool:
    """Whether an atom is a live sequence or set."""
    return isinstance(atom, Live) and isinstance(atom.obj, list | tuple | set | frozenset | range)


def reads(node: ast.AST, name: str) -> bool:
    """Whether a node is a name."""
    return isinstance(node, ast.Name) and node.id == name


def walrus(node: ast.AST, name: str) -> bool:
    """Whether an expression assigns to a name."""
    return any(isinstance(n, ast.NamedExpr) and reads(n.target, name) for n in ast.walk(node))
