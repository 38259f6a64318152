"""What items and iteration mean, on live containers and on what the code makes."""

import ast
from typing import Any

from torch import nn

from fusionadvisor.strategies.legality.calls import Calls
from fusionadvisor.strategies.legality.events import Kind
from fusionadvisor.strategies.legality.objects import own_method
from fusionadvisor.strategies.legality.values import (
    NOTHING,
    OPAQUE,
    PLAIN,
    UNKNOWN,
    Arguments,
    Atom,
    Box,
    Constant,
    Live,
    Other,
    Reach,
    Result,
    Value,
    Weight,
    constant,
    join,
    known,
)

SOME = slice("some")
"""A slice whose bounds are not known."""


class Items(Calls):
    """Items."""

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
        if custom := own_method(kind, "__getitem__"):
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

    def elements(self, value: Value, node: ast.AST | None) -> tuple[list[Value] | None, Value]:
        """The items of a sequence where they are known one by one, and what any of them may be."""
        value = join(*(atom.value if isinstance(atom, Other) else frozenset({atom}) for atom in value))
        exact = self._exact(next(iter(value))) if len(value) == 1 else None
        if exact is not None:
            return exact, join(*exact)
        found = []
        for atom in value:
            kind = atom.kind if isinstance(atom, Box) else type(atom.obj) if isinstance(atom, Live) else object
            if node is not None and (custom := own_method(kind, "__iter__")):
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
        if own_method(kind, "__iter__"):
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
