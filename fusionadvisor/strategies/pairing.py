"""Whether the code shows that the result of one module always goes to another, and nowhere else.

Each mention of the first module has to be a call whose result goes straight into a call of the second. Only in a
function that does the same every time does a recording prove as much.
"""

import ast
from typing import Any

from torch import nn

from fusionadvisor.strategies import source

_BUILTINS = ("zip", "enumerate", "range", "reversed", "len")
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom)
_BRANCHES = (
    ast.If, ast.IfExp, ast.While, ast.Try, ast.Match, ast.BoolOp, ast.Lambda, ast.Break, ast.Continue, ast.Raise,
    ast.Yield, ast.YieldFrom, ast.NamedExpr,
)  # fmt: skip
_CONDITIONAL = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def always_follows(code: source.Code, model: nn.Module, first: str, second: str, *, at_once: bool = False) -> str:
    """Say why the code does not show that the result of ``first`` goes to ``second`` alone; empty where it does.

    Args:
        code: What :func:`source.read` returned for ``model``.
        model: The model both belong to.
        first: Path of a module that returns one tensor.
        second: Path of the module that takes it.
        at_once: Nothing may happen between the two calls.
    """
    if code.unreadable:
        return f"the source of {code.unreadable[0]} cannot be read, so another path through it cannot be ruled out"
    owner_path, keys = source.owner(model, first)
    other_path, other_keys = source.owner(model, second)
    if owner_path != other_path:
        return f"{first} and {second} are called from different modules"
    owner = model.get_submodule(owner_path)
    if source.plain_sequential(model, first, second):
        return whole(code, owner, keys) or _paired(code, nn.Module, keys[-1:], other_keys[-1:], at_once)
    return _paired(code, owner, keys, other_keys, at_once)


def whole(code: source.Code, owner: nn.Module, keys: tuple[str, ...]) -> str:
    """Say where a Sequential at ``keys[:-1]`` of ``owner`` is used otherwise than called as a whole."""
    if len(keys) == 1:
        return ""  # it is the owner itself
    depth = len(keys) - 2  # containers between the owner's attribute and the Sequential
    problems = []
    for function in code.functions:
        nodes = [mention.node for mention in source.mentions(function, owner, keys[0], ())]
        nodes += source.dynamic(function, owner)
        broken = next((node for node in nodes if not _used_whole(function, node, depth)), None)
        if nodes:
            problems.append(
                (function, nodes, f"{source.where(function, broken)} takes {keys[0]} apart" if broken else "")
            )
    return judge(problems)


def _paired(code: source.Code, owner: Any, keys: tuple[str, ...], other_keys: tuple[str, ...], at_once: bool) -> str:
    """Say where a module is mentioned otherwise than in a pair with the other."""
    problems = []
    for function in code.functions:
        firsts = list(source.mentions(function, owner, keys[0], keys[1:]))
        seconds = list(source.mentions(function, owner, other_keys[0], other_keys[1:]))
        hidden = [] if owner is nn.Module else source.dynamic(function, owner)
        nodes = [mention.node for mention in (*firsts, *seconds)] + hidden
        if nodes:
            problem = f"{source.where(function, hidden[0])} reaches modules without their names" if hidden else ""
            problems.append((function, nodes, problem or _unpaired(function, firsts, seconds, at_once)))
    return judge(problems)


def judge(problems: list[tuple[source.Function, list[ast.expr], str]]) -> str:
    """A problem does not matter in the one function that mentions a site if that function does the same every time."""
    if len(problems) == 1:
        function, nodes, _ = problems[0]
        if branch_free(function) and not any(_passed_on(function, node) for node in nodes):
            return ""
    return next((problem for _, _, problem in problems if problem), "")


def _unpaired(
    function: source.Function, firsts: list[source.Mention], seconds: list[source.Mention], at_once: bool
) -> str:
    left = {id(mention.node): mention for mention in seconds}
    for mention in firsts:
        if source.harmless(function, mention.node):
            continue
        partner = next(
            (m for m in left.values() if m.tag == mention.tag and _feeds(function, mention, m, at_once)), None
        )
        if partner is None:
            return f"{source.where(function, mention.node)} uses {ast.unparse(mention.node)} another way"
        del left[id(partner.node)]
    rest = [m for m in left.values() if not source.none_test(function, m.node)]
    return f"{source.where(function, rest[0].node)} uses {ast.unparse(rest[0].node)} another way" if rest else ""


