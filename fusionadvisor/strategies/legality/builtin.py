"""What Python's own functions and containers do with values."""

import ast
import copy
import functools
import inspect
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fusionadvisor.strategies.legality.events import Kind
from fusionadvisor.strategies.legality.standin import stand_in
from fusionadvisor.strategies.legality.values import (
    NONE, NOTHING, PLAIN, UNKNOWN, Arguments, Atom, Box, Constant, Flag, Live, Partial, Reach, Result, Super, Value,
    Weight, constant, join, known,
)  # fmt: skip

if TYPE_CHECKING:
    from fusionadvisor.strategies.legality.attributes import Attributes

METADATA_METHODS = frozenset(
    {"size", "dim", "numel", "nelement", "ndimension", "element_size", "is_floating_point", "is_complex", "get_device",
     "is_inference", "is_pinned", "is_shared", "__len__", "new_zeros", "new_ones", "new_empty",
     "new_full", "new_tensor"}
)  # fmt: skip
"""Methods of a tensor that tell nothing of its values."""
SHAPED = frozenset({"view_as", "reshape_as", "expand_as", "type_as"})
"""Methods that read nothing of their argument but its shape or dtype."""
_METADATA_FUNCTIONS = (torch.is_tensor, torch.is_floating_point, torch.is_complex, torch.numel, torch.finfo, torch.iinfo,
                       torch.promote_types, torch.result_type, torch.broadcast_shapes)  # fmt: skip

Handler = Callable[["Attributes", Arguments, ast.AST], Value]


def _first(arguments: Arguments) -> Value:
    return arguments.get(0) or UNKNOWN


