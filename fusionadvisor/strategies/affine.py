"""What a batch norm computes per channel, also where a class of the user's writes it out or adds an activation.

In evaluation a batch norm is ``y = scale · x + shift`` per channel. That a module computes this and nothing else is
read off its captured forward, whatever its class is called; the two constants are computed in float64.
"""

import copy
import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fusionadvisor.strategies import leaves

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_ADDS = (operator.add, torch.add, operator.sub, torch.sub)
_MULTIPLIES = (operator.mul, torch.mul)
_DIVIDES = (operator.truediv, torch.div, torch.true_divide)
_METHODS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}


@dataclass(frozen=True)
class Affine:
    """What a norm computes.

    Args:
        scale: Float64, one value per channel.
        shift: Likewise.
        rest: Names of the norm's own submodules that run on the result, in order.
    """

    scale: Tensor
    shift: Tensor
    rest: tuple[str, ...] = ()


def is_norm(module: nn.Module) -> bool:
    """Whether a module may be a batch norm: torch's own, or a class of the user's with running statistics."""
    if type(module) in NORMS or isinstance(module, nn.modules.batchnorm._BatchNorm):
        return True
    names = {"running_mean", "running_var"}
    return names <= {*module._buffers, *module._parameters} and not type(module).__module__.startswith("torch.")


@torch.no_grad()
def read(norm: Any, dims: int) -> Affine | None:
    """What a norm in evaluation computes on tensors of ``dims`` dimensions; None where it is not affine per channel.

    Args:
        norm: The module; it is copied, not changed.
        dims: Dimensions of its input, the channels being dimension 1.
    """
    if type(norm) in NORMS:
        return None if norm.running_mean is None or norm.running_var is None else Affine(*_statistics(norm))
    if norm.training or "forward" in vars(norm):
        return None
    work = copy.deepcopy(norm).double()
    try:
        graph = _Tracer().trace(work)
    except leaves.FAILURES:
        return None
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.nodes if node.op == "output").args[0]
    if len(inputs) != 1 or not isinstance(output, fx.Node):
        return None
    rest, last = _children_at_the_end(output)
    if any(node.op == "call_module" for node in graph.nodes if node not in rest):
        return None
    made = _fused(work, graph, inputs[0], last) or _written_out(work, graph, inputs[0], last, dims)
    return None if made is None else Affine(*made, tuple(str(node.target) for node in reversed(rest)))


class _Tracer(fx.Tracer):
    """Submodules stay calls."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _statistics(norm: Any) -> tuple[Tensor, Tensor]:
    """Scale and shift from running statistics, in float64."""
    scale = (norm.running_var.detach().double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.detach().double()
    shift = -norm.running_mean.detach().double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.detach().double()
    return scale, shift


def _children_at_the_end(output: fx.Node) -> tuple[list[fx.Node], fx.Node]:
    """The calls of submodules that come last, from the end, and what the first of them is given."""
    rest, node = [], output
    while node.op == "call_module" and len(node.args) == 1 and not node.kwargs and isinstance(node.args[0], fx.Node):
        if "." in str(node.target) or (node is not output and len(node.users) > 1):
            break
        rest.append(node)
        node = node.args[0]
    return rest, node


def _fused(norm: nn.Module, graph: fx.Graph, x: fx.Node, last: fx.Node) -> tuple[Tensor, Tensor] | None:
    """Scale and shift of a call of ``F.batch_norm`` on the input."""
    if last.op != "call_function" or last.target is not F.batch_norm or len([u for u in x.users if not _check(u)]) != 1:
        return None
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given: dict[str, Any] = {"weight": None, "bias": None, "training": False, "eps": 1e-5}
    given |= dict(zip(names, last.args, strict=False)) | dict(last.kwargs)
    if given["input"] is not x or given["training"] is not False or not isinstance(given["eps"], float):
        return None
    tensors: dict[str, Any] = {}
    for name in ("running_mean", "running_var", "weight", "bias"):
        node = given[name]
        if node is None and name in ("weight", "bias"):
            tensors[name] = None
        elif isinstance(node, fx.Node) and node.op == "get_attr" and "." not in str(node.target):
            tensors[name] = getattr(norm, str(node.target))
        else:
            return None
    holder = type("Statistics", (), {**tensors, "eps": given["eps"]})
    return _statistics(holder) if tensors["running_mean"] is not None and tensors["running_var"] is not None else None


def _check(node: fx.Node) -> bool:
    """Whether a node only checks something, or asks for a shape or dtype to do so."""
    if node.op == "call_function" and getattr(node.target, "__name__", "") in leaves.CHECKS:
        return True
    asks = (
        node.op == "call_function" and node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device")
    )
    asks = asks or (node.op == "call_method" and node.target in ("dim", "size"))
    return asks and all(_check(user) or _compares(user) for user in node.users)


def _compares(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in (operator.eq, operator.ne) and all(map(_check, node.users))


def _written_out(
    norm: nn.Module, graph: fx.Graph, x: fx.Node, last: fx.Node, dims: int
) -> tuple[Tensor, Tensor] | None:
    """Scale and shift of arithmetic in which the input meets only products and sums with what does not depend on it."""
    depends: set[fx.Node] = {x}
    for node in graph.nodes:
        inputs = [arg for arg in node.all_input_nodes if arg in depends]
        if not inputs or node.op == "output" or _check(node):
            continue
        if not _affine(node, depends):
            return None
        depends.add(node)
    if last not in depends or last is x:
        return None
    zero, one = (_value(norm, graph, x, last, torch.full((1, 1, *[1] * (dims - 2)), v).double()) for v in (0.0, 1.0))
    if zero is None or one is None or zero.dim() != dims or any(n != 1 for i, n in enumerate(zero.shape) if i != 1):
        return None
    return (one - zero).flatten(), zero.flatten()


def _affine(node: fx.Node, depends: set[fx.Node]) -> bool:
    if node.kwargs or len(node.args) != 2:
        return False
    left, right = (arg in depends if isinstance(arg, fx.Node) else False for arg in node.args)
    target = _METHODS.get(str(node.target)) if node.op == "call_method" else node.target
    if target in _ADDS:
        return left != right  # x + x · a would be affine too, and nobody writes it
    return (left != right and target in _MULTIPLIES) or (left and not right and target in _DIVIDES)


def _value(norm: nn.Module, graph: fx.Graph, x: fx.Node, last: fx.Node, given: Tensor) -> Tensor | None:
    interpreter = fx.Interpreter(norm, garbage_collect_values=False, graph=graph)
    try:
        for node in graph.nodes:
            interpreter.env[node] = given if node is x else interpreter.run_node(node)
            if node is last:
                return interpreter.env[node] if isinstance(interpreter.env[node], Tensor) else None
    except leaves.FAILURES:
        return None
    return None
