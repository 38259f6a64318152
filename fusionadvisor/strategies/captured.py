"""One module's forward as a graph, with everything that must be as it was for the graph to be right.

Only the path that the module takes is captured. Where that follows from sizes, dtypes or devices, a call compares
them; where it follows from values, the module is refused.
"""

import ast
import builtins
import copy
import dis
import importlib
import inspect
import itertools
import operator
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property
from torch.utils._pytree import tree_leaves

from fusionadvisor.strategies import guards, leaves
from fusionadvisor.strategies.forms import Form
from fusionadvisor.strategies.guards import Guard, Recorder, UnfollowedError
from fusionadvisor.workload.inputs import Call, tensors_in

_ASKED = frozenset(
    {"shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu", "requires_grad", "is_sparse", "is_quantized",
     "itemsize", "nbytes"}
)  # fmt: skip
"""What a tensor tells without its values being read."""
_ASKING = frozenset(
    {"size", "dim", "numel", "nelement", "ndimension", "element_size", "is_floating_point", "is_complex", "get_device",
     "stride", "is_contiguous", "storage_offset", "is_inference"}
)  # fmt: skip
_VALUES = frozenset(
    {"__bool__", "__int__", "__float__", "__index__", "__iter__", "item", "tolist", "numpy", "equal", "allclose",
     "is_nonzero", "__contains__", "__complex__", "data_ptr"}
)  # fmt: skip
_MADE = frozenset(
    {"ones", "zeros", "full", "arange", "empty", "tensor", "as_tensor", "eye", "linspace", "logspace", "rand", "randn",
     "randint", "randperm", "scalar_tensor", "tril_indices", "triu_indices", "empty_strided", "normal"}
)  # fmt: skip
_NUMBERS = ("finfo", "iinfo")
_CONTAINERS = frozenset(
    {"append", "extend", "insert", "add", "update", "setdefault", "pop", "clear", "remove", "discard", "sort"}
)
_CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (Tensor, nn.Parameter, torch.Size, tuple, list, dict, int, float, bool, str, type(None), torch.dtype)
}
_EINOPS = ("rearrange", "repeat", "reduce", "einsum")


def agree(value: Any, was: Any) -> None:
    """Go on where a value is what it was when the forward was captured.

    Raises:
        AnotherPathError: If it is not.
    """
    if value != was:
        raise leaves.AnotherPathError("a size is another")


def class_name(value: Any) -> str:
    """The name of a value's class."""
    return type(value).__name__


fx.node.has_side_effect(agree)


