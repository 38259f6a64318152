"""Numbers as a trace writes them, to int64 without loss: times in µs as text to ns, identifiers in any type."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Buffer = Any  # msgspec.Raw or bytes: whatever bytes.join takes

MISSING = np.iinfo(np.int64).min
"""Stands for a time that is absent or no number."""
_LARGEST = Decimal(2**62)
_POWERS = np.array([1000, 100, 10, 1], dtype=np.int64)
_LONGEST = 18  # digits that always fit an int64


def parse_us(texts: Sequence[Buffer]) -> Ints:
    """Parse times in µs, as JSON text (quoted or not), to integer ns; :data:`MISSING` where it is no number.

    Epoch µs with a fraction have more digits than a float64 holds, so the text itself is read. Digits below the ns
    are rounded half to even.
    """
    joined = b"\n".join(texts) + b"\n"
    if b'"' in joined:
        joined = joined.replace(b'"', b"")
    if joined.translate(None, b"0123456789.-\n"):
        return _parse_each(texts)
    text = np.frombuffer(joined, dtype=np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    lengths = np.diff(ends, prepend=-1) - 1
    if len(ends) != len(texts) or not lengths.all() or lengths.max(initial=0) > _LONGEST:
        return _parse_each(texts)
    dots = np.flatnonzero(text == ord("."))
    fraction = np.zeros(len(ends), dtype=np.int64)
    rows = np.searchsorted(ends, dots)
    fraction[rows] = ends[rows] - dots - 1
    if (fraction > 3).any() or not np.diff(rows).all():
        return _parse_each(texts)
    digits = joined.replace(b".", b"") if len(dots) else joined
    try:
        values = np.fromstring(digits, dtype=np.int64, sep="\n")
    except ValueError:  # a minus sign within a number
        return _parse_each(texts)
    return values * _POWERS[fraction]


def _parse_each(texts: Sequence[Buffer]) -> Ints:
    return np.array([_exact_ns(bytes(text).strip(b'" ')) for text in texts], dtype=np.int64)


def _exact_ns(token: bytes) -> int:
    try:
        value = Decimal(token.strip().decode("ascii", "replace")) * 1000
    except InvalidOperation:
        return MISSING
    return round(value) if value.is_finite() and abs(value) < _LARGEST else MISSING


def whole(value: object, default: int = -1) -> int:
    """Return an identifier as an int in the int64 range: ``7``, ``7.0``, ``"7"``, ``"stream 7"``; else ``default``."""
    if isinstance(value, str):
        value = value.removeprefix("stream ").strip()
    if not isinstance(value, int | float | str):
        return default
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return default
    # an unsigned -1 is how the profiler writes "none"
    return number if -(2**62) < number < 2**62 else default


def column(values: Sequence[object], default: int = -1) -> Ints:
    """Return identifiers as an int64 column; what is no whole number becomes ``default``."""
    try:
        out = np.array(values or [0])[: len(values)]
    except (OverflowError, ValueError):
        out = np.zeros(0)
    if (
        out.dtype != np.int64 or out.ndim != 1
    ):  # text, fractions, an unsigned -1: numpy would round or parse without a word
        return np.array([whole(value, default) for value in values], dtype=np.int64)
    beyond = (out >= 2**62) | (out <= -(2**62))
    return np.where(beyond, default, out) if beyond.any() else out