def _length(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    value = _first(a)
    lengths = set()
    for atom in value:
        items, _ = m.elements(frozenset({atom}), None)
        lengths.add(None if items is None else len(items))
    _asked(m, value, "len", n)
    length = lengths.pop() if len(lengths) == 1 else None
    return constant(length) if length is not None else UNKNOWN


def _asked(m: "Attributes", value: Value, name: str, node: ast.AST) -> None:
    """Note that something was asked for that does not depend on values."""
    tensors = frozenset(atom for atom in value if isinstance(atom, Result | Weight))
    if tensors:
        m.record(Kind.METADATA, name, node, [tensors])


def _isinstance(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    value, kinds = _first(a), m.kinds(a.get(1) or UNKNOWN)
    _asked(m, value, "isinstance", n)
    if kinds is None:
        return UNKNOWN
    truths: set[bool | None] = set()
    for atom in value:
        if isinstance(atom, Live):
            truths.add(isinstance(atom.obj, kinds))
        elif isinstance(atom, Constant):
            truths.add(issubclass(atom.kind, kinds))
        elif isinstance(atom, Box):
            truths.add(issubclass(atom.kind, kinds))
        else:
            truths.add(None)
    truth = truths.pop() if len(truths) == 1 else None
    return UNKNOWN if truth is None else constant(truth)


def _issubclass(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    return UNKNOWN


def _getattr(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    receiver, name = _first(a), known(a.get(1) or UNKNOWN)
    default = a.positional[2] if len(a.positional) > 2 else NOTHING
    if name is None:
        return join(*(m.any_attribute(atom, n) for atom in receiver), default, UNKNOWN)
    if default and all(_has(atom, str(name.value)) is False for atom in receiver):
        return default
    return join(m.attribute(receiver, str(name.value), n), default if _unsure(receiver, str(name.value)) else NOTHING)


def _has(atom: Atom, name: str) -> bool | None:
    if not isinstance(atom, Live):
        return None
    if isinstance(atom.obj, nn.Module):
        module = atom.obj
        held = name in vars(module) or any(name in d for d in (module._parameters, module._buffers, module._modules))
        return held or inspect.getattr_static(type(module), name, _MISSING) is not _MISSING
    own = getattr(atom.obj, "__dict__", {})
    return name in own or inspect.getattr_static(atom.obj, name, _MISSING) is not _MISSING


_MISSING = object()


def _unsure(receiver: Value, name: str) -> bool:
    return any(_has(atom, name) is not True for atom in receiver)


def _hasattr(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    receiver, name = _first(a), known(a.get(1) or UNKNOWN)
    if name is None:
        return UNKNOWN
    stored = [m.heap.get((id(atom.obj), str(name.value))) for atom in receiver if isinstance(atom, Live)]
    truths = {_has(atom, str(name.value)) for atom in receiver}
    if len(truths) != 1 or any(stored):
        return UNKNOWN
    truth = truths.pop()
    if truth is None:
        return UNKNOWN
    flags = [
        Flag(id(atom.obj), m.paths[id(atom.obj)], str(name.value), "absent")
        for atom in receiver
        if isinstance(atom, Live) and id(atom.obj) in m.paths and not truth
    ]
    return constant(truth, flags)


def _setattr(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    name = known(a.get(1) or UNKNOWN)
    if name is None:
        for atom in _first(a):
            if isinstance(atom, Live) and isinstance(atom.obj, nn.Module):
                m.record(Kind.WRITE, "setattr", n, [frozenset({atom})])
        m.escape("setattr with a name that is not known", n, [a.get(2) or NOTHING])
        return NONE
    m.set_attribute(_first(a), str(name.value), a.get(2) or UNKNOWN, n)
    return NONE


def _range(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    bounds = [known(value) for value in a.positional]
    if a.rest is None and all(bound is not None and type(bound.value) is int for bound in bounds):
        numbers = range(*(bound.value for bound in bounds if bound is not None))
        if len(numbers) <= 4096:
            return m.once(("range", numbers), lambda: numbers)
    return UNKNOWN


def _zip(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    columns = [m.elements(value, n) for value in a.positional]
    if a.rest is None and columns and all(items is not None for items, _ in columns):
        rows = list(zip(*(items for items, _ in columns if items is not None), strict=False))
        return m.box(list, n, [m.box(tuple, stand_in(n, i), list(row)) for i, row in enumerate(rows)])
    pair = m.box(tuple, stand_in(n, -1), [each for _, each in columns] if a.rest is None else None, None, a.rest or NOTHING)
    return m.box(list, n, None, None, pair)


def _enumerate(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    items, each = m.elements(_first(a), n)
    start = known(a.get(1, "start") or constant(0))
    if items is not None and start is not None:
        rows = [m.box(tuple, stand_in(n, i), [constant(i + start.value), item]) for i, item in enumerate(items)]
        return m.box(list, n, rows)
    return m.box(list, n, None, None, m.box(tuple, stand_in(n, -1), [UNKNOWN, each]))


def _listed(kind: type, turn: Callable[[list[Value]], list[Value]] = lambda items: items) -> Handler:
    def make(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
        if not a.positional and a.rest is None:
            return m.box(kind, n, [])
        items, each = m.elements(_first(a), n)
        return m.box(kind, n, turn(items)) if items is not None else m.box(kind, n, None, None, each)

    return make


def _dict(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    if not a.positional and a.rest is None:
        return m.box(dict, n, None, dict(a.named))
    given = _first(a)
    boxes = [atom for atom in given if isinstance(atom, Box)]
    if len(given) == 1 and boxes and boxes[0].keys is not None and not a.named:
        return m.box(dict, n, None, dict(boxes[0].keys))
    inner = [v for value in m.contents(given) for v in (value, *m.contents(value))]
    return m.box(dict, n, None, None, join(*inner, *(value for _, value in a.named)))


def _map(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    columns = [m.elements(value, n) for value in a.positional[1:]]
    if columns and all(items is not None for items, _ in columns):
        rows = list(zip(*(items for items, _ in columns if items is not None), strict=False))
        found = []
        for index, row in enumerate(rows):
            before, m.frame.context = m.frame.context, m.context(m.frame.context, n, index)
            found.append(m.call(_first(a), Arguments(tuple(row)), n))
            m.frame.context = before
        return m.box(list, n, found)
    result = m.call(_first(a), Arguments(tuple(each for _, each in columns)), n)
    return m.box(list, n, None, None, result)


def _filter(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    _, each = m.elements(a.get(1) or UNKNOWN, n)
    m.call(_first(a), Arguments((each,)), n)
    return m.box(list, n, None, None, each)


def _reduce(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    items, each = m.elements(a.get(1) or UNKNOWN, n)
    start = [a.positional[2]] if len(a.positional) > 2 else []
    row = [*start, *(items if items is not None else [each, each, each])]
    value = row[0] if row else UNKNOWN
    for index, item in enumerate(row[1:]):
        before, m.frame.context = m.frame.context, m.context(m.frame.context, n, index)
        value = m.call(_first(a), Arguments((value, item)), n)
        m.frame.context = before
    return value


def _next(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    _, each = m.elements(_first(a), n)
    return join(each, a.positional[1] if len(a.positional) > 1 else NOTHING)


def _super(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    kinds = [atom.obj for atom in _first(a) if isinstance(atom, Live) and isinstance(atom.obj, type)]
    return frozenset(Super(kind, a.get(1) or UNKNOWN) for kind in kinds)


def _vars(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    return m.attribute(_first(a), "__dict__", n)


def _type(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    _asked(m, _first(a), "type", n)
    kinds = [m.lifted(type(atom.obj)) if isinstance(atom, Live) else UNKNOWN for atom in _first(a)]
    return join(*kinds) or UNKNOWN


def _partial(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    return frozenset({Partial(_first(a), Arguments(a.positional[1:], a.named, a.rest))})


def _chain(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    found: list[Value] | None = []
    loose = [a.rest] if a.rest is not None else []
    for value in a.positional:
        items, each = m.elements(value, n)
        loose.append(each)
        found = [*found, *items] if found is not None and items is not None else None
    if found is not None and a.rest is None:
        return m.box(list, n, found)
    return m.box(list, n, None, None, join(*loose))


def chained(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    """``itertools.chain.from_iterable``."""
    items, each = m.elements(_first(a), n)
    if items is None:
        return m.box(list, n, None, None, m.elements(each, n)[1])
    return _chain(m, Arguments(tuple(items)), n)


def _quiet(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    """Tells people something, or asks what an object is."""
    return UNKNOWN


def _shown(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    """What shows or converts a value: it is read."""
    tensors = [v for v in a if Reach.of([v]).results]
    if tensors:
        m.operation("print", tensors, n)
    return UNKNOWN


def _asks(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    for value in a:
        _asked(m, value, "metadata", n)
    return UNKNOWN


def _scalar(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    """A number or a truth of plain data; of a tensor a value that is read."""
    if any(isinstance(atom, Result | Weight) for value in a for atom in value):
        m.operation("item", list(a), n)
    return UNKNOWN


def _reduced(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    """``sum``, ``min``, ``max``, ``any``, ``all``, ``sorted``: of sequences, and of tensors in them."""
    values = [*a, *(v for value in a.positional for v in m.contents(value))]
    callables = [v for name, v in a.named if name == "key"]
    for value in callables:
        m.call(value, Arguments((m.elements(_first(a), n)[1],)), n)
    plain = [v for v in values if v not in callables]
    if Reach.of(plain).results or Reach.of(plain).weights:
        return join(m.operation("reduce", [frozenset(a for a in v if not isinstance(a, Live)) for v in plain], n), UNKNOWN)
    return join(*(value for v in a.positional for value in m.contents(v)), UNKNOWN)


def _copied(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    return m.operation("copy", list(a), n)


def _hidden(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    """``eval``, ``exec``, ``locals``, ``globals``: they reach everything that this code reaches."""
    m.escape("eval", n, [*m.frame.current.values(), *a])
    return UNKNOWN


def _compile(m: "Attributes", a: Arguments, n: ast.AST) -> Value:
    return _first(a)


_TABLE: list[tuple[Any, Handler]] = [
    (len, _length), (isinstance, _isinstance), (issubclass, _issubclass), (getattr, _getattr), (hasattr, _hasattr),
    (setattr, _setattr), (range, _range), (zip, _zip), (enumerate, _enumerate), (list, _listed(list)),
    (tuple, _listed(tuple)), (set, _listed(set)), (frozenset, _listed(set)), (iter, _listed(list)),
    (reversed, _listed(list, lambda items: items[::-1])), (dict, _dict), (map, _map), (filter, _filter),
    (functools.reduce, _reduce), (next, _next), (super, _super), (vars, _vars), (type, _type),
    (functools.partial, _partial), (itertools.chain, _chain), (id, _quiet), (callable, _quiet), (hash, _quiet),
    (repr, _shown), (str, _shown), (format, _shown), (print, _shown), (int, _scalar), (float, _scalar),
    (bool, _scalar), (complex, _scalar), (sum, _reduced), (min, _reduced), (max, _reduced), (any, _reduced),
    (all, _reduced), (sorted, _reduced), (copy.copy, _copied), (copy.deepcopy, _copied), (eval, _hidden),
    (exec, _hidden), (locals, _hidden), (globals, _quiet), (object, _quiet), (slice, _quiet), (inspect.signature, _quiet),
    (torch.compile, _compile), *((function, _asks) for function in _METADATA_FUNCTIONS),
]  # fmt: skip
HANDLERS: dict[int, Handler] = {id(function): handler for function, handler in _TABLE}


def container_method(m: "Attributes", atom: Atom, name: str, arguments: Arguments, node: ast.AST) -> Value | None:
    """A method of a list, tuple, dict, set or string; None where the receiver is none of them."""
    receiver: Value = frozenset({atom})
    if isinstance(atom, Constant):
        return _text_method(atom, name, arguments)
    if isinstance(atom, Live) and not isinstance(atom.obj, list | tuple | dict | set):
        return None
    if not isinstance(atom, Live | Box) or (isinstance(atom, Box) and not issubclass(atom.kind, list | tuple | dict | set)):
        return None
    keyed = issubclass(atom.kind if isinstance(atom, Box) else type(atom.obj), dict)
    if name in ("append", "add", "insert", "appendleft", "extend", "update", "setdefault", "__setitem__"):
        return _added(m, atom, name, arguments, node)
    if name == "values" and keyed:
        return m.box(list, node, *_values(m, atom))
    if name == "items" and keyed:
        keys, values = m.elements(receiver, node)[0], _values(m, atom)
        if keys is not None and values[0] is not None:
            pairs = [m.box(tuple, stand_in(node, i), [*pair]) for i, pair in enumerate(zip(keys, values[0], strict=True))]
            return m.box(list, node, pairs)
        return m.box(list, node, None, None, m.box(tuple, stand_in(node, -1), [UNKNOWN, join(*m.contents(receiver)) or UNKNOWN]))
    if name == "keys" and keyed:
        keys = m.elements(receiver, node)[0]
        return m.box(list, node, keys) if keys is not None else m.box(list, node, None, None, UNKNOWN)
    if name in ("get", "pop", "popitem", "popleft", "__getitem__"):
        index = arguments.get(0)
        default = arguments.positional[1] if len(arguments.positional) > 1 else (NONE if name == "get" else NOTHING)
        key = known(index) if index is not None else None
        if name == "get" and key is not None and isinstance(atom, Live) and (id(atom.obj), "[]") not in m.heap:
            return m.lifted(atom.obj[key.value]) if key.value in atom.obj else default
        if name == "get" and key is not None and isinstance(atom, Box) and atom.keys is not None:
            return atom.keys.get(key.value, default)
        return join(*m.contents(receiver), default) or UNKNOWN
    if name in ("copy", "__iter__"):
        return receiver
    return UNKNOWN  # index, count, clear, sort, reverse …: nothing new is in it, and nothing comes out


def _values(m: "Attributes", atom: Box | Live) -> tuple[list[Value] | None, None, Value]:
    """The values of a dict for a new list."""
    if isinstance(atom, Box):
        return (list(atom.keys.values()), None, NOTHING) if atom.keys is not None else (None, None, atom.content)
    if (id(atom.obj), "[]") in m.heap:
        return None, None, join(*m.contents(frozenset({atom})))
    return [m.lifted(value) for value in atom.obj.values()], None, NOTHING


def _added(m: "Attributes", atom: Box | Live, name: str, arguments: Arguments, node: ast.AST) -> Value:
    several = name in ("extend", "update")
    given = [v for value in arguments for v in (m.contents(value) if several else [value])]
    value = join(*given)
    if isinstance(atom, Live):
        m.keep((id(atom.obj), "[]"), value, node, name)
        return NONE
    if name in ("append", "extend") and atom.items is not None and atom.path == m.path:
        added = [value] if name == "append" else m.elements(next(iter(arguments), NOTHING), node)[0]
        if added is not None:
            atom.items += added
            atom.content |= join(*added)
            return NONE
    m.growth += atom.put(value)
    return join(value, NONE) if name == "setdefault" else NONE


def _text_method(atom: Constant, name: str, arguments: Arguments) -> Value:
    constants = [known(value) for value in arguments.positional]
    if isinstance(atom.value, str) and all(c is not None for c in constants) and not arguments.named and arguments.rest is None:
        try:
            result = getattr(atom.value, name)(*(c.value for c in constants if c is not None))
        except (TypeError, ValueError, AttributeError, LookupError):
            return UNKNOWN
        if type(result) in PLAIN:
            return constant(result, atom.flags)
    return UNKNOWN

