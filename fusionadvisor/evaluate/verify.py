"""Do the outputs still agree? Against the original, and where rounding differs, both against float64.

Agreement is structure, shape, dtype, and where NaN and infinities are; then ``torch.testing``'s tolerances; else the
error against float64 may be at most k times the original's own. k and the floor are those of
``torch._dynamo.utils.same`` (torch 2.13), with the floor scaled down for outputs smaller than one.
"""

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fusionadvisor.errors import StrategyError
from fusionadvisor.report.model import Verification
from fusionadvisor.strategies.base import Call
from fusionadvisor.workload.copies import duplicate

FLOOR = 1e-5
NO_NUMBER = "the outputs hold no number to compare, so nothing can be verified"
VANISHING = 1e-6
"""Of a step's largest gradient. What is smaller is rounding alone, some ten times the precision of float32, as the
gradient of a key's bias is, which softmax cancels; its error says nothing about the step."""
SMALL = 1000
"""Outputs with fewer elements have noisier errors."""

Run = Callable[[nn.Module, Call], object]


class Trained(dict[str, Any]):
    """What a training step leaves: ``output``, ``gradients``, ``parameters``, ``buffers``.

    ``moved`` says how far each parameter has gone since the first step at the most, step by step, in any element.
    """

    moved: Mapping[str, float] = MappingProxyType({})


@dataclass
class _Worst:
    """The largest error seen, over leaves and inputs."""

    error: float = 0.0
    ratio: float | None = None
    limit: float | None = None

    def see(self, error: float, ratio: float | None, limit: float) -> None:
        self.error = max(self.error, error)
        if ratio is not None and math.isfinite(ratio) and (self.ratio is None or ratio > self.ratio):
            self.ratio, self.limit = ratio, limit


@dataclass(frozen=True)
class _Noise:
    """How far two tensors may be apart by rounding alone: as a whole, or in the elements ``where`` it is so."""

    size: float
    where: Tensor | None = None


def verify(
    original: nn.Module, candidate: nn.Module, calls: Sequence[Call], run: Run, *, device: str = "cpu", seed: int = 0
) -> Verification:
    """Compare two models on each call.

    Args:
        original: What the candidate must agree with; run on copies of the inputs, never changed by this function.
        candidate: The model to be judged.
        calls: Fresh inputs; each is run on its own copy.
        run: Calls a model, ``program.step`` with its arguments turned round.
        device: What the verdict holds for.
        seed: Set before each call of either model, so that dropout draws the same.
    """
    worst = _Worst()
    exact = _in_double(original)
    first: tuple[object, list[tuple[str, Any]]] | None = None
    vanished: dict[str, Tensor] = {}
    checked = 0
    for index, call in enumerate(calls):
        own_call, new_call = _clone(call), _clone(call)
        own = _seeded(run, original, own_call, seed + index)
        new = _seeded(run, candidate, new_call, seed + index)
        reason = _inputs_differ(own_call, new_call)
        truth = None if exact is None else _truth(run, exact, call, seed + index)
        reason = reason or _compare(own, new, truth, worst, _noise(own, vanished))
        if first is not None and not reason and _changed(*first):
            reason = "the first output was overwritten by the next call"
        if reason:
            where = f"input set {index + 1} of {len(calls)}: "
            return Verification("diverges", device, worst.error, worst.ratio, worst.limit, index + 1, where + reason)
        if first is None:
            first = new, [(path, _snapshot(leaf)) for path, leaf in leaves(new)]
        checked += _holds_a_number(own)
    if not checked:
        return Verification("unchecked", device, reason=NO_NUMBER)
    return Verification("agrees", device, worst.error, worst.ratio, worst.limit, checked)


