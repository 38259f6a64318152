"""What attributes, items and iteration mean, on live objects and on what the code makes."""

import ast
import inspect
from functools import cached_property
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from fusionadvisor.strategies.legality.calls import Calls
from fusionadvisor.strategies.legality.code import trusted
from fusionadvisor.strategies.legality.events import Kind
from fusionadvisor.strategies.legality.values import (
    NOTHING,
    OPAQUE,
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
    Reach,
    Result,
    Super,
    Value,
    Weight,
    constant,
    join,
    known,
)

METADATA = frozenset(
    {"shape", "dtype", "device", "ndim", "layout", "is_cuda", "requires_grad", "itemsize", "is_leaf", "is_sparse",
     "is_quantized", "is_meta", "names", "grad_fn", "is_nested"}
)  # fmt: skip
"""Attributes of a tensor that tell nothing of its values."""
_MISSING = object()
SOME = slice("some")
"""A slice whose bounds are not known."""


class Attributes(Calls):
    """Attributes and items."""

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
        if _own(type(module), "__getattribute__"):
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
        if custom := _own(type(module), "__getattr__"):
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
        if _own(type(obj), "__getattribute__"):
            self.escape("__getattribute__", node, [frozenset({Live(obj)})])
        own = getattr(obj, "__dict__", {})
        if isinstance(own, dict) and name in own and not _data_descriptor(type(obj), name):
            return join(stored, self.unsettled(own[name]))
        member = inspect.getattr_static(type(obj), name, _MISSING)
        if member is _MISSING:
            if custom := _own(type(obj), "__getattr__"):
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
        if _own(box.kind, "__getattribute__"):
            self.escape("__getattribute__", node, [frozenset({box})])
        if box.kind in (list, tuple, dict, set) or trusted(box.kind.__module__):
            return frozenset({Method(name, frozenset({box}))}) if self.is_called(node) else join(box.content, UNKNOWN)
        if member is not _MISSING and type(member) not in PLAIN:
            return self._descriptor(member, frozenset({box}), node)
        if custom := _own(box.kind, "__getattr__"):
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
        custom = _own(box.kind, "__setattr__")
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

    def remove(self, value: Value, node: ast.AST) -> None:
        """Take an attribute or an item away."""
        for atom in value:
            if isinstance(atom, Box):
                self.growth += atom.put(NOTHING)
            elif isinstance(atom, Live):
                self.record(Kind.WRITE, "del", node, [frozenset({atom})])
                if id(atom.obj) in self.namespaces:
                    self.escape("a namespace", node, [self.lifted(self.namespaces[id(atom.obj)])])
                self.loosen(atom)

    def loosen(self, atom: Live) -> None:
        """Note that the items of a live container may be others, or in another order."""
        self.changed |= (id(atom.obj), "[]") not in self.heap
        self.heap.setdefault((id(atom.obj), "[]"), NOTHING)

    def _set_live(self, obj: Any, name: str, new: Value, node: ast.AST) -> None:
        if isinstance(obj, nn.Module):
            if name in obj._modules or name in obj._parameters or name in obj._buffers:
                self.record(Kind.WRITE, name, node, [frozenset({Live(obj)})])
            setter = inspect.getattr_static(type(obj), name, None)
            if isinstance(setter, property) and setter.fset is not None:
                self.call(self.lifted(setter.fset), Arguments((frozenset({Live(obj)}), new)), node)
                return
        if custom := _own(type(obj), "__setattr__"):
            self.call(self.lifted(custom), Arguments((frozenset({Live(obj)}), constant(name), new)), node)
        self.keep((id(obj), name), new, node, name)

    # Items

    def item(self, value: Value, index: Value, node: ast.AST) -> Value:
        """Read ``value[index]``."""
        others = [atom for atom in index if isinstance(atom, Other)]
        at = known(index)
        if at is not None and at.flags:
            others.append(Other(UNKNOWN, at.flags))
        found = [self._item(atom, index.difference(others), node) for atom in value]
        held = frozenset(atom for atom in value if isinstance(atom, Live | Box))
        if held:
            found += [frozenset({Other(self.item(held, other.value, node), other.flags)}) for other in others]
        return join(*found) if value else UNKNOWN

    def _item(self, atom: Atom, index: Value, node: ast.AST) -> Value:
        if isinstance(atom, Other):
            return frozenset({Other(self.item(atom.value, index, node), atom.flags)})
        at = known(index)
        slices = [a.obj for a in index if isinstance(a, Live) and isinstance(a.obj, slice)]
        cut = slices[0] if slices and len(index) == 1 else None
        kind = atom.kind if isinstance(atom, Box) else type(atom.obj) if isinstance(atom, Live) else object
        if custom := _own(kind, "__getitem__"):
            return self.call(self.lifted(custom), Arguments((frozenset({atom}), index)), node)
        if isinstance(atom, Box):
            return self._item_of_box(atom, at, cut, node)
        if isinstance(atom, Live) and isinstance(
            atom.obj, nn.ModuleList | nn.ModuleDict | nn.Sequential | list | tuple | dict | range
        ):
            return self._item_of_live(atom, at, cut, node)
        if isinstance(atom, Live) and not isinstance(atom.obj, type) and hasattr(type(atom.obj), "__getitem__"):
            return self.call(self.attribute(frozenset({atom}), "__getitem__", node), Arguments((index,)), node)
        if isinstance(atom, Constant):
            return UNKNOWN
        return self.operation("getitem", [frozenset({atom}), index], node)

    def _item_of_box(self, box: Box, at: Constant | None, cut: slice | None, node: ast.AST) -> Value:
        if box.items is not None and at is not None and isinstance(at.value, int):
            return box.items[at.value] if -len(box.items) <= at.value < len(box.items) else NOTHING
        if box.items is not None and cut is not None and cut is not SOME:
            return self.box(list, node, box.items[cut])
        if box.keys is not None and at is not None:
            return box.keys.get(at.value, NOTHING if issubclass(box.kind, dict) else box.content)
        if cut is not None:
            return self.box(list, node, None, None, box.content)
        return join(box.content, UNKNOWN) if not box.content else box.content

    def _item_of_live(self, atom: Live, at: Constant | None, cut: slice | None, node: ast.AST) -> Value:
        stored = self.heap.get((id(atom.obj), "[]"), NOTHING)
        if cut is SOME:
            return self.box(list, node, None, None, join(*self.contents(frozenset({atom}))))
        if cut is not None:
            try:
                key = ("part", id(atom.obj), cut.start, cut.stop, cut.step)
                return join(stored, self.once(key, lambda: atom.obj[cut]))
            except (TypeError, ValueError, KeyError):
                return join(stored, UNKNOWN)
        if at is not None:
            try:
                return join(stored, self._held(atom.obj, atom.obj[at.value]))
            except (TypeError, KeyError, IndexError, NotImplementedError):
                return stored
        held = [*atom.obj.values()] if isinstance(atom.obj, dict | nn.ModuleDict) else [*atom.obj]
        return join(stored, *(self._held(atom.obj, value) for value in held)) or UNKNOWN

    def _held(self, container: Any, item: Any) -> Value:
        """An item of a live container. Anybody may set a flag in it; numbers and names in a list are its structure."""
        if isinstance(container, dict) or (isinstance(item, bool | None) and not isinstance(container, nn.Module)):
            return self.unsettled(item)
        return self.lifted(item)

    def set_item(self, value: Value, index: Value, new: Value, node: ast.AST) -> None:
        """Write ``value[index] = new``."""
        at = known(index)
        for atom in value:
            if isinstance(atom, Box):
                keys = atom.keys if at is not None and issubclass(atom.kind, dict) else None
                if keys is None or at is None or (at.value not in keys and atom.path != self.path):
                    self.growth += atom.put(new)  # in another branch it may stay away
                else:
                    keys[at.value] = join(keys.get(at.value, NOTHING), new)
                    atom.content |= new
            elif isinstance(atom, Live) and isinstance(atom.obj, nn.Module):
                self.record(Kind.WRITE, "item", node, [frozenset({atom})])
                self.keep((id(atom.obj), "[]"), new, node, "item")
            elif isinstance(atom, Live):
                self.put_in(atom, new, node, "item")
            else:
                self.record(Kind.WRITE, "setitem", node, [frozenset({atom})])
                self.record(Kind.OPERATION, "setitem", node, [new])

    def put_in(self, atom: Live, new: Value, node: ast.AST, name: str) -> None:
        """Store a value in a live container."""
        if id(atom.obj) in self.namespaces:
            self.escape("a namespace", node, [self.lifted(self.namespaces[id(atom.obj)]), new])
        self.keep((id(atom.obj), "[]"), new, node, name)
        self.loosen(atom)

    # Iteration

    def elements(self, value: Value, node: ast.AST | None) -> tuple[list[Value] | None, Value]:
        """The items of a sequence where they are known one by one, and what any of them may be."""
        value = join(*(atom.value if isinstance(atom, Other) else frozenset({atom}) for atom in value))
        exact = self._exact(next(iter(value))) if len(value) == 1 else None
        if exact is not None:
            return exact, join(*exact)
        found = []
        for atom in value:
            kind = atom.kind if isinstance(atom, Box) else type(atom.obj) if isinstance(atom, Live) else object
            if node is not None and (custom := _own(kind, "__iter__")):
                made = self.call(self.lifted(custom), Arguments((frozenset({atom}),)), node)
                found.append(self.elements(made - {atom}, node)[1])
            elif isinstance(atom, Result | Weight) and node is not None:
                found.append(self.operation("unpack", [frozenset({atom})], node))
            elif isinstance(atom, Live) and isinstance(atom.obj, nn.Module) and self._exact(atom) is None:
                found.append(frozenset({atom}))  # what cannot be iterated was a slice of a container of such
            elif (
                isinstance(atom, Live) and node is not None and self._exact(atom) is None and not self._container(atom)
            ):
                if Reach.of([frozenset({atom})]).modules:
                    self.escape("iteration", node, [frozenset({atom})])
                found.append(UNKNOWN)
            else:
                found += self.contents(frozenset({atom})) or [UNKNOWN]
        return None, join(*found) or UNKNOWN

    def contents(self, value: Value) -> list[Value]:
        """Everything that containers hold directly."""
        found: list[Value] = []
        for atom in value:
            if isinstance(atom, Box):
                found.append(atom.content)
            elif isinstance(atom, Other):
                found += self.contents(atom.value)
            elif isinstance(atom, Live):
                if isinstance(atom.obj, dict | nn.ModuleDict):
                    found += [self._held(atom.obj, item) for item in atom.obj.values()]
                if isinstance(atom.obj, list | tuple | set | frozenset | range | dict | nn.Module):
                    found += [self._held((), item) for item in self._listed(atom.obj)]
                found.append(self.heap.get((id(atom.obj), "[]"), NOTHING))
            elif atom is OPAQUE:
                found.append(UNKNOWN)
        return found

    def _container(self, atom: Live) -> bool:
        return isinstance(atom.obj, list | tuple | dict | set | frozenset | range | str | nn.Module)

    def _exact(self, atom: Atom) -> list[Value] | None:
        kind = atom.kind if isinstance(atom, Box) else type(atom.obj) if isinstance(atom, Live) else object
        if _own(kind, "__iter__"):
            return None
        if isinstance(atom, Box):
            if atom.keys is not None and issubclass(atom.kind, dict):
                return [constant(key) if type(key) in PLAIN else UNKNOWN for key in atom.keys]
            return atom.items if not issubclass(kind, set) or len(atom.items or ()) < 2 else None
        if isinstance(atom, Constant) and isinstance(atom.value, str):
            return [constant(letter) for letter in atom.value]
        if not isinstance(atom, Live) or (id(atom.obj), "[]") in self.heap:
            return None
        if isinstance(atom.obj, list | tuple | range | dict | nn.Module | type({}.values()) | type({}.items())):
            container = isinstance(atom.obj, nn.ModuleList | nn.Sequential | nn.ModuleDict | nn.ParameterList)
            if container or not isinstance(atom.obj, nn.Module):
                return [self._held((), item) for item in self._listed(atom.obj)]
        return None

    def _listed(self, held: Any) -> list[Any]:
        """What iterating a live container gives."""
        if isinstance(held, nn.ModuleDict):
            return [*held._modules]
        if isinstance(held, nn.ModuleList | nn.Sequential):
            return [*held._modules.values()]
        return [*held] if not isinstance(held, nn.Module) or isinstance(held, nn.ParameterList) else []

    def kinds(self, value: Value) -> tuple[type, ...] | None:
        """The classes that the second argument of isinstance names; None where they are not known."""
        found: list[type] = []
        for atom in value:
            items = self._exact(atom)
            if isinstance(atom, Live) and isinstance(atom.obj, type):
                found.append(atom.obj)
            elif items is not None:
                for item in items:
                    inner = self.kinds(item)
                    if inner is None:
                        return None
                    found += inner
            else:
                return None
        return tuple(found)


def _own(kind: type, name: str) -> Any:
    """A special method that a class of the user's defines, None where it has that of Python or torch."""
    member = inspect.getattr_static(kind, name, None)
    return member if isinstance(member, FunctionType) and not trusted(member.__globals__.get("__name__")) else None


def _data_descriptor(kind: type, name: str) -> bool:
    member = inspect.getattr_static(kind, name, None)
    return isinstance(member, property) or (
        member is not None and hasattr(type(member), "__set__") and not isinstance(member, Tensor)
    )
