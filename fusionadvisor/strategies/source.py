"""The model's own code: every function its forward can reach, and where in them a module is mentioned.

A recording proves nothing about a path it did not take; what it leaves open is read here. Code that cannot be read, or
that is cleverer than this reader, proves nothing.
"""

import ast
import copy
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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


_READ_DTYPES = frozenset(
    {"transformers.modeling_utils:get_parameter_dtype", "transformers.modeling_utils:get_parameter_device"}
)  # fmt: skip
"""Functions that go through all modules of a model, and only to ask for the dtype or device of their tensors."""


@dataclass(frozen=True, eq=False)
class Function:
    """One function that forward can reach. ``owner`` is the class it is a method of."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: type | None
    name: str
    namespace: dict[str, Any]
    file: str = ""

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
    set_names = _set_in(methods)
    while todo:
        function, owner = todo.pop()
        if id(function.__code__) in found or _trusted(function.__module__) or _name(function) in _READ_DTYPES:
            continue
        node = _parse(function)
        if node is None:
            unreadable.append(function.__qualname__)
            continue
        if owner is not None:
            kept = [module for module in model.modules() if isinstance(module, owner)]
            node = _Settled(node, kept, set_names).visit(node)
        found[id(function.__code__)] = Function(
            node, owner, function.__qualname__, function.__globals__, function.__code__.co_filename
        )
        for inner in _run(node):
            if isinstance(inner, ast.Attribute):
                todo += methods.get(inner.attr, ())
            elif isinstance(inner, ast.Name) and isinstance(called := function.__globals__.get(inner.id), FunctionType):
                todo.append((called, None))
    return Code(tuple(found.values()), tuple(dict.fromkeys(unreadable)))


class _Settled(ast.NodeTransformer):
    """Takes the branch of ``if self.norm is not None:`` that every module of the class takes.

    Args:
        method: The method whose code is visited.
        modules: The model's modules it is a method of.
        set_names: Attributes that any method may set: of those nothing is known.
    """

    def __init__(
        self, method: ast.FunctionDef | ast.AsyncFunctionDef, modules: list[nn.Module], set_names: frozenset[str]
    ) -> None:
        self._self = method.args.args[0].arg if method.args.args else ""
        self._modules, self._set_names = modules, set_names

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Replace the statement by its branch where that is known."""
        self.generic_visit(node)
        known = self._known(node.test)
        if known is None:
            return node
        return (node.body if known else node.orelse) or ast.copy_location(ast.Pass(), node)

    def _known(self, test: ast.expr) -> bool | None:
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is | ast.IsNot)):
            return None
        asked, against = test.left, test.comparators[0]
        if not (
            isinstance(asked, ast.Attribute) and names(asked.value, self._self) and asked.attr not in self._set_names
        ):
            return None
        if not (isinstance(against, ast.Constant) and against.value is None):
            return None
        missing = object()
        absent = {getattr(module, asked.attr, missing) is None for module in self._modules}
        if len(absent) != 1:
            return None
        return absent.pop() is isinstance(test.ops[0], ast.Is)


def _set_in(methods: dict[str, list[tuple[FunctionType, type]]]) -> frozenset[str]:
    """Names of the attributes that methods set, ``__init__`` apart, which ran already; ``setattr`` for any."""
    parsed = (_parse(function) for group in methods.values() for function, _ in group)
    nodes = [inner for node in parsed if node is not None for inner in ast.walk(node)]
    stored = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store | ast.Del)}
    return frozenset(stored | {"setattr" for n in nodes if names(n, "setattr")})


