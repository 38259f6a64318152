"""Each CUDA kernel of an op, wrapped: it runs as it is, then the op is done again on the CPU over the same memory.

The wrapper takes the kernel's place in the dispatcher. So it works below autograd and all modes, on every thread, and
neither torch nor the program can tell. In a capture nothing is computed: the graph calls back at each replay.
"""

import inspect
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from . import core, random, twins
from .derive import NAN
from .memory import fill, host, is_dense, on_host, poison, ranges

_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_CLEAN_INCLUDE = torch._C._dispatch_tls_local_include_set()
_CLEAN_EXCLUDE = torch._C._dispatch_tls_local_exclude_set()

_HALVES = (torch.float16, torch.bfloat16)

_ABSENT = re.compile("cufft|cusolver|cusparse", re.IGNORECASE)
"""What the fake device has no library for."""

LEAVE = {
    "_cudnn_rnn_flatten_weight", "_cudnn_init_dropout_state", "record_stream", "_fused_sdp_choice", "is_set_to", "set_",
    "view", "as_strided", "_reshape_alias", "unfold", "view_as_real", "view_as_complex", "_nested_view_from_buffer",
    "_use_cudnn_ctc_loss", "_use_miopen_ctc_loss", "_cslt_sparse_mm_search", "is_pinned", "_pin_memory",
}  # fmt: skip
"""Ops that compute nothing themselves: views, questions, and what calls other ops to do it all."""
FOR_ALL_DEVICES = {"copy_"}
"""Ops that launch kernels of their own from code that is registered for every device."""
UNDECLARED = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "batch_norm_gather_stats": (3, 4)}
"""Arguments that an op writes to though its schema does not say so: running statistics."""
ALLOCATE = {"empty", "empty_strided"}
COUNTING = {"nonzero", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive", "_unique"}
"""Ops whose output's size is counted on the device and read back."""
READS = {"_local_scalar_dense", "equal"}
"""Ops that answer with a value instead of a tensor."""

refused: list[str] = []
"""What could not be computed, in this process; its outputs are poison."""
_notes: dict[int, Callable[[], None]] = {}
_last_note = 0
_lock = threading.Lock()


class _Frames(threading.local):
    """The ops in progress on this thread, outermost first."""

    def __init__(self) -> None:
        self.stack: list[_Frame] = []
        self.undisturbed = 0
        self.inert = 0
        """Above 0: what is launched is computed as a whole by somebody else."""


class _Frame:
    """One op: what it writes to, how that was before an op inside of it was computed, and the count it reads back."""

    def __init__(self, mutated: list[Tensor], count: int) -> None:
        self._mutated = mutated
        self.count = count
        self._before: list[Tensor] | None = None

    def keep(self) -> None:
        if self._before is None:
            self._before = [view.clone() for view in self._mutated]

    def restore(self) -> None:
        for view, before in zip(self._mutated, self._before or (), strict=False):
            view.copy_(before)


frames = _Frames()


def refuse(what: str, error: Exception, instead: str = "its results are NaN") -> None:
    """Say once, on standard error, what is not computed."""
    if what not in refused:
        refused.append(what)
        why = "" if isinstance(error, NotImplementedError) else f" ({str(error).splitlines()[0]})"
        print(f"fake CUDA device: cannot do {what}{why}; {instead}", file=sys.stderr, flush=True)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Nothing of what is called in here is recorded, intercepted or differentiated by what the program set up."""
    frames.undisturbed += 1
    torch._C._autograd._enable_record_function(False)
    try:
        with (
            torch._C.DisableTorchFunction(),
            torch._C._ForceDispatchKeyGuard(_CLEAN_INCLUDE, _CLEAN_EXCLUDE),
            torch.no_grad(),
        ):
            yield
    finally:
        frames.undisturbed -= 1
        if not frames.undisturbed:
            torch._C._autograd._enable_record_function(True)


def compute(device: int, what: str, again: Callable[[], None], memory: list[tuple[int, int]]) -> bool:
    """Compute now, or at each replay of the graph that is being captured (then False)."""
    stream = torch._C._cuda_getCurrentRawStream(device)
    if not core.captured(stream, 0):
        again()
        core.changed()
        return True
    global _last_note
    with _lock:
        while number := core.dropped():
            _notes.pop(number, None)
        _last_note += 1
        number = _last_note

    def replayed() -> None:
        if not all(core.mapped(*block) for block in memory):
            print(f"fake CUDA device: {what} in a graph reads memory that was freed", file=sys.stderr, flush=True)
            return
        with undisturbed():
            again()

    _notes[number] = replayed
    core.captured(stream, number)
    return False


def _called_back(number: int) -> None:
    begin = time.perf_counter_ns()
    _notes[number]()
    core.pause(time.perf_counter_ns() - begin)


@cache
def _tensors(op: torch._ops.OpOverload) -> frozenset[int]:
    """Which arguments are tensors, for which a number may stand."""
    types = [str(argument.type) for argument in op._schema.arguments]
    return frozenset(i for i, kind in enumerate(types) if kind in ("Tensor", "Optional[Tensor]"))


def _has_number(tensors: frozenset[int], args: Any) -> bool:
    return any(isinstance(args[i], (bool, int, float, complex)) for i in tensors if i < len(args))


@cache
def _twin(op: torch._ops.OpOverload) -> tuple[Callable[..., Any] | None, bool]:
    """What computes it in place of an op of the CPU, and whether that draws random numbers."""
    if any(argument.is_out for argument in op._schema.arguments):
        return None, False
    name = op._schema.name.split("::")[1]
    twin = twins.TWINS.get(f"{name}.{op._overloadname}") or twins.TWINS.get(name)
    return twin, twin is not None and "seed" in inspect.signature(twin).parameters


def on_cpu(op: torch._ops.OpOverload, args: Any, kwargs: Any, seed: int = 0) -> Any:
    """Do an op on CPU tensors: by its twin, or as the CPU does it."""
    twin, draws = _twin(op)
    if twin:
        return twin(*args, **kwargs, seed=seed) if draws else twin(*args, **kwargs)
    if _has_number(_tensors(op), args):  # which only the way in from Python takes
        return op(*args, **kwargs)
    try:
        return op.redispatch(_CPU_KEYS, *args, **kwargs)
    except NotImplementedError:
        raise
    except RuntimeError:
        halves = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dtype in _HALVES]
        if not halves:
            raise
    # the CPU has it in single precision only, which is what a GPU computes halves in
    wide = {id(t): t.float() for t in halves}
    args, kwargs = tree_map_only(Tensor, lambda t: wide.get(id(t), t), (args, kwargs))
    results = op.redispatch(_CPU_KEYS, *args, **kwargs)
    if any(argument.alias_info is not None and argument.alias_info.is_write for argument in op._schema.arguments):
        for half in halves:
            half.copy_(wide[id(half)])
    return results


class Wrapped:
    """One op's kernel in the dispatcher."""

    def __init__(self, op: torch._ops.OpOverload, kernel: Any, key: str) -> None:
        self._op = op
        self._kernel = kernel
        self._name = op._schema.name.split("::")[1]
        self._mutated = [
            (index, argument.name)
            for index, argument in enumerate(op._schema.arguments)
            if (argument.alias_info is not None and argument.alias_info.is_write)
            or index in UNDECLARED.get(self._name, ())
        ]
        self._tensors = _tensors(op)
        self._random = torch.Tag.nondeterministic_seeded in op.tags

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        begin, inside = time.perf_counter_ns(), [0]
        try:
            return self._done(keys, args, kwargs, inside)
        finally:
            core.pause(time.perf_counter_ns() - begin - inside[0])

    def _done(self, keys: Any, args: Any, kwargs: Any, inside: list[int]) -> Any:
        written = [self._argument(index, name, args, kwargs) for index, name in self._mutated]
        leaves = [t for t in tree_leaves((args, kwargs)) if is_dense(t)]
        device = leaves[0].device.index if leaves else torch.cuda.current_device()
        capturing = core.captured(torch._C._cuda_getCurrentRawStream(device), 0)
        draw = random.seed(self._generator(args, kwargs), device) if self._random else None
        counted = None
        if self._name in COUNTING and not capturing and not frames.inert:
            with undisturbed():
                counted = self._again(args, kwargs, draw)
        around = frames.stack[-1].count if frames.stack else -1
        count = around if counted is None else tree_leaves(counted)[0].shape[0]
        frame = _Frame([] if capturing else [host(t) for t in tree_leaves(written) if is_dense(t)], count)
        frames.stack.append(frame)
        core.scope(1)
        core.answer(count)
        launching = time.perf_counter_ns()
        try:
            outputs = self._kernel.call_boxed(keys, *self._boxed(args), **kwargs)
        except RuntimeError as error:
            if not _ABSENT.search(str(error)) or self._mutated:
                raise
            refuse(f"the kernels of {self._op._schema.name}", error, "its results are computed, no kernel is recorded")
            with undisturbed():
                results = self._again(args, kwargs, draw)
            return tree_map_only(Tensor, lambda t: t.to(f"cuda:{device}"), results)
        finally:
            inside[0] = time.perf_counter_ns() - launching
            core.scope(-1)
            frames.stack.pop()
            core.answer(around)
        if frames.inert or (capturing and frames.stack):
            return outputs  # what is around it is computed as a whole
        if self._name in ALLOCATE:
            with undisturbed():
                poison(outputs)
                core.changed()
            return outputs
        to_host = self._name == "copy_" and args[0].device.type == "cpu"
        if (self._name in READS or to_host) and (kernel := core.uncomputed()):
            raise RuntimeError(f"fake CUDA device: {kernel} was launched by no op, so what memory holds is not known")
        if self._name in READS:
            if capturing or count >= 0:
                return outputs
            with undisturbed():
                return self._again(args, kwargs, draw)
        if self._name == "copy_" and _is_memcpy(*args[:2]):
            return outputs
        self._compute(device, frame, args, kwargs, outputs, written, draw, counted)
        return outputs

    def _compute(
        self, device: int, frame: _Frame, args: Any, kwargs: Any, outputs: Any, written: Any, draw: Any, counted: Any
    ) -> None:
        with undisturbed():
            results = (outputs, written)
            inputs = on_host((args, kwargs))
            into = tree_map_only(Tensor, host, outputs)
            targets = tree_map_only(Tensor, host, results)

            def again() -> None:
                try:
                    store(counted if counted is not None else self._run(inputs, draw), into)
                except (RuntimeError, IndexError) as error:  # NotImplementedError: the CPU has no such op
                    for view in tree_leaves(targets):
                        if isinstance(view, Tensor):
                            fill(view)
                    if isinstance(error, IndexError) or "out of range" in str(error) or "out of bounds" in str(error):
                        raise RuntimeError(f"CUDA error: device-side assert triggered ({error})") from error
                    if not frames.stack:
                        refuse(f"{self._op._schema.name}", error)

            for outer in frames.stack:
                outer.keep()
            frame.restore()
            if not compute(device, self._name, again, ranges((args, kwargs, outputs))):
                poison([t for t in tree_leaves(outputs) if not any(t is w for w in tree_leaves(written))])

    def _again(self, args: Any, kwargs: Any, draw: Any) -> Any:
        return self._run(on_host((args, kwargs)), draw)

    def _run(self, inputs: tuple[Any, Any], draw: Any) -> Any:
        args, kwargs = inputs
        if draw is None:
            return on_cpu(self._op, args, kwargs)
        seed = draw()
        with random.drawing(seed):
            return on_cpu(self._op, args, kwargs, seed)

    def _boxed(self, args: Any) -> Any:
        """The arguments as the kernel takes them: a number that stands for a tensor came here as a plain number."""
        if not _has_number(self._tensors, args):
            return args
        partner = next(arg for arg in args if isinstance(arg, Tensor))
        return [
            torch.tensor(arg, dtype=torch.result_type(partner, arg))
            if i in self._tensors and isinstance(arg, (bool, int, float, complex))
            else arg
            for i, arg in enumerate(args)
        ]

    def _argument(self, index: int, name: str, args: Any, kwargs: Any) -> Any:
        return args[index] if index < len(args) else kwargs.get(name)

    def _generator(self, args: Any, kwargs: Any) -> torch.Generator | None:
        return next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Generator)), None)


