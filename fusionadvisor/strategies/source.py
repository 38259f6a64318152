"""What the model's own code says: whether the result of one module always goes to another, and nowhere else.

A recording proves nothing about a path it did not take. Before a rewrite that is right only while module B follows
module A, every function that forward can reach is read, and each mention of A has to be a call whose result goes
straight into a call of B. Code that cannot be read, or that is cleverer than this reader, proves nothing.
"""

import ast
import copy
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any

from torch import nn

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)
_ROOTS = ("forward", "__call__")
_HARMLESS = frozenset(
    {"in_channels", "out_channels", "in_features", "out_features", "kernel_size", "stride", "padding", "dilation",
     "groups", "training"}
)  # fmt: skip
"""Attributes that a fold leaves as they were."""
_DYNAMIC = frozenset(
    {"_modules", "__dict__", "children", "modules", "named_children", "named_modules", "get_submodule"}
)  # fmt: skip
"""Ways to reach a submodule without writing its name."""
_BUILTINS = ("zip", "enumerate", "range", "reversed", "len")
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom)
_BRANCHES = (
    ast.If, ast.IfExp, ast.While, ast.Try, ast.Match, ast.BoolOp, ast.Lambda, ast.Break, ast.Continue, ast.Raise,
    ast.Yield, ast.YieldFrom, ast.NamedExpr,
)  # fmt: skip
_CONDITIONAL = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, eq=False)
class Function:
    """One function that forward can reach. ``owner`` is the class it is a method of."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: type | None
    name: str
    namespace: dict[str, Any]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node that each node hangs on."""
        return {child: node for node in ast.walk(self.node) for child in ast.iter_child_nodes(node)}

    @cached_property
    def self_name(self) -> str:
        """What the method calls its module, ``self``; empty for a plain function."""
        return self.node.args.args[0].arg if self.owner is not None and self.node.args.args else ""

    def on_self(self, base: ast.expr) -> bool:
        """Whether ``base`` is the method's own module."""
        return isinstance(base, ast.Name) and base.id == self.self_name != ""

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around ``node``, from the inside out, within this function."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent


@dataclass(frozen=True)
class Code:
    """The functions of a model's classes that its forward can reach, and those whose source cannot be read."""

    functions: tuple[Function, ...]
    unreadable: tuple[str, ...]


@dataclass(frozen=True)
class Mention:
    """An expression that denotes a module. Two mentions with one ``tag`` denote modules of one and the same owner."""

    node: ast.expr
    tag: str


def read(model: nn.Module) -> Code:
    """Read the source of every function that the model's forward can reach."""
    found: dict[int, Function] = {}
    unreadable: list[str] = []
    methods = _methods(model)
    todo: list[tuple[FunctionType, type | None]] = [(f, owner) for name in _ROOTS for f, owner in methods.get(name, ())]
    todo += [(f, None) for module in model.modules() for f in _attached(module)]
    while todo:
        function, owner = todo.pop()
        if id(function.__code__) in found or _trusted(function.__module__):
            continue
        node = _parse(function)
        if node is None:
            unreadable.append(function.__qualname__)
            continue
        found[id(function.__code__)] = Function(node, owner, function.__qualname__, function.__globals__)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute):
                todo += methods.get(inner.attr, ())
            elif isinstance(inner, ast.Name) and isinstance(called := function.__globals__.get(inner.id), FunctionType):
                todo.append((called, None))
    return Code(tuple(found.values()), tuple(dict.fromkeys(unreadable)))