@dataclass
class Captured:
    """A captured forward: its graph takes the tensors of a call in order.

    Args:
        graph: What the module computes.
        form: How it was called.
        guard: What the code read on its way.
        asked: Computes from the tensors what decided on the way, before anything else runs; None for nothing.
        answers: What these were, and then what the graph itself compares; enough to capture it again.
        early: How many of the answers ``asked`` gives.
    """

    graph: fx.Graph
    form: Form
    guard: Guard
    asked: fx.Graph | None = None
    answers: list[Any] = field(default_factory=list)
    early: list[int] = field(default_factory=list)

    def unlike(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Say why a call does not go the captured way; empty where it does."""
        form, tensors = Form.of(args, kwargs)
        if form != self.form:
            return "it is called in another way"
        if reason := self.guard.broken():
            return reason
        if self.asked is not None:
            try:
                now = self._ask(module, *tensors)
            except leaves.FAILURES:
                return "a size is another"
            if list(now) != [self.answers[i] for i in self.early]:
                return "a size is another"
        return ""

    def tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """What the graph takes of a call."""
        return Form.of(args, kwargs)[1]

    def __post_init__(self) -> None:
        if self.asked is not None:
            self._ask = leaves.function(self.asked)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_ask"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()


def capture(
    module: nn.Module,
    form: Form,
    *,
    answers: Sequence[Any] = (),
    given: Sequence[Tensor] | None = None,
    whole: bool = False,
) -> Captured:
    """Capture a module's forward.

    Args:
        module: It may get attributes for constants that forward holds; pass a copy.
        form: How it is called.
        answers: What an earlier capture found that sizes decide.
        given: The tensors of a call, to find that where there are no answers.
        whole: Go through the module's own submodules too, but for torch's. Otherwise calls of them stay calls.

    Raises:
        RuntimeError, TypeError, …: See :data:`fusionadvisor.strategies.leaves.FAILURES`.
    """
    known = list(answers)
    while True:
        try:
            return _captured(module, form, known, given, whole)
        except _UnansweredError as error:
            known.append(error.value(module, given or ()))


def _captured(
    module: nn.Module, form: Form, known: list[Any], given: Sequence[Tensor] | None, whole: bool
) -> Captured:
    recorder = Recorder(module)
    tracer = _Tracer(recorder, form, known, given, whole)
    importlib.import_module("torch._dynamo")  # see leaves: imported later, it would keep the stand-ins for good
    with (
        warnings.catch_warnings(),
        torch.set_grad_enabled(module.training),
        torch.random.fork_rng(),
        _stand_ins(tracer),
        recorder.watching(),
        _Fresh(tracer),
    ):
        warnings.simplefilter("ignore")
        recorder.enter(module)
        try:
            graph = tracer.trace(module)
        except leaves.FAILURES:
            if tracer.failed is None:
                raise
    if tracer.failed is not None:  # also where the module's own code has caught it
        raise tracer.failed
    if reason := _effect(recorder):
        recorder.fail(reason)
    guard = recorder.guard()
    asked = _early(graph, [node for node, early in tracer.conditions if early])
    return Captured(graph, form, guard, asked, tracer.answers, [i for i, (_, e) in enumerate(tracer.conditions) if e])


class _UnansweredError(ValueError):
    """The path depends on what is known only where the module's submodules run."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__("its path depends on what its submodules return")
        self.node = node

    def value(self, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """What it is in a call with these tensors."""
        return _value(self.node, module, dict(zip(self.node.graph.find_nodes(op="placeholder"), tensors, strict=True)))


class _Tracer(fx.Tracer):
    """Captures a forward whose arguments have a known form."""

    proxy_buffer_attributes = True
    record_stack_traces = True

    def __init__(
        self, recorder: Recorder, form: Form, answers: list[Any], given: Sequence[Tensor] | None, whole: bool
    ) -> None:
        einops = sys.modules.get("einops")
        wrapped = tuple(f for name in _EINOPS if (f := getattr(einops, name, None)) is not None)
        super().__init__(autowrap_functions=wrapped)
        self.recorder, self.form, self.whole = recorder, form, whole
        self.known, self.given = answers, given
        self.answers: list[Any] = []
        self.conditions: list[tuple[fx.Node, bool]] = []
        self.failed: ValueError | None = None
        self._lengths: dict[tuple[fx.Node, str], Any] = {}
        self._state: tuple[object, ...] = ()

    # what is gone through ---------------------------------------------------------------------------------------------

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Calls of submodules stay calls, or with ``whole`` those of torch and those written anew."""
        leaf = not self.whole or super().is_leaf_module(m, module_qualified_name) or leaves.rewritten(m) is not None
        if not leaf:
            self.recorder.enter(m)
        return leaf

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """One placeholder for each tensor; the rest of the arguments is what it is."""
        self._state = self._states()
        names = [*inspect.signature(root_fn).parameters][1:]
        proxies: list[fx.Proxy] = []

        def placeholder(name: str) -> fx.Proxy:
            given = names[int(name[5:])] if name[5:].isdigit() and int(name[5:]) < len(names) else name
            proxies.append(self.create_proxy("placeholder", given, (), {}))
            return proxies[-1]

        args, kwargs = self.form.call(placeholder)

        def called(root: nn.Module, *_: Any) -> Any:
            result = root_fn(root, *args, **kwargs)
            if Form.of(args, kwargs)[0] != after:
                self.refuse("it changes a container that it was given")
            return result

        after = Form.of(args, kwargs)[0]
        return called, [self.root, *proxies]

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """A node, refused where it would run under another state than the rest."""
        if self._states() != self._state:
            self.refuse("part of it runs under another grad mode or autocast")
        return super().create_node(*args, **kwargs)

    @staticmethod
    def _states() -> tuple[object, ...]:
        names = ("gradients", "autocast", "inference mode", "default dtype")
        return tuple(guards.STATES[name]() for name in names)

    def create_arg(self, a: Any) -> Any:
        """A value as an argument: what is no tensor of the module's and no constant is refused."""
        held = isinstance(a, nn.Parameter) or not isinstance(a, Tensor) or a in self.tensor_attrs
        if not held and not any(a is buffer for buffer in self.root.buffers()):
            self.refuse("it holds a tensor that is no part of the module")
        return super().create_arg(a)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """A value that says its length, its class and whether it is true, where that may be known."""
        return _Value(node, self)

    # what decides -----------------------------------------------------------------------------------------------------

    def refuse(self, reason: str) -> NoReturn:
        """Give up, also where the user's code catches errors.

        Raises:
            UnfollowedError: Always.
        """
        self.failed = self.failed or UnfollowedError(reason)
        raise self.failed

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Which way sizes decide."""
        if not follows_from_sizes(obj.node):
            self.refuse(f"{_where()} goes another way by the values of a tensor")
        return bool(self.answer(obj.node, bool))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """As many items as there are."""
        return iter([obj[i] for i in range(self.length(obj.node))])

    def keys(self, obj: fx.Proxy) -> Any:
        """The keys of what a submodule returned are not known."""
        self.refuse(f"{_where()} goes through the keys of something computed")

    def length(self, node: fx.Node) -> int:
        """How many items something has."""
        return int(self.answer(node, len))

    def answer(self, node: fx.Node, what: Callable[[Any], Any]) -> Any:
        """What a value was that decides on the way; noted, so that calls compare it."""
        key = node, what.__name__
        if key in self._lengths:
            return self._lengths[key]
        index = len(self.answers)
        asked = node if what is bool else self.graph.call_function(what, (node,))
        if what is bool:
            asked = self.graph.call_function(operator.truth, (node,))
        if index < len(self.known):
            value = self.known[index]
        elif self.given is None:
            self.refuse("its path depends on sizes in a way that it did not")
        else:
            self.failed = self.failed or _UnansweredError(asked)
            if not _early_one(asked):
                raise self.failed
            value, self.failed = _UnansweredError(asked).value(self.root, self.given), None
        early = _early_one(asked)
        if not early:
            self._late(asked, what)
            self.graph.call_function(agree, (asked, value))
        self.answers.append(value)
        self.conditions.append((asked, early))
        self._lengths[key] = value
        return value

    def _late(self, asked: fx.Node, what: Any) -> None:
        """Refuse a comparison on the way where the module's own code could not run again from the start."""
        for node in self.graph.nodes:
            layer = self.root.get_submodule(str(node.target)) if node.op == "call_module" else None
            plain = layer is None or (type(layer).__module__.startswith("torch.nn.") and not layer.training)
            if (not plain and what is bool) or mutates(node, self.root):
                self.refuse(f"{_where()} goes by a size that is known only on the way")


class _Value(fx.Proxy):
    """A value of the captured forward."""

    tracer: _Tracer

    def __getattr__(self, k: str) -> fx.proxy.Attribute:
        if k.startswith("__") and not hasattr(Tensor, k):
            raise AttributeError(k)
        if self.node.op in ("placeholder", "get_attr") and not hasattr(Tensor, k):
            raise AttributeError(k)  # a tensor has none: hasattr and getattr with a default must see that
        return _Attribute(self, k)

    def __len__(self) -> int:
        return self.tracer.length(self.node)

    def __contains__(self, item: Any) -> bool:
        return any(item is one or bool(item == one) for one in self)

    def kind(self) -> type:
        """The class of what it stands for."""
        if self.node.op in ("placeholder", "get_attr"):
            return Tensor
        name = self.tracer.answer(self.node, class_name)
        if name not in _CLASSES:
            self.tracer.refuse(f"{_where()} asks what kind of thing a {name} is")
        return _CLASSES[name]


class _Attribute(fx.proxy.Attribute):
    __len__ = _Value.__len__
    __getattr__ = _Value.__getattr__
    __contains__ = _Value.__contains__
    kind = _Value.kind


class _Fresh(TorchFunctionMode):
    """What forward makes of nothing, it makes again in each call: no tensor of the capture stays behind."""

    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = tree_leaves((args, kwargs))
        name = getattr(func, "__name__", "")
        if any(type(leaf) in (_Value, _Attribute) for leaf in found):
            return func(*args, **kwargs)
        if any(isinstance(leaf, Tensor) for leaf in found):
            if name in _VALUES:
                self.tracer.refuse(f"{_where()} reads the values of a tensor")
            asked = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else name
            if asked in _ASKED | _ASKING or name in ("__hash__", "__len__", "__repr__", "__set__"):
                return func(*args, **kwargs)
            if name == "__get__":
                return self.tracer.create_proxy("call_function", getattr, (args[0], asked), {})
        elif name not in _MADE:
            result = func(*args, **kwargs)
            if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
                return result
        kind, target = ("call_method", name) if is_tensor_method_or_property(func) else ("call_function", func)
        return self.tracer.create_proxy(kind, target, args, kwargs)


def follows_from_sizes(node: Any) -> bool:
    """Whether a value follows from shapes, dtypes and devices of tensors."""
    if isinstance(node, slice):
        return all(follows_from_sizes(part) for part in (node.start, node.stop, node.step))
    if isinstance(node, tuple | list):
        return all(follows_from_sizes(part) for part in node)
    if not isinstance(node, fx.Node):
        return True
    if is_metadata(node):
        return True
    if node.op == "call_method":
        return node.target in ("numel", "index", "count") and all(follows_from_sizes(arg) for arg in node.args)
    if node.op != "call_function" or node.kwargs:
        return False
    home = getattr(node.target, "__module__", "")
    plain = home in ("_operator", "operator", "math", "builtins") or node.target in (class_name, torch.finfo)
    return plain and bool(node.args) and all(follows_from_sizes(arg) for arg in node.args)


def is_metadata(node: Any) -> bool:
    """Whether a node asks a tensor for its shape, dtype, device or the like."""
    if not isinstance(node, fx.Node) or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_method":
        return node.target in _ASKING and not follows_from_sizes_alone(node.args[0])
    if node.target is getattr:
        return node.args[1] in _ASKED
    return node.target in (len, class_name) or node.target in (torch.numel, torch.is_floating_point)


def follows_from_sizes_alone(node: fx.Node) -> bool:
    """Whether a node is itself a size, so that a method on it is one of a number."""
    return node.op == "call_function" and node.target is getattr and node.args[1] in _ASKED


def _early_one(node: fx.Node) -> bool:
    """Whether it can be computed from the tensors of a call and the module's own before anything runs."""
    if node.op in ("placeholder", "get_attr"):
        return True
    if not follows_from_sizes(node):
        return False
    return all(_early_one(arg) for arg in node.all_input_nodes)


def _early(graph: fx.Graph, wanted: list[fx.Node]) -> fx.Graph | None:
    if not wanted:
        return None
    asked = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            for arg in node.all_input_nodes:
                copied(arg)
            copies[node] = asked.node_copy(node, lambda n: copies[n])
        return copies[node]

    for node in graph.nodes:
        if node.op == "placeholder":
            copied(node)
    asked.output(tuple(copied(node) for node in wanted))
    for node in wanted:
        if not node.users:
            graph.erase_node(node)
    return asked


def _value(wanted: fx.Node, module: nn.Module, given: Mapping[fx.Node, Any]) -> Any:
    """What a node of a graph that is not finished is in a call with these tensors."""
    known: dict[fx.Node, Any] = dict(given)

    def value(node: fx.Node) -> Any:
        if node not in known:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
            called: Any = node.target
            if node.op == "get_attr":
                known[node] = operator.attrgetter(called)(module)
            elif node.op == "call_method":
                known[node] = getattr(args[0], called)(*args[1:], **kwargs)
            else:
                called = module.get_submodule(called) if node.op == "call_module" else called
                known[node] = called(*args, **kwargs)
        return known[node]

    with torch._C.DisableTorchFunction(), torch.no_grad(), torch.random.fork_rng():
        return value(wanted)


def mutates(node: fx.Node, module: nn.Module) -> bool:
    """Whether a node writes into a tensor that was there before, as far as its name says so."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if node.op == "call_module":
        return bool(getattr(module.get_submodule(str(node.target)), "inplace", False))
    if node.op not in ("call_method", "call_function") or (name.startswith("__") and name != "__setitem__"):
        return False
    in_place = name.endswith("_") or name in ("setitem", "__setitem__") or getattr(operator, f"__{name}__", None) in (
        operator.iadd, operator.imul, operator.isub, operator.itruediv, operator.ipow, operator.imatmul,
    )  # fmt: skip
    return in_place or "out" in node.kwargs or node.kwargs.get("inplace") is True


def simplify(graph: fx.Graph) -> None:
    """Take away what is not used, and nothing that writes or draws random numbers."""
    for node in reversed(graph.nodes):
        kept = node.op in ("placeholder", "output", "call_module") or node.target is agree
        if kept or node.users or (node.op == "call_method" and str(node.target).endswith("_")):
            continue
        if node.op == "call_function" and (node.is_impure() or mutates(node, nn.Module())):
            continue
        graph.erase_node(node)


def _effect(recorder: Recorder) -> str:
    """Say where a call was made for its effect alone, which a graph would not have; empty where none was."""
    run = {code.co_name for code in recorder.codes.values()}
    for code in recorder.codes.values():
        lines = {line for _, _, line in code.co_lines() if line and (code.co_filename, line) in recorder.lines}
        if not lines or code.co_name.startswith("<"):
            continue
        tree = _parsed(code)
        if tree is None:
            if _discards(code):
                return f"the source of {code.co_qualname} cannot be read"
            continue
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.lineno in lines):
                continue
            called = node.value.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name not in run | _CONTAINERS and not (name.endswith("_") and isinstance(called, ast.Attribute)):
                place = f"{code.co_filename.rpartition('/')[2]}:{node.lineno} ({code.co_qualname})"
                return f"{place} calls something for its effect alone"
    return ""


def _parsed(code: types.CodeType) -> ast.AST | None:
    try:
        text, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(text)))
    except (OSError, TypeError, SyntaxError):
        return None
    return ast.increment_lineno(tree, first - 1)


def _discards(code: types.CodeType) -> bool:
    """Whether the code drops the result of a call."""
    steps = [step.opname for step in dis.get_instructions(code)]
    return any(a == "CALL" and b == "POP_TOP" for a, b in itertools.pairwise(steps))


@contextmanager
def _stand_ins(tracer: _Tracer) -> Iterator[None]:
    """Let ``torch.ones(n, n)`` and ``torch.finfo(x.dtype)`` be captured where they are given what is not known yet."""

    def standing(original: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            if any(type(leaf) in (_Value, _Attribute) for leaf in tree_leaves((args, kwargs))):
                return tracer.create_proxy("call_function", original, args, kwargs)
            return original(*args, **kwargs)

        return make

    def asks(value: Any, name: str) -> bool:
        if type(value) in (_Value, _Attribute) and value.node.op not in ("placeholder", "get_attr"):
            tracer.refuse(f"{_where()} asks something computed for an attribute that it may not have")
        return has(value, name)

    def of(value: Any, kinds: Any) -> bool:
        known = type(value)
        if known not in (_Value, _Attribute) or sys._getframe(1).f_code.co_filename.startswith(guards.TRUSTED):
            return instance(value, kinds)
        return known in (kinds if instance(kinds, tuple) else (kinds,)) or issubclass(value.kind(), kinds)

    has, instance = builtins.hasattr, builtins.isinstance
    names = [name for name in (*_MADE, *_NUMBERS) if has(torch, name)]
    originals = {name: getattr(torch, name) for name in names}
    try:
        builtins.hasattr, builtins.isinstance = asks, of  # type: ignore[assignment]
        for name, original in originals.items():
            setattr(torch, name, standing(original))
        yield
    finally:
        builtins.hasattr, builtins.isinstance = has, instance
        for name, original in originals.items():
            setattr(torch, name, original)


def _where() -> str:
    """The line of the user's that asks."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(guards.TRUSTED):
        frame = frame.f_back
    if frame is None:
        return "it"
    code = frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} ({code.co_qualname})"


# how a model calls its modules ----------------------------------------------------------------------------------------


def calls_of(model: nn.Module, calls: Sequence[Call], paths: Sequence[str], run: Any = None) -> dict[str, list[Call]]:
    """What each of these modules is called with in some calls of a copy of the model.

    Args:
        model: It stays as it is.
        calls: Of the model.
        paths: Of the modules.
        run: Runs a model on a call in its own way; None to call it without gradients.
    """
    work = copy.deepcopy(model)
    found: dict[str, list[Call]] = {path: [] for path in paths}

    def keeps(path: str) -> Callable[..., None]:
        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found[path].append(_copied(Call(args, dict(kwargs))))

        return keep

    for path in paths:
        work.get_submodule(path).register_forward_pre_hook(keeps(path), with_kwargs=True)
    with torch.random.fork_rng(), torch.set_grad_enabled(run is not None):
        for call in calls:
            if run is not None:
                run(work, call)
            else:
                own = _copied(call)
                work(*own.args, **own.kwargs)
    return found


def _copied(call: Call) -> Call:
    """The same call with tensors of its own; one that is given twice is so again."""
    copies: dict[int, Tensor] = {}
    return call.map(lambda _, tensor: copies.setdefault(id(tensor), tensor.detach().clone()))


def same(module: nn.Module, own: Captured, calls: Sequence[Call], tolerance: float) -> bool:
    """Whether the graph returns in these calls what the module's own code does, within a tolerance."""
    run = leaves.function(own.graph)

    def graph(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return run(module, *own.tensors(args, kwargs))

    forward = type(module).forward
    return all(_alike(_outputs(forward, module, c), _outputs(graph, module, c), tolerance) for c in calls)


def _outputs(forward: Callable[..., Any], module: nn.Module, call: Call) -> list[Tensor]:
    own = _copied(call)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        return [tensor for _, tensor in tensors_in(forward(module, *own.args, **own.kwargs))]


def _alike(one: list[Tensor], other: list[Tensor], tolerance: float) -> bool:
    return len(one) == len(other) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) and torch.allclose(a, b, tolerance, tolerance, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )
