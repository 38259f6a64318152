"""Bytes to event columns: a trace is read in blocks cut between events, decoded, and kept as columns only.

Memory is bounded by what is kept, not by the file. A block that does not decode goes to
:mod:`fusionadvisor.trace.recover`.
"""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from fusionadvisor.errors import InputError
from fusionadvisor.trace import frames
from fusionadvisor.trace.container import Container
from fusionadvisor.trace.events import Columns, Event, GpuArgs, OpArgs, Pool, RuntimeArgs, decode_args, either
from fusionadvisor.trace.numbers import Ints, column, parse_us
from fusionadvisor.trace.recover import ARRAY_END, BOUNDARY, ODD_BOUNDARY, Losses, clean, recover

KERNEL, MEMCPY, MEMSET = 0, 1, 2
_GPU = {
    "kernel": KERNEL, "Kernel": KERNEL, "concurrent_kernel": KERNEL,
    "gpu_memcpy": MEMCPY, "Memcpy": MEMCPY, "gpu_memset": MEMSET, "Memset": MEMSET,
}  # fmt: skip
_TABLE_OF = {
    "cuda_runtime": "runtime", "cuda_driver": "runtime", "Runtime": "runtime", "xpu_runtime": "runtime",
    "cpu_op": "ops", "Operator": "ops", "user_annotation": "annotations", "python_function": "python",
    **dict.fromkeys(_GPU, "gpu"),
}  # fmt: skip
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_EVENT = re.compile(rb'\{\s*"(?:ph|cat|name|ts|pid|tid)"\s*:[^{}]{0,4096}"(?:ph|cat)"\s*:')
_LONGEST_HEADER = 64 << 20
_LONGEST_TAIL = 16 << 20
_LAST_ENDS = 4  # lists that may follow the events in one object, looked at from the last
_DECODER = msgspec.json.Decoder(list[Event])
_SPAN = ("name", "start", "dur", "pid", "tid")


