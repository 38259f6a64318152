"""Formulas written out by hand, found in a captured graph: SiLU, GELU, layer norm and RMS norm.

A pattern matches by what is computed, whether it is spelled as an operator, a method, a torch function or an aten op.
What comes close and is something else is told apart and named: epsilon in another place, an unbiased variance, another
approximation of GELU.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from fusionadvisor.strategies.nodes import mutates

_NAMES = {
    "truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "Sigmoid": "sigmoid",
    "Tanh": "tanh",
}  # fmt: skip
_CLOSE = 1e-5
"""Constants are often written with six digits: sqrt(2/pi) as 0.797885."""


@dataclass(frozen=True)
class Match:
    """A formula in the graph: ``make`` writes the op that does the same in front of ``root``."""

    name: str
    root: fx.Node
    inner: frozenset[fx.Node]
    make: Callable[[fx.Graph], fx.Node]


@dataclass(frozen=True)
class NearMiss:
    """Something that is not quite a formula, and why."""

    name: str
    root: fx.Node
    reason: str


def kind(node: Any, module: torch.nn.Module) -> str:
    """What a node computes, ``mul``, however it is spelled; empty for what is no op."""
    if not isinstance(node, fx.Node):
        return ""
    if node.op == "call_module":
        name = type(module.get_submodule(str(node.target))).__name__
        return _NAMES.get(name, "")
    if node.op == "call_method":
        name = str(node.target)
    elif isinstance(node.target, torch._ops.OpOverload):
        name = node.target.overloadpacket.__name__
    else:
        name = getattr(node.target, "__name__", "")
    return _NAMES.get(name, name) if node.op in ("call_method", "call_function") else ""


@dataclass
class Finder:
    """Looks for formulas in one captured module."""

    module: torch.nn.Module
    graph: fx.Graph

    def matches(self) -> Iterator[Match | NearMiss]:
        """Every formula whose inner values nobody else reads, outermost first."""
        for node in reversed(self.graph.nodes):
            for look in (self._silu, self._gelu, self._affine_norm, self._plain_norm):
                found = look(node)
                if isinstance(found, Match) and not self._private(found):
                    found = NearMiss(found.name, node, "a value inside it is also read elsewhere")
                if isinstance(found, Match) and self._written(found):
                    found = NearMiss(found.name, node, "something is written in place while it is computed")
                if found is not None:
                    yield found
                    break

    def _private(self, match: Match) -> bool:
        return all(set(node.users) <= match.inner | {match.root} for node in match.inner)

    def _written(self, match: Match) -> bool:
        """Whether something is written in place between the first value of a formula and its last."""
        order = list(self.graph.nodes)
        first = min(order.index(node) for node in (match.root, *match.inner))
        return any(mutates(node, self.module) for node in order[first : order.index(match.root)])

    def _is(self, node: Any, *names: str) -> bool:
        return kind(node, self.module) in names

    # products ---------------------------------------------------------------------------------------------------------

    def _product(self, node: Any) -> tuple[float, list[Any], set[fx.Node]]:
        """Flatten a product: its constant, its other factors, and the nodes taken apart for it."""
        if isinstance(node, int | float):
            return float(node), [], set()
        if self._is(node, "mul") and len(node.args) == 2:
            parts = [self._product(arg) for arg in node.args]
            factors = [*parts[0][1], *parts[1][1]]
            return parts[0][0] * parts[1][0], factors, parts[0][2] | parts[1][2] | {node}
        if self._is(node, "div") and len(node.args) == 2 and isinstance(node.args[1], int | float):
            constant, factors, inner = self._product(node.args[0])
            return constant / float(node.args[1]), factors, inner | {node}
        if self._is(node, "pow") and node.args[1] in (2, 3):
            return 1.0, [node.args[0]] * int(node.args[1]), {node}
        if self._is(node, "square"):
            return 1.0, [node.args[0]] * 2, {node}
        return 1.0, [node], set()

    def _plus(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Both ways to read a sum of two."""
        if self._is(node, "add") and len(node.args) == 2 and not node.kwargs.get("alpha"):
            yield node.args[0], node.args[1]
            yield node.args[1], node.args[0]

    # activations ------------------------------------------------------------------------------------------------------

    def _silu(self, node: fx.Node) -> Match | NearMiss | None:
        if not (self._is(node, "mul") and len(node.args) == 2):
            return None
        for x, gate in (node.args, node.args[::-1]):
            if self._is(gate, "sigmoid") and isinstance(x, fx.Node):
                if gate.args == (x,):  # type: ignore[union-attr]
                    return Match("silu", node, frozenset({gate}), lambda g, x=x: g.call_function(F.silu, (x,)))  # type: ignore[arg-type, misc]
                constant, factors, _ = self._product(gate.args[0])  # type: ignore[union-attr]
                if factors == [x] and constant != 1.0:
                    return NearMiss("silu", node, f"it is x · sigmoid({constant:g} x), another approximation of GELU")
        return None

    def _gelu(self, node: fx.Node) -> Match | NearMiss | None:
        constant, factors, inner = self._product(node)
        if node not in inner or len(factors) != 2:
            return None
        for x, one_plus in (factors, factors[::-1]):
            for one, bell in self._plus(one_plus):
                if one != 1 or not self._is(bell, "erf", "tanh"):
                    continue
                approximate = "none" if self._is(bell, "erf") else "tanh"
                steep = self._steepness(bell.args[0], x) if approximate == "none" else self._cubic(bell.args[0], x)
                if steep is None:
                    continue
                nodes, fits = steep
                if not (fits and _near(constant, 0.5)):
                    return NearMiss("gelu", node, "its constants are not those of GELU")
                taken = frozenset((inner | nodes | {one_plus, bell}) - {node})
                return Match(
                    "gelu", node, taken,
                    lambda g, x=x, a=approximate: g.call_function(F.gelu, (x,), {"approximate": a}),  # type: ignore[misc]
                )  # fmt: skip
        return None

    def _steepness(self, node: Any, x: Any) -> tuple[set[fx.Node], bool] | None:
        constant, factors, inner = self._product(node)
        return (inner, _near(constant, math.sqrt(0.5))) if factors == [x] else None

    def _cubic(self, node: Any, x: Any) -> tuple[set[fx.Node], bool] | None:
        """``c · (x + k · x³)``, or ``c · x · (1 + k · x²)``."""
        constant, factors, inner = self._product(node)
        for total in factors:
            rest = list(factors)
            rest.remove(total)
            for low, high in self._plus(total):
                k, powers, more = self._product(high)
                plain = not rest and low is x and powers == [x, x, x]
                factored = rest == [x] and low == 1 and powers == [x, x]
                if plain or factored:
                    fits = _near(k, 0.044715) and _near(constant, math.sqrt(2 / math.pi))
                    return inner | more | {total}, fits
        return None

    # norms ------------------------------------------------------------------------------------------------------------

    def _affine_norm(self, node: fx.Node) -> Match | NearMiss | None:
        """A norm times a weight, plus a bias for layer norm."""
        bias: Any = None
        scaled: Any = node
        for value, other in self._plus(node):
            if self._vector(other):
                scaled, bias = value, other
        if not (self._is(scaled, "mul") and len(scaled.args) == 2):
            return None
        for weight, value in (scaled.args, scaled.args[::-1]):
            if not self._vector(weight):
                continue
            found = self._norm(value)
            if isinstance(found, _Norm) and (bias is None or found.centred):
                inner = {*found.inner, value, *(() if bias is None else (scaled,))}
                return found.match(node, inner, weight, bias)
        return None

    def _plain_norm(self, node: fx.Node) -> Match | NearMiss | None:
        found = self._norm(node)
        return found.match(node, set(found.inner), None, None) if isinstance(found, _Norm) else found

    def _norm(self, node: Any) -> "_Norm | NearMiss | None":
        """``v / sqrt(mean(v²) + eps)``, with ``v`` the input or what is left of it after its mean is taken away."""
        split = self._by_root(node)
        if split is None:
            return None
        value, under, inner = split
        centre = self._centred(value)
        name = "layer_norm" if centre is not None else "rms_norm"
        x = value if centre is None else centre[0]
        for spread, eps in self._plus(under):
            if not isinstance(eps, float | int):
                continue
            spread_inner = self._mean_square(spread, value)
            if spread_inner is None and centre is not None and self._is(spread, "var") and spread.args[0] in (x, value):
                if not _last_dim(spread):
                    return NearMiss(name, node, "it is not taken over the last dimension alone")
                if not _biased(spread):
                    return NearMiss(name, node, "its variance is unbiased (divided by n − 1)")
                spread_inner = {spread}
            if spread_inner is None:
                continue
            everything = {under, *inner, *spread_inner, *(centre[1] if centre else ())}
            return _Norm(name, x, float(eps), frozenset(everything), centre is not None)
        return None

    def _by_root(self, node: Any) -> tuple[Any, Any, set[fx.Node]] | None:
        """``value · rsqrt(under)`` or ``value / sqrt(under)``: value, what is under the root, nodes between."""
        if self._is(node, "mul") and len(node.args) == 2:
            for value, root in (node.args, node.args[::-1]):
                if self._is(root, "rsqrt"):
                    return value, root.args[0], {root}
        if self._is(node, "div") and len(node.args) == 2 and self._is(node.args[1], "sqrt"):
            return node.args[0], node.args[1].args[0], {node.args[1]}
        return None

    def _centred(self, value: Any) -> tuple[Any, set[fx.Node]] | None:
        """``x − mean(x)`` over the last dimension."""
        if not (self._is(value, "sub") and len(value.args) == 2 and not value.kwargs):
            return None
        x, mean = value.args
        return (x, {value, mean}) if self._is(mean, "mean") and mean.args[0] is x and _last_dim(mean) else None

    def _mean_square(self, node: Any, value: Any) -> set[fx.Node] | None:
        """Nodes of ``mean(value²)`` over the last dimension, None for anything else."""
        if not (self._is(node, "mean") and _last_dim(node)):
            return None
        constant, factors, inner = self._product(node.args[0])
        same = len(factors) == 2 and all(f is value or self._same_centre(f, value) for f in factors)
        extra = {f for f in factors if f is not value}
        extra |= {n for f in extra for n in (self._centred(f) or (None, set()))[1]}
        return {node, *inner, *extra} if same and constant == 1.0 and inner else None

    def _same_centre(self, one: Any, other: Any) -> bool:
        a, b = self._centred(one), self._centred(other)
        return a is not None and b is not None and a[0] is b[0]

    def _vector(self, node: Any) -> bool:
        if not (isinstance(node, fx.Node) and node.op == "get_attr"):
            return False
        value: Any = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return isinstance(value, torch.Tensor) and value.dim() == 1


