"""Kernel to launch to op to forward op, module and source line, in columns.

The correlation leads from a kernel to the runtime call that launched it; the innermost op on the calling thread made
that call. An External id only settles what those leave open: it repeats in other processes, and where the profiler has
no op it holds the correlation instead.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fusionadvisor.trace import frames
from fusionadvisor.trace.events import Codes, Columns, Pool
from fusionadvisor.trace.nesting import Nest, inherited, nested_order, thread_keys
from fusionadvisor.trace.numbers import Ints
from fusionadvisor.trace.reader import RawTrace

Bools = npt.NDArray[np.bool_]
LAUNCH = re.compile(r"Launch.*Kernel|LaunchKernel|GraphLaunch")
GRAPH = re.compile(r"GraphLaunch")
_BACKWARD = re.compile(
    r"^autograd::engine::evaluate_function|^[A-Z]\w*Backward\d*(?:<.*>)?$|^torch::autograd::AccumulateGrad"
)
_OPTIMIZER = re.compile(r"^Optimizer\.")
FORWARD, BACKWARD, OPTIMIZER = 0, 1, 2


def matching(pool: Pool, pattern: re.Pattern[str]) -> Bools:
    """Return for each name of a pool whether the pattern is found in it."""
    return np.array([bool(pattern.search(name)) for name in pool] or [False], dtype=bool)


@dataclass(frozen=True, slots=True)
class Ops:
    """CPU ops in nested order with what encloses them. ``phase`` is of the op itself; rows are those of the tables."""

    columns: Columns
    nest: Nest
    forward: Ints
    phase: Ints
    module: Codes
    source: Codes
    modules: list[str]
    sources: list[str]
    module_calls: Ints
    """Start of each call of the outermost module that takes the most time."""


def link_ops(raw: RawTrace) -> Ops:
    """Order the ops and find each one's enclosing op, forward op, module and source line."""
    ops = raw.ops
    keys = thread_keys(ops["pid"], ops["tid"])
    order = nested_order(keys, ops["start"], ops["dur"])
    ops.keep(order)
    keys = keys[order]
    nest = Nest(keys, ops["start"], ops["dur"])
    backward = matching(raw.names, _BACKWARD)[ops["name"]] if len(ops) else np.zeros(0, dtype=bool)
    # forward ops state thread 0; ops outside autograd state none
    backward |= ops["forward_thread"] > 0
    optimizer = matching(raw.names, _OPTIMIZER)[ops["name"]] if len(ops) else backward
    # what a checkpoint computes again inside the backward pass is forward work with a number of its own
    again = (ops["forward_thread"] == 0) & (ops["sequence"] >= 0) & ~backward
    phase = inherited(
        nest.parent, np.where(optimizer, OPTIMIZER, np.where(backward, BACKWARD, np.where(again, FORWARD, -1)))
    )
    phase[_inside(_only(raw.annotations, matching(raw.names, _OPTIMIZER)), keys, ops["start"])] = OPTIMIZER
    forward = inherited(nest.parent, _forward_ops(ops, phase, raw.flows))
    phase[phase < 0] = FORWARD
    stack = _frames(raw)
    rows = stack.nest.find(keys, ops["start"])
    module, source, sources = (
        stack.module[rows],
        stack.source[rows],
        Pool({text: i for i, text in enumerate(stack.sources)}),
    )
    told = np.array([sources[frames.stack_line(text)] for text in raw.texts["stack"]] or [0], dtype=np.int32)
    source = np.where(source > 0, source, told[ops["stack"]])
    borrow = (forward >= 0) & (module == 0)
    module[borrow] = module[forward[borrow]]
    borrow = (forward >= 0) & (source == 0)
    source[borrow] = source[forward[borrow]]
    return Ops(ops, nest, forward, phase, module, source, stack.modules, list(sources), stack.module_calls)


def _only(table: Columns, wanted: Bools) -> tuple[Ints, Ints, Ints]:
    rows = np.flatnonzero(wanted[table["name"]]) if len(table) else np.zeros(0, dtype=np.int64)
    return thread_keys(table["pid"][rows], table["tid"][rows]), table["start"][rows], table["dur"][rows]


def _inside(spans: tuple[Ints, Ints, Ints], keys: Ints, moments: Ints) -> Bools:
    order = nested_order(*spans)
    nest = Nest(*(column[order] for column in spans))
    return nest.find(keys, moments) >= 0


