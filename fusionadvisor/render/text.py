"""Lines of styled text for a terminal: cleaned, measured, wrapped, and plain ASCII where the terminal needs it."""

import dataclasses
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, TypeVar, cast

from rich.cells import cell_len, set_cell_size
from rich.text import Text

Piece = str | tuple[str, str]
"""Text, or text with a rich style."""

T = TypeVar("T")

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""CSI, OSC and two-character escape sequences (ECMA-48)."""

_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that move the cursor, reorder text or show nothing."""

_ASCII = str.maketrans(
    {"·": "-", "→": "->", "×": "x", "–": "-", "—": "-", "−": "-", "±": "+/-", "µ": "u", "≤": "<=", "≥": ">=",
     "…": "...", "✓": "ok", "✗": "x", "’": "'",
     "█": "#", "▏": "", "▎": "", "▍": "", "▌": "#", "▋": "#", "▊": "#", "▉": "#"}
)  # fmt: skip


def clean(text: str) -> str:
    """Return text without escape sequences, control characters or marks that reorder it; line ends become spaces."""
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPES.sub("", _decoded(text))
    text = re.sub(r"[\t\r\n\v\f\u2028\u2029]+", " ", text)
    return "".join(c for c in text if c == " " or unicodedata.category(c) not in _UNSEEN)


def _decoded(text: str) -> str:
    """Return text with the bytes of a file name that the locale could not decode read as UTF-8, else as its number."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate that is no byte
        return text


def cleaned(value: T, *, lines: bool = False) -> T:
    """Return a dataclass with every string in it cleaned, all the way down; what is not text stays as it is.

    Args:
        value: A dataclass, a tuple, a dict or a plain value.
        lines: Keep line ends, for a field that is several lines of code.
    """
    return cast(T, _cleaned(value, lines))


def _cleaned(value: Any, lines: bool) -> Any:
    if isinstance(value, str):
        return "\n".join(map(clean, value.splitlines())) if lines else clean(value)
    if isinstance(value, tuple):
        return tuple(_cleaned(item, lines) for item in value)
    if isinstance(value, dict):
        return {_cleaned(key, lines): _cleaned(item, lines) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return dataclasses.replace(value, **{n: _cleaned(getattr(value, n), n == "snippet") for n in names})
    return value


class Sheet:
    """Collects lines no wider than ``width`` cells.

    Args:
        width: Cells in a line.
        ascii_only: Spell every sign in ASCII.
    """

    def __init__(self, width: int, *, ascii_only: bool = False) -> None:
        self.width = width
        self.ascii_only = ascii_only
        self.lines: list[Text] = []

    def spell(self, text: str) -> str:
        """Return the text in characters this terminal can show."""
        if not self.ascii_only or text.isascii():
            return text
        return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")

    def size(self, text: str) -> int:
        """Cells the text takes."""
        return cell_len(self.spell(text))

    def cell(self, text: str, width: int, *, right: bool = False) -> str:
        """Return the text padded to ``width`` cells, shortened with an ellipsis where it is longer."""
        text = self.spell(text)
        if cell_len(text) > width:
            dots = self.spell("…")
            text = (set_cell_size(text, max(width - len(dots), 0)).rstrip() + dots)[:width]
        size = cell_len(text)
        return " " * (width - size) + text if right else text + " " * (width - size)

    def add(self, *pieces: Piece) -> None:
        """Add one line as it is."""
        line = Text(no_wrap=True, end="")
        styled = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
        for style, run in groupby(styled, key=lambda piece: piece[1]):
            line.append(self.spell("".join(text for text, _ in run)), style or None)
        line.rstrip()
        self.lines.append(line)

    def gap(self) -> None:
        """Add an empty line unless the last one is."""
        if self.lines and self.lines[-1].plain:
            self.add()

    def flow(self, items: Iterable[Piece], *, lead: Sequence[Piece] = (), indent: int = 0, gap: str = " · ") -> None:
        """Add items one after the other, starting a new line where the next would not fit.

        Args:
            items: Kept whole where they fit on a line of their own, else broken between words.
            lead: What stands before the first item; counted as ``indent`` cells or more.
            indent: Cells before every further line.
            gap: Between items on one line.
        """
        items = list(items)
        if not items:
            return
        line: list[Piece] = list(lead)
        used = sum(self.size(p if isinstance(p, str) else p[0]) for p in lead)
        if not lead:
            line, used = [" " * indent], indent
        fresh = True
        for item in items:
            text, style = (item, "") if isinstance(item, str) else item
            if not fresh and used + self.size(gap) + self.size(text) > self.width:
                self.add(*line)
                line, used, fresh = [" " * indent], indent, True
            if not fresh:
                line.append((gap, "dim" if gap.strip() else style))
                used += self.size(gap)
            while fresh and used + self.size(text) > self.width and " " in text:
                head, rest = self._break(text, self.width - used)
                line.append((head, style))
                self.add(*line)
                line, used, text = [" " * indent], indent, rest
            line.append((text, style))
            used += self.size(text)
            fresh = False
        self.add(*line)

    def _break(self, text: str, room: int) -> tuple[str, str]:
        """Split at the last space within ``room`` cells, else at the first space there is."""
        words = text.split(" ")
        count = len(words) - 1
        while count > 1 and self.size(" ".join(words[:count])) > room:
            count -= 1
        return " ".join(words[:count]), " ".join(words[count:])

    def say(self, text: str, *, style: str = "", lead: Sequence[Piece] = (), indent: int = 0) -> None:
        """Add a sentence, wrapped between words under ``indent``."""
        self.flow([(word, style) for word in text.split()], lead=lead, indent=indent, gap=" ")
