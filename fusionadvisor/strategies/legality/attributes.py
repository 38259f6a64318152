"""What attributes mean, on live objects and on what the code makes."""

import ast
import inspect
from functools import cached_property
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from fusionadvisor.strategies.legality.code import trusted
from fusionadvisor.strategies.legality.events import Kind
from fusionadvisor.strategies.legality.items import Items
from fusionadvisor.strategies.legality.objects import own_method
from fusionadvisor.strategies.legality.values import (
    NOTHING,
    PLAIN,
    UNKNOWN,
    Arguments,
    Atom,
    Bound,
    Box,
    Closure,
    Constant,
    Flag,
    Live,
    Method,
    Other,
    Partial,
    Result,
    Super,
    Value,
    Weight,
    constant,
    join,
)

METADATA = frozenset(
    {"shape", "dtype", "device", "ndim", "layout", "is_cuda", "requires_grad", "itemsize", "is_leaf", "is_sparse",
     "is_quantized", "is_meta", "names", "grad_fn", "is_nested"}
)  # fmt: skip
"""Attributes of a tensor that tell nothing of its values."""
_MISSING = object()


class Attributes(Items):
    """Attributes."""

    def attribute(self, value: Value, name: str, node: ast.AST) -> Value:
        """Read an attribute."""
        return join(*(self._attribute(atom, name, node) for atom in value)) if value else UNKNOWN

    def _attribute(self, atom: Atom, name: str, node: ast.AST) -> Value:
        if isinstance(atom, Other):
            return frozenset({Other(self.attribute(atom.value, name, node), atom.flags)})
        if isinstance(atom, Live):
            if isinstance(atom.obj, nn.Module):
                return self._of_module(atom.obj, name, node)
            return self._of_object(atom.obj, name, node)
        if isinstance(atom, Super):
            return self._of_super(atom, name, node)
        if isinstance(atom, Result | Weight):
            if name in METADATA:
                self.record(Kind.METADATA, name, node, [frozenset({atom})])
                return UNKNOWN
            if self.is_called(node):
                return frozenset({Method(name, frozenset({atom}))})
            return self.operation(name, [frozenset({atom})], node)
        if isinstance(atom, Box):
            return self._of_box(atom, name, node)
        if isinstance(atom, Constant):
            return frozenset({Method(name, frozenset({atom}))}) if hasattr(atom.value, name) else NOTHING
        if isinstance(atom, Partial | Closure | Bound):
            if name not in ("__name__", "__qualname__", "__doc__"):
                self.escape(f"attribute {name} of a function", node, [frozenset({atom})])
            return UNKNOWN
        return frozenset({Method(name, frozenset({atom}))}) if self.is_called(node) else UNKNOWN

    def _of_module(self, module: nn.Module, name: str, node: ast.AST) -> Value:
        stored = self.heap.get((id(module), name), NOTHING)
        if own_method(type(module), "__getattribute__"):
            self.escape("__getattribute__", node, [frozenset({Live(module)})])
        found = self._live_attribute(module, name, node)
        return join(stored, found) if found is not None else stored or UNKNOWN

    def _live_attribute(self, module: nn.Module, name: str, node: ast.AST) -> Value | None:
        """What a module has under a name; None where there is nothing."""
        path = self.paths.get(id(module))
        flag = () if path is None else (Flag(id(module), path, name, None),)
        if name == "__class__":
            return self.lifted(type(module))
        if name == "__dict__":
            return self.lifted(vars(module))
        member = inspect.getattr_static(type(module), name, _MISSING)
        if isinstance(member, property | cached_property) and name not in vars(module):
            return self._descriptor(member, frozenset({Live(module)}), node)
        for tensors in (module._parameters, module._buffers):
            if name in tensors:
                own = frozenset({Weight(id(module), name)})
                self.record(Kind.NAMED, name, node, [own])
                tensor = tensors[name]
                return own if tensor is None else join(own, self.lifted(tensor) - UNKNOWN)
        value = module._modules.get(name, _MISSING)
        if value is _MISSING:
            value = vars(module).get(name, _MISSING)
        if value is not _MISSING:
            if type(value) in PLAIN and flag:
                return constant(value, [Flag(id(module), path or "", name, value)])
            return self.unsettled(value)
        if member is not _MISSING:
            if type(member) in PLAIN and flag:
                return constant(member, [Flag(id(module), path or "", name, member)])
            if type(member) in PLAIN:
                return self.unsettled(member)
            return self._descriptor(member, frozenset({Live(module)}), node)
        if custom := own_method(type(module), "__getattr__"):
            return self.call(self.lifted(custom), Arguments((frozenset({Live(module)}), constant(name))), node)
        return None

    def _of_object(self, obj: Any, name: str, node: ast.AST) -> Value:
        stored = self.heap.get((id(obj), name), NOTHING)
        if isinstance(obj, ModuleType):
            found = vars(obj).get(name, _MISSING)
            return join(stored, self.lifted(found)) if found is not _MISSING else stored or UNKNOWN
        if isinstance(obj, type):
            member = inspect.getattr_static(obj, name, _MISSING)
            if isinstance(member, staticmethod):
                return join(stored, self.lifted(member.__func__))
            if type(member).__name__ == "classmethod_descriptor":
                return join(stored, self.lifted(getattr(obj, name)))
            if isinstance(member, classmethod):
                return join(stored, frozenset({Bound(Live(member.__func__), frozenset({Live(obj)}))}))
            return join(stored, self.unsettled(member)) if member is not _MISSING else stored or UNKNOWN
        if own_method(type(obj), "__getattribute__"):
            self.escape("__getattribute__", node, [frozenset({Live(obj)})])
        own = getattr(obj, "__dict__", {})
        if isinstance(own, dict) and name in own and not _data_descriptor(type(obj), name):
            return join(stored, self.unsettled(own[name]))
        member = inspect.getattr_static(type(obj), name, _MISSING)
        if member is _MISSING:
            if custom := own_method(type(obj), "__getattr__"):
                return join(stored, self.call(self.lifted(custom), Arguments((self.lifted(obj), constant(name))), node))
            return stored or UNKNOWN
        if trusted(type(obj).__module__) and not isinstance(member, FunctionType) and not isinstance(obj, MethodType):
            if self.is_called(node):
                return frozenset({Method(name, self.lifted(obj))})
            return join(stored, self.lifted(getattr(obj, name, None)))
        return join(stored, self._descriptor(member, self.lifted(obj), node))

    def _descriptor(self, member: Any, receiver: Value, node: ast.AST) -> Value:
        """What reading a member of a class gives on an instance."""
        if isinstance(member, property):
            return self.call(self.lifted(member.fget), Arguments((receiver,)), node) if member.fget else UNKNOWN
        if isinstance(member, cached_property):
            return self.call(self.lifted(member.func), Arguments((receiver,)), node)
        if isinstance(member, staticmethod):
            return self.lifted(member.__func__)
        if isinstance(member, classmethod):
            kinds = [frozenset({Live(type(atom.obj))}) for atom in receiver if isinstance(atom, Live)]
            return frozenset({Bound(Live(member.__func__), join(*kinds))})
        if isinstance(member, FunctionType) or (callable(member) and hasattr(type(member), "__get__")):
            return frozenset({Bound(Live(member), receiver)})
        if type(member).__name__ in ("member_descriptor", "getset_descriptor"):
            found = [self.unsettled(getattr(a.obj, member.__name__, None)) for a in receiver if isinstance(a, Live)]
            return join(*found) or UNKNOWN
        if hasattr(type(member), "__get__"):
            self.escape(f"descriptor {type(member).__name__}", node, [receiver])
            return UNKNOWN
        return self.lifted(member)

    def _of_super(self, atom: Super, name: str, node: ast.AST) -> Value:
        found = []
        for receiver in atom.receiver:
            holder = receiver.obj if isinstance(receiver, Live) else None
            kind = holder if isinstance(holder, type) else type(holder)
            if isinstance(receiver, Box):
                kind = receiver.kind
            kinds = list(kind.__mro__)
            after = kinds[kinds.index(atom.owner) + 1 :] if atom.owner in kinds else kinds
            member = next((vars(base)[name] for base in after if name in vars(base)), _MISSING)
            if member is not _MISSING:
                found.append(self._descriptor(member, frozenset({receiver}), node))
            elif isinstance(holder, nn.Module) and name == "__getattr__":
                found.append(frozenset({Bound(Live(nn.Module.__getattr__), frozenset({receiver}))}))
        return join(*found) if found else UNKNOWN

    def _of_box(self, box: Box, name: str, node: ast.AST) -> Value:
        if box.keys is not None and name in box.keys and not issubclass(box.kind, dict):
            return box.keys[name]
        member = inspect.getattr_static(box.kind, name, _MISSING)
        if own_method(box.kind, "__getattribute__"):
            self.escape("__getattribute__", node, [frozenset({box})])
        if box.kind in (list, tuple, dict, set) or trusted(box.kind.__module__):
            return frozenset({Method(name, frozenset({box}))}) if self.is_called(node) else join(box.content, UNKNOWN)
        if member is not _MISSING and type(member) not in PLAIN:
            return self._descriptor(member, frozenset({box}), node)
        if custom := own_method(box.kind, "__getattr__"):
            return join(
                box.content, self.call(self.lifted(custom), Arguments((frozenset({box}), constant(name))), node)
            )
        return join(box.content, UNKNOWN)

    def any_attribute(self, atom: Atom, node: ast.AST) -> Value:
        """Whatever attribute a name that is not known may give."""
        if isinstance(atom, Box):
            return join(atom.content, UNKNOWN)
        if not isinstance(atom, Live):
            self.escape("an attribute whose name is not known", node, [frozenset({atom})])
            return UNKNOWN
        kinds = [kind for kind in type(atom.obj).__mro__ if not trusted(kind.__module__)]
        names = {name for kind in kinds for name in vars(kind) if not name.startswith("__")}
        names |= getattr(atom.obj, "__dict__", {}).keys()
        if isinstance(atom.obj, nn.Module):
            names -= vars(nn.Module()).keys() - {"training"}
            names |= {*atom.obj._modules, *atom.obj._parameters, *atom.obj._buffers}
        return join(*(self.attribute(frozenset({atom}), name, node) for name in sorted(names)))

    def set_attribute(self, value: Value, name: str, new: Value, node: ast.AST) -> None:
        """Set an attribute."""
        for atom in value:
            if isinstance(atom, Box):
                self._set_of_box(atom, name, new, node)
            elif isinstance(atom, Result | Weight):
                self.record(Kind.WRITE, name, node, [frozenset({atom})])
                self.record(Kind.OPERATION, f"set {name}", node, [new])
            elif isinstance(atom, Live):
                self._set_live(atom.obj, name, new, node)
            else:
                self.escape(f"attribute {name} of an unknown object", node, [new])

    def _set_of_box(self, box: Box, name: str, new: Value, node: ast.AST) -> None:
        setter = inspect.getattr_static(box.kind, name, None)
        custom = own_method(box.kind, "__setattr__")
        if custom or (isinstance(setter, property) and setter.fset is not None):
            given = (frozenset({box}), *((constant(name),) if custom else ()), new)
            self.call(self.lifted(custom or setter.fset), Arguments(given), node)
            self.growth += box.put(new)
        elif box.keys is None or box.items:
            self.growth += box.put(new)
        else:
            sure = box.path == self.path and name not in box.keys
            default = NOTHING if sure or type(setter) not in PLAIN else self.lifted(setter)
            box.keys[name] = join(box.keys.get(name, default), new)
            box.content |= box.keys[name]

    def _set_live(self, obj: Any, name: str, new: Value, node: ast.AST) -> None:
        if isinstance(obj, nn.Module):
            if name in obj._modules or name in obj._parameters or name in obj._buffers:
                self.record(Kind.WRITE, name, node, [frozenset({Live(obj)})])
            setter = inspect.getattr_static(type(obj), name, None)
            if isinstance(setter, property) and setter.fset is not None:
                self.call(self.lifted(setter.fset), Arguments((frozenset({Live(obj)}), new)), node)
                return
        if custom := own_method(type(obj), "__setattr__"):
            self.call(self.lifted(custom), Arguments((frozenset({Live(obj)}), constant(name), new)), node)
        self.keep((id(obj), name), new, node, name)


def _data_descriptor(kind: type, name: str) -> bool:
    member = inspect.getattr_static(kind, name, None)
    return isinstance(member, property) or (
        member is not None and hasattr(type(member), "__set__") and not isinstance(member, Tensor)
    )
