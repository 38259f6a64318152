"""Record a run of a model into a :class:`~fusionadvisor.flow.graph.FlowGraph`.

The run takes place once, for real, under a dispatch mode that sees every op with its tensors: forward, backward and
optimizer. Nothing about the model is traced or guessed, so any Python runs. What the run changed in place (parameters,
buffers, gradients, optimizer state, training flags, random state) is put back afterwards.
"""

import gc
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from fusionadvisor.flow.arguments import bind, plain, refuse_nested
from fusionadvisor.flow.frames import built_at, where
from fusionadvisor.flow.graph import FlowGraph, Frame, ModuleCall, Op, Phase
from fusionadvisor.flow.keep import Kept
from fusionadvisor.flow.values import Values
from fusionadvisor.workload.inputs import Call, forward_names, tensors_in

_SKIPPED_NAMESPACES = frozenset({"profiler", "prim"})
"""Ops that neither compute nor move data: annotations and questions about a tensor."""


def record(run: Callable[[], object], model: nn.Module, inputs: Any = None) -> FlowGraph:
    """Run once and return what flowed.

    Args:
        run: Performs one call of the model, or one training step, and returns its outputs. The grad mode is its own.
        model: The module whose submodules give the ops their paths.
        inputs: What ``run`` passes to the model: a :class:`Call`, or a tensor, tuple or dict.

    Raises:
        InputError: The run uses a kind of tensor whose data flow cannot be seen. What ``run`` raises passes through.
    """
    recorder = _Recorder(model)
    given = recorder.declare(inputs)
    kept = Kept(model)
    result: object = None
    try:
        with _random_state_kept(), recorder.watching(kept):
            result = run()
            outputs = tuple(dict.fromkeys(recorder.known(result)))
        del result
        return recorder.graph(given, outputs)
    finally:
        kept.put_back()


class Recording:
    """A recording with a beginning and an end, for code that runs by itself. What it changes stays changed."""

    def __init__(self, model: nn.Module) -> None:
        self._recorder = _Recorder(model)
        self._recorder.declare(None)
        self._watching = ExitStack()

    def start(self) -> None:
        """See every op from here on."""
        self._watching.enter_context(self._recorder.watching(None))

    def stop(self) -> FlowGraph:
        """See no more; return what flowed."""
        self._watching.close()
        return self._recorder.graph((), ())


@dataclass
class _Scope:
    """A module whose forward is running."""

    path: str
    call: int
    built: Frame | None = None