def digest(code: Code) -> str:
    """A fingerprint of what the functions do, whatever their comments, layout and place; empty where one is unread."""
    if code.unreadable:
        return ""
    texts = sorted(f"{function.name}\n{ast.unparse(_undocumented(function.node))}" for function in code.functions)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _undocumented(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
    if ast.get_docstring(node) is None:
        return node
    bare = copy.copy(node)
    bare.body = node.body[1:]
    return bare


def always_follows(code: Code, model: nn.Module, first: str, second: str) -> str:
    """Say why the code does not show that the result of ``first`` goes to ``second`` alone; empty where it does.

    Args:
        code: What :func:`read` returned for ``model``.
        model: The model both belong to.
        first: Path of a module that returns one tensor.
        second: Path of the module that takes it.
    """
    if code.unreadable:
        return f"the source of {code.unreadable[0]} cannot be read, so another path through it cannot be ruled out"
    owner_path, keys = _owner(model, first)
    other_path, other_keys = _owner(model, second)
    if owner_path != other_path:
        return f"{first} and {second} are called from different modules"
    owner = model.get_submodule(owner_path)
    if _plain_sequential(model, first, second):
        return _whole(code, owner, keys) or _paired(code, nn.Module, keys[-1:], other_keys[-1:])
    return _paired(code, owner, keys, other_keys)


def _whole(code: Code, owner: nn.Module, keys: tuple[str, ...]) -> str:
    """Say where a Sequential at ``keys[:-1]`` of ``owner`` is used otherwise than called as a whole."""
    if len(keys) == 1:
        return ""  # it is the owner itself
    depth = len(keys) - 2  # containers between the owner's attribute and the Sequential
    problems = []
    for function in code.functions:
        nodes = [mention.node for mention in _mentions(function, owner, keys[0], ())] + _dynamic(function, owner)
        broken = next((node for node in nodes if not _used_whole(function, node, depth)), None)
        if nodes:
            problems.append((function, nodes, f"{_where(function, broken)} takes {keys[0]} apart" if broken else ""))
    return _judge(problems)


def _paired(code: Code, owner: Any, keys: tuple[str, ...], other_keys: tuple[str, ...]) -> str:
    """Say where a module is mentioned otherwise than in a pair with the other."""
    problems = []
    for function in code.functions:
        firsts = list(_mentions(function, owner, keys[0], keys[1:]))
        seconds = list(_mentions(function, owner, other_keys[0], other_keys[1:]))
        hidden = [] if owner is nn.Module else _dynamic(function, owner)
        nodes = [mention.node for mention in (*firsts, *seconds)] + hidden
        if nodes:
            problem = f"{_where(function, hidden[0])} reaches modules without their names" if hidden else ""
            problems.append((function, nodes, problem or _unpaired(function, firsts, seconds)))
    return _judge(problems)


def _judge(problems: list[tuple[Function, list[ast.expr], str]]) -> str:
    """A problem does not matter in the one function that mentions a site if that function does the same every time."""
    if len(problems) == 1:
        function, nodes, _ = problems[0]
        if _branch_free(function) and not any(_passed_on(function, node) for node in nodes):
            return ""
    return next((problem for _, _, problem in problems if problem), "")


def _unpaired(function: Function, firsts: list[Mention], seconds: list[Mention]) -> str:
    left = {id(mention.node): mention for mention in seconds}
    for mention in firsts:
        if _harmless(function, mention.node):
            continue
        partner = next((m for m in left.values() if m.tag == mention.tag and _feeds(function, mention, m)), None)
        if partner is None:
            return f"{_where(function, mention.node)} uses {ast.unparse(mention.node)} another way"
        del left[id(partner.node)]
    rest = [m for m in left.values() if not _none_test(function, m.node)]
    return f"{_where(function, rest[0].node)} uses {ast.unparse(rest[0].node)} another way" if rest else ""


def _feeds(function: Function, first: Mention, second: Mention) -> bool:
    """Whether ``second(first(…))``, or ``v = first(…)`` then ``second(v)`` in one block and no other use of v."""
    call = function.parents.get(first.node)
    taken = function.parents.get(second.node)
    if not (isinstance(call, ast.Call) and call.func is first.node):
        return False
    if not (isinstance(taken, ast.Call) and taken.func is second.node and len(taken.args) == 1 and not taken.keywords):
        return False
    argument = taken.args[0]
    if argument is call:
        return True
    made = function.parents[call]
    if not (isinstance(made, ast.Assign) and len(made.targets) == 1 and isinstance(made.targets[0], ast.Name)):
        return False
    name = made.targets[0].id
    if not (isinstance(argument, ast.Name) and argument.id == name):
        return False
    block = _block(function, made)
    if "[" in first.tag and taken not in ast.walk(block[min(block.index(made) + 1, len(block) - 1)]):
        return False  # the index may have moved on
    return _flows(function, block, made, argument, name)


def _flows(function: Function, block: list[ast.stmt], made: ast.stmt, argument: ast.Name, name: str) -> bool:
    """Whether ``name``, made by one statement of a block, is read by ``argument`` in a later one and nowhere else."""
    inside = [node for node in function.ancestors(argument) if node in block]
    if not inside or any(isinstance(node, _CONDITIONAL) for node in function.ancestors(argument)):
        return False
    start, end = block.index(made), block.index(inside[0])
    used = block[end]
    if end <= start or not isinstance(used, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr | ast.AugAssign):
        return False
    between = [node for statement in block[start + 1 : end] for node in ast.walk(statement)]
    if any(isinstance(node, _LEAVES) or _names(node, name) for node in between) or _loads(used, name) != 1:
        return False
    if any(_loads(n, name) for n in ast.walk(function.node) if isinstance(n, ast.Lambda | ast.FunctionDef)
           and n is not function.node):  # fmt: skip
        return False  # a closure may read it later
    for statement in block[end:]:
        if statement is not used and _loads(statement, name):
            return False
        if isinstance(statement, ast.Assign) and any(_names(target, name) for target in statement.targets):
            return True  # the name means something else from here on
    outside = _loads(function.node, name) - sum(_loads(statement, name) for statement in block[start:])
    return block is function.node.body or outside == 0


def _mentions(function: Function, owner: Any, attribute: str, keys: tuple[str, ...]) -> Iterator[Mention]:
    """Expressions that may denote the module at ``attribute`` of ``owner``, then at ``keys`` of its containers."""
    for node in ast.walk(function.node):
        if isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Load):
            if function.on_self(node.value) and not (function.owner and isinstance(owner, function.owner)):
                continue
            yield from _elements(function, Mention(node, ast.dump(node.value)), keys)
        elif isinstance(node, ast.Call) and _getattr_name(node) == attribute:
            yield Mention(node, ast.dump(node.args[0]))


