"""Whether the code shows that what a module is given is always a fresh tensor that nobody looks at again."""

import ast
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fusionadvisor.strategies import source
from fusionadvisor.strategies.pairing import flows, whole

FRESH = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d,
)  # fmt: skip
"""Modules that return a new tensor on every path, and do not keep it for their backward."""
_FRESH_FUNCTIONS = frozenset(
    {"add", "sub", "mul", "matmul", "bmm", "cat", "conv1d", "conv2d", "conv3d", "linear", "batch_norm", "layer_norm",
     "group_norm", "max_pool2d", "avg_pool2d"}
)  # fmt: skip
_FRESH_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.MatMult)


def always_temporary(code: source.Code, model: nn.Module, path: str) -> str:
    """Say why the code does not show that ``path`` may overwrite its input; empty where it does."""
    if code.unreadable:
        return f"the source of {code.unreadable[0]} cannot be read, so another use of its input cannot be ruled out"
    owner_path, keys = source.owner(model, path)
    owner = model.get_submodule(owner_path)
    parent, _, key = path.rpartition(".")
    if source.runs_in_order(model.get_submodule(parent)):
        return _after_fresh(model.get_submodule(parent), key, path) or whole(code, owner, keys)
    for function in code.functions:
        if hidden := source.dynamic(function, owner):
            return f"{source.where(function, hidden[0])} reaches modules without their names"
        for mention in source.mentions(function, owner, keys[0], keys[1:]):
            if not (source.harmless(function, mention.node) or _Reader(function, owner).applied(mention.node)):
                return f"{source.where(function, mention.node)} may give {path} a tensor that is used again"
    return ""


def _after_fresh(holder: nn.Module, key: str, path: str) -> str:
    keys = list(holder._modules)
    for before in reversed(keys[: keys.index(key)]):
        module = holder._modules[before]
        if type(module) in FRESH:
            return ""
        if not isinstance(module, nn.Identity):
            return f"what comes before {path} is a {type(module).__name__}, which may return its own input"
    return f"{path} comes first in its Sequential and is given what others hold"


@dataclass(frozen=True)
class _Reader:
    """Reads one function for one module instance ``owner``."""

    function: source.Function
    owner: nn.Module

    def applied(self, node: ast.expr) -> bool:
        """Whether a mention is a call on a temporary."""
        call = self.function.parents[node]
        if not (isinstance(call, ast.Call) and call.func is node and len(call.args) == 1 and not call.keywords):
            return False
        return self._temporary(call.args[0])

    def _temporary(self, value: ast.expr) -> bool:
        if isinstance(value, ast.BinOp):
            return isinstance(value.op, _FRESH_OPERATORS)
        if isinstance(value, ast.Name):
            return self._name(value)
        if not isinstance(value, ast.Call):
            return False
        if isinstance(value.func, ast.Attribute) and self._is_torch(value.func.value):
            return value.func.attr in _FRESH_FUNCTIONS and not any(k.arg == "out" for k in value.keywords)
        module = self._module(value.func)
        if isinstance(module, nn.Identity):
            return len(value.args) == 1 and self._temporary(value.args[0])
        return type(module) in FRESH

    def _name(self, value: ast.Name) -> bool:
        """A local name whose last two meanings, if the last is ``+=``, were made in the same block and used once."""
        statement = next((n for n in self.function.ancestors(value) if isinstance(n, ast.stmt)), None)
        if statement is None:
            return False
        block = source.block(self.function, statement)
        made = self._made(block, block.index(statement), value.id)
        if made is None or not flows(self.function, block, made, value, value.id):
            return False
        if isinstance(made, ast.AugAssign):
            start = self._made(block, block.index(made), value.id)
            if start is None or source.loads(made, value.id) or not isinstance(made.op, _FRESH_OPERATORS):
                return False
            between = block[block.index(start) + 1 : block.index(made)]
            if any(source.loads(node, value.id) for node in between):
                return False
            made = start
        return isinstance(made, ast.Assign) and self._temporary(made.value)

    def _made(self, block: list[ast.stmt], before: int, name: str) -> ast.Assign | ast.AugAssign | None:
        """The statement of the block that last set ``name``, None where another construct may have."""
        for statement in reversed(block[:before]):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                if source.names(statement.targets[0], name):
                    return statement
            elif isinstance(statement, ast.AugAssign) and source.names(statement.target, name):
                return statement
            if any(source.names(n, name) and isinstance(n.ctx, ast.Store) for n in ast.walk(statement)):  # type: ignore[attr-defined]
                return None
        return None

    def _module(self, func: ast.expr) -> Any:
        """The module a call's function denotes: an attribute of this owner, or an element of its only kind."""
        if isinstance(func, ast.Subscript):
            container = self._module(func.value)
            items = list(container) if isinstance(container, nn.ModuleList) else []
            return items[0] if items and len({type(item) for item in items}) == 1 else None
        if not (isinstance(func, ast.Attribute) and self.function.on_self(func.value)):
            return None
        return getattr(self.owner, func.attr, None)

    def _is_torch(self, base: ast.expr) -> bool:
        found = self.function.namespace.get(base.id) if isinstance(base, ast.Name) else None
        return found is torch or found is torch.nn.functional
