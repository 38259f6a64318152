"""What can be read of JSON that is no JSON: bad escapes, raw quotes, control characters, stray tokens, a file cut off.

A block of events that does not decode is cleaned as a whole, then event by event; an event that still does not decode
is picked apart field by field. What was lost is counted, so that it can be said.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from fusionadvisor.trace.events import Event
from fusionadvisor.trace.numbers import whole

_KEYS = rb"ph|cat|name|pid|tid|ts|dur|id|args|s|bp|tts|tdur|cname"
_EVENT = rb'(?=\{\s*"(?:' + _KEYS + rb')"\s*:)'
BOUNDARY = re.compile(rb"\}[\s,\[\]]*" + _EVENT)
"""Between two events, whatever the order of their keys."""
ODD_BOUNDARY = re.compile(rb'\}[\s,]*(?=\{\s*")')
"""The same where events begin with a key nobody knows."""
_LIST_END = re.compile(rb"[\s,]*\]")
_START = re.compile(rb"[^:\s]\s*" + _EVENT)  # even after an event without its end; not the value of a key
ARRAY_END = re.compile(rb'\}\s*(\])\s*(?=,\s*"|\}|\Z)')
_ESCAPE = re.compile(rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_CONTROL = bytes(range(32))
_BLANKS = bytes.maketrans(_CONTROL, b" " * len(_CONTROL))
_NO_NUMBER = re.compile(rb"(?<=[:,\[])\s*(?:[-+]?(?:nan|inf|infinity)|n/a|none|undefined)(?=\s*[,}\]])", re.IGNORECASE)
_EXTRA_COMMA = re.compile(rb",(?=\s*[,}\]])")
_DECODER = msgspec.json.Decoder(Event)
_LIST = msgspec.json.Decoder(list[Event])
_JOINED_PIECES = 8
_LONGEST_GUESS = 1 << 16


@dataclass(slots=True)
class Losses:
    """What could not be recovered."""

    dropped: int = 0
    dropped_bytes: int = 0


@dataclass(slots=True)
class Recovered:
    """Events of a damaged block; ``rest`` is what follows its last whole event, ``ended`` whether the list ended."""

    events: list[Event]
    rest: bytes
    ended: bool


def recover(block: bytes, losses: Losses, *, final: bool) -> Recovered:
    """Read what is whole of a block of events that is no valid JSON.

    Args:
        block: Text of events, starting at one; it may run past the end of the list.
        losses: Where to count.
        final: Whether nothing follows, so that an incomplete last event is lost and not merely continued.
    """
    cleaned = clean(block)
    try:
        events = _LIST.decode(b"[" + cleaned.strip().strip(b",") + b"]")
    except (msgspec.MsgspecError, RecursionError):
        return _by_event(block, losses, final=final)
    return Recovered(events, b"", ended=False)


def _by_event(block: bytes, losses: Losses, *, final: bool) -> Recovered:
    starts = [match.end() for match in _START.finditer(block)] or [
        match.end() for match in ODD_BOUNDARY.finditer(block)
    ]
    cuts = [0, *starts, len(block)]
    events: list[Event] = []
    piece = 0
    while piece < len(cuts) - 1:
        start = cuts[piece]
        event, end = _whole_event(block, start, cuts[piece + 1 : piece + 1 + _JOINED_PIECES])
        if event is not None:
            events.append(event)
            if end < 0:
                return Recovered(events, block[-end:], ended=True)
            piece = cuts.index(end, piece)
            continue
        if not final and piece + _JOINED_PIECES >= len(cuts) - 1:  # its end may be in the next block
            return Recovered(events, block[start:], ended=False)
        if ended := _LIST_END.match(block, start):
            return Recovered(events, block[ended.end() :], ended=True)
        text = block[start : cuts[piece + 1]].strip(b" \t\r\n,")
        if text:
            losses.dropped += 1
            losses.dropped_bytes += len(text)
        piece += 1
    return Recovered(events, b"", ended=False)


def _whole_event(block: bytes, start: int, ends: list[int]) -> tuple[Event | None, int]:
    """Return the event at ``start`` and where the next begins (negated: where the list ended)."""
    for end in ends:  # a list of objects among an event's args looks like several events
        for text, following in _candidates(block, start, end):
            if (event := _decode(text)) is not None:
                return event, following
    for mend in (_decode_cleaned, _pick_apart):
        candidates = list(_candidates(block, start, ends[0]))
        # a guess must not end the list while events follow
        for text, following in reversed(candidates) if ends[0] == len(block) else candidates[:1]:
            if (event := mend(text)) is not None:
                return event, following
    return None, ends[0]


def _candidates(block: bytes, start: int, end: int) -> Iterator[tuple[bytes, int]]:
    """Yield what may be the event, and what follows: the next event, or the end of the list."""
    text = block[start:end]
    yield text, end
    for match in ARRAY_END.finditer(text):
        yield text[: match.start() + 1], -(start + match.end(1))


def _decode_cleaned(text: bytes) -> Event | None:
    return _decode(clean(text))


def clean(text: bytes) -> bytes:
    """Make the usual slips valid: encoding, control characters, escapes, words for no number, extra commas."""
    text = text.decode("utf-8", "replace").encode().translate(_BLANKS)
    text = _ESCAPE.sub(lambda match: match[0] if match[1] else rb"\\", text)
    return _EXTRA_COMMA.sub(b"", _NO_NUMBER.sub(b"null", text))


def _decode(text: bytes) -> Event | None:
    text = text[text.find(b"{") : text.rfind(b"}") + 1]
    if not text:
        return None
    event: Event | None
    try:
        event = _DECODER.decode(text)
    except msgspec.ValidationError:
        event = _coerce(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return event if event is not None and event.ph else None


def _coerce(text: bytes) -> Event | None:
    """Decode an event some of whose fields have another type than they should."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return None
    event = Event()
    for key in ("ph", "cat", "name"):
        if key in fields:
            value = msgspec.json.decode(fields[key])
            setattr(event, key, value if isinstance(value, str) else "")
    for key in ("pid", "tid", "id"):
        if key in fields:
            value = msgspec.json.decode(fields[key])
            setattr(event, key, value if isinstance(value, int | str) else whole(value))
    for key in ("ts", "dur"):
        if key in fields:
            setattr(event, key, fields[key].copy())
    if bytes(fields.get("args", b"")).startswith(b"{"):
        event.args = fields["args"].copy()
    return event