def _run(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """What a call of a function runs: its body, and not its decorators, defaults and annotations."""
    for statement in function.body:
        yield from ast.walk(statement)


def _name(function: FunctionType) -> str:
    return f"{function.__module__}:{function.__qualname__}"


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


def mentions(function: Function, owner: Any, attribute: str, keys: tuple[str, ...]) -> Iterator[Mention]:
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
    found = loop(function, mention.node)
    if found is None:
        if not counted(function, mention.node):
            yield mention  # used in a way this reader does not follow: an unpaired mention
        return
    target, tag = found
    for node in ast.walk(function.node):
        if isinstance(node, ast.Name) and node.id == target and isinstance(node.ctx, ast.Load):
            yield from _elements(function, Mention(node, f"{tag}{keys[0]}"), keys[1:])


def loop(function: Function, node: ast.expr) -> tuple[str, str] | None:
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


def dynamic(function: Function, owner: Any) -> list[ast.expr]:
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


def harmless(function: Function, node: ast.expr) -> bool:
    """Whether a mention only asks for a hyper-parameter, or whether the module is there."""
    parent = function.parents[node]
    reads = isinstance(parent, ast.Attribute) and parent.attr in _HARMLESS and isinstance(parent.ctx, ast.Load)
    return reads or none_test(function, node) or _asked_by_another(function, node)


def _asked_by_another(function: Function, node: ast.expr) -> bool:
    """Whether a mention is given to a plain function that only asks it for hyper-parameters."""
    call = function.parents[node]
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and node in call.args):
        return False
    called = function.namespace.get(call.func.id)
    parsed = _parse(called) if isinstance(called, FunctionType) else None
    if parsed is None or len(parsed.args.args) <= (position := call.args.index(node)):
        return False
    name = parsed.args.args[position].arg
    other = Function(parsed, None, parsed.name, {})
    asked = [other.parents.get(n) for n in ast.walk(parsed) if names(n, name)]
    return all(isinstance(a, ast.Attribute) and a.attr in _HARMLESS and isinstance(a.ctx, ast.Load) for a in asked)


def none_test(function: Function, node: ast.expr) -> bool:
    """Whether a mention is only compared with None."""
    parent = function.parents[node]
    return (
        isinstance(parent, ast.Compare)
        and all(isinstance(op, ast.Is | ast.IsNot) for op in parent.ops)
        and all(isinstance(c, ast.Constant) and c.value is None for c in parent.comparators)
    )


def counted(function: Function, node: ast.expr) -> bool:
    """Whether a mention is only passed to ``len``."""
    parent = function.parents[node]
    return isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "len"


def _getattr_name(node: ast.Call) -> str | None:
    if not (isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) >= 2):
        return None
    return node.args[1].value if isinstance(node.args[1], ast.Constant) else None  # type: ignore[return-value]


def block(function: Function, statement: ast.stmt) -> list[ast.stmt]:
    """The list of statements that a statement belongs to."""
    parent = function.parents[statement]
    blocks = [getattr(parent, name, None) for name in ("body", "orelse", "finalbody")]
    return next(block for block in blocks if isinstance(block, list) and statement in block)


_FRESH = frozenset(
    {"tensor", "arange", "zeros", "ones", "full", "empty", "matmul", "bmm", "baddbmm", "addmm", "cat", "stack",
     "softmax", "zeros_like", "ones_like", "full_like"}
)  # fmt: skip
"""Functions of torch that return a tensor with memory of its own, without gaps."""
_SAME_MEMORY = frozenset({"view", "view_as", "unsqueeze", "squeeze", "flatten", "to", "float", "type_as", "detach"})
"""Methods whose result is as whole as what they are called on."""


