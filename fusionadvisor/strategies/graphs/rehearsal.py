"""One watched run of the model: what never reaches the dispatcher on a CPU, and what Python remembers afterwards.

``.cpu()`` or ``torch.zeros(3)`` do nothing remarkable on a CPU and make a GPU wait. They are seen where Python calls
them. A stand-in runs in the model's place, so that the model is left as it was.
"""

import ast
import copy
import linecache
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fusionadvisor.report.model import Source
from fusionadvisor.strategies.graphs.obstacle import CANT_WAIT, Obstacle, paths_of
from fusionadvisor.strategies.graphs.state import contents_kept
from fusionadvisor.strategies.graphs.where import current_frames, locate
from fusionadvisor.strategies.source import Code
from fusionadvisor.workload.inputs import Call

HOST_READS = {"cpu", "numpy", "tolist", "item", "__array__", "__dlpack__"}
_NUMBERS = {"__float__", "__int__", "__index__", "__complex__"}
_FROM_PYTHON = {"tensor", "as_tensor", "asarray", "from_numpy", "frombuffer"}
_FACTORIES = {
    "zeros", "ones", "full", "empty", "arange", "range", "linspace", "logspace", "eye", "rand", "randn", "randint",
    "randperm", "normal", "tril_indices", "triu_indices", "hann_window", "hamming_window", "empty_strided", "complex",
    "bartlett_window", "blackman_window", "kaiser_window",
}  # fmt: skip
_INDEXING = {"__getitem__", "__setitem__"}
_MODULE_TABLES = frozenset(vars(nn.Module())) - {"_parameters", "_buffers"}
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_STATE_REMEDY = "Keep the state in a buffer and write it in place"
_DEPTH = 5
"""How deep containers and helper objects on a module are compared: caches are a dict of lists of tuples at most."""


@dataclass(frozen=True)
class Rehearsal:
    """What was found, lines that are excused from what the recordings say of them, and what the run returned."""

    found: list[Obstacle]
    excused: frozenset[Source | None] = frozenset()
    result: Any = None


def rehearse(model: nn.Module, call: Call, code: Code, grad: bool) -> Rehearsal:
    """Run twice, the second time watched.

    The first run lets the model build what it builds once: a graph's warm-ups would, too.

    Args:
        model: The model; it must not write its parameters in forward.
        call: What to call it with.
        code: The functions its forward can reach, whose globals are watched.
        grad: Whether to record gradients.
    """
    call = call.map(lambda _, tensor: tensor.clone())
    try:
        model = _stand_in(model)
    except Exception as error:  # noqa: BLE001 - copying runs the user's own __deepcopy__ and __reduce__
        return Rehearsal([Obstacle("", f"cannot be copied, so its forward could not be rehearsed ({error})")])
    watch = _Watch(model)
    with contents_kept(model), _randomness_kept(), torch.set_grad_enabled(grad):
        model(*call.args, **call.kwargs)
        before, randomness = _memory_of(model, code), _random_state(watch.on_cpu)
        with watch, _checkpoints(watch):
            result = model(*call.args, **call.kwargs)
        changed = _changes(before, _memory_of(model, code))
        if _random_state(watch.on_cpu) != randomness:
            changed.append(Obstacle("", "draws random numbers on the CPU; a graph repeats the captured ones"))
    return Rehearsal(watch.found + changed, frozenset(watch.excused), result)


class _Watch(TorchFunctionMode):
    """Sees every function of torch that Python calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: list[Obstacle] = []
        self.excused: set[Source | None] = set()
        """Lines that read a value back on a CPU only: ``one_hot`` checks its classes there and not on CUDA."""
        self._paths = paths_of(model)
        self.on_cpu = all(p.device.type == "cpu" for p in model.parameters())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if problem := self._problem(name, args, kwargs):
            self.note(*problem)
        if name == "one_hot" and self.on_cpu and (len(args) > 1 or kwargs.get("num_classes", -1) != -1):
            self.excused.add(locate(current_frames())[1])
        return func(*args, **kwargs)

    def note(self, why: str, remedy: str) -> None:
        """Remember what the line that is running does."""
        owner, source = locate(current_frames())
        self.found.append(Obstacle(self._paths.get(id(owner), ""), why, remedy, source))

    def _problem(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str] | None:
        if name in HOST_READS:
            return (
                f"reads a value back to the CPU (.{name}()) during forward; a graph can't wait for it",
                "Keep it on the GPU",
            )
        if name == "__bool__":
            return f"uses a tensor as a condition {CANT_WAIT}", "Use torch.where"
        if name in _NUMBERS:
            return f"turns a tensor into a Python number {CANT_WAIT}", "Keep it on the GPU"
        if name == "to" and self._to_cpu((*args[1:], *kwargs.values())):
            return f"copies to the CPU (.to) {CANT_WAIT}", "Keep it on the GPU"
        if name in _FROM_PYTHON and not isinstance(args[0] if args else None, Tensor):
            return f"builds a tensor from Python data (torch.{name}) in forward", "Make it once, as a buffer"
        if (
            name in _FACTORIES
            and not any(isinstance(a, Tensor) for a in args)
            and self._stays_on_cpu(kwargs.get("device"))
        ):
            return f"makes a tensor on the CPU (torch.{name} without device) in forward", "Pass device=x.device"
        if name in _INDEXING and _python_index(args[1]):
            return "indexes with a Python list, which is copied to the GPU each time", "Keep the index as a buffer"
        if name == "pin_memory":
            return "pins memory during forward", "Do it in the data loader"
        return None

    def _to_cpu(self, given: tuple[Any, ...]) -> bool:
        """A copy to the CPU by name. On a CPU ``x.to(y.device)`` names it too, so there the line has to say "cpu"."""
        cpu = [a for a in given if a == "cpu" or (isinstance(a, torch.device) and a.type == "cpu")]
        return bool(cpu) and (
            not self.on_cpu or any(a == "cpu" and isinstance(a, str) for a in cpu) or self._line_says_cpu()
        )

    def _stays_on_cpu(self, device: Any) -> bool:
        if device is None:
            return torch.get_default_device().type == "cpu"
        return torch.device(device).type == "cpu" and (
            not self.on_cpu or isinstance(device, str) or self._line_says_cpu()
        )

    def _line_says_cpu(self) -> bool:
        _, source = locate(current_frames())
        return source is not None and "cpu" in linecache.getline(source.file, source.line)


def _python_index(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, list) or type(part).__module__ == "numpy" for part in parts)


# -- what Python remembers ----------------------------------------------------------------------------------------


class _Same:
    """An object compared by identity, and kept alive so that its id is not given to another."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = object.__hash__


