"""Do the outputs still agree? Against the original, and where rounding differs, both against float64.

Agreement is structure, classes, shape, dtype, and where NaN and infinities are; then the error against float64, of the
whole, of each row and of each element, beside the original's own (:mod:`fusionadvisor.evaluate.rounding`). What cannot
be compared leaves the verdict open.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fusionadvisor.errors import StrategyError
from fusionadvisor.evaluate.leaves import Trained, difference, leaves, other_kind
from fusionadvisor.evaluate.rounding import Allowed, Worst, compare, rms, wide
from fusionadvisor.report.model import Verdict, Verification
from fusionadvisor.strategies.base import Call
from fusionadvisor.workload.copies import duplicate

NO_NUMBER = "the outputs hold no number to compare, so nothing can be verified"
VANISHING = 1e-6
"""Of a step's largest gradient. What is smaller is rounding alone, some ten times the precision of float32, as the
gradient of a key's bias is, which softmax cancels; its error says nothing about the step."""

NEARBY = 6
"""How often the original is run on what is half a unit in the last place away, before a difference is called one."""
NEARBY_TOO = "half a unit in the last place of its weights moves the original's outputs as far as the change does"

Run = Callable[[nn.Module, Call], object]


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
    worst = Worst()
    unknown: dict[str, str] = {}
    wider = _wider(original)
    first: tuple[object, list[tuple[str, Any]]] | None = None
    vanished: dict[str, Tensor] = {}
    notes: tuple[str, ...] = ()
    checked = 0
    for index, call in enumerate(calls):
        own_call, new_call = _clone(call), _clone(call)
        own = _seeded(run, original, own_call, seed + index)
        new = _seeded(run, candidate, new_call, seed + index)
        reason = _inputs_differ(own_call, new_call)
        truth = _truth(run, wider, call, seed + index)
        if not reason:
            before, allowed = replace(worst), _allowed(own, vanished)
            reason = _compare(own, new, truth, worst, allowed, unknown)
            again = reason and truth is not None and not isinstance(own, Trained)
            # what does not repeat itself has no neighbourhood
            if again and not _compare(own, _seeded(run, original, _clone(call), seed + index), truth, Worst(), {}, {}):
                others = list(_nearby(run, original, call, seed + index))
                if not _compare(own, new, truth, before, allowed, unknown, others):
                    reason, worst, notes = "", before, (NEARBY_TOO,)
        if first is not None and not reason and _changed(*first):
            reason = "the first output was overwritten by the next call"
        if reason:
            where = f"input set {index + 1} of {len(calls)}: "
            return _found("diverges", device, worst, index + 1, where + reason)
        if first is None:
            first = new, [(path, _snapshot(leaf)) for path, leaf in leaves(new)]
        checked += _holds_a_number(own)
    if not checked:
        return Verification("unchecked", device, reason=NO_NUMBER)
    if unknown:
        return _found("unchecked", device, worst, checked, next(iter(unknown.values())))
    return replace(_found("agrees", device, worst, checked), notes=notes)


def _found(verdict: Verdict, device: str, worst: Worst, inputs: int, reason: str = "") -> Verification:
    return Verification(
        verdict, device, worst.error, worst.ratio, worst.limit, inputs, reason, worst.row, worst.element
    )


def _compare(
    own: object,
    new: object,
    truth: object,
    worst: Worst,
    allowed: dict[str, Allowed],
    unknown: dict[str, str],
    others: Sequence[object] = (),
) -> str:
    """Say in what two outputs differ; what cannot be compared is added to ``unknown`` by its path.

    ``others`` are further outputs of the original, whose errors count as its own.
    """
    if reason := other_kind(own, new):
        return reason
    own_leaves, new_leaves = list(leaves(own)), list(leaves(new))
    if [path for path, _ in own_leaves] != [path for path, _ in new_leaves]:
        return "the outputs are structured differently"
    truths, *more = [[leaf for _, leaf in leaves(output)] for output in (truth, *others)]
    if len(truths) != len(own_leaves):
        truths = [None] * len(own_leaves)
    more = [found for found in more if len(found) == len(own_leaves)]
    for index, ((path, a), (_, b)) in enumerate(zip(own_leaves, new_leaves, strict=True)):
        try:
            alike = [found[index] for found in more]
            found = _compare_leaf(a, b, truths[index], worst, allowed.get(path), alike)
        except (RuntimeError, NotImplementedError, TypeError):  # a kind of tensor without values to read, as on meta
            found = None
        if found is None:
            unknown.setdefault(path, f"{path} is a {type(a).__name__}, which cannot be compared")
        elif found:
            return f"{path} {found}"
    return ""


