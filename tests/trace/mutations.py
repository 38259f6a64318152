"""Damaged copies of a trace, reproducible from a seed: what a fuzz test feeds the reader."""

import json
import random
from collections.abc import Callable
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None, True, "", "x", "12.5", [], [1], {}, {"a": 1}, 0, -1, 1.5, 2**63, 2**64 - 1, -(2**63), 10**30, 1e308, -7.25,
)  # fmt: skip


def mutate(text: bytes, seed: int) -> bytes:
    """Return ``text`` with one to four random injuries of one kind."""
    rng = random.Random(seed)
    return rng.choice(_MUTATORS)(text, rng)


def _flip(text: bytes, rng: random.Random) -> bytes:
    out = bytearray(text)
    for _ in range(rng.randint(1, 4)):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _delete(text: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(text))
        text = text[:start] + text[start + rng.choice((1, 1, 2, 5, 40, 300)) :]
    return text


def _truncate(text: bytes, rng: random.Random) -> bytes:
    return text[: rng.randrange(len(text))]


def _insert(text: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text))
        token = rng.choice(
            (b'"', b"\\", b"]", b"}", b"{", b"[", b",", b"\x00", b"\xff", b"NaN", b"N/A", b"\n", b":", b"\\u12")
        )
        text = text[:at] + token + text[at:]
    return text


def _structural(text: bytes, rng: random.Random, change: Callable[[dict[str, Any], random.Random], None]) -> bytes:
    document = json.loads(text)
    events = document if isinstance(document, list) else document["traceEvents"]
    for _ in range(rng.randint(1, 4)):
        event = rng.choice(events)
        change(event["args"] if rng.random() < 0.4 and isinstance(event.get("args"), dict) else event, rng)
    if rng.random() < 0.2 and isinstance(document, dict):
        change(document, rng)
    return json.dumps(document).encode()


def _remove_key(text: bytes, rng: random.Random) -> bytes:
    def change(fields: dict[str, Any], rng: random.Random) -> None:
        if fields:
            del fields[rng.choice(list(fields))]

    return _structural(text, rng, change)


def _swap_type(text: bytes, rng: random.Random) -> bytes:
    def change(fields: dict[str, Any], rng: random.Random) -> None:
        if fields:
            fields[rng.choice(list(fields))] = rng.choice(ODD_VALUES)

    return _structural(text, rng, change)


_MUTATORS = (_flip, _delete, _truncate, _insert, _remove_key, _swap_type)
