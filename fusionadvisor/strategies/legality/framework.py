"""Methods that every module has from torch, and code of libraries that only holds and wraps models."""

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torch import nn

from fusionadvisor.strategies.legality.standin import stand_in
from fusionadvisor.strategies.legality.values import (
    NOTHING,
    UNKNOWN,
    Arguments,
    Live,
    Value,
    Weight,
    constant,
    join,
    known,
)

if TYPE_CHECKING:
    from fusionadvisor.strategies.legality.machine import Machine

_NAMES = (
    "transformers.modeling_utils", "transformers.generation", "transformers.integrations", "transformers.utils",
    "transformers.pytorch_utils", "huggingface_hub", "lightning", "pytorch_lightning",
    "diffusers.models.modeling_utils", "diffusers.loaders", "diffusers.utils", "diffusers.configuration_utils",
)  # fmt: skip
"""Base classes and decorators of libraries that hold, load, move and wrap models and compute nothing of their own."""

ASKS = frozenset({"get_parameter_dtype", "get_parameter_device"})
"""Functions of such libraries that go through all tensors of a model, and only to ask for their dtype or device."""

LOADERS = frozenset({"load_tf_weights"})
"""Class attributes of such libraries that copy weights into a model."""

CHANGES = frozenset(
    {"train", "eval", "requires_grad_", "zero_grad", "to", "to_empty", "cpu", "cuda", "half", "float", "double",
     "bfloat16", "type", "share_memory", "add_module", "set_submodule", "load_state_dict", "__setattr__", "__delattr__",
     "append", "extend", "insert", "update", "pop", "clear", "compile", "set_extra_state", "__setitem__"}
)  # fmt: skip
"""Methods of torch's modules that change them and compute nothing."""


def framework(namespace: str | None) -> bool:
    """Whether code belongs to the part of a library that holds and wraps models."""
    return (namespace or "").startswith(_NAMES)


def _weights(machine: "Machine", module: nn.Module, *, named: bool, buffers: bool = False) -> Value:
    each = frozenset(
        Weight(id(inner), name)
        for inner in module.modules()
        for name in (inner._buffers if buffers else inner._parameters)
    )
    node = stand_in(module, f"{named}{buffers}")
    if not named:
        return machine.box(list, node, None, None, each)
    pair = machine.box(tuple, stand_in(module, "pair"), [UNKNOWN, each])
    return machine.box(list, node, None, None, pair)


def _several(machine: "Machine", module: nn.Module, found: Iterator[tuple[str, nn.Module]], named: bool) -> Value:
    items = []
    for name, inner in found:
        one = machine.lifted(inner)
        items.append(machine.box(tuple, stand_in(inner, name), [constant(name), one]) if named else one)
    return machine.box(list, stand_in(module, f"several{named}"), items)


def _submodule(machine: "Machine", module: nn.Module, arguments: Arguments, node: ast.AST) -> Value:
    name = known(arguments.get(0, "target") or NOTHING)
    if name is None:
        return join(*(machine.lifted(inner) for inner in module.modules()))
    try:
        return machine.lifted(module.get_submodule(str(name.value)))
    except AttributeError:
        return NOTHING


def _apply(machine: "Machine", module: nn.Module, arguments: Arguments, node: ast.AST) -> Value:
    function = arguments.get(0, "fn") or UNKNOWN
    for inner in module.modules():
        machine.call(function, Arguments((machine.lifted(inner),)), node)
    return frozenset({Live(module)})


def _at(machine: "Machine", module: nn.Module, arguments: Arguments, node: ast.AST) -> Value:
    return machine.item(frozenset({Live(module)}), arguments.get(0) or UNKNOWN, node)


def _named(machine: "Machine", module: nn.Module, arguments: Arguments, node: ast.AST) -> Value:
    name = known(arguments.get(0) or NOTHING)
    return machine.attribute(frozenset({Live(module)}), str(name.value), node) if name is not None else UNKNOWN


Handler = Callable[["Machine", nn.Module, Arguments, ast.AST], Value]
_nothing: Handler = lambda machine, module, arguments, node: UNKNOWN  # noqa: E731
METHODS: dict[str, Handler] = {
    "modules": lambda c, m, a, n: _several(c, m, m.named_modules(), False),
    "named_modules": lambda c, m, a, n: _several(c, m, m.named_modules(), True),
    "children": lambda c, m, a, n: _several(c, m, m.named_children(), False),
    "named_children": lambda c, m, a, n: _several(c, m, m.named_children(), True),
    "values": lambda c, m, a, n: _several(c, m, m.named_children(), False),
    "items": lambda c, m, a, n: _several(c, m, m.named_children(), True),
    "__iter__": lambda c, m, a, n: _several(c, m, m.named_children(), False),
    "keys": lambda c, m, a, n: c.box(list, stand_in(m, "keys"), [constant(name) for name in m._modules]),
    "parameters": lambda c, m, a, n: _weights(c, m, named=False),
    "named_parameters": lambda c, m, a, n: _weights(c, m, named=True),
    "buffers": lambda c, m, a, n: _weights(c, m, named=False, buffers=True),
    "named_buffers": lambda c, m, a, n: _weights(c, m, named=True, buffers=True),
    "get_submodule": _submodule,
    "apply": _apply,
    "__getitem__": _at,
    "__getattr__": _named,
    "__len__": lambda c, m, a, n: constant(len(m._modules)),
    "__contains__": _nothing, "__repr__": _nothing, "extra_repr": _nothing, "_get_name": _nothing,
    "__dir__": _nothing, "__init__": _nothing, "state_dict": lambda c, m, a, n: _weights(c, m, named=False),
}  # fmt: skip
"""What methods of torch's modules return, by name."""
