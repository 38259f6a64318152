"""Every kind of damage seen in public reports: what is whole is read, what is lost is said."""

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fusionadvisor import trace
from fusionadvisor.errors import InputError
from fusionadvisor.trace import reader
from fusionadvisor.trace.measures import busy_us, kernel_us, linked_share, orphan_kernels
from fusionadvisor.trace.timeline import Timeline
from tests.shared import SHARED
from tests.trace.samples import Event, document, four, frame, of_category, read, text


def figures(timeline: Timeline) -> tuple[int, float, int, float, int, tuple[str, ...]]:
    return (
        len(timeline.kernels),
        busy_us(timeline),
        len(timeline.launches),
        linked_share(timeline),
        len(timeline.steps),
        tuple(timeline.kernels["op"]),
    )


SOUND = (4, 40.0, 4, 1.0, 1, ("aten::mul",) * 4)


def named(name: str) -> bytes:
    """The sound trace with one more frame, whose name is put in as raw text."""
    return text([*four(), frame("@@", 5000.0, 400.0)]).replace(b"@@", name.encode("utf-8", "surrogateescape"))


HARMLESS: dict[str, bytes] = {
    "nothing": text(four()),
    "pretty-printed": json.dumps(document(four()), indent=2).encode(),
    "windows path": named(r"C:\x\new\user.py(2): f"),
    "windows path before the quote": named("C:\\dir\\"),
    "control characters": named("a\x01b\nc\td"),
    "raw quotes": named('operator"" _a, "b"'),
    "quotes that look like a key": named('x", "y'),
    "not UTF-8": named("caf\udce9 \udcff"),
    "half a surrogate pair": named(r"\ud800"),
    "a broken unicode escape": named(r"\u12"),
    "bare list": json.dumps(four()).encode(),
    "no header": json.dumps({"traceEvents": four()}).encode(),
    "header after the events": json.dumps({"traceEvents": four(), "deviceProperties": [{"id": 0}, {"id": 1}]}).encode(),
    "other keys first": json.dumps(document([dict(reversed(e.items())) for e in four()])).encode(),
    "events that begin with an unknown key": json.dumps(document([{"bind": 1, **e} for e in four()])).encode(),
    "that and a bad escape": json.dumps(document([{"bind": "@", **e} for e in four()])).replace("@", r"\x").encode(),
    "byte-order mark": b"\xef\xbb\xbf" + text(four()),
    "leading blank lines": b"\n\n  " + text(four()),
    "trailing comma": text(four())[:-2] + b",]}",
    "double comma": text(four()).replace(b"}}, {", b"}},, {", 1),
    "missing comma": text(four()).replace(b"}}, {", b"}} {", 1),
    "NaN": text(four()).replace(b'"stream": 7', b'"stream": 7, "occupancy": NaN, "x": -Infinity, "y": N/A'),
    "C's nan": text(four()).replace(b'"stream": 7', b'"stream": 7, "occupancy": -nan'),
    "a list of dicts in args": text(four()).replace(b'"stream": 7', b'"stream": 7, "x": [{"ph": 1}, {"name": "y"}]'),
    "a stray bracket": text(four()).replace(b"}}, {", b"}}], {", 1),
    "gzip under a .json name": gzip.compress(text(four())),
    "gzip in two members": gzip.compress(text(four())[:300]) + gzip.compress(text(four())[300:]),
    "gzip with padding": gzip.compress(text(four())) + b"\0" * 512,
    "gzip twice": gzip.compress(gzip.compress(text(four()))),
    "displayTimeUnit ns": json.dumps(document(four(), displayTimeUnit="ns")).encode(),
    "memory and metadata events": text(
        [
            *four(),
            {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 9e15},
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}},
            {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "", "ts": 1, "dur": 9e9},
        ]
    ),
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_damage_that_loses_nothing_changes_no_figure(kind: str) -> None:
    timeline = read(HARMLESS[kind])
    assert figures(timeline) == SOUND
    assert timeline.lost == ()