@dataclass
class _Draft:
    """A module call before it has returned."""

    module: str
    class_name: str
    call: int
    inputs: tuple[int, ...]
    first_op: int
    parent: str
    source: Frame | None
    outputs: tuple[int, ...] = ()
    end_op: int = 0

    def done(self) -> ModuleCall:
        return ModuleCall(
            self.module, self.class_name, self.call, self.inputs, self.outputs, self.first_op, self.end_op,
            self.parent, self.source,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a backward op inherits from the forward op it belongs to."""

    module: str = ""
    call: int = 0
    source: Frame | None = None


class _Recorder:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.values = Values()
        self.ops: list[Op] = []
        self.drafts: list[_Draft] = []
        self.scopes: list[_Scope] = [_Scope("", 0)]
        self.paths, self.aliases = module_paths(model)
        self.counts: dict[str, int] = {}
        self.modes = {id(module): _mode(module) for module in model.modules()}
        self.switched: set[int] = set()
        self.origins: dict[int, _Origin] = {}
        self.owners = {id(p): name.rpartition(".")[0] for name, p in model.named_parameters()}
        self.sequence = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]

    # -- before and after ---------------------------------------------------------------------------------------

    def declare(self, inputs: Any) -> tuple[int, ...]:
        """Name what exists before the run; return the inputs' value ids."""
        given = [] if inputs is None else list(Call.of(inputs).tensors(forward_names(self.model)))
        for name, parameter in self.model.named_parameters():
            self._name(parameter, "parameter", name)
        for name, buffer in self.model.named_buffers():
            self._name(buffer, "buffer", name)
        for name, tensor in given:
            self._name(tensor, "input", name)
        return tuple(self.values.read(part) for _, tensor in given for part in plain(tensor))

    def _name(self, tensor: torch.Tensor, role: Any, name: str) -> None:
        if not nn.parameter.is_lazy(tensor):
            for part in plain(tensor):
                self.values.name(part, role, name)

    @contextmanager
    def watching(self, kept: Kept | None) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self._module_calls())
            if kept is not None:
                handle = register_optimizer_step_pre_hook(lambda optimizer, *_: kept.optimizer(optimizer))
                stack.callback(handle.remove)
            mode = _Mode
            if "torch._dynamo" in sys.modules:
                mode = _ModeBesideDynamo
                # else Dynamo, which compiles nothing under a mode, leaves the code that it met eager for good
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(mode(self, kept))
            yield

    @contextmanager
    def _module_calls(self) -> Iterator[None]:
        # replaced rather than hooked: global hooks never see keyword arguments before the call, and run inside the
        # user's own hooks, so what the caller really passes and gets would be missed
        original, switch = nn.Module.__call__, nn.Module.train

        def train(module: nn.Module, mode: bool = True) -> nn.Module:
            if _mode(module) != mode:
                self.switched.add(id(module))
            return switch(module, mode)

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self.call(original, module, args, kwargs)

        nn.Module.__call__, nn.Module.train = call, train  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            nn.Module.__call__, nn.Module.train = original, switch  # type: ignore[method-assign]

    def known(self, tree: object) -> Iterator[int]:
        """Value ids of the tensors in a tree."""
        for _, tensor in tensors_in(tree):
            for part in plain(tensor):
                yield self.values.read(part)

    def graph(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> FlowGraph:
        made = {v for op in self.ops for v in op.writes}
        if any(v in made and v not in outputs for v in self.values.alive()):
            gc.collect()  # what only a cycle holds is garbage, not kept by anybody
        named = {"input", "parameter", "buffer"}
        held = tuple(
            v for v in self.values.alive() if v in made and v not in outputs and self.values.all[v].role not in named
        )
        ops = tuple(
            replace(op, writes=(*op.writes, *self.values.late[op.index])) if op.index in self.values.late else op
            for op in self.ops
        )
        calls = tuple(draft.done() for draft in self.drafts)
        switched = (
            path for path, module in self.model.named_modules()
            if id(module) in self.switched or _mode(module) != self.modes.get(id(module), _mode(module))
        )  # fmt: skip
        return FlowGraph(ops, tuple(self.values.all), calls, inputs, outputs, held, self.aliases, tuple(switched))

    # -- modules ------------------------------------------------------------------------------------------------

    def call(self, original: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        path = self.paths.get(id(module))
        if path is None:  # not part of the model: made on the fly, or a loss
            return original(module, *args, **kwargs)
        self._claim_nodes()
        scope = _Scope(path, self.counts.get(path, 0), built_at(module))
        self.counts[path] = scope.call + 1
        draft = _Draft(
            path, type(module).__name__, scope.call, tuple(self.known((args, kwargs))), len(self.ops),
            self.scopes[-1].path, where(record.__code__).frame or scope.built,
        )  # fmt: skip
        self.drafts.append(draft)
        self.scopes.append(scope)
        try:
            result = original(module, *args, **kwargs)
            draft.outputs = tuple(self.known(result))
            return result
        finally:
            self._claim_nodes()
            self.scopes.pop()
            draft.end_op = len(self.ops)

    # -- ops ----------------------------------------------------------------------------------------------------

    def op(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], kept: Kept | None) -> Any:
        name = func._schema.name
        bound = bind(func, args, kwargs)
        index = len(self.ops)
        ids = {id(t): self.values.read(t) for t in bound.tensors}
        if kept is not None:
            for tensor in bound.written:
                if self.values.existed(tensor):
                    kept.content(tensor)
        origin, phase = self._origin()
        result = func(*args, **kwargs)
        returned = [t for _, t in tensors_in(result)]
        for tensor in returned:
            refuse_nested(tensor)
        mutated = {id(t): self.values.wrote(t, index) for t in bound.written}
        storages = {t.untyped_storage()._cdata for t in bound.tensors if t.layout is torch.strided}
        writes = [mutated[id(t)] if id(t) in mutated else self.values.made(t, index) for t in returned]
        self.ops.append(
            Op(
                index=index, name=name, overload=func._overloadname,
                reads=tuple(ids[id(t)] for t in bound.tensors),
                writes=tuple(dict.fromkeys((*writes, *mutated.values()))),
                mutates=tuple(dict.fromkeys(ids[id(t)] for t in bound.written)),
                view=bool(returned) and not mutated and all(_lives_on(t, storages) for t in returned),
                arguments=bound.literals, module=origin.module, call=origin.call, source=origin.source, phase=phase,
                operands={name: tuple(ids[id(t)] for t in group) for name, group in bound.operands.items()},
            )
        )  # fmt: skip
        return result

    def opaque(self, func: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator that takes functions (``cond``, ``flex_attention``): one op, its inside unseen."""
        inputs = [t for _, t in tensors_in((args, kwargs))]
        reads = tuple(self.values.read(t) for t in inputs)
        origin, phase = self._origin()
        index = len(self.ops)
        result = func(*args, **kwargs)
        writes = tuple(self.values.made(t, index) for _, t in tensors_in(result))
        self.ops.append(
            Op(
                index, f"higher_order::{func.__name__}", "", reads, writes, module=origin.module, call=origin.call,
                source=origin.source, phase=phase,
            )
        )  # fmt: skip
        return result

    def _origin(self) -> tuple[_Origin, Phase]:
        """Whose op this is: of the running module, or in the backward pass of the forward op it belongs to."""
        seen, scope = where(record.__code__), self.scopes[-1]
        here = _Origin(scope.path, scope.call, seen.frame or scope.built)
        node: Any = torch._C._current_autograd_node()
        if node is None and seen.phase != "backward":
            self._claim_nodes(here)
            return here, seen.phase or "forward"
        if node is None or len(self.scopes) > 1:  # the first gradient; or a forward repeated by checkpointing
            return here, "backward"
        variable = getattr(node, "variable", None)
        if variable is not None:
            return _Origin(self.owners.get(id(variable), ""), source=seen.frame), "backward"
        return self.origins.get(node._sequence_nr(), here), "backward"

    def _claim_nodes(self, origin: _Origin | None = None) -> None:
        """Give the autograd nodes made since the last look to an op, or, before a module changes, to the last one."""
        now = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        if now > self.sequence:
            if origin is None:
                last = self.ops[-1] if self.ops else None
                origin = _Origin(last.module, last.call, last.source) if last else _Origin()
            for number in range(self.sequence, now):
                self.origins[number] = origin
        self.sequence = now


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # keeping dynamo away from the handler would import it, which takes seconds, where nothing is compiled
        return False

    def __init__(self, recorder: _Recorder, kept: Kept | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.kept = kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(_takes_ops_apart(kind) for kind in types):
            return NotImplemented  # the subclass takes its op apart; the ops inside come back here
        if isinstance(func, HigherOrderOperator):
            return self.recorder.opaque(func, args, kwargs)
        if func.namespace in _SKIPPED_NAMESPACES:
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled() and _is_composite(func):
            # without autograd nothing has taken composite ops apart yet; the graph looks the same in either mode
            with self:
                return func._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        return self.recorder.op(func, args, kwargs, self.kept)


class _ModeBesideDynamo(_Mode):  # type: ignore[no-untyped-call]
    """The mode where something may be compiled: dynamo must not compile the handler itself."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs)


@cache
def _is_composite(func: OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func._name, "CompositeImplicitAutograd")


def _takes_ops_apart(kind: Any) -> bool:
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and not issubclass(kind, FakeTensor)


def module_paths(model: nn.Module) -> tuple[dict[int, str], dict[str, str]]:
    """Paths by ``id(module)``, and for a module known under several paths the later ones to the first."""
    paths: dict[int, str] = {}
    aliases: dict[str, str] = {}

    def visit(module: nn.Module, path: str, above: frozenset[int]) -> None:
        if id(module) in above:
            return
        if paths.setdefault(id(module), path) != path:
            aliases[path] = paths[id(module)]
        for name, child in module._modules.items():
            if child is not None:
                visit(child, f"{path}.{name}" if path else name, above | {id(module)})

    visit(model, "", frozenset())
    return paths, aliases


def _lives_on(tensor: torch.Tensor, storages: set[int]) -> bool:
    return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in storages


def _mode(module: nn.Module) -> bool:
    """Whether a module is in training mode; one that was frozen has lost the flag."""
    return bool(getattr(module, "training", False))


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Put the random state of Python, NumPy (where loaded) and torch on all devices back afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpy_state)