def leaves(value: object, path: str = "output", within: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Tensors and scalars of nested outputs with their paths, ``output['logits'][0]``; objects by their attributes.

    ``within`` holds the ids of what the value is part of, so that what holds itself ends.
    """
    if isinstance(value, Mapping):
        items = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    elif _has_parts(value):
        items = [(f"{path}.{name}", item) for name, item in _attributes(value)]
    else:
        yield path, value
        return
    if id(value) not in within:
        for name, item in items:
            yield from leaves(item, name, (*within, id(value)))


def _has_parts(value: object) -> bool:
    """Whether a value is an object such as a cache of keys and values: no tensor, no class, no function."""
    if isinstance(value, Tensor | type | Enum) or (callable(value) and not isinstance(value, nn.Module)):
        return False
    return dataclasses.is_dataclass(value) or bool(getattr(value, "__dict__", None))


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        yield from ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    else:
        yield from vars(value).items()


def _compare(own: object, new: object, truth: object, worst: _Worst, noise: dict[str, _Noise]) -> str:
    if reason := _other_kind(own, new):
        return reason
    own_leaves, new_leaves = list(leaves(own)), list(leaves(new))
    if [path for path, _ in own_leaves] != [path for path, _ in new_leaves]:
        return "the outputs are structured differently"
    truths = [leaf for _, leaf in leaves(truth)]
    if len(truths) != len(own_leaves):
        truths = [None] * len(own_leaves)
    for (path, a), (_, b), c in zip(own_leaves, new_leaves, truths, strict=True):
        if reason := _compare_leaf(a, b, c, worst, noise.get(path)):
            return f"{path} {reason}"
    return ""


def _other_kind(own: object, new: object, path: str = "output") -> str:
    """Say where a container of a class of its own, whose attributes a caller may ask for, has become a plain one."""
    plain = (dict, OrderedDict, list, tuple)
    if isinstance(own, Mapping | list | tuple) and type(own) not in plain and type(new) is not type(own):
        return f"{path} is a {type(new).__name__} instead of a {type(own).__name__}"
    if isinstance(own, Mapping) and isinstance(new, Mapping):
        pairs = [(f"{path}[{key!r}]", own[key], new[key]) for key in own if key in new]
    elif isinstance(own, list | tuple) and isinstance(new, list | tuple):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(own, new, strict=False))]
    else:
        pairs = []
    return next((reason for name, a, b in pairs if (reason := _other_kind(a, b, name))), "")


def _noise(own: object, vanished: dict[str, Tensor]) -> dict[str, _Noise]:
    """By path, what rounding alone can make of a gradient that should vanish, and of what is updated by one.

    The gradient is measured against the largest of the step. An optimizer that divides by a gradient's size, as Adam
    does, makes a whole step of it in either direction, in each element by itself. ``vanished`` holds by parameter the
    elements where that has been so in a step until then; those of this one are added.
    """
    if not isinstance(own, Trained):
        return {}
    gradients = {
        n: g for n, g in own.get("gradients", {}).items() if isinstance(g, Tensor) and g.layout is torch.strided
    }
    sizes = (_rms(_wide(g)) for g in gradients.values() if g.numel())
    most = VANISHING * max((size for size in sizes if math.isfinite(size)), default=0.0)
    found = {f"output['gradients'][{name!r}]": _Noise(most) for name in gradients}
    for name, gradient in gradients.items():
        vanished[name] = vanished[name] | (gradient.abs() <= most) if name in vanished else gradient.abs() <= most
        if (where := vanished[name]).any():
            found[f"output['parameters'][{name!r}]"] = _Noise(_THERE_AND_BACK * own.moved.get(name, 0.0), where)
    return found


_THERE_AND_BACK = 2.1
"""Times the way a parameter has gone: two that went it in opposite directions, and rounding."""


def _compare_leaf(own: Any, new: Any, truth: Any, worst: _Worst, noise: _Noise | None = None) -> str:
    if not isinstance(own, Tensor) or not isinstance(new, Tensor):
        if type(own) is not type(new):
            return f"is {type(new).__name__} instead of {type(own).__name__}"
        if callable(own) or not _compares(own):
            return ""
        same = _close(own, new) if isinstance(own, float) else bool(own == new)
        return "" if same else f"is {new!r} instead of {own!r}"
    for word in ("shape", "dtype", "device", "layout"):
        if getattr(own, word) != getattr(new, word):
            return f"has {word} {_plain(getattr(new, word))} instead of {_plain(getattr(own, word))}"
    if own.layout is not torch.strided:
        own, new = own.to_dense(), new.to_dense()
    own, new = own.detach(), new.detach()
    if not (own.is_floating_point() or own.is_complex()):
        different = int((own != new).sum())
        return f"differs in {different} of {own.numel()} elements" if different else ""
    for word, mask in (("NaN", torch.isnan), ("infinite", torch.isinf)):
        if not torch.equal(mask(own), mask(new)):
            return f"is {word} where the original is not, or the other way round"
    return _compare_numbers(own, new, truth, worst, noise)


def _compares(value: object) -> bool:
    """Whether a value can equal another one, and not itself alone."""
    return any("__eq__" in vars(kind) for kind in type(value).__mro__[:-1])


def _close(own: float, new: float) -> bool:
    return (math.isnan(own) and math.isnan(new)) or math.isclose(own, new, rel_tol=1e-5, abs_tol=1e-8)


def _compare_numbers(own: Tensor, new: Tensor, truth: Any, worst: _Worst, noise: _Noise | None) -> str:
    finite = torch.isfinite(own)
    if not torch.equal(_negative(own[~finite]), _negative(new[~finite])):
        return "has an infinity of the other sign"
    if noise is not None and noise.where is not None:
        finite &= ~(noise.where & ((own - new).abs() <= noise.size))
    if not bool(finite.any()):
        return ""
    a, b = _wide(own[finite]), _wide(new[finite])
    error = float((a - b).abs().max())
    if noise is not None and noise.where is None and _rms(a - b) <= noise.size:
        return ""
    usable = isinstance(truth, Tensor) and truth.shape == own.shape and bool(torch.isfinite(truth[finite]).all())
    k = 3.0 if own.dtype in (torch.float16, torch.bfloat16) or own.numel() < SMALL else 2.0
    own_error = new_error = ratio = None
    if usable:
        c = _wide(truth.detach()[finite])
        own_error, new_error = _rms(a - c), _rms(b - c)
        ratio = new_error / own_error if own_error > 0 else None
    worst.see(error, ratio, k)
    scale = min(1.0, _rms(a))
    rtol, atol = _TOLERANCES.get(own.dtype, (1.3e-6, 1e-5))
    if bool(((a - b).abs() <= atol * scale + rtol * a.abs()).all()):
        return ""
    if own_error is None or new_error is None:
        return f"differs by up to {error:.2g}, and there is no float64 run to tell whether that is rounding"
    if new_error <= k * own_error + FLOOR * scale:
        return ""
    return f"differs by up to {error:.2g}: its error against float64 is {new_error:.2g}, the original's {own_error:.2g}"


_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
}
"""(rtol, atol) of ``torch.testing.assert_close``; float32's where none is named."""


def _in_double(model: nn.Module) -> nn.Module | None:
    """A float64 copy, or None where the model cannot be copied or cast."""
    try:
        return duplicate(model).double()
    except (StrategyError, RuntimeError, TypeError, NotImplementedError, AttributeError):
        return None


def _truth(run: Run, exact: nn.Module, call: Call, seed: int) -> object:
    """The float64 outputs, or None where the model does not run in float64 (a dtype may be written into it)."""
    try:
        return _seeded(run, exact, call.map(lambda _, t: t.double() if t.is_floating_point() else t.clone()), seed)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None


def _seeded(run: Run, model: nn.Module, call: Call, seed: int) -> object:
    torch.manual_seed(seed)
    return run(model, call)


def _clone(call: Call) -> Call:
    return call.map(lambda _, tensor: tensor.clone())


def _inputs_differ(own: Call, new: Call) -> str:
    for (name, a), (_, b) in zip(own.tensors(), new.tensors(), strict=True):
        if not _same_bits(a, b):
            return f"the call changed its input {name}, which the original does not"
    return ""


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan() if _is_real(a) else a == b)).all())