@pytest.mark.parametrize("kind", HARMLESS)
def test_the_same_in_blocks_shorter_than_two_events(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusionadvisor.trace.container.BLOCK", 400)
    assert figures(read(HARMLESS[kind])) == SOUND


def changed(change: Callable[[list[Event]], object]) -> list[Event]:
    events = four()
    change(events)
    return events


def each_kernel(**values: object) -> list[Event]:
    return changed(lambda events: [kernel.update(values) for kernel in of_category(events, "kernel")])


def test_times_as_text_are_times() -> None:
    events = four()
    for event in events:
        event["ts"], event["dur"] = str(event["ts"]), str(event["dur"])
    assert figures(read(events)) == SOUND


def test_identifiers_as_text_are_identifiers() -> None:
    events = four()
    for event in events:
        event["pid"] = str(event["pid"])
        event["args"] = {key: str(value) if isinstance(value, int) else value for key, value in event["args"].items()}
    assert figures(read(events)) == SOUND


def test_a_lone_kernel_without_args_is_a_kernel() -> None:
    bare = {"ph": "X", "cat": "kernel", "name": "k", "pid": 3, "tid": 7, "ts": 5.0, "dur": 2.0}
    timeline = read([bare])
    assert (len(timeline.kernels), timeline.devices[0].index, busy_us(timeline)) == (1, 3, 2.0)
    assert orphan_kernels(timeline) == 1


def test_kernels_without_times_are_left_out_and_said() -> None:
    events = four()
    of_category(events, "kernel")[1].update(ts=0, dur=0)
    timeline = read(events)
    assert (len(timeline.kernels), busy_us(timeline)) == (3, 30.0)
    assert "1 GPU events" in timeline.lost[0]


def test_no_kernel_with_a_time_is_refused() -> None:
    with pytest.raises(InputError, match="none has a start and a duration"):
        read(each_kernel(ts=0, dur=0))


def test_a_negative_duration_counts_as_nothing_and_is_said() -> None:
    events = four()
    of_category(events, "kernel")[0]["dur"] = -5.0
    timeline = read(events)
    assert busy_us(timeline) == 30.0
    assert "1 events had a negative duration" in timeline.lost[0]


def test_a_kernel_before_its_launch_stays_linked() -> None:
    timeline = read(each_kernel(ts=5001.0))
    assert (timeline.kernels["start_ns"] < timeline.kernels["launch_ns"]).all()
    assert linked_share(timeline) == 1.0


def test_overlap_on_a_stream_counts_once() -> None:
    events = four()
    kernels = of_category(events, "kernel")
    kernels[1]["ts"] = kernels[0]["ts"] + 5
    timeline = read(events)
    assert (busy_us(timeline), kernel_us(timeline)) == (35.0, 40.0)


@pytest.mark.parametrize("share", [0.4, 0.5, 0.8, 0.99])
def test_a_file_cut_off_gives_its_whole_events(share: float) -> None:
    data = text(four())[: int(len(text(four())) * share)]
    # the independent count: events whose closing braces are there
    whole = [event for event in four() if json.dumps(event).encode() in data]
    timeline = read(data)
    assert len(timeline.kernels) == len(of_category(whole, "kernel")) > 0
    assert len(timeline.launches) == len(of_category(whole, "cuda_runtime"))
    assert "cut off" in timeline.lost[0]


def test_a_file_without_its_beginning_gives_the_rest() -> None:
    data = text(four())
    timeline = read(b"{" + data[data.index(b'"ProfilerStep') :])
    assert len(timeline.kernels) == 4
    assert any("beginning" in sentence for sentence in timeline.lost)


def test_gzip_cut_off_gives_what_came_before() -> None:
    events = four() + [frame(f"user{i}.py({i * 7919 % 1000}): f{i * 104729}", 5400.0 + i, 1.0) for i in range(3000)]
    data = gzip.compress(text(events))
    timeline = read(data[: len(data) // 2])
    assert figures(timeline) == SOUND
    assert "cut off" in timeline.lost[0]


def test_gzip_with_a_damaged_middle_gives_what_came_before() -> None:
    events = four() + [frame(f"user{i}.py({i * 7919 % 1000}): f{i * 104729}", 5400.0 + i, 1.0) for i in range(3000)]
    data = bytearray(gzip.compress(text(events)))
    data[len(data) // 2 : len(data) // 2 + 64] = b"\xaa" * 64
    timeline = read(bytes(data))
    assert len(timeline.kernels) == 4
    assert timeline.lost


def test_one_spoilt_event_costs_one_event() -> None:
    data = text(four()).replace(b'"correlation": 601, "External id": 21}}', b'"correlation": 601, "External', 1)
    timeline = read(data)
    assert len(timeline.launches) == 3
    assert len(timeline.kernels) == 4
    assert orphan_kernels(timeline) == 1
    assert "1 damaged events" in timeline.lost[0]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "zstd"),
        (b"hello", "not a trace"),
        (b'{"weights": [1, 2]}', "no list of traceEvents"),
        (b'{"schemaVersion": 1, "deviceProperties": [{"id": 0, "na', "is cut off before its list of traceEvents"),
        (b'{"traceEvents": []}', "its list of events is empty"),
        (b"[]", "its list of events is empty"),
        (b'{"traceEvents": [{"ph": "X"', "cut off"),
        (text(four())[:500], "no GPU events in what can be read"),
        (gzip.compress(b"x" * 99, mtime=0)[:11], "compressed data is cut off"),
        (b"PK\x03\x04 no zip", "damaged"),
        (text([e for e in four() if e["cat"] == "cpu_op"]), "no GPU events"),
        (text([e for e in four() if e["cat"] != "kernel"]), "4 kernel launches but no GPU events"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(data: bytes, what: str) -> None:
    with pytest.raises(InputError, match=what) as refused:
        read(data)
    assert refused.value.hint
    assert "\n" not in str(refused.value)


def test_paths_that_hold_no_trace_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file"):
        trace.load(tmp_path / "absent.json")
    with pytest.raises(InputError, match="is a directory"):
        trace.load(tmp_path)
    (tmp_path / "a.json").write_bytes(text(four()))
    with pytest.raises(InputError, match=r"a\.json"):
        trace.load(tmp_path)


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, gzip.compress(text(four())))
    return buffer.getvalue()


def test_a_zip_of_one_trace_is_that_trace() -> None:
    assert figures(read(zipped("run/a.json.gz", "__MACOSX/run/a.json.gz", "notes.txt"))) == SOUND


def test_a_zip_of_several_traces_asks_which() -> None:
    with pytest.raises(InputError, match="zip of 2 traces") as refused:
        read(zipped("a.json.gz", "b.json.gz"))
    assert "a.json.gz" in refused.value.hint


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text(four()))))
    assert figures(trace.load("-")) == SOUND


