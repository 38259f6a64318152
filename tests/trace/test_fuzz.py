"""Damaged traces give a timeline or one sentence: no other error, no impossible number."""

import gzip
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from fusionadvisor import trace
from fusionadvisor.errors import InputError
from fusionadvisor.trace.measures import busy_us, linked_share, span_us
from tests.trace.mutations import mutate
from tests.trace.samples import four, text

SECONDS = 6.0
"""How long to look; every seed that fits is tried, from the first, so a failure can be repeated by its seed."""


def _sources() -> list[bytes]:
    here = Path(__file__).parents[1] / "data/traces/tl_mi300_compile_triton.json.gz"
    return [text(four()), gzip.decompress(here.read_bytes())]


def test_no_mutant_is_met_with_anything_but_figures_or_a_sentence() -> None:
    sources, seed, deadline = _sources(), 0, time.monotonic() + SECONDS
    read = refused = 0
    while time.monotonic() < deadline:
        data = mutate(sources[seed % len(sources)], seed)
        try:
            timeline = trace.load(io.BytesIO(data), stand_ins=bool(seed % 2))
        except InputError:
            refused += 1
        else:
            for device in timeline.devices:
                assert 0 <= busy_us(timeline, device.index) <= span_us(timeline, device.index), seed
            assert 0 <= linked_share(timeline) <= 1, seed
            assert (timeline.kernels["dur_ns"] >= 0).all(), seed
            read += 1
        seed += 1
    assert read > refused > 0


def _whole_events(text: str) -> list[dict[str, Any]]:
    """The events that json itself reads, one by one, from the beginning of the list to where the text is cut."""
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    at = text.index("[", text.index('"traceEvents"')) + 1
    while True:
        while text[at : at + 1] in (" ", "\n", ","):
            at += 1
        try:
            event, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            return found
        found.append(event)


@pytest.mark.parametrize("share", [0.35, 0.5, 0.75, 0.9])
def test_a_real_trace_cut_anywhere_keeps_what_is_whole(share: float) -> None:
    data = _sources()[1]
    data = data[: int(len(data) * share)]
    whole = [event.get("cat") for event in _whole_events(data.decode())]
    timeline = trace.load(io.BytesIO(data), stand_ins=True)
    assert "cut off" in timeline.lost[0]
    assert timeline.stand_ins == ("kernel" not in whole)
    assert len(timeline.ops) == whole.count("cpu_op") > 0
    if not timeline.stand_ins:
        assert len(timeline.kernels) == whole.count("kernel")
