"""Values a run needs although nothing is computed: small tensors are followed for real, the rest gets stand-ins.

A fake tensor has no content, yet models ask for some: ``if mask.all()``, a length read with ``.item()``, the positions
of a mask. What follows from the inputs' integers and from constants is computed beside the fake run, on the CPU. What
depends on weights or activations gets a stand-in, which is remembered so that it can be said.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

LIMIT = 1 << 18
"""Elements of a tensor that is still followed: a mask of 512 by 512 is."""
RANDOM_LIMIT = 64
"""Elements of a random tensor that is still drawn: enough for layer drop."""

aten = torch.ops.aten
_FACTORIES_WITHOUT_CONTENT = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_MASK_OPS = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"})


def know(fake: torch.Tensor, real: torch.Tensor) -> None:
    """Say what a fake tensor holds."""
    if real.numel() <= LIMIT:
        fake._known = real  # type: ignore[attr-defined]


class Known(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows small values and answers what depends on data. Sits above ``FakeTensorMode``.

    Args:
        mode: The one below.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode = mode
        self.stand_ins: dict[str, int] = {}
        self._lost: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::") if hasattr(func, "_schema") else ""
        if name in ("_local_scalar_dense", "is_nonzero", "equal"):
            return self._scalar(name, args)
        if name in ("nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim", "bincount"):
            return self._sized(func, name, args, kwargs)
        if name == "repeat_interleave" and len(args) == 1:
            return self._sized(func, name, args, kwargs)
        if name == "_ctc_loss":
            self._stood_in(name)
            return _ctc_loss(*args[:2])
        if name == "_cudnn_rnn_backward":
            return (*map(_like, (args[0], args[4], args[5])), [_like(w) for w in args[1]])
        if name == "_ctc_loss_backward":
            return torch.empty_like(args[1])
        if name in _MASK_OPS:
            args = (args[0], self._positions(args[1]), *args[2:])
        args, kwargs = tree_map(self._fake, (args, kwargs))
        result = func(*args, **kwargs)
        self._follow(func, name, args, kwargs, result)
        if name in ("all", "logical_and"):
            for leaf in _tensors(result):
                leaf._true = True
        return result

    def _fake(self, leaf: Any) -> Any:
        """A fake tensor for a real one, with its content: torch would compute with real ones."""
        if isinstance(leaf, FakeTensor):
            leaf.constant = None  # the same: torch keeps small constants and computes with them
        elif isinstance(leaf, torch.Tensor):
            real, leaf = leaf, self.mode.from_tensor(leaf)
            if not hasattr(leaf, "_known"):
                know(leaf, real)
        return leaf

    # -- what is known ------------------------------------------------------------------------------------------

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What a tensor holds, None where that is not followed."""
        if not isinstance(tensor, FakeTensor):
            return tensor if tensor.device.type == "cpu" and tensor.numel() <= LIMIT else None
        real: torch.Tensor | None = getattr(tensor, "_known", None)
        if real is None or real.untyped_storage()._cdata in self._lost:
            return None
        return real

    def _follow(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        made = list(_tensors(result))
        if name in _FACTORIES_WITHOUT_CONTENT:
            return
        values = {id(t): self.value(t) for t in _tensors((args, kwargs))}
        largest = RANDOM_LIMIT if torch.Tag.nondeterministic_seeded in func.tags else LIMIT
        if all(v is not None for v in values.values()) and all(t.numel() <= largest for t in made):
            real_args, real_kwargs = tree_map(lambda leaf: self._real(leaf, values), (args, kwargs))
            try:
                with _disable_current_modes():
                    real = func(*real_args, **real_kwargs)
            except (RuntimeError, NotImplementedError, IndexError, ValueError):
                pass  # the CPU cannot compute it: it is not followed
            else:
                for fake, content in zip(made, _tensors(real), strict=False):
                    know(fake, content)
                return
        self._forget(func, args, kwargs)

    def _real(self, leaf: Any, values: dict[int, torch.Tensor | None]) -> Any:
        if isinstance(leaf, torch.Tensor):
            return values[id(leaf)]
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    def _forget(self, func: Any, args: Any, kwargs: Any) -> None:
        """What an op that could not be followed wrote in place is no longer known, nor is any alias of it."""
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in _tensors(given):
                real = getattr(tensor, "_known", None)
                if real is not None:
                    self._lost.add(real.untyped_storage()._cdata)
                    _keep.append(real)  # so that no other storage gets its address

    # -- what is asked for --------------------------------------------------------------------------------------

    def _scalar(self, name: str, args: Any) -> Any:
        values = [self.value(t) for t in args]
        if all(v is not None for v in values):
            with _disable_current_modes():
                if name == "equal":
                    return torch.equal(values[0], values[1])  # type: ignore[arg-type]
                return values[0].item()  # type: ignore[union-attr]
        self._stood_in(name)
        tensor = args[0]
        if name == "equal":
            return True
        if tensor.dtype is torch.bool:
            return bool(getattr(tensor, "_true", False))
        return 1.0 if tensor.is_floating_point() else 1

    def _sized(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        values = {id(t): self.value(t) for t in _tensors((args, kwargs))}
        like = next(_tensors((args, kwargs)))
        if all(v is not None for v in values.values()):
            real_args, real_kwargs = tree_map(lambda leaf: self._real(leaf, values), (args, kwargs))
            with _disable_current_modes():
                real = func(*real_args, **real_kwargs)
            return tree_map(lambda leaf: self._fake_of(leaf, like), real)
        self._stood_in(name)
        return self._stand_in(name, like)

    def _fake_of(self, real: Any, like: torch.Tensor) -> Any:
        if not isinstance(real, torch.Tensor):
            return real
        fake = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=like.device)
        know(fake, real)
        return fake

    def _stand_in(self, name: str, like: torch.Tensor) -> Any:
        """Results of the size they would have if half of a mask were set, or every element were its own."""
        half = max(1, like.numel() // 2)
        device = like.device
        long = torch.int64
        if name == "nonzero":
            return torch.empty((half, like.dim()), dtype=long, device=device)
        if name == "masked_select":
            return torch.empty((half,), dtype=like.dtype, device=device)
        if name in ("bincount", "repeat_interleave"):
            return torch.empty((like.numel(),), dtype=long, device=device)
        counts = torch.empty((like.numel(),), dtype=long, device=device)
        return torch.empty((like.numel(),), dtype=like.dtype, device=device), torch.empty_like(counts), counts

    def _positions(self, indices: Any) -> list[Any]:
        """Masks among indices, as the positions that are set: an op on fake tensors cannot find them itself."""
        found: list[Any] = []
        for index in indices:
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                places = self._sized(aten.nonzero.default, "nonzero", (index,), {})
                found += [places.select(1, d) for d in range(index.dim())]
            else:
                found.append(index)
        return found

    def _stood_in(self, name: str) -> None:
        self.stand_ins[name] = self.stand_ins.get(name, 0) + 1


def _like(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else torch.empty_like(tensor)


def _ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each sample and its table, as if the longest target were all there is (LossCTC.cu)."""
    steps, batch = log_probs.shape[:2]
    longest = targets.shape[-1] if targets.dim() == 2 else -(-targets.numel() // batch)
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, 2 * longest + 1))


_keep: list[torch.Tensor] = []


def _tensors(tree: Any) -> Iterator[Any]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