def test_gc_is_left_as_it_was() -> None:
    import gc

    read(four())
    assert gc.isenabled()
    gc.disable()
    try:
        read(four())
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(SHARED is None, reason="the generator of broken traces is not here")
def test_the_shared_samples_agree_or_say_what_is_lost(tmp_path: Path) -> None:
    import subprocess
    import sys

    assert SHARED
    subprocess.run([sys.executable, SHARED / "tools/make_broken_traces.py", tmp_path], check=True)
    good = figures(trace.load(tmp_path / "00_good.json"))
    intact = ("01", "03", "06", "07", "08", "14", "15", "18", "26")
    for path in sorted(tmp_path.glob("*.json")):
        if path.name.startswith(intact):
            timeline = trace.load(path)
            assert figures(timeline) == good, path.name
            assert timeline.lost == ()
    cut = trace.load(tmp_path / "05_truncated.json")
    assert cut.lost
    assert len(cut.kernels) == 3
    assert len(trace.load(tmp_path / "12_graph_shared_correlation.json").kernels) == 8


def test_a_block_as_long_as_an_event_is_read_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusionadvisor.trace.container.BLOCK", 1 << 10)
    looked: list[int] = []
    found = reader._last_boundary

    def counting(rest: bytes) -> tuple[int, int] | None:
        looked.append(len(rest))
        return found(rest)

    monkeypatch.setattr(reader, "_last_boundary", counting)
    long = [*four(), frame("x" * 300_000, 5400.0, 1.0)]
    assert figures(read(long)) == SOUND
    assert sum(looked) < 4 * 300_000