def _allowed(own: object, vanished: dict[str, Tensor]) -> dict[str, Allowed]:
    """By path, what is allowed of gradients, and of what is updated by them.

    A gradient is measured against the largest of the step. An optimizer that divides by a gradient's size, as Adam
    does, makes a whole step of rounding in either direction, in each element by itself. ``vanished`` holds by parameter
    the elements where that has been so in a step until then; those of this one are added.
    """
    if not isinstance(own, Trained):
        return {}
    gradients = {
        n: g for n, g in own.get("gradients", {}).items() if isinstance(g, Tensor) and g.layout is torch.strided
    }
    sizes = (rms(wide(g)) for g in gradients.values() if g.numel())
    most = VANISHING * max((size for size in sizes if math.isfinite(size)), default=0.0)
    found = {f"output['gradients'][{name!r}]": Allowed(most, gradient=True) for name in own.get("gradients", {})}
    for name, gradient in gradients.items():
        vanished[name] = vanished[name] | (gradient.abs() <= most) if name in vanished else gradient.abs() <= most
    for name in own.get("parameters", {}):
        reach = _THERE_AND_BACK * own.moved.get(name, 0.0)
        found[f"output['parameters'][{name!r}]"] = Allowed(where=vanished.get(name), reach=reach)
    return found


_THERE_AND_BACK = 2.1
"""Times the way a parameter has gone: two that went it in opposite directions, and rounding."""


def _compare_leaf(
    own: Any, new: Any, truth: Any, worst: Worst, allowed: Allowed | None, others: Sequence[Any]
) -> str | None:
    if not isinstance(own, Tensor) or not isinstance(new, Tensor):
        return difference(own, new)
    for word in ("shape", "dtype", "device", "layout"):
        if getattr(own, word) != getattr(new, word):
            return f"has {word} {_plain(getattr(new, word))} instead of {_plain(getattr(own, word))}"
    own, new, truth, *others = map(_dense, (own, new, truth, *others))
    if own.is_meta or (not own.is_floating_point() and not own.is_complex()):
        different = int((own != new).sum())
        return f"differs in {different} of {own.numel()} elements" if different else ""
    for word, mask in (("NaN", torch.isnan), ("infinite", torch.isinf)):
        if not torch.equal(mask(own), mask(new)):
            return f"is {word} where the original is not, or the other way round"
    unlimited = ~torch.isfinite(own)
    if not torch.equal(_negative(own[unlimited]), _negative(new[unlimited])):
        return "has an infinity of the other sign"
    return compare(own, new, truth, worst, allowed, others)


def _dense(leaf: Any) -> Any:
    """A tensor with its values in a block."""
    if not isinstance(leaf, Tensor):
        return leaf
    leaf = leaf.detach() if leaf.layout is torch.strided else leaf.detach().to_dense()
    return leaf.dequantize() if leaf.is_quantized else leaf


def _wider(model: nn.Module) -> list[tuple[torch.dtype, nn.Module]]:
    """Copies in float64 and, of a model in half precision, in float32: some models have a dtype written into them.

    Those that cannot be copied or cast are missing.
    """
    half = any(t.dtype in (torch.float16, torch.bfloat16) for t in (*model.parameters(), *model.buffers()))
    found = []
    for dtype in (torch.float64, torch.float32) if half else (torch.float64,):
        with suppress(StrategyError, RuntimeError, TypeError, NotImplementedError, AttributeError):
            found.append((dtype, duplicate(model).to(dtype)))
    return found


def _truth(run: Run, wider: list[tuple[torch.dtype, nn.Module]], call: Call, seed: int) -> object:
    """The outputs in the widest dtype that the model runs in, or None; copies that do not run are struck off."""
    while wider:
        dtype, model = wider[0]
        given = call.map(lambda _, t: t.to(dtype) if t.is_floating_point() else t.clone())  # noqa: B023 - called here
        try:
            return _seeded(run, model, given, seed)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            del wider[0]
    return None


def _nearby(run: Run, original: nn.Module, call: Call, seed: int) -> Iterator[object]:
    """What the original returns with weights and inputs off by up to half a unit in the last place."""
    generator = torch.Generator().manual_seed(seed)

    def moved(_: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            return tensor.clone()
        way = torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device) - 0.5
        return (tensor.detach().double() * (1 + torch.finfo(tensor.dtype).eps * way)).to(tensor.dtype)

    for _ in range(NEARBY):
        with suppress(StrategyError, RuntimeError, TypeError, NotImplementedError, AttributeError):
            model = duplicate(original)
            for parameter in model.parameters():
                parameter.data = moved("", parameter)
            yield _seeded(run, model, call.map(moved), seed)


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
    if a.layout is not torch.strided or a.is_quantized:
        a, b = _dense(a), _dense(b)
    if a.is_meta or a.is_nested:  # has no values to read
        return a.shape == b.shape
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


def _plain(value: object) -> str:
    return str(list(value)) if isinstance(value, torch.Size) else str(value).removeprefix("torch.")
