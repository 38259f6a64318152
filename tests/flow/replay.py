"""Run a flow graph again, op by op, from nothing but what it says: if it says it right, the same numbers come out."""

from typing import Any

import torch

from fusionadvisor.flow.graph import FlowGraph, Op


def replay(graph: FlowGraph, given: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Value id to tensor, after all ops have run. ``given`` holds what existed before."""
    tensors = {
        value: tensor.clone() if graph.values[value].role == "input" else tensor for value, tensor in given.items()
    }
    for op in graph.ops:
        function = getattr(getattr(torch.ops, op.name.split("::")[0]), op.name.split("::")[1])
        overload = getattr(function, op.overload or "default")
        for value in op.reads:
            producer = graph.producer(value)
            assert producer is None or producer.index < op.index, f"op {op.index} reads {value} before it is made"
            if value not in tensors:
                tensors[value] = _alias(graph, tensors, value)
        result = overload(**_arguments(op, overload, tensors))
        returned = [
            t for t in (result if isinstance(result, list | tuple) else [result]) if isinstance(t, torch.Tensor)
        ]
        tensors |= dict(zip(op.writes, returned, strict=False))
    for value in graph.outputs:
        if value not in tensors:
            tensors[value] = _alias(graph, tensors, value)
    return tensors


def _arguments(op: Op, overload: Any, tensors: dict[int, torch.Tensor]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for argument in overload._schema.arguments:
        if argument.name in op.operands:
            group = [tensors[v] for v in op.operands[argument.name]]
            arguments[argument.name] = group if "List" in str(argument.type) or "[]" in str(argument.type) else group[0]
        else:
            arguments[argument.name] = _value(op.arguments[argument.name], str(argument.type))
    return arguments


def _value(literal: Any, kind: str) -> Any:
    if isinstance(literal, str) and isinstance(getattr(torch, literal, None), torch.dtype | torch.layout):
        return getattr(torch, literal)
    if isinstance(literal, str) and "str" not in kind and hasattr(torch, literal) and "format" in literal:
        return getattr(torch, literal)
    return list(literal) if isinstance(literal, tuple) else literal


def _alias(graph: FlowGraph, tensors: dict[int, torch.Tensor], value: int) -> torch.Tensor:
    """A state of an alias that was written through another tensor: the same memory, seen with this value's geometry."""
    wanted = graph.values[value]
    base = next(tensors[v] for v in graph.aliases_of(value) if v in tensors)
    return base.as_strided(wanted.shape, wanted.strides, wanted.offset)
