"""What Python's own functions and containers do with values."""

import ast
import copy
import functools
import gc
import inspect
import itertools
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fusionadvisor.strategies.legality.events import Kind
from fusionadvisor.strategies.legality.standin import stand_in
from fusionadvisor.strategies.legality.values import (
    NONE,
    NOTHING,
    UNKNOWN,
    Arguments,
    Atom,
    Box,
    Constant,
    Flag,
    Live,
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

if TYPE_CHECKING:
    from fusionadvisor.strategies.legality.machine import Machine

METADATA_METHODS = frozenset(
    {"size", "dim", "numel", "nelement", "ndimension", "element_size", "is_floating_point", "is_complex", "get_device",
     "is_inference", "is_pinned", "is_shared", "__len__", "new_zeros", "new_ones", "new_empty",
     "new_full", "new_tensor"}
)  # fmt: skip
"""Methods of a tensor that tell nothing of its values."""
SHAPED = frozenset({"view_as", "reshape_as", "expand_as", "type_as"})
"""Methods that read nothing of their argument but its shape or dtype."""
_METADATA_FUNCTIONS = (torch.is_tensor, torch.is_floating_point, torch.is_complex, torch.numel, torch.finfo,
                       torch.iinfo, torch.promote_types, torch.result_type, torch.broadcast_shapes)  # fmt: skip

Handler = Callable[["Machine", Arguments, ast.AST], Value]


def _first(arguments: Arguments) -> Value:
    return arguments.get(0) or UNKNOWN


def _length(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    value = _first(a)
    lengths = set()
    for atom in value:
        items, _ = m.elements(frozenset({atom}), None)
        lengths.add(None if items is None else len(items))
    m.ask(value, "len", n)
    length = lengths.pop() if len(lengths) == 1 else None
    return constant(length) if length is not None else UNKNOWN


def _isinstance(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    value, kinds = _first(a), m.kinds(a.get(1) or UNKNOWN)
    m.ask(value, "isinstance", n)
    _classified(m, value, a.get(1) or UNKNOWN, n)
    if kinds is None:
        return UNKNOWN
    truths: set[bool | None] = set()
    for atom in value:
        if isinstance(atom, Live):
            truths.add(isinstance(atom.obj, kinds))
        elif isinstance(atom, Constant | Box):
            truths.add(issubclass(atom.kind, kinds))
        else:
            truths.add(None)
    truth = truths.pop() if len(truths) == 1 else None
    return UNKNOWN if truth is None else constant(truth)


def _classified(m: "Machine", value: Value, kinds: Value, n: ast.AST) -> None:
    """Note that modules are asked for their class."""
    modules = tuple(atom.obj for atom in value if isinstance(atom, Live) and id(atom.obj) in m.modules)
    if modules:
        m.record(Kind.ASKED, "its class", n, [kinds], modules)


def _issubclass(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    return UNKNOWN


def _getattr(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    receiver, name = _first(a), known(a.get(1) or UNKNOWN)
    default = a.positional[2] if len(a.positional) > 2 else NOTHING
    if name is None:
        texts = [atom.value for atom in a.get(1) or () if isinstance(atom, Constant) and isinstance(atom.value, str)]
        if texts and len(texts) == len(a.get(1) or ()):  # one of several names
            return join(*(m.attribute(receiver, text, n) for text in sorted(texts)), default)
        return join(*(m.any_attribute(atom, n) for atom in receiver), default, UNKNOWN)
    others = [m.any_attribute(atom, n) for atom in receiver] if name.flags else []
    other = frozenset({Other(join(*others), name.flags)}) if others else NOTHING
    if default and all(_has(atom, str(name.value)) is False for atom in receiver):
        flags = _absent(m, receiver, str(name.value))
        plain = known(default) if len(flags) == len(receiver) else None
        stored = [m.heap.get((id(atom.obj), str(name.value)), NOTHING) for atom in receiver if isinstance(atom, Live)]
        given = constant(plain.value, plain.flags.union(flags)) if plain is not None else join(default, UNKNOWN)
        return join(given, other, *stored)
    unsure = any(_has(atom, str(name.value)) is not True for atom in receiver)
    return join(m.attribute(receiver, str(name.value), n), default if unsure else NOTHING, other)


def _absent(m: "Machine", receiver: Value, name: str) -> list[Flag]:
    """That modules of the model have no such attribute."""
    modules = [atom.obj for atom in receiver if isinstance(atom, Live) and id(atom.obj) in m.paths]
    return [Flag(id(module), m.paths[id(module)], name, "absent") for module in modules]


def _has(atom: Atom, name: str) -> bool | None:
    if not isinstance(atom, Live):
        return None
    if isinstance(atom.obj, nn.Module):
        module = atom.obj
        held = name in vars(module) or any(name in d for d in (module._parameters, module._buffers, module._modules))
        if held or inspect.getattr_static(type(module), name, _MISSING) is not _MISSING:
            return True
        return False if type(module).__getattr__ is nn.Module.__getattr__ else None
    if inspect.getattr_static(atom.obj, name, _MISSING) is not _MISSING:
        return True
    return False if isinstance(atom.obj, type | ModuleType | FunctionType) else None  # anybody may set it


_MISSING = object()


def _hasattr(m: "Machine", a: Arguments, n: ast.AST) -> Value:
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
    if any(isinstance(atom, Live) and isinstance(atom.obj, nn.Module) for atom in receiver):
        m.record(Kind.NAMED, str(name.value), n, [_weights_of(receiver, str(name.value))])
    return constant(truth, name.flags.union(_absent(m, receiver, str(name.value)) if not truth else ()))


def _weights_of(receiver: Value, name: str) -> Value:
    modules = [atom.obj for atom in receiver if isinstance(atom, Live) and isinstance(atom.obj, nn.Module)]
    return frozenset(Weight(id(m), name) for m in modules if name in m._parameters or name in m._buffers)


def _setattr(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    name = known(a.get(1) or UNKNOWN)
    if name is None:
        for atom in _first(a):
            if isinstance(atom, Live) and isinstance(atom.obj, nn.Module):
                m.record(Kind.WRITE, "setattr", n, [frozenset({atom})])
        m.escape("setattr with a name that is not known", n, [a.get(2) or NOTHING])
        return NONE
    m.set_attribute(_first(a), str(name.value), a.get(2) or UNKNOWN, n)
    return NONE


def _range(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    bounds = [known(value) for value in a.positional]
    if a.rest is None and all(bound is not None and type(bound.value) is int for bound in bounds):
        numbers = range(*(bound.value for bound in bounds if bound is not None))
        flags = frozenset(flag for bound in bounds if bound is not None for flag in bound.flags)
        others = {Other(m.box(list, stand_in(n, "any"), None, None, UNKNOWN), flags)} if flags else ()
        if len(numbers) <= 4096:
            return m.once(("range", numbers), lambda: numbers).union(others)
    return UNKNOWN


def _zip(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    columns = [m.elements(value, n) for value in a.positional]
    if a.rest is None and columns and all(items is not None for items, _ in columns):
        rows = list(zip(*(items for items, _ in columns if items is not None), strict=False))
        return m.box(list, n, [m.box(tuple, stand_in(n, i), list(row)) for i, row in enumerate(rows)])
    pair = m.box(
        tuple, stand_in(n, -1), [each for _, each in columns] if a.rest is None else None, None, a.rest or NOTHING
    )
    return m.box(list, n, None, None, pair)


def _enumerate(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    items, each = m.elements(_first(a), n)
    start = known(a.get(1, "start") or constant(0))
    if items is not None and start is not None:
        rows = [m.box(tuple, stand_in(n, i), [constant(i + start.value), item]) for i, item in enumerate(items)]
        return m.box(list, n, rows)
    return m.box(list, n, None, None, m.box(tuple, stand_in(n, -1), [UNKNOWN, each]))


def _listed(kind: type, turn: Callable[[list[Value]], list[Value]] = lambda items: items) -> Handler:
    def make(m: "Machine", a: Arguments, n: ast.AST) -> Value:
        if not a.positional and a.rest is None:
            return m.box(kind, n, [])
        items, each = m.elements(_first(a), n)
        return m.box(kind, n, turn([*items])) if items is not None else m.box(kind, n, None, None, each)

    return make


def _dict(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    if not a.positional and a.rest is None:
        return m.box(dict, n, None, dict(a.named))
    given = _first(a)
    boxes = [atom for atom in given if isinstance(atom, Box)]
    if len(given) == 1 and boxes and boxes[0].keys is not None and not a.named:
        return m.box(dict, n, None, dict(boxes[0].keys))
    inner = [v for value in m.contents(given) for v in (value, *m.contents(value))]
    return m.box(dict, n, None, None, join(*inner, *(value for _, value in a.named)))


def _map(m: "Machine", a: Arguments, n: ast.AST) -> Value:
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


def _filter(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    _, each = m.elements(a.get(1) or UNKNOWN, n)
    if (test := known(_first(a))) is None or test.value is not None:
        m.call(_first(a), Arguments((each,)), n)
    return m.box(list, n, None, None, each)


def _reduce(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    items, each = m.elements(a.get(1) or UNKNOWN, n)
    start = [a.positional[2]] if len(a.positional) > 2 else []
    row = [*start, *(items if items is not None else [each, each, each])]
    value = row[0] if row else UNKNOWN
    for index, item in enumerate(row[1:]):
        before, m.frame.context = m.frame.context, m.context(m.frame.context, n, index)
        value = m.call(_first(a), Arguments((value, item)), n)
        m.frame.context = before
    return value


def _next(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    for atom in _first(a):
        if isinstance(atom, Box):  # one item less is left
            m.growth += atom.put(NOTHING)
    _, each = m.elements(_first(a), n)
    return join(each, a.positional[1] if len(a.positional) > 1 else NOTHING)


def _super(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    kinds = [atom.obj for atom in _first(a) if isinstance(atom, Live) and isinstance(atom.obj, type)]
    return frozenset(Super(kind, a.get(1) or UNKNOWN) for kind in kinds)


def _vars(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    return m.attribute(_first(a), "__dict__", n)


def _type(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    m.ask(_first(a), "type", n)
    _classified(m, _first(a), UNKNOWN, n)
    kinds = [m.lifted(type(atom.obj)) if isinstance(atom, Live) else UNKNOWN for atom in _first(a)]
    return join(*kinds) or UNKNOWN


def _partial(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    return frozenset({Partial(_first(a), Arguments(a.positional[1:], a.named, a.rest))})


def _chain(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    found: list[Value] | None = []
    loose = [a.rest] if a.rest is not None else []
    for value in a.positional:
        items, each = m.elements(value, n)
        loose.append(each)
        found = [*found, *items] if found is not None and items is not None else None
    if found is not None and a.rest is None:
        return m.box(list, n, found)
    return m.box(list, n, None, None, join(*loose))


def chained(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    """``itertools.chain.from_iterable``."""
    items, each = m.elements(_first(a), n)
    if items is None:
        return m.box(list, n, None, None, m.elements(each, n)[1])
    return _chain(m, Arguments(tuple(items)), n)


def _quiet(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    """Tells people something, or asks what an object is."""
    return UNKNOWN


def _shown(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    """What shows or converts a value: it is read."""
    tensors = [v for v in a if Reach.of([v]).results]
    if tensors:
        m.operation("print", tensors, n)
    return UNKNOWN


def _asks(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    for value in a:
        m.ask(value, "metadata", n)
    return UNKNOWN


def _scalar(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    """A number or a truth of plain data; of a tensor a value that is read."""
    if any(isinstance(atom, Result | Weight) for value in a for atom in value):
        m.operation("item", list(a), n)
    return UNKNOWN


def _reduced(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    """``sum``, ``min``, ``max``, ``any``, ``all``, ``sorted``: of sequences, and of tensors in them."""
    values = [*a, *(v for value in a.positional for v in m.contents(value))]
    callables = [v for name, v in a.named if name == "key"]
    for value in callables:
        m.call(value, Arguments((m.elements(_first(a), n)[1],)), n)
    plain = [v for v in values if v not in callables]
    if Reach.of(plain).results or Reach.of(plain).weights:
        tensors = [frozenset(atom for atom in v if not isinstance(atom, Live)) for v in plain]
        return join(m.operation("reduce", tensors, n), UNKNOWN)
    several = a.positional if len(a.positional) > 1 else ()
    return join(*(value for v in a.positional for value in m.contents(v)), *several, UNKNOWN)


def _sorted(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    items = join(*m.contents(_first(a))) or UNKNOWN
    for key in (value for name, value in a.named if name == "key"):
        m.call(key, Arguments((items,)), n)
    if Reach.of([items]).results:
        m.operation("compare", [items], n)
    return m.box(list, n, None, None, items)


def _globals(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    return m.lifted(m.frame.function.globals)


def _copied(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    return m.operation("copy", list(a), n)


def _hidden(m: "Machine", a: Arguments, n: ast.AST) -> Value:
    """``eval``, ``exec``, ``locals``, ``globals``: they reach everything that this code reaches."""
    m.escape("eval", n, [*m.frame.current.values(), *a])
    return UNKNOWN


def _compile(m: "Machine", a: Arguments, n: ast.AST) -> Value:
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
    (all, _reduced), (sorted, _sorted), (copy.copy, _copied), (copy.deepcopy, _copied), (eval, _hidden),
    (exec, _hidden), (locals, _hidden), (globals, _globals), (object, _quiet), (slice, _quiet),
    (inspect.signature, _quiet), (inspect.currentframe, _hidden), (inspect.stack, _hidden), (sys._getframe, _hidden),
    (gc.get_objects, _hidden), (gc.get_referrers, _hidden),
    (torch.compile, _compile), *((function, _asks) for function in _METADATA_FUNCTIONS),
]  # fmt: skip
HANDLERS: dict[int, Handler] = {id(function): handler for function, handler in _TABLE}