def _changed(output: object, before: list[tuple[str, Any]]) -> bool:
    now = dict(leaves(output))
    return any(isinstance(leaf, Tensor) and not _same_bits(leaf, now[path]) for path, leaf in before)


def _snapshot(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _holds_a_number(output: object) -> bool:
    """Whether an output says anything: a finite number where there are real ones, else anything at all.

    What is computed from NaN, as an index or a mask, is no evidence. In training the loss must hold a number: running
    statistics do so whatever came after them.
    """
    if isinstance(output, Trained):
        output = output["parameters"] if output["output"] is None else output["output"]
    found = [leaf for _, leaf in leaves(output) if leaf is not None and not _is_empty(leaf)]
    real = [leaf for leaf in found if _is_real(leaf)]
    return any(_is_finite(leaf) for leaf in real) if real else bool(found)


def _is_empty(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not leaf.numel()


def _is_real(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.is_floating_point() or leaf.is_complex()
    return isinstance(leaf, float | complex)


def _is_finite(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        leaf = leaf if leaf.layout is torch.strided else leaf.to_dense()
        return bool(torch.isfinite(leaf).any())
    return math.isfinite(abs(leaf))


def _negative(tensor: Tensor) -> Tensor:
    """Where it is negative infinity; of complex numbers, each part."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).isneginf()


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _rms(difference: Tensor) -> float:
    return float(difference.abs().square().mean().sqrt())


def _plain(value: object) -> str:
    return str(list(value)) if isinstance(value, torch.Size) else str(value).removeprefix("torch.")