def _forward_ops(ops: Columns, phase: Ints, flows: Columns) -> Ints:
    """Return for a backward op its forward op: where the profiler drew an arrow to it, else by sequence number.

    Autograd numbers the ops of each thread by themselves, and a backward op states the thread by a number that is not
    the trace's thread id. The arrows tell which is which, else the ops that have the numbers.
    """
    forward = np.full(len(ops), -1, dtype=np.int64)
    if not len(ops):
        return forward
    _follow_flows(forward, ops, flows)
    drawn = np.flatnonzero(forward >= 0)
    numbered, thread = ops["sequence"] >= 0, ops["forward_thread"]
    later = np.flatnonzero(numbered & (forward < 0) & ((thread > 0) | ((thread < 0) & (phase == BACKWARD))))
    earlier = np.flatnonzero(numbered & ((thread == 0) | ((thread < 0) & (phase != BACKWARD))))
    earlier = earlier[np.argsort(ops["start"][earlier], kind="stable")]
    for pid, stated in np.unique(np.stack([ops["pid"][later], thread[later]]), axis=1).T.tolist():
        mine = later[(ops["pid"][later] == pid) & (thread[later] == stated)]
        among = earlier[ops["pid"][earlier] == pid]
        known = forward[drawn[(ops["pid"][drawn] == pid) & (thread[drawn] == stated)]]
        if stated > 0:
            among = _on_one_thread(ops, mine, among, known)
        rows, _ = last_before(
            ops["sequence"][among], ops["start"][among], ops["sequence"][mine], ops["start"][mine]
        )  # fmt: skip
        forward[mine[rows >= 0]] = among[rows[rows >= 0]]
    return forward


def _on_one_thread(ops: Columns, later: Ints, earlier: Ints, known: Ints) -> Ints:
    """Return those of the earlier ops that are on the thread which the later ones state.

    It is the thread of the forward ops that arrows lead from; without any the one with most of the numbers, and of
    several such the one of the later ops themselves, where autograd computes again what it differentiates next.
    """
    tid = ops["tid"]
    if len(known):
        threads, counts = np.unique(tid[known], return_counts=True)
        told: Ints = earlier[tid[earlier] == threads[np.argmax(counts)]]
        return told
    best, most = earlier[:0], (0, False)
    for thread in np.unique(tid[earlier]).tolist():
        rows = earlier[tid[earlier] == thread]
        found, _ = last_before(ops["sequence"][rows], ops["start"][rows], ops["sequence"][later], ops["start"][later])
        score = int((found >= 0).sum()), bool((tid[later] == thread).any())
        if score > most:
            best, most = rows, score
    return best


def _follow_flows(forward: Ints, ops: Columns, flows: Columns) -> None:
    """Link ops by the arrows the profiler drew from forward to backward ops."""
    if not len(flows):
        return
    # several ops at one moment: the innermost comes last and stays
    at = {place: row for row, place in enumerate(_places(ops))}
    rows = [at.get(place, -1) for place in _places(flows)]
    arrows = list(zip(rows, flows["id"].tolist(), flows["finish"].tolist(), strict=True))
    begins = {flow: row for row, flow, finish in arrows if not finish}
    for row, flow, finish in arrows:
        if finish and row >= 0:
            forward[row] = begins.get(flow, -1)


