"""Follows a forward on the way that its arguments take, and notes what decides on it."""

import builtins
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property
from torch.utils._pytree import tree_leaves

from fusionadvisor.strategies import guards, leaves
from fusionadvisor.strategies.forms import Form
from fusionadvisor.strategies.guards import UnfollowedError
from fusionadvisor.strategies.nodes import ASKED, ASKING, agree, class_name, follows_from_sizes, is_early, mutates
from fusionadvisor.strategies.recorder import Recorder

_VALUES = frozenset(
    {"__bool__", "__int__", "__float__", "__index__", "__iter__", "item", "tolist", "numpy", "equal", "allclose",
     "is_nonzero", "__contains__", "__complex__", "data_ptr"}
)  # fmt: skip
_MADE = frozenset(
    {"ones", "zeros", "full", "arange", "empty", "tensor", "as_tensor", "eye", "linspace", "logspace", "rand", "randn",
     "randint", "randperm", "scalar_tensor", "tril_indices", "triu_indices", "empty_strided", "normal"}
)  # fmt: skip
_NUMBERS = ("finfo", "iinfo")
_CLASSES: dict[str, type] = {
    kind.__name__: kind
    for kind in (Tensor, nn.Parameter, torch.Size, tuple, list, dict, int, float, bool, str, type(None), torch.dtype)
}
_EINOPS = ("rearrange", "repeat", "reduce", "einsum")


class UnansweredError(ValueError):
    """The path depends on what is known only where the module's submodules run."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__("its path depends on what its submodules return")
        self.node = node

    def value(self, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """What it is in a call with these tensors."""
        return _value(self.node, module, dict(zip(self.node.graph.find_nodes(op="placeholder"), tensors, strict=True)))


class Tracer(fx.Tracer):
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
        return iter([obj[i] for i in range(self.length(obj.node))])  # type: ignore[index]

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
            self.failed = self.failed or UnansweredError(asked)
            if not is_early(asked):
                raise self.failed
            value, self.failed = UnansweredError(asked).value(self.root, self.given), None
        early = is_early(asked)
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

    tracer: Tracer

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


class Fresh(TorchFunctionMode):
    """What forward makes of nothing, it makes again in each call: no tensor of the capture stays behind."""

    def __init__(self, tracer: Tracer) -> None:
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
            if asked in ASKED | ASKING or name in ("__hash__", "__len__", "__repr__", "__set__"):
                return func(*args, **kwargs)
            if name == "__get__":
                return self.tracer.create_proxy("call_function", getattr, (args[0], asked), {})
        elif name not in _MADE:
            result = func(*args, **kwargs)
            if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
                return result
        kind, target = ("call_method", name) if is_tensor_method_or_property(func) else ("call_function", func)
        return self.tracer.create_proxy(kind, target, args, kwargs)


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


@contextmanager
def stand_ins(tracer: Tracer) -> Iterator[None]:
    """Let ``torch.ones(n, n)`` and ``torch.finfo(x.dtype)`` be captured where they are given what is not known yet."""

    def standing(original: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            if any(type(leaf) in (_Value, _Attribute) for leaf in tree_leaves((args, kwargs))):
                return tracer.create_proxy("call_function", original, args, kwargs)
            return original(*args, **kwargs)

        return make

    def stands_for_hasattr(value: Any, name: str) -> bool:
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
        builtins.hasattr, builtins.isinstance = stands_for_hasattr, of
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