def _memory_of(model: nn.Module, code: Code) -> dict[tuple[str, str, str], object]:
    """Every attribute, parameter and buffer of every module, its class's and the globals, in a form that compares."""
    memory: dict[tuple[str, str, str], object] = {}
    for path, module in model.named_modules():
        for table in (module._parameters, module._buffers, vars(module)):
            for name, value in table.items():
                if name not in _MODULE_TABLES:
                    memory[path, "its attribute", name] = _frozen(value, _DEPTH)
        for kind in type(module).__mro__[: type(module).__mro__.index(nn.Module)]:
            for name, value in vars(kind).items():
                if not name.startswith("__") and not callable(value):
                    memory[path, f"the class attribute of {kind.__name__},", name] = _frozen(value, _DEPTH)
    for function in code.functions:
        for node in ast.walk(function.node):
            if isinstance(node, ast.Name) and node.id in function.namespace:
                value = function.namespace[node.id]
                if not callable(value) and not isinstance(value, ModuleType):
                    memory["", "the global", node.id] = _frozen(value, _DEPTH)
    return memory


def _frozen(value: object, depth: int) -> object:
    if isinstance(value, _SCALARS):
        return type(value), value
    if isinstance(value, Tensor | nn.Module | type) or callable(value) or depth == 0:
        return _Same(value)
    if isinstance(value, Mapping):
        return _Same(value), tuple((_frozen(k, depth - 1), _frozen(v, depth - 1)) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), tuple(_frozen(item, depth - 1) for item in value)
    state = getattr(value, "__dict__", None)
    return (_Same(value), _frozen(state, depth - 1)) if state else _Same(value)


def _changes(before: dict[tuple[str, str, str], object], after: dict[tuple[str, str, str], object]) -> list[Obstacle]:
    return [
        Obstacle(path, f"changes {what} '{name}' in every forward; a graph replays no Python", _STATE_REMEDY)
        for path, what, name in {**before, **after}
        if before.get((path, what, name)) != after.get((path, what, name))
    ]


def _random_state(on_cpu: bool) -> tuple[object, ...]:
    """Of the generators on the CPU; torch's own stands for the GPU's where the model itself is on the CPU."""
    numpy = sys.modules.get("numpy")
    own = b"" if on_cpu else torch.get_rng_state().numpy().tobytes()
    return random.getstate(), repr(numpy.random.get_state()) if numpy else "", own


@contextmanager
def _checkpoints(watch: _Watch) -> Iterator[None]:
    """See ``torch.utils.checkpoint`` at work: it reads the random state, which a capture does not allow.

    It asks for the device's type first, whichever of its two ways it takes.
    """
    from torch.utils import checkpoint

    asked = getattr(checkpoint, "_infer_device_type", None)
    if asked is None or not torch.is_grad_enabled():
        yield
        return

    def noted(*args: Any) -> Any:
        watch.note("recomputes activations (torch.utils.checkpoint), which reads the random state", "Leave it out")
        return asked(*args)

    checkpoint._infer_device_type = noted
    try:
        yield
    finally:
        checkpoint._infer_device_type = asked


def _stand_in(model: nn.Module) -> nn.Module:
    """A copy that shares tensors and generators: what Python remembers may change, what takes memory exists once."""
    shared: dict[int, Any] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers, vars(module)):
            shared |= {id(v): v for v in table.values() if isinstance(v, Tensor | torch.Generator)}
    return copy.deepcopy(model, shared)


@contextmanager
def _randomness_kept() -> Iterator[None]:
    state, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpy_state)