class RawTrace:
    """The columns of a trace as recorded, unlinked: times in ns as written, names as codes into pools."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.header: dict[str, Any] = {}
        self.lost: list[str] = []
        self.events = 0
        self.memory_recorded = False
        self.unread_phases: set[str] = set()
        self.gpu = Columns(*_SPAN, "kind", "device", "stream", "correlation", "bytes", "external_id")
        self.runtime = Columns(*_SPAN, "correlation", "external_id")
        self.ops = Columns(
            *_SPAN, "external_id", "sequence", "forward_thread", "shapes", "dtypes", "strides", "concrete", "stack"
        )
        self.annotations = Columns(*_SPAN)
        self.python = Columns(*_SPAN)
        self.flows = Columns("start", "pid", "tid", "id", "finish")
        self.names = Pool()
        self.python_names = Pool()
        self.texts = {key: Pool() for key in ("shapes", "dtypes", "strides", "concrete", "stack")}
        self._threads = Pool()

    def add(self, events: list[Event]) -> None:
        """Keep what is needed of a block of events."""
        tables: dict[str, list[Event]] = {
            name: [] for name in ("gpu", "runtime", "ops", "annotations", "python", "flows")
        }
        of = {category: tables[table].append for category, table in _TABLE_OF.items()}
        other = tables["flows"]
        for event in events:
            if event.ph == "X":
                if (append := of.get(event.cat)) is not None:
                    append(event)
            elif event.cat == "fwdbwd":
                other.append(event)
            elif event.name == "[memory]":
                self.memory_recorded = True
        self.events += len(events) if any(event.ph for event in events) else 0
        if tables["gpu"]:
            self._add_gpu(tables["gpu"])
        if tables["runtime"]:
            self._add_runtime(tables["runtime"])
        if tables["ops"]:
            self._add_ops(tables["ops"])
        if tables["annotations"]:
            self.annotations.add(**self._span(tables["annotations"], self.names))
        if tables["python"]:
            self._add_python(tables["python"])
        if other:
            self._add_flows(other)

    def processes(self) -> tuple[str, ...]:
        """Labels of the processes whose kernels are in this file, where it was merged from several: ``[TP00]``."""
        used = set(np.unique(self.gpu["pid"]).tolist()) if len(self.gpu) else set()
        labels = (label for code, label in self._labels().items() if code in used and label)
        return tuple(sorted(set(labels)))

    def _labels(self) -> dict[int, str]:
        """The label in front of each process number that was written in words: ``[TP00] 0`` is 0 of ``[TP00]``."""
        return {-2 - i: str(text).rstrip("0123456789").strip() for i, text in enumerate(self._threads)}

    def only(self, process: str) -> None:
        """Leave out what other processes did."""
        keep = [code for code, label in self._labels().items() if label == process]
        for table in (self.gpu, self.runtime, self.ops, self.annotations, self.python, self.flows):
            if len(table):
                table.keep(np.flatnonzero(np.isin(table["pid"], keep)))

    def _span(self, events: list[Event], names: Pool) -> dict[str, Any]:
        return {
            "name": names.codes([event.name for event in events]),
            "start": parse_us([event.ts for event in events]),
            "dur": parse_us([event.dur for event in events]),
            "pid": self._places([event.pid for event in events]),
            "tid": self._places([event.tid for event in events]),
        }

    def _places(self, values: list[int | str]) -> Any:
        """Processes and threads as numbers; those named in words count down from -2."""
        numbers = column(values, default=-1)
        for row in np.flatnonzero(numbers == -1):
            numbers[row] = -2 - self._threads[values[row]]
        return numbers

    def _add_gpu(self, events: list[Event]) -> None:
        args = decode_args(events, GpuArgs)
        span = self._span(events, self.names)
        device, stream = _of(args, "device"), _of(args, "stream")
        span.update(
            kind=np.array([_GPU[event.cat] for event in events], dtype=np.int8),
            device=either(device, span["pid"]),
            stream=either(stream, span["tid"]),
            correlation=_of(args, "correlation"),
            bytes=_of(args, "bytes"),
            external_id=either(_of(args, "external_id"), _of(args, "external_id_2020")),
        )
        self.gpu.add(**span)

    def _add_runtime(self, events: list[Event]) -> None:
        args = decode_args(events, RuntimeArgs)
        self.runtime.add(
            **self._span(events, self.names),
            correlation=_of(args, "correlation"),
            external_id=either(_of(args, "external_id"), _of(args, "external_id_2020")),
        )

    def _add_ops(self, events: list[Event]) -> None:
        args = decode_args(events, OpArgs)
        span = self._span(events, self.names)
        for key, pool in self.texts.items():
            texts = list(map(attrgetter(key), args))
            span[key] = pool.codes(map(bytes, texts)) if any(texts) else pool.codes([b""]).repeat(len(args))
        if any(map(attrgetter("shapes_2020"), args)):
            span["shapes"] = self.texts["shapes"].codes([bytes(a.shapes or a.shapes_2020) for a in args])
        self.ops.add(
            **span,
            external_id=_of(args, "external_id"),
            sequence=_of(args, "sequence"),
            forward_thread=_of(args, "forward_thread"),
        )

    def _add_python(self, events: list[Event]) -> None:
        pool = self.python_names
        kept = [event for event in events if frames.worth_keeping(event.name)]
        if kept:
            self.python.add(**self._span(kept, pool))

    def _add_flows(self, events: list[Event]) -> None:
        self.flows.add(
            start=parse_us([event.ts for event in events]),
            pid=self._places([event.pid for event in events]),
            tid=self._places([event.tid for event in events]),
            id=column([event.id for event in events]),
            finish=np.array([event.ph == "f" for event in events], dtype=bool),
        )


def _of(args: list[Any], key: str) -> Ints:
    return column(list(map(attrgetter(key), args)))


def read(container: Container) -> RawTrace:
    """Read all events of an opened trace.

    Raises:
        InputError: If it is no trace, or nothing of it can be read.
    """
    raw = RawTrace(container.name)
    with _no_gc():
        document = _Document(container)
        with container:
            for events in document.event_lists():
                raw.add(events)
    raw.header = document.header()
    raw.lost = [*container.lost, *document.lost()]
    if not raw.events and document.foreign:
        raise InputError(
            f"{raw.name} is neither a report nor a trace: there is no event in its list.",
            "Give a report (--json), or a trace of torch.profiler: profile.export_chrome_trace('trace.json').",
        )
    if not raw.events:
        reason = raw.lost[0] if raw.lost else "its list of events is empty"
        raise InputError(f"{raw.name} is not a trace that can be read: {lower_first(reason)}", "Record it again.")
    return raw


def lower_first(sentence: str) -> str:
    """Return a sentence as the second half of another."""
    return sentence[:1].lower() + sentence[1:].rstrip(".") + "."


@contextmanager
def _no_gc() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Document:
    """The text around the list of events, and the list itself block by block."""

    def __init__(self, container: Container) -> None:
        self._name = container.name
        self._blocks = container.blocks
        self._losses = Losses()
        self._head = b""
        self._tail = b""
        self._ended = False
        self._headless = False
        self.foreign = False
        """Whether the last block is whole JSON, a list of something else."""

    def event_lists(self) -> Iterator[list[Event]]:
        """Yield the events of each block."""
        rest = self._find_list()
        for block in self._blocks:
            if self._ended:
                rest = (rest + block)[:_LONGEST_TAIL]
            elif (cut := _last_boundary(block)) is None:
                rest += block  # within one event as long as a block
            else:
                events, rest = self._decode(rest, block, *cut)
                yield events
        if self._ended:
            self._tail = rest
            return
        yield self._decode_last(rest)

    def _decode(self, rest: bytes, block: bytes, end: int, begin: int) -> tuple[list[Event], bytes]:
        """Decode ``rest`` and ``block`` up to ``end``; what is left is from ``begin`` on, or more after damage."""
        try:
            return _DECODER.decode(b"".join((b"[", rest, memoryview(block)[:end], b"]"))), block[begin:]
        except (msgspec.MsgspecError, RecursionError):
            found = recover(rest + block[:end], self._losses, final=False)
            self._ended = found.ended
            return found.events, found.rest + block[end:]

    def _decode_last(self, rest: bytes) -> list[Event]:
        text = rest.lstrip(b" \t\r\n,")
        if text.startswith(b"]"):
            self._ended, self._tail = True, text[1:]
            return []
        for mend in (bytes, clean):  # cleaning costs more than decoding: only where it is needed
            candidate = mend(text)
            for match in reversed(list(ARRAY_END.finditer(candidate))[-_LAST_ENDS:]):
                try:
                    events = _DECODER.decode(b"[" + candidate[: match.start() + 1] + b"]")
                except (msgspec.MsgspecError, RecursionError):
                    continue
                self._ended, self._tail = True, candidate[match.end(1) :]
                return events
        self.foreign = _valid((self._head or b"[") + text)
        found = recover(text, self._losses, final=True)
        self._ended, self._tail = found.ended, found.rest
        return found.events

    def _find_list(self) -> bytes:
        text = start = b""
        for block in self._blocks:
            searched = max(0, len(text) - 64)
            text += block
            start = text.lstrip(b"\xef\xbb\xbf \t\r\n")
            if start.startswith(b"["):
                return start[1:]
            if match := _EVENTS.search(text, searched):
                self._head = text[: match.end()]
                return text[match.end() :]
            if len(text) > _LONGEST_HEADER:
                break
        if match := _FIRST_EVENT.search(text):  # the file lacks its beginning, or the key is damaged
            self._headless = True
            return text[match.start() :]
        if start.startswith(b"{") and not _whole(text):
            raise InputError(f"{self._name} is cut off before its list of traceEvents.", "Copy or record it again.")
        raise InputError(
            f"{self._name} is not a trace: it has no list of traceEvents.",
            "Export one with torch.profiler: profile.export_chrome_trace('trace.json').",
        )

    def header(self) -> dict[str, Any]:
        """Return what stands around the list of events; empty for a bare list or where it cannot be read."""
        head = self._head.lstrip(b"\xef\xbb\xbf")
        around = head + b"]" + self._tail
        for mend, text in ((bytes, around), (clean, around), (clean, head + b"]}")):
            try:
                found = msgspec.json.decode(mend(text))
            except (msgspec.MsgspecError, RecursionError):
                continue
            return found if isinstance(found, dict) else {}
        return {}

    def lost(self) -> list[str]:
        """Say what was lost, one sentence each."""
        losses, said = self._losses, []
        if self._headless:
            said.append("The beginning of the file is damaged: what it said of the recording is lost.")
        if not self._ended:
            said.append("The file is cut off: events after the last whole one are lost.")
        if losses.dropped:
            said.append(f"{losses.dropped} damaged events ({losses.dropped_bytes} bytes) could not be read.")
        return said


def _valid(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _whole(text: bytes) -> bool:
    return _valid(clean(text)) or text.rstrip().endswith(b"}")


def _last_boundary(text: bytes) -> tuple[int, int] | None:
    """Return where the last event but one ends and where the last begins."""
    for pattern in (BOUNDARY, ODD_BOUNDARY):
        window = 1 << 12
        while window < 16 * len(text):
            last = None
            for match in pattern.finditer(text, max(0, len(text) - window)):
                last = match.start() + 1, match.end()
            if last is not None:
                return last
            window *= 16
    return None