def _elements(function: Function, mention: Mention, keys: tuple[str, ...]) -> Iterator[Mention]:
    """Follow a container's mention to its element: an index, or the target of a loop over it."""
    if not keys:
        yield mention
        return
    parent = function.parents[mention.node]
    if isinstance(parent, ast.Subscript) and parent.value is mention.node:
        index = parent.slice
        if isinstance(index, ast.Constant) and str(index.value) != keys[0]:
            return
        tag = mention.tag if isinstance(index, ast.Constant) else f"{mention.tag}[{ast.dump(index)}]{keys[0]}"
        yield from _elements(function, Mention(parent, tag), keys[1:])
        return
    loop = _loop(function, mention.node)
    if loop is None:
        if not _counted(function, mention.node):
            yield mention  # used in a way this reader does not follow: an unpaired mention
        return
    target, tag = loop
    for node in ast.walk(function.node):
        if isinstance(node, ast.Name) and node.id == target and isinstance(node.ctx, ast.Load):
            yield from _elements(function, Mention(node, f"{tag}{keys[0]}"), keys[1:])


def _loop(function: Function, node: ast.expr) -> tuple[str, str] | None:
    """The name that runs over ``node`` in ``for``, through ``enumerate`` and ``zip``, and a tag of the loop."""
    path: list[int] = []
    current: ast.AST = node
    for parent in function.ancestors(node):
        if isinstance(parent, ast.For) and parent.iter is current:
            target: ast.expr = parent.target
            for position in reversed(path):
                if not (isinstance(target, ast.Tuple) and position < len(target.elts)):
                    return None
                target = target.elts[position]
            return (target.id, f"for@{parent.lineno}") if isinstance(target, ast.Name) else None
        if not (isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and current in parent.args):
            return None
        if parent.func.id not in ("zip", "enumerate"):
            return None
        path.append(1 if parent.func.id == "enumerate" else parent.args.index(current))
        current = parent
    return None