def _feeds(function: source.Function, first: source.Mention, second: source.Mention, at_once: bool) -> bool:
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
    block = source.block(function, made)
    if (at_once or "[" in first.tag) and taken not in ast.walk(block[min(block.index(made) + 1, len(block) - 1)]):
        return False  # the index may have moved on
    return flows(function, block, made, argument, name)


def flows(function: source.Function, block: list[ast.stmt], made: ast.stmt, argument: ast.Name, name: str) -> bool:
    """Whether ``name``, made by one statement of a block, is read by ``argument`` in a later one and nowhere else."""
    inside = [node for node in function.ancestors(argument) if node in block]
    if not inside or any(isinstance(node, _CONDITIONAL) for node in function.ancestors(argument)):
        return False
    start, end = block.index(made), block.index(inside[0])
    used = block[end]
    if end <= start or not isinstance(used, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr | ast.AugAssign):
        return False
    between = [node for statement in block[start + 1 : end] for node in ast.walk(statement)]
    if any(isinstance(node, _LEAVES) or source.names(node, name) for node in between) or source.loads(used, name) != 1:
        return False
    if any(source.loads(n, name) for n in ast.walk(function.node) if isinstance(n, ast.Lambda | ast.FunctionDef)
           and n is not function.node):  # fmt: skip
        return False  # a closure may read it later
    for statement in block[end:]:
        if statement is not used and source.loads(statement, name):
            return False
        if isinstance(statement, ast.Assign) and any(source.names(target, name) for target in statement.targets):
            return True  # the name means something else from here on
    outside = source.loads(function.node, name) - sum(source.loads(statement, name) for statement in block[start:])
    return block is function.node.body or outside == 0


def _used_whole(function: source.Function, node: ast.expr, depth: int) -> bool:
    """Whether a container is only called, or indexed and looped over down to something that is only called."""
    parent = function.parents[node]
    if isinstance(parent, ast.Call) and parent.func is node:
        return True
    if source.none_test(function, node) or source.counted(function, node):
        return True
    if isinstance(parent, ast.Subscript) and parent.value is node:
        left = depth if isinstance(parent.slice, ast.Slice) else depth - 1
        return depth > 0 and _used_whole(function, parent, left)
    loop = source.loop(function, node)
    if loop is None or depth <= 0:
        return False
    loads = [n for n in ast.walk(function.node) if isinstance(n, ast.Name) and n.id == loop[0]]
    return all(_used_whole(function, n, depth - 1) for n in loads if isinstance(n.ctx, ast.Load))


def branch_free(function: source.Function, *, loops: bool = False) -> bool:
    """Whether every call of the function does the same things: then what was recorded once is always so.

    Args:
        function: The function.
        loops: Allow loops over anything; a capture fails where their number depends on a tensor.
    """
    body = function.node.body
    for node in ast.walk(function.node):
        if isinstance(node, _BRANCHES) or (isinstance(node, ast.Return) and node is not body[-1]):
            return False
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node is not function.node:
            return False
        if isinstance(node, ast.comprehension) and (node.ifs or not (loops or _static(function, node.iter))):
            return False
        if isinstance(node, ast.For) and not (loops or _static(function, node.iter)):
            return False
    return True


def _static(function: source.Function, node: ast.expr) -> bool:
    """Whether a loop runs over the module's own attributes and constants alone."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Attribute):
        return function.on_self(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return node.func.id in _BUILTINS and all(_static(function, a) for a in node.args)
    return False


def _passed_on(function: source.Function, node: ast.expr) -> bool:
    """Whether an expression is handed to a function that may do with it what it likes."""
    parent = function.parents[node]
    if not (isinstance(parent, ast.Call) and node in parent.args):
        return isinstance(parent, ast.keyword | ast.Starred)
    return not (isinstance(parent.func, ast.Name) and parent.func.id in _BUILTINS)