def _is_memcpy(into: Tensor, source: Any) -> bool:
    """Whether CUDA copies the bytes, which the fake device really does, instead of launching a kernel."""
    tensors = (into, source)
    return (
        isinstance(source, Tensor)
        and source.dtype is into.dtype
        and source.shape == into.shape
        and all(t.is_contiguous() and not t.is_conj() and not t.is_neg() for t in tensors)
    )


def store(values: Any, into: Any) -> None:
    for value, view in zip(tree_leaves(values), tree_leaves(into), strict=False):
        if not isinstance(view, Tensor) or not view.numel():
            continue
        if value is NAN or (isinstance(value, Tensor) and value.numel() == 0):
            fill(view)
            continue
        if not isinstance(value, Tensor):
            continue
        if view.data_ptr() == value.data_ptr() and view.stride() == value.stride():
            continue
        if view.shape != value.shape:
            raise RuntimeError(f"the CUDA code returned {list(view.shape)} and the CPU {list(value.shape)}")
        view.copy_(value)


_library: list[torch.library.Library] = []


def install() -> None:
    """Wrap every CUDA kernel that there is."""
    core.call_back(_called_back)
    libraries: dict[str, torch.library.Library] = {}
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if space not in ("aten", "quantized") or not (
            torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA") or rest in FOR_ALL_DEVICES
        ):
            continue
        if base in LEAVE:
            continue
        op = getattr(getattr(getattr(torch.ops, space), base), overload or "default")
        wrapped = Wrapped(op, torch.library.get_kernel(name, "CUDA"), name)
        if space not in libraries:
            libraries[space] = torch.library.Library(space, "IMPL")  # type: ignore[no-untyped-call]
        libraries[space].impl(rest, wrapped, "CUDA", with_keyset=True)  # type: ignore[no-untyped-call]
    _library.extend(libraries.values())