def _places(table: Columns) -> Iterator[tuple[int, int, int]]:
    return zip(table["pid"].tolist(), table["tid"].tolist(), table["start"].tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class _Frames:
    """Python frames in nested order; ``module`` and ``source`` are codes into the texts, with a last row for none."""

    nest: Nest
    module: Codes
    source: Codes
    modules: list[str]
    sources: list[str]
    module_calls: Ints


def _frames(raw: RawTrace) -> _Frames:
    python = raw.python
    keys = thread_keys(python["pid"], python["tid"])
    order = nested_order(keys, python["start"], python["dur"])
    python.keep(order)
    nest = Nest(keys[order], python["start"], python["dur"])
    names = list(raw.python_names)
    is_module = [name.startswith(frames.MODULE) for name in names]
    label = [frames.module_label(name) for name in names]
    paths, lines = Pool({"": 0}), Pool({"": 0})
    own_line = [lines[frames.source_line(name)] for name in names]
    texts = [""]
    joined: dict[tuple[int, int], int] = {}
    path_of, line_of = [0] * (len(order) + 1), [0] * (len(order) + 1)
    outermost: dict[int, list[int]] = {}
    for row, (name, parent) in enumerate(zip(python["name"].tolist(), nest.parent.tolist(), strict=True)):
        path = path_of[parent]  # a frame without parent reads the last row, which is never set
        if is_module[name]:
            if not path:
                outermost.setdefault(name, []).append(row)
            if (code := joined.get((path, name))) is None:
                text = f"{texts[path]}/{label[name]}" if path else label[name]
                code = joined[path, name] = paths[text]
                if code == len(texts):
                    texts.append(text)
            path = code
        path_of[row] = path
        line_of[row] = own_line[name] or line_of[parent]
    longest = max(outermost.values(), key=lambda rows: int(python["dur"][rows].sum()), default=[])
    calls = np.sort(python["start"][np.array(longest, dtype=np.int64)])
    return _Frames(nest, np.array(path_of, np.int32), np.array(line_of, np.int32), texts, list(lines), calls)


@dataclass(frozen=True, slots=True)
class Calls:
    """Runtime calls in order of start, and the op that made each (-1 where unknown)."""

    columns: Columns
    op: Ints
    launch: Bools
    graph: Bools


def link_calls(raw: RawTrace, ops: Ops) -> Calls:
    """Order the runtime calls and find the op that made each."""
    calls = raw.runtime
    calls.keep(np.argsort(calls["start"], kind="stable"))
    keys = thread_keys(calls["pid"], calls["tid"])
    op = ops.nest.find(keys, calls["start"])
    lone = np.flatnonzero((op < 0) & (calls["external_id"] > 0) & (calls["external_id"] != calls["correlation"]))
    if len(lone):
        op[lone] = _by_external_id(ops, calls["external_id"][lone], calls["start"][lone], calls["pid"][lone])
    launch, graph = (
        matching(raw.names, pattern)[calls["name"]] if len(calls) else np.zeros(0, dtype=bool)
        for pattern in (LAUNCH, GRAPH)
    )
    return Calls(calls, op, launch, graph)


def _by_external_id(ops: Ops, ids: Ints, moments: Ints, pid: Ints) -> Ints:
    """Return the op with that External id in that process, if it was running at that moment."""
    columns = ops.columns
    keys = thread_keys(columns["pid"], columns["external_id"])
    order = np.argsort(keys, kind="stable")
    wanted = thread_keys(pid, ids)
    at = np.searchsorted(keys[order], wanted)
    found = order[np.minimum(at, len(order) - 1)] if len(order) else np.full(len(ids), -1)
    if not len(order):
        return found
    fits = (keys[found] == wanted) & (ops.nest.start[found] <= moments) & (moments <= ops.nest.end[found])
    return np.where(fits, found, -1)


def launching_calls(gpu: Columns, calls: Calls) -> Ints:
    """Return the row of the runtime call that put each GPU event on its device, -1 where the trace has none.

    Two processes count their correlations alike: of several calls, the one of the same External id, then the last that
    began before the event.
    """
    columns = calls.columns
    exact = _calls_by(columns, gpu, lambda table: thread_keys(table["correlation"], table["external_id"]))
    loose = _calls_by(columns, gpu, lambda table: table["correlation"])
    return np.where((exact >= 0) & (gpu["external_id"] >= 0), exact, loose)


def _calls_by(calls: Columns, gpu: Columns, key: Callable[[Columns], Ints]) -> Ints:
    known = np.flatnonzero(calls["correlation"] > 0)
    found, first = last_before(key(calls)[known], calls["start"][known], key(gpu), gpu["start"])
    rows = np.where(found >= 0, found, first)
    return np.where((rows >= 0) & (gpu["correlation"] > 0), known[rows] if len(known) else -1, -1)


def last_before(keys: Ints, starts: Ints, wanted: Ints, moments: Ints) -> tuple[Ints, Ints]:
    """Find, for each wanted key, the last row of that key that starts at or before a moment, and the key's first row.

    Args:
        keys: One key a row; rows in order of start.
        starts: When each row starts.
        wanted: The keys to look for.
        moments: A moment for each.

    Returns:
        Two columns of rows, -1 where there is none.
    """
    order = np.argsort(keys, kind="stable")
    low = np.searchsorted(keys[order], wanted, side="left")
    high = np.searchsorted(keys[order], wanted, side="right")
    first = np.full(len(wanted), -1, dtype=np.int64)
    some = np.flatnonzero(high > low)
    first[some] = order[low[some]]
    last = first.copy()
    last[some[starts[first[some]] > moments[some]]] = -1
    sorted_starts = starts[order]
    for row in np.flatnonzero((high - low > 1) & (last >= 0)).tolist():
        run = sorted_starts[low[row] : high[row]]
        last[row] = order[low[row] + np.searchsorted(run, moments[row], side="right") - 1]
    return last, first