def _used_whole(function: Function, node: ast.expr, depth: int) -> bool:
    """Whether a container is only called, or indexed and looped over down to something that is only called."""
    parent = function.parents[node]
    if isinstance(parent, ast.Call) and parent.func is node:
        return True
    if _none_test(function, node) or _counted(function, node):
        return True
    if isinstance(parent, ast.Subscript) and parent.value is node:
        left = depth if isinstance(parent.slice, ast.Slice) else depth - 1
        return depth > 0 and _used_whole(function, parent, left)
    loop = _loop(function, node)
    if loop is None or depth <= 0:
        return False
    loads = [n for n in ast.walk(function.node) if isinstance(n, ast.Name) and n.id == loop[0]]
    return all(_used_whole(function, n, depth - 1) for n in loads if isinstance(n.ctx, ast.Load))


def _branch_free(function: Function) -> bool:
    """Whether every call of the function does the same things: then what was recorded once is always so."""
    body = function.node.body
    for node in ast.walk(function.node):
        if isinstance(node, _BRANCHES) or (isinstance(node, ast.Return) and node is not body[-1]):
            return False
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node is not function.node:
            return False
        if isinstance(node, ast.comprehension) and (node.ifs or not _static(function, node.iter)):
            return False
        if isinstance(node, ast.For) and not _static(function, node.iter):
            return False
    return True


