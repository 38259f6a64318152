"""What a node of a captured graph asks or does: sizes it goes by, and what it writes."""

import operator
from typing import Any

import torch
from torch import fx, nn

from fusionadvisor.strategies import leaves

ASKED = frozenset(
    {"shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu", "requires_grad", "is_sparse", "is_quantized",
     "itemsize", "nbytes"}
)  # fmt: skip
"""What a tensor tells without its values being read."""
ASKING = frozenset(
    {"size", "dim", "numel", "nelement", "ndimension", "element_size", "is_floating_point", "is_complex", "get_device",
     "stride", "is_contiguous", "storage_offset", "is_inference"}
)  # fmt: skip


def agree(value: Any, was: Any) -> None:
    """Go on where a value is what it was when the forward was captured.

    Raises:
        AnotherPathError: If it is not.
    """
    if value != was:
        raise leaves.AnotherPathError("a size is another")


def class_name(value: Any) -> str:
    """The name of a value's class."""
    return type(value).__name__


fx.node.has_side_effect(agree)


def follows_from_sizes(node: Any) -> bool:
    """Whether a value follows from shapes, dtypes and devices of tensors."""
    if isinstance(node, slice):
        return all(follows_from_sizes(part) for part in (node.start, node.stop, node.step))
    if isinstance(node, tuple | list):
        return all(follows_from_sizes(part) for part in node)
    if not isinstance(node, fx.Node):
        return True
    if is_metadata(node):
        return True
    if node.op == "call_method":
        return node.target in ("numel", "index", "count") and all(follows_from_sizes(arg) for arg in node.args)
    if node.op != "call_function" or node.kwargs:
        return False
    home = getattr(node.target, "__module__", "")
    plain = home in ("_operator", "operator", "math", "builtins") or node.target in (class_name, torch.finfo)
    return plain and bool(node.args) and all(follows_from_sizes(arg) for arg in node.args)


def is_metadata(node: Any) -> bool:
    """Whether a node asks a tensor for its shape, dtype, device or the like."""
    if not isinstance(node, fx.Node) or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_method":
        return node.target in ASKING and not follows_from_sizes_alone(node.args[0])
    if node.target is getattr:
        return node.args[1] in ASKED
    return node.target in (len, class_name) or node.target in (torch.numel, torch.is_floating_point)


def follows_from_sizes_alone(node: fx.Node) -> bool:
    """Whether a node is itself a size, so that a method on it is one of a number."""
    return node.op == "call_function" and node.target is getattr and node.args[1] in ASKED


def is_early(node: fx.Node) -> bool:
    """Whether it can be computed from the tensors of a call and the module's own before anything runs."""
    if node.op in ("placeholder", "get_attr"):
        return True
    if not follows_from_sizes(node):
        return False
    return all(is_early(arg) for arg in node.all_input_nodes)


def asking(graph: fx.Graph, wanted: list[fx.Node]) -> fx.Graph | None:
    """A graph that computes these nodes of another, and nothing else; None for no nodes."""
    if not wanted:
        return None
    asked = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            for arg in node.all_input_nodes:
                copied(arg)
            copies[node] = asked.node_copy(node, lambda n: copies[n])
        return copies[node]

    for node in graph.nodes:
        if node.op == "placeholder":
            copied(node)
    asked.output(tuple(copied(node) for node in wanted))
    for node in wanted:
        if not node.users:
            graph.erase_node(node)
    return asked


def mutates(node: fx.Node, module: nn.Module) -> bool:
    """Whether a node writes into a tensor that was there before, as far as its name says so."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if node.op == "call_module":
        return bool(getattr(module.get_submodule(str(node.target)), "inplace", False))
    if node.op not in ("call_method", "call_function") or (name.startswith("__") and name != "__setitem__"):
        return False
    in_place = name.endswith("_") or name in ("setitem", "__setitem__") or getattr(operator, f"__{name}__", None) in (
        operator.iadd, operator.imul, operator.isub, operator.itruediv, operator.ipow, operator.imatmul,
    )  # fmt: skip
    return in_place or "out" in node.kwargs or node.kwargs.get("inplace") is True


def simplify(graph: fx.Graph) -> None:
    """Take away what is not used, and nothing that writes or draws random numbers."""
    for node in reversed(graph.nodes):
        kept = node.op in ("placeholder", "output", "call_module") or node.target is agree
        if kept or node.users or (node.op == "call_method" and str(node.target).endswith("_")):
            continue
        if node.op == "call_function" and (node.is_impure() or mutates(node, nn.Module())):
            continue
        graph.erase_node(node)
