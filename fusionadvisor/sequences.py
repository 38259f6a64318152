"""Which items of two sequences correspond, as the ops of two steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

LONGEST = 2_000
"""Items in a stretch that does not match one to one, beyond which it is left alone: aligning takes quadratic time."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Positions that correspond, in order. ``whole`` is False where a stretch was too long to be aligned."""

    pairs: tuple[tuple[int, int], ...]
    whole: bool = True


def align(a: Sequence[str], b: Sequence[str]) -> Alignment:
    """Pair the items of two sequences: one to one where these are equal, else by the longest common runs."""
    front = 0
    while front < min(len(a), len(b)) and a[front] == b[front]:
        front += 1
    back = 0
    while back < min(len(a), len(b)) - front and a[-1 - back] == b[-1 - back]:
        back += 1
    pairs = [(i, i) for i in range(front)]
    middle = a[front : len(a) - back], b[front : len(b) - back]
    whole = not all(middle) or max(map(len, middle)) <= LONGEST
    if all(middle) and whole:
        for x, y, size in SequenceMatcher(None, *middle, autojunk=False).get_matching_blocks():
            pairs += [(front + x + k, front + y + k) for k in range(size)]
    return Alignment((*pairs, *((len(a) - 1 - i, len(b) - 1 - i) for i in reversed(range(back)))), whole)
