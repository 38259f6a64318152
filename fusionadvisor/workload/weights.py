"""Fit saved weights into a model: find them, unwrap their names, load them strictly, say what was done."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fusionadvisor.errors import InputError
from fusionadvisor.workload.inputs import dtype_name

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Components that torch.compile, FSDP and activation checkpointing put into the names of a wrapped model."""

_DEPTH = 3
_SHOWN = 3


@dataclass(frozen=True)
class _Offer:
    """Tensors found in what was saved, and how their names become the model's."""

    where: str
    prefix: str
    tensors: dict[str, torch.Tensor]
    """By the model's own names where they match, else by their unwrapped names."""
    matched: frozenset[str]
    others: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """More matches, then fewer left over, then the shorter way there; without any match, all that is there."""
        left = len(self.tensors) - len(self.matched)
        return len(self.matched), -left if self.matched else left, -len(self.where) - len(self.prefix)


def fit(model: nn.Module, saved: object, label: str, arguments: Sequence[str] = ()) -> tuple[str, ...]:
    """Load saved weights into a model.

    Args:
        model: Gets the weights; it may be on the meta device.
        saved: A nest of mappings with tensors in it, as ``torch.load`` gives it.
        label: The file, for messages.
        arguments: Names of what the model can be built with, for messages.

    Returns:
        What was done, as phrases: how many of how many, under which key, without which prefix, cast or left out.

    Raises:
        InputError: Not every weight of the model is there with its shape, or some are left over.
    """
    wanted = model.state_dict()
    plain = {_plain(name): name for name in wanted}
    offers = [offer for where, tensors in mappings(saved) for offer in _offers(where, tensors, plain)]
    if not offers:
        raise InputError(f"{label} holds no tensors.", "Give a file saved with torch.save(model.state_dict(), …).")
    best = max(offers, key=lambda offer: offer.rank)
    _check(model, wanted, best, label, arguments)
    meta = any(tensor.is_meta for tensor in wanted.values())
    model.load_state_dict({name: best.tensors[name] for name in best.matched}, strict=False, assign=meta)
    _check_loaded(model, label)
    return tuple(_said(wanted, best, label, meta))


def mappings(saved: object, where: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Every mapping in it that holds tensors, with the keys that lead there."""
    if isinstance(saved, nn.Module):
        saved = saved.state_dict()
    if not isinstance(saved, Mapping):
        return
    tensors = {key: value for key, value in saved.items() if isinstance(key, str) and isinstance(value, torch.Tensor)}
    if tensors:
        yield where, tensors
    if depth < _DEPTH:
        for key, value in saved.items():
            yield from mappings(value, f"{where}.{key}" if where else str(key), depth + 1)


def _plain(name: str) -> str:
    """A name without what wrappers add: their components anywhere, ``module.`` of DataParallel in front."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        parts.pop(0)
    return ".".join(parts)


def _offers(where: str, tensors: dict[str, torch.Tensor], plain: dict[str, str]) -> Iterator[_Offer]:
    """The ways to read one mapping: as it is, and below each prefix of up to two components."""
    bare = {_plain(name): tensor for name, tensor in tensors.items()}
    prefixes = {""} | {".".join(name.split(".")[:n]) + "." for name in bare for n in (1, 2) if name.count(".") >= n}
    for prefix in prefixes:
        below = {_plain(name.removeprefix(prefix)): t for name, t in bare.items() if name.startswith(prefix)}
        named = {plain.get(name, name): tensor for name, tensor in below.items()}
        wrapped = any(_plain(name) != name for name in tensors)
        matched = frozenset(plain[name] for name in below if name in plain)
        yield _Offer(where, prefix or ("module." if wrapped else ""), named, matched, len(bare) - len(below))


def _check(
    model: nn.Module, wanted: dict[str, torch.Tensor], best: _Offer, label: str, arguments: Sequence[str]
) -> None:
    name = type(model).__name__
    if not best.matched and wanted:
        raise InputError(
            f"None of the {len(best.tensors)} weights in {label} ({some(best.tensors)}) is one of {name}'s "
            f"{len(wanted)} ({some(wanted)}).",
            "Name the model they were saved from with --model FILE.py:NAME.",
        )
    wrong = [key for key in wanted if key in best.matched and best.tensors[key].shape != wanted[key].shape]
    if wrong:
        one = wrong[0]
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise InputError(
            f"{label} does not fit {name}: {one} is {_shape(best.tensors[one])} in the file and "
            f"{_shape(wanted[one])} in the model{more}.",
            f"Build the model with the sizes it was saved with: --model-arg NAME=VALUE{_one_of(arguments)}.",
        )
    missing = _missing(wanted, best.matched)
    left = [key for key in best.tensors if key not in best.matched]
    if missing or left:
        parts = [f"missing: {some(missing)}"] if missing else []
        parts += [f"left over: {some(left)}"] if left else []
        raise InputError(
            f"{label} fits {name} in {len(best.matched)} of {len(wanted)} weights; {'; '.join(parts)}.",
            "Name the model it was saved from with --model FILE.py:NAME"
            + (f", or build it as deep as it was: --model-arg NAME=VALUE{_one_of(arguments)}." if arguments else "."),
        )


def _one_of(arguments: Sequence[str]) -> str:
    return f", with NAME one of {', '.join(arguments)}" if arguments else ""


def _missing(wanted: dict[str, torch.Tensor], matched: frozenset[str]) -> list[str]:
    """What is not in the file, but for tied weights, which are saved once, and counters that old files lack."""
    there = {_memory(wanted[key]) for key in matched if not wanted[key].is_meta and wanted[key].numel()}
    return [
        key for key, tensor in wanted.items()
        if key not in matched
        and not key.endswith("num_batches_tracked")
        and (tensor.is_meta or _memory(tensor) not in there)
    ]  # fmt: skip


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """What tells apart where two tensors are, also where they have a storage without memory."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


def _check_loaded(model: nn.Module, label: str) -> None:
    tie = getattr(model, "tie_weights", None)
    if callable(tie):
        tie()
    empty = [name for name, t in (*model.named_parameters(), *model.named_buffers()) if t.is_meta]
    if empty:
        raise InputError(
            f"{some(empty)} of {type(model).__name__} has no memory (meta device) and is not in {label}.",
            "Build the model on the CPU.",
        )


def _said(wanted: dict[str, torch.Tensor], best: _Offer, label: str, meta: bool) -> Iterator[str]:
    total = len([key for key in wanted if key in best.matched or not key.endswith("num_batches_tracked")])
    under = f" under '{best.where}'" if best.where else ""
    without = f" without the prefix '{best.prefix.rstrip('.')}.'" if best.prefix else ""
    yield f"{len(best.matched)} of {total} weights from {label}{under}{without}"
    if best.others:
        yield f"{best.others} tensors beside them left out"
    casts = {(dtype_name(best.tensors[key].dtype), dtype_name(wanted[key].dtype)) for key in best.matched}
    for saved, used in sorted(casts):
        if saved != used and not meta:
            yield f"weights cast from {saved} to the model's {used}"


def _shape(tensor: torch.Tensor) -> str:
    return f"[{','.join(map(str, tensor.shape))}]"


def some(names: Iterable[str], shown: int = _SHOWN) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    return ", ".join(listed[:shown]) + (f" and {len(listed) - shown} more" if len(listed) > shown else "")
