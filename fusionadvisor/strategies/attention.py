"""Attention written out in a captured graph.

Scores, scale, mask, softmax and the product with the values are found by what is computed. What is found only counts
once the recorded values confirm it; what is not proven is named.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from fusionadvisor.strategies.attend import attend, scores_shape
from fusionadvisor.strategies.nodes import follows_from_sizes, is_metadata
from fusionadvisor.strategies.patterns import kind

MASKED = -1e8
"""A score filled with less has no weight left in float32 or float64 beside any score that a model computes."""
_PRODUCTS = ("matmul", "bmm", "baddbmm")
_FLIPS = ("transpose", "swapaxes", "swapdims", "permute", "adjoint")
_CASTS = ("to", "float", "half", "bfloat16", "double", "type", "type_as")


@dataclass(frozen=True)
class Attention:
    """Attention in a graph: from the query to the product with the values.

    Args:
        root: What computes the result.
        inner: Nodes that are needed for nothing else.
        q: Query.
        kt: Key, its last two dimensions exchanged.
        v: Value.
        scale: A number or a node that is one; ``divided`` where the scores are divided by it.
        mask: Node of the mask; ``masking`` says whether it is added, or where it is True filled or kept.
        open: No row of the mask can be masked entirely, whatever its size.
        repeats: The key and value before their heads were repeated, where both are.
        cast: The softmax or what surrounds it names a dtype.
        dropouts: Nodes of dropout between weights and values.
        flipped: The weights with rows and columns exchanged, where the values are multiplied from the left.
        asked: Nodes that ask for the shape, dtype or device of scores or weights.
        fill: A number, or a node that is one.
    """

    root: fx.Node
    inner: frozenset[fx.Node]
    q: fx.Node
    kt: fx.Node
    v: fx.Node
    softmax: fx.Node
    scale: Any = None
    divided: bool = False
    mask: fx.Node | None = None
    masking: str = ""
    fill: Any = 0.0
    open: bool = False
    repeats: tuple[fx.Node, fx.Node] | None = None
    cast: bool = False
    dropouts: tuple[fx.Node, ...] = ()
    flipped: fx.Node | None = None
    asked: tuple[fx.Node, ...] = ()

    @property
    def layers(self) -> list[str]:
        """The submodules whose calls are taken away."""
        return [str(node.target) for node in self.inner if node.op == "call_module"]

    def write(self, graph: fx.Graph) -> None:
        """Put the fused call in the place of ``root`` and take the rest away."""
        k, v = self.repeats or (self.kt, self.v)
        for node in self.asked:
            with graph.inserting_before(node):
                node.replace_all_uses_with(self._answer(graph, node))
            graph.erase_node(node)
        options = {
            "scale": self.scale, "divided": self.divided, "masking": self.masking, "fill": self.fill,
            "open_rows": self.open, "grouped": self.repeats is not None,
        }  # fmt: skip
        with graph.inserting_before(self.root):
            if self.flipped is not None:
                v = graph.call_method("transpose", (v, -2, -1))
            new = graph.call_function(attend, (self.q, k, v, self.mask), options)
            if self.flipped is not None:
                new = graph.call_method("transpose", (new, -2, -1))
        self.root.replace_all_uses_with(new)
        for node in (self.root, *(n for n in reversed(graph.nodes) if n in self.inner)):
            if not node.users:
                graph.erase_node(node)

    def _answer(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        """The same as what asks the scores, asked of query and key."""
        name = node.target if node.op == "call_method" else node.args[1]
        if name in ("dtype", "device", "is_cuda", "dim", "ndim"):
            if node.op == "call_method":
                return graph.call_method(str(name), (self.q,))
            return graph.call_function(getattr, (self.q, name))
        shape = graph.call_function(scores_shape, (self.q, self.kt))
        dim = _argument(node, 1, "dim") if name == "size" else None
        return shape if dim is None else graph.call_function(operator.getitem, (shape, dim))


@dataclass
class Reader:
    """Finds attention in one module's captured forward."""

    module: nn.Module
    graph: fx.Graph
    refused: list[tuple[fx.Node, str]] = field(default_factory=list)

    def found(self) -> Iterator[Attention]:
        """Every written-out attention; what only comes close is added to ``refused``."""
        for node in self.graph.nodes:
            if not self._softmax(node):
                continue
            match = self._attention(node)
            if isinstance(match, Attention):
                yield match
            elif match:
                self.refused.append((node, match))

    def _is(self, node: Any, *names: str) -> bool:
        return isinstance(node, fx.Node) and node.op != "call_module" and kind(node, self.module) in names

    def _layer(self, node: Any, *kinds: type[nn.Module]) -> Any:
        """The torch module a node calls, if it is of one of these kinds and has no hooks of its own."""
        if not (isinstance(node, fx.Node) and node.op == "call_module"):
            return None
        layer = self.module.get_submodule(str(node.target))
        plain = type(layer) in kinds and not layer._forward_hooks and not layer._forward_pre_hooks
        return layer if plain and "forward" not in vars(layer) else None

    def _softmax(self, node: fx.Node) -> bool:
        return self._is(node, "softmax") or self._layer(node, nn.Softmax) is not None

    def _attention(self, softmax: fx.Node) -> "Attention | str":
        """The attention around a softmax; a reason where it nearly is one; empty where it is something else."""
        inner: set[fx.Node] = set()
        before = self._scores(softmax.args[0] if softmax.args else softmax.kwargs.get("input"), inner)
        if before is None:
            return ""
        if isinstance(before, str):
            return before
        after = self._product(softmax, inner)
        if isinstance(after, str):
            return after
        root, dropouts, cast = after
        layer = self._layer(softmax, nn.Softmax)
        dim = layer.dim if layer is not None else _argument(softmax, 1, "dim")
        if not isinstance(dim, int):
            return "the dimension of its softmax is not a constant"
        product, cast_before = before.pop("product"), before.pop("cast")
        q, kt = product.args[-2:]
        flipped: Any = None if root.args[1] not in inner or root.args[0] in inner else root.args[1]
        v: Any = root.args[1] if flipped is None else root.args[0]
        if not all(isinstance(n, fx.Node) for n in (q, kt, v)):
            return "its operands cannot be told apart"
        before_mask, after_mask = before.pop("unmasked"), before.get("mask") is not None
        asked: list[fx.Node] = []
        for node in inner - {root}:
            for user in set(node.users) - inner - {root}:
                shape = node in before_mask or not after_mask
                if self._asks(user, shape, cast or cast_before):
                    asked.append(user)
                    continue
                what = "weights are" if node is softmax or node in dropouts else "scores are"
                return f"its {what} also read elsewhere or returned ({node.name})"
        dtype = None if layer is not None else softmax.kwargs.get("dtype")
        if before.get("mask") is not None:
            before["open"] = self._always_open(before["mask"], before["masking"])
        return Attention(
            root, frozenset(inner - {root}), q, kt, v, softmax, dropouts=dropouts,
            cast=cast or cast_before or dtype is not None, repeats=None if flipped else self._repeats(kt, v),
            flipped=flipped, asked=tuple(sorted(asked, key=list(self.graph.nodes).index)), **before,
        )  # fmt: skip

    def _asks(self, node: fx.Node, shape: bool, cast: bool) -> bool:
        """Whether a node asks for what query and key can tell as well."""
        if not is_metadata(node):
            return False
        name = node.target if node.op == "call_method" else node.args[1] if node.target is getattr else ""
        if name in ("device", "is_cuda", "dim", "ndim"):
            return name in ("device", "is_cuda") or shape
        return (name == "dtype" and not cast) or (name in ("shape", "size") and shape)

    def _scores(self, node: Any, inner: set[fx.Node]) -> "dict[str, Any] | str | None":
        """What is between the product of query and key and the softmax, from the softmax backwards."""
        found: dict[str, Any] = {"cast": False}
        nodes: list[fx.Node] = []
        masked = 0
        while not self._is(node, *_PRODUCTS):
            if not isinstance(node, fx.Node):
                return None
            nodes.append(node)
            step = self._mask(node) or self._scaling(node)
            if step is None:
                if not self._is(node, *_CASTS):
                    return None
                found["cast"], node = True, node.args[0]
                continue
            if "mask" in step and "mask" in found:
                return "it has two masks"
            if "mask" in step and "scale" in found:
                return "it is scaled after it was masked"
            if "scale" in step and "scale" in found:
                return "it is scaled twice"
            if isinstance(step.get("fill"), str):
                return str(step["fill"])
            node = step.pop("rest")
            masked = len(nodes) if "mask" in step else masked
            found.update(step)
        if self._is(node, "baddbmm"):
            more = self._added(node)
            if more is None or set(more) & set(found) or ("mask" in more and "scale" in found):
                return "its product adds something else than a mask"
            found |= more
        elif len(node.args) != 2:
            return None
        inner.update(nodes, {node})
        return found | {"product": node, "unmasked": {*nodes[masked:], node}}

    def _added(self, node: fx.Node) -> dict[str, Any] | None:
        """Scale and mask of ``baddbmm``; None where it is called in another way."""
        beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
        if len(node.args) != 3 or beta not in (0, 1) or isinstance(beta, fx.Node):
            return None
        found: dict[str, Any] = {} if alpha == 1 else {"scale": self._constant(alpha), "divided": False}
        return found if beta == 0 else found | {"mask": node.args[0], "masking": "add"}

    def _mask(self, node: fx.Node) -> dict[str, Any] | None:
        if self._is(node, "add") and len(node.args) == 2 and not node.kwargs:
            for rest, mask in (node.args, node.args[::-1]):
                if isinstance(mask, fx.Node) and self._reaches(rest):
                    return {"rest": rest, "mask": mask, "masking": "add"}
        if self._is(node, "masked_fill") and isinstance(mask := _argument(node, 1, "mask"), fx.Node):
            fill = self._fill(_argument(node, 2, "value"))
            return {"rest": node.args[0], "mask": mask, "masking": "fill", "fill": fill}
        if self._is(node, "where") and len(node.args) == 3 and isinstance(node.args[0], fx.Node):
            mask, kept, filled = node.args
            if self._reaches(kept):
                return {"rest": kept, "mask": mask, "masking": "keep", "fill": self._fill(filled)}
            if self._reaches(filled):
                return {"rest": filled, "mask": mask, "masking": "fill", "fill": self._fill(kept)}
        return None

    def _fill(self, value: Any) -> Any:
        """What a mask fills with: a number, a node that is one, or in words why it does not mask."""
        if (least := self._least(value)) is not None:
            return least
        number = self.number(value)
        if number is None:
            return "what its mask fills with is not a constant"
        if not number <= MASKED:
            return f"its mask fills with {number:g}, which masks only where the scores stay far above it"
        return number

    def _least(self, value: Any) -> fx.Node | None:
        """The node of ``finfo(dtype).min``, also where a tensor is made of it."""
        if self._is(value, "full", "tensor") and value.args:
            return self._least(value.args[-1])
        if not (isinstance(value, fx.Node) and value.target is getattr and value.args[1] == "min"):
            return None
        return value if isinstance(value.args[0], fx.Node) and value.args[0].target is torch.finfo else None

    def number(self, value: Any) -> float | None:
        """A constant as a number: a literal, or a tensor that the forward makes of constants."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        made = _made_of_constants(value) if isinstance(value, fx.Node) else None
        return float(made) if isinstance(made, Tensor) and made.numel() == 1 and not made.is_complex() else None

    def _scaling(self, node: fx.Node) -> dict[str, Any] | None:
        if self._is(node, "mul") and len(node.args) == 2:
            for rest, scale in (node.args, node.args[::-1]):
                if self._reaches(rest) and not self._reaches(scale):
                    return {"rest": rest, "scale": self._constant(scale), "divided": False}
        if self._is(node, "div") and len(node.args) == 2 and not node.kwargs and self._reaches(node.args[0]):
            return {"rest": node.args[0], "scale": self._constant(node.args[1]), "divided": True}
        return None

    def _constant(self, value: Any) -> Any:
        number = self.number(value)
        return value if number is None else number

    def _reaches(self, node: Any) -> bool:
        """Whether a product comes before a node, with nothing but scale, mask and cast between."""
        for _ in range(6):
            if self._is(node, *_PRODUCTS):
                return True
            if self._is(node, "where") and len(node.args) == 3:
                return any(self._reaches(arg) for arg in node.args[1:])
            if self._is(node, "add", "mul") and len(node.args) == 2:
                return any(self._reaches(arg) for arg in node.args)
            if not self._is(node, "div", "masked_fill", *_CASTS) or not node.args:
                return False
            node = node.args[0]
        return False

    def _product(self, softmax: fx.Node, inner: set[fx.Node]) -> "tuple[fx.Node, tuple[fx.Node, ...], bool] | str":
        """The product with the values, the dropouts before it, and whether there is a cast before it."""
        dropouts: list[fx.Node] = []
        node, cast = softmax, False
        while True:
            inner.add(node)
            users = [user for user in node.users if not is_metadata(user)]
            if len(users) != 1:
                return "its weights are also read elsewhere or returned"
            user = users[0]
            if self._is(user, *_PRODUCTS):
                flipped = node is not softmax and self._is(node, *_FLIPS, "getattr")
                if len(user.args) != 2 or user.args[1 if flipped else 0] is not node or user.args[0] is user.args[1]:
                    return "its weights are not the left side of the product with the values"
                inner.add(user)
                return user, tuple(dropouts), cast
            if self._flip(user):
                node = user
                continue
            if self._is(user, "dropout") or self._layer(user, nn.Dropout) is not None:
                dropouts.append(user)
            elif self._is(user, *_CASTS):
                cast = True
            else:
                return f"its weights are changed by {user.name} before the product with the values"
            node = user

    def _flip(self, node: fx.Node) -> bool:
        """Whether a node may exchange rows and columns; the values confirm it later."""
        return self._is(node, *_FLIPS) or (node.target is getattr and node.args[1] == "mT")

    def dropout(self, node: fx.Node) -> bool:
        """Whether a dropout drops anything in the mode the graph was captured in."""
        layer = self._layer(node, nn.Dropout)
        if layer is not None:
            return bool(layer.training and layer.p)
        p, training = _argument(node, 1, "p", 0.5), _argument(node, 2, "training", True)
        return not (training is False or (isinstance(p, int | float) and p == 0))

    # masks ------------------------------------------------------------------------------------------------------------

    def _always_open(self, mask: fx.Node, masking: str) -> bool:
        """Whether the mask is made of constants so that every row may see at least itself."""
        sample = self._sample(mask)
        if sample is None or sample.dim() < 2 or sample.shape[-1] != sample.shape[-2]:
            return False
        diagonal = sample.diagonal(dim1=-2, dim2=-1)
        if masking == "add":
            return bool((diagonal == 0).all())
        return bool((diagonal if masking == "keep" else ~diagonal).all()) if diagonal.dtype == torch.bool else False

    def _sample(self, node: Any) -> Tensor | None:
        """A square mask of constants at one size: the whole of a buffer, or 4 × 4 of what is made for any size."""
        if not isinstance(node, fx.Node):
            return None
        if node.op == "get_attr":
            value: Any = self.module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            return value if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) else None
        if self._is(node, "ones", "zeros", "full"):
            return self._made(node)
        if self._is(node, "getitem"):
            return self._sample(node.args[0]) if _square(node.args[1]) else None
        rest = self._sample(node.args[0]) if node.args else None
        if rest is None or not self._is(
            node, "tril", "triu", "eq", "ne", "lt", "gt", "invert", "logical_not", "bool", "unsqueeze", "masked_fill"
        ):
            return None
        name = {"invert": "logical_not"}.get(kind(node, self.module), kind(node, self.module))
        if name == "unsqueeze":
            return rest if node.args[1] in (0, 1) else None
        more = [self._sample(arg) if isinstance(arg, fx.Node) else arg for arg in node.args[1:]]
        if any(arg is None for arg in more):
            return None
        made: Tensor = getattr(rest, name)(*more, **node.kwargs)
        return made

    def _made(self, node: fx.Node) -> Tensor | None:
        sizes = node.args[0] if isinstance(node.args[0], tuple | list) else node.args
        if kind(node, self.module) == "full":
            fill: Any = node.args[1] if len(node.args) > 1 else None
            if not isinstance(fill, int | float):
                return None
        else:
            fill = 1.0 if kind(node, self.module) == "ones" else 0.0
        if len(sizes) != 2 or sizes[0] is not sizes[1]:
            return None
        return torch.full((4, 4), fill, dtype=torch.bool if node.kwargs.get("dtype") is torch.bool else None)

    # heads ------------------------------------------------------------------------------------------------------------

    def _repeats(self, kt: Any, v: Any) -> tuple[fx.Node, fx.Node] | None:
        if not (self._is(kt, "transpose", "swapaxes") and sorted(kt.args[1:]) in ([-2, -1], [2, 3])):
            return None
        key, value = self._unrepeated(kt.args[0]), self._unrepeated(v)
        return None if key is None or value is None else (key, value)

    def _unrepeated(self, node: Any) -> fx.Node | None:
        """What ``repeat_interleave`` on the heads was given, in either spelling; the values confirm it later."""
        if self._is(node, "repeat_interleave") and _argument(node, 2, "dim") in (1, -3):
            return node.args[0]  # type: ignore[no-any-return]
        if self._is(node, "reshape", "flatten", "view", "contiguous"):
            expanded = node.args[0]
            if self._is(expanded, "expand", "repeat"):
                base = expanded.args[0]
                if self._is(base, "getitem", "unsqueeze") and isinstance(base.args[0], fx.Node):
                    return base.args[0]
        return None


def _made_of_constants(node: fx.Node) -> Any:
    """What a node gives that rests on nothing but constants; None for any other."""
    if node.op not in ("call_function", "call_method") or node.kwargs.get("device") is not None:
        return None
    if not all(_made_of_constants(arg) is not None for arg in node.all_input_nodes) or node.is_impure():
        return None
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), _made_of_constants)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def sized(node: fx.Node) -> bool:
    """Whether a node is made of constants and sizes alone, on the CPU."""
    if follows_from_sizes(node):
        return True
    made = node.op in ("call_function", "call_method") and node.kwargs.get("device") is None
    return made and bool(node.all_input_nodes) and all(sized(arg) for arg in node.all_input_nodes)


def _square(index: Any) -> bool:
    """Whether an index takes the first n rows and the first n columns, or all of both, and no part of the rest."""
    parts = [part for part in (index if isinstance(index, tuple) else (index,)) if part is not None and part != 0]
    parts = [part for part in parts if part is not Ellipsis]
    if not all(isinstance(part, slice) and part.start is None and part.step is None for part in parts):
        return False
    stops = [part.stop for part in parts]
    last = stops[-2:]
    return all(stop is None for stop in stops) or (len(last) == 2 and last[0] is last[1] and not any(stops[:-2]))


def _argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)
