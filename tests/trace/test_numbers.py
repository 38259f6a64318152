"""Numbers are read exactly, whatever they are written as."""

from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionadvisor.trace.measures import union_ns
from fusionadvisor.trace.numbers import MISSING, column, parse_us, whole


@given(st.lists(st.decimals(min_value=-(10**15), max_value=2 * 10**15, places=3), min_size=1))
def test_times_of_three_decimals_are_exact(values: list[Decimal]) -> None:
    assert parse_us([str(value).encode() for value in values]).tolist() == [int(value * 1000) for value in values]


@given(st.lists(st.one_of(st.integers(-(10**14), 2 * 10**15), st.decimals(0, 10**12, places=6)), min_size=1))
def test_times_of_any_length_are_rounded_to_the_ns(values: list[int | Decimal]) -> None:
    expected = [int((Decimal(value) * 1000).to_integral_value(ROUND_HALF_EVEN)) for value in values]
    assert parse_us([f"{value}".encode() for value in values]).tolist() == expected


def test_epoch_microseconds_lose_nothing() -> None:
    # a float64 cannot hold this: 1712196098123456.789 rounds to .75
    assert parse_us([b"1712196098123456.789"]).tolist() == [1712196098123456789]
    assert float("1712196098123456.789") != Decimal("1712196098123456.789")


@pytest.mark.parametrize(
    "text", [b"", b"null", b"NaN", b"Infinity", b"true", b"[]", b'"x"', b"1.2.3", b"1-2", b"1e40", b"[1,\n2]", b"1\n2"]
)
def test_what_is_no_time_is_missing(text: bytes) -> None:
    assert parse_us([b"5", text, b"7.25"]).tolist() == [5000, MISSING, 7250]


def test_quoted_and_exponential_times_are_times() -> None:
    assert parse_us([b'"12.5"', b"1.5e3", b"-0.25"]).tolist() == [12500, 1500000, -250]


@pytest.mark.parametrize(
    ("value", "number"),
    [(7, 7), ("7", 7), ("stream 7", 7), (7.0, 7), (2**64 - 1, -1), (None, -1), ("x", -1), ([], -1), (float("nan"), -1)],
)
def test_whole(value: object, number: int) -> None:
    assert whole(value) == number
    assert column([value, 3]).tolist() == [number, 3]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))))
def test_the_union_counts_each_moment_once(spans: list[tuple[int, int]]) -> None:
    start = np.array([begin for begin, _ in spans], dtype=np.int64)
    length = np.array([size for _, size in spans], dtype=np.int64)
    covered = {moment for begin, size in spans for moment in range(begin, begin + size)}
    assert union_ns(start, start + length) == len(covered)