def _static(function: Function, node: ast.expr) -> bool:
    """Whether a loop runs over the module's own attributes and constants alone."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Attribute):
        return function.on_self(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return node.func.id in _BUILTINS and all(_static(function, a) for a in node.args)
    return False


def _dynamic(function: Function, owner: Any) -> list[ast.expr]:
    """Expressions that reach submodules without naming them, on this owner or on something unknown."""
    found: list[ast.expr] = []
    for node in ast.walk(function.node):
        base: ast.expr | None = None
        if isinstance(node, ast.Attribute) and node.attr in _DYNAMIC:
            base = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            hidden = node.func.id == "getattr" and not (len(node.args) > 1 and isinstance(node.args[1], ast.Constant))
            base = node.args[0] if hidden or node.func.id == "vars" else None
        if base is not None and (not function.on_self(base) or (function.owner and isinstance(owner, function.owner))):
            found.append(node)  # type: ignore[arg-type]
    return found


def _passed_on(function: Function, node: ast.expr) -> bool:
    """Whether an expression is handed to a function that may do with it what it likes."""
    parent = function.parents[node]
    if not (isinstance(parent, ast.Call) and node in parent.args):
        return isinstance(parent, ast.keyword | ast.Starred)
    return not (isinstance(parent.func, ast.Name) and parent.func.id in _BUILTINS)


def _harmless(function: Function, node: ast.expr) -> bool:
    parent = function.parents[node]
    reads = isinstance(parent, ast.Attribute) and parent.attr in _HARMLESS and isinstance(parent.ctx, ast.Load)
    return reads or _none_test(function, node)


def _none_test(function: Function, node: ast.expr) -> bool:
    parent = function.parents[node]
    return (
        isinstance(parent, ast.Compare)
        and all(isinstance(op, ast.Is | ast.IsNot) for op in parent.ops)
        and all(isinstance(c, ast.Constant) and c.value is None for c in parent.comparators)
    )


def _counted(function: Function, node: ast.expr) -> bool:
    parent = function.parents[node]
    return isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "len"


def _getattr_name(node: ast.Call) -> str | None:
    if not (isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) >= 2):
        return None
    return node.args[1].value if isinstance(node.args[1], ast.Constant) else None  # type: ignore[return-value]


def _block(function: Function, statement: ast.stmt) -> list[ast.stmt]:
    parent = function.parents[statement]
    blocks = [getattr(parent, name, None) for name in ("body", "orelse", "finalbody")]
    return next(block for block in blocks if isinstance(block, list) and statement in block)


def _names(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _loads(node: ast.AST, name: str) -> int:
    return sum(_names(n, name) and isinstance(n.ctx, ast.Load) for n in ast.walk(node))  # type: ignore[attr-defined]


def _where(function: Function, node: ast.AST) -> str:
    return f"line {getattr(node, 'lineno', 0)} of {function.name}"


def _owner(model: nn.Module, path: str) -> tuple[str, tuple[str, ...]]:
    """Split a path at the innermost module that is no container: its path, then the keys from there down."""
    parts = path.split(".")
    cut = len(parts) - 1
    while cut and _is_container(model.get_submodule(".".join(parts[:cut]))):
        cut -= 1
    return ".".join(parts[:cut]), tuple(parts[cut:])


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, _CONTAINERS) or _runs_in_order(module)


def _runs_in_order(module: nn.Module) -> bool:
    return (
        isinstance(module, nn.Sequential)
        and type(module).forward is nn.Sequential.forward
        and "forward" not in vars(module)
    )


def _plain_sequential(model: nn.Module, first: str, second: str) -> bool:
    """Whether both are children of one Sequential, neighbours but for Identity between them."""
    parent, _, key = first.rpartition(".")
    other_parent, _, other_key = second.rpartition(".")
    holder = model.get_submodule(parent)
    if parent != other_parent or not _runs_in_order(holder):
        return False
    keys = list(holder._modules)
    between = keys[keys.index(key) + 1 : keys.index(other_key)]
    in_order = keys.index(key) < keys.index(other_key)
    return in_order and all(type(holder._modules[k]) is nn.Identity for k in between)


def _methods(model: nn.Module) -> dict[str, list[tuple[FunctionType, type]]]:
    """The methods of the classes of a model's modules, torch's own left out, by name."""
    found: dict[str, list[tuple[FunctionType, type]]] = {}
    for kind in dict.fromkeys(type(module) for module in model.modules()):
        for owner in kind.__mro__:
            if _trusted(owner.__module__):
                continue
            for name, attribute in vars(owner).items():
                if (function := _plain(attribute)) is not None and name != "__init__":
                    found.setdefault(name, []).append((function, owner))
    return found


def _attached(module: nn.Module) -> Iterator[FunctionType]:
    """Functions set on the instance and hooks: they run with forward and may read any module."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, {"forward": vars(module).get("forward")})
    for attribute in (f for group in hooks for f in group.values()):
        function = _plain(attribute) or _plain(vars(type(attribute)).get("__call__"))
        if function is not None:
            yield function


def _plain(attribute: object) -> FunctionType | None:
    """The function behind a method, property, static or class method, or decorator."""
    inner: Any = attribute
    if isinstance(inner, staticmethod | classmethod):
        inner = inner.__func__
    elif isinstance(inner, property):
        inner = inner.fget
    elif inspect.ismethod(inner):
        inner = inner.__func__
    inner = inspect.unwrap(inner) if callable(inner) else inner
    return inner if isinstance(inner, FunctionType) else None


def _parse(function: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    ast.increment_lineno(tree, first - 1)
    node = tree.body[0]
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _trusted(module: str | None) -> bool:
    """Torch's own code and the standard library's: they reach no module they were not given."""
    root = (module or "").partition(".")[0]
    return root == "torch" or (root in sys.stdlib_module_names and root != "__main__")
