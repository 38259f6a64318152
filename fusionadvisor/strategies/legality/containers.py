"""What the methods of lists, tuples, dicts, sets and strings do with values."""

import ast
from typing import TYPE_CHECKING

from fusionadvisor.strategies.legality.standin import stand_in
from fusionadvisor.strategies.legality.values import (
    NONE,
    NOTHING,
    PLAIN,
    UNKNOWN,
    Arguments,
    Atom,
    Box,
    Constant,
    Live,
    Value,
    constant,
    join,
    known,
)

if TYPE_CHECKING:
    from fusionadvisor.strategies.legality.machine import Machine


def container_method(m: "Machine", atom: Atom, name: str, arguments: Arguments, node: ast.AST) -> Value | None:
    """A method of a list, tuple, dict, set or string; None where the receiver is none of them."""
    receiver: Value = frozenset({atom})
    if isinstance(atom, Constant):
        return _text_method(atom, name, arguments)
    if isinstance(atom, Live) and not isinstance(atom.obj, list | tuple | dict | set):
        return None
    if not isinstance(atom, Live | Box):
        return None
    if isinstance(atom, Box) and not issubclass(atom.kind, list | tuple | dict | set):
        return None
    keyed = issubclass(atom.kind if isinstance(atom, Box) else type(atom.obj), dict)
    if name in ("append", "add", "insert", "appendleft", "extend", "update", "setdefault", "__setitem__"):
        return _added(m, atom, name, arguments, node)
    if name == "values" and keyed:
        return m.box(list, node, *_values(m, atom))
    if name == "items" and keyed:
        keys, values = m.elements(receiver, node)[0], _values(m, atom)
        if keys is not None and values[0] is not None:
            rows = enumerate(zip(keys, values[0], strict=True))
            return m.box(list, node, [m.box(tuple, stand_in(node, i), [*row]) for i, row in rows])
        pair = m.box(tuple, stand_in(node, -1), [UNKNOWN, join(*m.contents(receiver)) or UNKNOWN])
        return m.box(list, node, None, None, pair)
    if name == "keys" and keyed:
        keys = m.elements(receiver, node)[0]
        return m.box(list, node, keys) if keys is not None else m.box(list, node, None, None, UNKNOWN)
    if name in ("get", "pop", "popitem", "popleft", "__getitem__"):
        index = arguments.get(0)
        default = arguments.positional[1] if len(arguments.positional) > 1 else (NONE if name == "get" else NOTHING)
        key = known(index) if index is not None else None
        if name == "get" and key is not None and isinstance(atom, Live) and (id(atom.obj), "[]") not in m.heap:
            return m.unsettled(atom.obj[key.value]) if key.value in atom.obj else join(default, UNKNOWN)
        if name == "get" and key is not None and isinstance(atom, Box) and atom.keys is not None:
            return atom.keys.get(key.value, default)
        return _loosened(m, atom, name, join(*m.contents(receiver), default) or UNKNOWN)
    if name == "__iter__":
        return receiver
    if name == "copy":
        items = m.elements(receiver, node)[0] if not keyed else None
        return m.box(dict if keyed else list, node, items, None, NOTHING if items else join(*m.contents(receiver)))
    if name in ("clear", "sort", "reverse", "remove", "discard", "rotate"):
        for given in (value for keyword, value in arguments.named if keyword == "key"):
            m.call(given, Arguments((join(*m.contents(receiver)),)), node)
        return _loosened(m, atom, name, NONE)
    if name not in ("index", "count", "__len__", "__contains__", "keys", "isdisjoint"):
        m.operation(name, [receiver, *arguments], node)  # send, throw, union …
        return join(*m.contents(receiver), *(part for value in arguments for part in m.contents(value)), UNKNOWN)
    return UNKNOWN


def _loosened(m: "Machine", atom: Box | Live, name: str, result: Value) -> Value:
    """Note that the items of a container may be fewer, or in another order."""
    if name in ("get", "__getitem__"):
        return result
    if isinstance(atom, Box):
        m.growth += atom.put(NOTHING)
    else:
        m.loosen(atom)
    return result


def _values(m: "Machine", atom: Box | Live) -> tuple[list[Value] | None, None, Value]:
    """The values of a dict for a new list."""
    if isinstance(atom, Box):
        return (list(atom.keys.values()), None, NOTHING) if atom.keys is not None else (None, None, atom.content)
    if (id(atom.obj), "[]") in m.heap:
        return None, None, join(*m.contents(frozenset({atom})))
    return [m.lifted(value) for value in atom.obj.values()], None, NOTHING


def _added(m: "Machine", atom: Box | Live, name: str, arguments: Arguments, node: ast.AST) -> Value:
    several = name in ("extend", "update")
    given = [v for value in arguments for v in (m.contents(value) if several else [value])]
    value = join(*given)
    if isinstance(atom, Live):
        m.put_in(atom, value, node, name)
        return join(*m.contents(frozenset({atom})), NONE) if name == "setdefault" else NONE
    if name in ("append", "extend") and atom.items is not None and atom.path == m.path:
        added = [value] if name == "append" else m.elements(next(iter(arguments), NOTHING), node)[0]
        if added is not None:
            atom.items += added
            atom.content |= join(*added)
            return NONE
    m.growth += atom.put(value)
    return join(atom.content, NONE) if name == "setdefault" else NONE


def _text_method(atom: Constant, name: str, arguments: Arguments) -> Value:
    constants = [known(value) for value in arguments.positional]
    exact = not arguments.named and arguments.rest is None and all(c is not None for c in constants)
    if isinstance(atom.value, str) and exact:
        try:
            result = getattr(atom.value, name)(*(c.value for c in constants if c is not None))
        except (TypeError, ValueError, AttributeError, LookupError):
            return UNKNOWN
        if type(result) in PLAIN:
            return constant(result, atom.flags.union(*(c.flags for c in constants if c is not None)))
    return UNKNOWN