@dataclass
class Whole:
    """Whether what a name or an expression denotes has memory of its own without gaps, whatever a layer returns.

    A part of a larger tensor has gaps; what arithmetic, a product or ``.contiguous()`` makes of it has none. Of a
    name the last assignment before counts, or where that lies on a path of its own every one in the function; of a
    method every return.

    Args:
        code: The model's code.
        makers: Functions that call the layers themselves: what they are given was there before.
    """

    code: Code
    makers: frozenset[Function] = frozenset()
    _open: set[tuple[Function, str]] = field(default_factory=set)

    def __call__(self, function: Function, value: ast.expr) -> bool:
        """Whether ``value``, an expression in ``function``, surely is."""
        if isinstance(value, ast.BinOp):
            return isinstance(value.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.MatMult)
        if isinstance(value, ast.Compare | ast.Constant):
            return True
        if isinstance(value, ast.Name):
            last = _last_assignment(function, value)
            return self(function, last) if last is not None else self._name(function, value.id)
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
            return False
        method, base = value.func.attr, value.func.value
        if method in _FRESH and not any(keyword.arg == "out" for keyword in value.keywords):
            return ast.unparse(base) in ("torch", "F", "nn.functional", "torch.nn.functional")
        if method == "contiguous":
            return not value.keywords and not value.args
        if function.on_self(base):
            return self._method(function, method)
        return method in _SAME_MEMORY and self(function, base)

    def _name(self, function: Function, name: str) -> bool:
        """Whether every assignment to a local name makes it so; one that rests on the name itself adds nothing."""
        if (function, name) in self._open:
            return True
        arguments = function.node.args
        given = name in {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        if given and function not in self.makers:
            return False
        stores = _stores(function.node, name)
        self._open.add((function, name))
        try:
            return (given or bool(stores)) and all(self._stored(function, store) for store in stores)
        finally:
            self._open.discard((function, name))

    def _stored(self, function: Function, store: ast.AST) -> bool:
        made = function.parents[store]
        if isinstance(made, ast.AugAssign):
            return True  # in place: what it was before is judged by its own assignment
        return isinstance(made, ast.Assign) and len(made.targets) == 1 and self(function, made.value)

    def _method(self, function: Function, name: str) -> bool:
        """Whether every method of that name returns such a tensor."""
        called = [f for f in self.code.functions if f.owner is not None and f.node.name == name]
        returns = [(f, n) for f in called for n in ast.walk(f.node) if isinstance(n, ast.Return)]
        return bool(returns) and all(n.value is not None and self(f, n.value) for f, n in returns)


def _last_assignment(function: Function, name: ast.Name) -> ast.expr | None:
    """What a name was last set to before it is read, where that happened in the same block; else None."""
    statement = next((n for n in function.ancestors(name) if isinstance(n, ast.stmt)), function.node)
    if statement is function.node:
        return None
    same = block(function, statement)
    for before in reversed(same[: same.index(statement)]):
        if _stores(before, name.id):
            alone = isinstance(before, ast.Assign) and len(before.targets) == 1 and names(before.targets[0], name.id)
            return before.value if alone else None  # type: ignore[attr-defined]
    return None


def _stores(node: ast.AST, name: str) -> list[ast.AST]:
    return [n for n in ast.walk(node) if names(n, name) and isinstance(n.ctx, ast.Store)]  # type: ignore[attr-defined]


def names(node: ast.AST, name: str) -> bool:
    """Whether a node is the local name ``name``."""
    return isinstance(node, ast.Name) and node.id == name


def loads(node: ast.AST, name: str) -> int:
    """How often the local name is read in a node."""
    return sum(names(n, name) and isinstance(n.ctx, ast.Load) for n in ast.walk(node))  # type: ignore[attr-defined]


def where(function: Function, node: ast.AST) -> str:
    """A place in a function, in words: ``model.py:12 (Block.forward)``."""
    return f"{function.file.rpartition('/')[2]}:{getattr(node, 'lineno', 0)} ({function.name})"


def owner(model: nn.Module, path: str) -> tuple[str, tuple[str, ...]]:
    """Split a path at the innermost module that is no container: its path, then the keys from there down."""
    parts = path.split(".")
    cut = len(parts) - 1
    while cut and _is_container(model.get_submodule(".".join(parts[:cut]))):
        cut -= 1
    return ".".join(parts[:cut]), tuple(parts[cut:])


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, _CONTAINERS) or runs_in_order(module)


def runs_in_order(module: nn.Module) -> bool:
    """Whether a module is a Sequential with torch's own forward."""
    return (
        isinstance(module, nn.Sequential)
        and type(module).forward is nn.Sequential.forward
        and "forward" not in vars(module)
    )


def plain_sequential(model: nn.Module, first: str, second: str) -> bool:
    """Whether both are children of one Sequential, neighbours but for Identity between them."""
    parent, _, key = first.rpartition(".")
    other_parent, _, other_key = second.rpartition(".")
    holder = model.get_submodule(parent)
    if parent != other_parent or not runs_in_order(holder):
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
    """Torch's own code, this package's and the standard library's: they reach no module they were not given."""
    root = (module or "").partition(".")[0]
    if root in ("__main__", "builtins"):  # what exec makes without a name of its own says that it is of builtins
        return False
    return root in ("torch", __name__.partition(".")[0]) or root in sys.stdlib_module_names