@dataclass(frozen=True)
class _Norm:
    name: str
    source: Any
    eps: float
    inner: frozenset[fx.Node]
    centred: bool

    def match(self, root: fx.Node, inner: set[Any], weight: Any, bias: Any) -> Match:
        def make(graph: fx.Graph) -> fx.Node:
            shape = (graph.call_method("size", (self.source, -1)),)
            if self.centred:
                return graph.call_function(F.layer_norm, (self.source, shape, weight, bias, self.eps))
            return graph.call_function(F.rms_norm, (self.source, shape, weight, self.eps))

        return Match(self.name, root, frozenset(inner - {root}), make)


def _last_dim(node: fx.Node) -> bool:
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    keep = node.kwargs.get("keepdim", node.args[2] if len(node.args) > 2 else False)
    if "var" in str(node.target):  # its third argument is not keepdim
        keep = node.kwargs.get("keepdim", node.args[3] if len(node.args) > 3 else False)
    last = dim == -1 or (isinstance(dim, tuple | list) and list(dim) == [-1])
    return last and keep is True


def _biased(node: fx.Node) -> bool:
    if "correction" in node.kwargs:
        return bool(node.kwargs["correction"] == 0)
    return node.kwargs.get("unbiased", node.args[2] if len(node.args) > 2 else True) is False


def _near(value: float, wanted: float) -> bool:
    return math.isclose(value, wanted, rel_tol=_CLOSE)