_TEXT = {
    key: re.compile(
        rb'"' + key.encode() + rb'"\s*:\s*"(.*?)"\s*(?=,\s*"(?:' + _KEYS + rb')"\s*:|\}\s*,?\s*\Z)', re.DOTALL
    )
    for key in ("ph", "cat", "name")
}
_NUMBER = {
    key: re.compile(rb'"' + key.encode() + rb'"\s*:\s*"?(-?[\d.]+)') for key in ("pid", "tid", "ts", "dur", "id")
}
_ARGS = re.compile(rb'"(device|stream|correlation|bytes|External id|external id|Sequence number)"\s*:\s*(\d+)')


def _pick_apart(text: bytes) -> Event | None:
    """Read an event field by field where quotes inside its texts make it no JSON. It must be whole: from { to }."""
    text = text.strip(b" \t\r\n,")
    if len(text) > _LONGEST_GUESS:
        return None
    whole_text = text.startswith(b"{") and text.endswith(b"}")
    if not (whole_text and text.count(b"{") == text.count(b"}") and text.count(b"[") == text.count(b"]")):
        return None
    event = Event()
    for key, pattern in _TEXT.items():
        if match := pattern.search(text):
            setattr(event, key, match[1].decode("utf-8", "replace"))
    for key, pattern in _NUMBER.items():
        if match := pattern.search(text):
            number = match[1].decode()
            setattr(event, key, msgspec.Raw(match[1]) if key in ("ts", "dur") else whole(number))
    pairs = [b'"%s": %s' % (match[1], match[2]) for match in _ARGS.finditer(text)]
    event.args = msgspec.Raw(b"{" + b", ".join(pairs) + b"}")
    return event if event.ph and event.ts else None
