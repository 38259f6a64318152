"""Inputs to plan and verify on: other values, sizes and layouts, as far as the original takes them.

An input may mean something: lengths, split sizes, indices into another input. Where the original raises on other
values, or returns NaN that the user's own do not give, those are kept, and that is said: no strategy is charged with
it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from fusionadvisor.errors import InputError
from fusionadvisor.evaluate.leaves import leaves
from fusionadvisor.strategies.base import Call
from fusionadvisor.workload.inputs import batch_size
from fusionadvisor.workload.program import Program
from fusionadvisor.workload.usercode import what_happened

OTHER_SIZES = 2
"""Sizes apart from the batch that are changed, the largest first."""
_TRIED = (1, 2, 3)
"""Seeds of the values that show which inputs can vary."""


@dataclass
class Variation:
    """What the model of a program can be called with.

    Args:
        program: Its model is run on what is tried; in training a copy of it.
    """

    program: Program

    def calls(self, seeds: Sequence[int], *, sizes: bool = False) -> tuple[Call, ...]:
        """Inputs for each seed and, where the model allows, of another batch size.

        Args:
            seeds: One call each.
            sizes: Whether to add further sizes, odd and zero ones among them, and another layout.
        """
        found = [self._meant(seed) for seed in seeds]
        own = batch_size(self.own)
        if own and self.program.batchable:
            wanted = (own // 2 if own > 1 else 2, *((own + 1, 1, 0) if sizes else ()))
            found += filter(None, (self._sized(seeds[-1] + 1, size) for size in dict.fromkeys(wanted)))
        if sizes and self.program.training is None:
            found += self._others(found[0])
        return tuple(found)

    @cached_property
    def own(self) -> Call:
        """The user's own inputs."""
        return self.program.call()

    @cached_property
    def kept(self) -> dict[str, str]:
        """By name the inputs whose own values are kept, with what the model does on others."""
        for seed in _TRIED:
            if self.refusal(fresh := self.program.call(seed)):
                return self._kept(fresh)
        return {}

    def _kept(self, fresh: Call) -> dict[str, str]:
        own = dict(self._tensors(self.own))
        varied = [n for n, t in self._tensors(fresh) if not _same(t, own[n])]
        kept = {n: why for n in varied if (why := self.refusal(self._with_own(fresh, set(varied) - {n})))}
        if why := self.refusal(self._with_own(fresh, set(kept))):  # only some of them together
            kept |= {n: why for n in varied if not own[n].is_floating_point()}
        if why := self.refusal(self._with_own(fresh, set(kept))):
            kept |= dict.fromkeys(varied, why)
        return kept

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not varied, in sentences."""
        return tuple(f"{n} keeps your own values: with others the model {why}." for n, why in self.kept.items())

    def refusal(self, call: Call) -> str:
        """Say what the model does on inputs that it does not take; empty where it takes them."""
        try:
            output = self._run(call)
        except InputError as error:
            return f"raises {what_happened(error.__cause__)}" if error.__cause__ else error.what
        return "returns NaN" if self._own_is_finite and not _is_finite(output) else ""

    @cached_property
    def _own_is_finite(self) -> bool:
        return _is_finite(self._run(self.own))

    def _run(self, call: Call) -> object:
        training, given = self.program.training, call.map(lambda _, t: t.clone())
        if training is None:
            return self.program.step(given)
        with training.undone(self.program.model):
            return self.program.step(given)

    def _meant(self, seed: int) -> Call:
        call = self._with_own(self.program.call(seed), set(self.kept))
        return call if not self.refusal(call) else self.own  # where it depends on the values drawn

    def _sized(self, seed: int, size: int) -> Call | None:
        """Inputs of another batch size, with drawn values or else with the user's own; None where neither runs."""
        for number in (seed, 0):
            try:
                call = self.program.call(number, batch=size)
            except (InputError, RuntimeError):  # rows that cannot be put together
                continue
            if not self.refusal(call):
                return call
        return None

    def _with_own(self, call: Call, names: set[str]) -> Call:
        own = dict(self._tensors(self.own))
        return call.map(lambda n, t: own[n] if n in names else t, self.program.names)

    def _tensors(self, call: Call) -> Iterator[tuple[str, torch.Tensor]]:
        return call.tensors(self.program.names)

    def _others(self, call: Call) -> Iterator[Call]:
        """The call one smaller along its largest sizes but the first, and stored otherwise."""
        sizes = {n for _, t in self._tensors(call) for n in t.shape[1:] if n > 2}
        for size in sorted(sizes, reverse=True)[:OTHER_SIZES]:
            smaller = call.map(_shortened(size))
            if not self.refusal(smaller):
                yield smaller
        stored = call.map(lambda _, t: _stored_otherwise(t))
        if not self.refusal(stored):
            yield stored


def _shortened(size: int) -> Callable[[str, torch.Tensor], torch.Tensor]:
    def change(_: str, tensor: torch.Tensor) -> torch.Tensor:
        for dim in range(1, tensor.dim()):
            if tensor.shape[dim] == size:
                tensor = tensor.narrow(dim, 0, size - 1)
        return tensor.contiguous()

    return change


def _stored_otherwise(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in another order of memory."""
    if tensor.dim() == 4 and tensor.is_contiguous():
        return tensor.contiguous(memory_format=torch.channels_last)
    if tensor.dim() < 2 or not tensor.is_contiguous():
        return tensor.contiguous()
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or (one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other))


def _is_finite(output: object) -> bool:
    for _, leaf in leaves(output):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.layout is torch.strided:
            if bool(leaf.isnan().any()):
                return False
        elif isinstance(leaf, float) and math.isnan(leaf):
            return False
    return True
