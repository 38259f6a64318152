"""Lines of styled text for a terminal: cleaned, measured, wrapped, and plain ASCII where the terminal needs it."""

import dataclasses
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, TypeVar, cast

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fusionadvisor.render.parts import Fact, Piece, Row, Table, plain

STYLES = {
    "strong": "bold", "soft": "dim", "name": "cyan", "how": "magenta", "good": "green", "warn": "yellow", "bad": "red"
}  # fmt: skip
"""Tones of :data:`~fusionadvisor.render.parts.Piece` as rich styles."""
LABEL, GAP, BAR, LEAST = 10, 2, 22, 20
"""Cells of a label, between columns, of the longest bar, and of a column that wraps, at the least."""

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

    def print(self, console: Console) -> None:
        """Print the lines."""
        for line in self.lines:
            console.print(line, soft_wrap=True, highlight=False)

    def spell(self, text: str) -> str:
        """Return the text in characters this terminal can show."""
        if not self.ascii_only or text.isascii():
            return text
        return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")

    def size(self, text: str) -> int:
        """Cells the text takes."""
        return cell_len(self.spell(text))

    def add(self, *pieces: Piece) -> None:
        """Add one line as it is."""
        line = Text(no_wrap=True, end="")
        styled = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
        for style, run in groupby(styled, key=lambda piece: piece[1]):
            line.append(self.spell("".join(text for text, _ in run)), STYLES.get(style, style) or None)
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
        used = sum(self.size(plain(p)) for p in lead)
        if not lead:
            line, used = [" " * indent], indent
        fresh = True
        for item in items:
            text, style = (item, "") if isinstance(item, str) else item
            if not fresh and used + self.size(gap) + self.size(text) > self.width:
                self.add(*line)
                line, used, fresh = [" " * indent], indent, True
            if not fresh:
                line.append((gap, "soft" if gap.strip() else style))
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

    def facts(self, facts: Iterable[Fact], *, indent: int = 0, verbose: bool = False) -> None:
        """Add facts, each label once."""
        last = ""
        for fact in facts:
            if fact.verbose not in (None, verbose):
                continue
            label = "" if fact.label == last else fact.label
            last, width = fact.label, indent + (max(LABEL, len(fact.label) + 1) if fact.label else 0)
            lead: list[Piece] = [" " * indent, (label.ljust(width - indent), "strong")]
            self.flow(fact.items, lead=lead, indent=width, gap=fact.gap)

    def table(self, table: Table, *, verbose: bool = False) -> None:
        """Add a table; columns that do not fit are left out, and the first that wraps takes what room there is."""
        shown = [i for i in range(len(table.columns)) if any(plain(row.cells[i]) for row in table.rows)]
        if not shown:
            return
        head = tuple((column.title, "soft") for column in table.columns)
        sizes = {i: max(self.size(plain(cells[i])) for cells in (head, *(r.cells for r in table.rows))) for i in shown}
        sizes = {i: min(size, table.columns[i].limit or size) for i, size in sizes.items()}
        while (room := self._room(table, sizes)) < 0 and any(table.columns[i].spare for i in sizes):
            del sizes[max(sizes, key=lambda i: table.columns[i].spare)]
        for i in sizes:
            if table.columns[i].wraps:
                least = min(sizes[i], LEAST)
                sizes[i] = max(min(sizes[i], room + least), 1)
                room -= sizes[i] - least
        if any(plain(cell) for cell in head):
            self._row(table, sizes, Row(head))
            if not any(column.title for column in table.columns[:2]):  # the caption stands over them
                self.lines[-1] = (
                    Text(table.caption, "bold", no_wrap=True, end="") + self.lines[-1][len(table.caption) :]
                )
        first = min(sizes)
        for row in table.rows:
            self._row(table, sizes, row)
            self.facts(row.details, indent=min(2 + sizes[first] + GAP, LABEL - 1), verbose=verbose)
        for note in table.notes:
            self.say(note, style="soft", indent=2)

    def _room(self, table: Table, sizes: dict[int, int]) -> int:
        """Cells that are left where the column that wraps has its least."""
        least = (min(size, LEAST) if table.columns[i].wraps else size for i, size in sizes.items())
        return self.width - 2 - sum(least) - GAP * (len(sizes) - 1)

    def _row(self, table: Table, sizes: dict[int, int], row: Row) -> None:
        grid = Grid.grid(padding=(0, GAP, 0, 0), pad_edge=False)
        for i, size in sizes.items():
            column = table.columns[i]
            grid.add_column(
                width=size, justify="right" if column.number else "left", no_wrap=not column.wraps,
                overflow="fold" if column.wraps else "ellipsis",
            )  # fmt: skip
        cells = [(cell, "") if isinstance(cell, str) else cell for cell in row.cells]
        grid.add_row(*(Text(self.spell(cells[i][0]), STYLES.get(cells[i][1], cells[i][1])) for i in sizes))
        console = Console(file=io.StringIO(), width=max(self.width - 2, 1), color_system="truecolor")
        for i, segments in enumerate(console.render_lines(grid, pad=False)):
            line = Text("  ", no_wrap=True, end="")
            for segment in segments:
                line.append(segment.text.replace("…", ".") if self.ascii_only else segment.text, segment.style)
            space = self.width - cell_len(line.plain) - 2
            if row.share is not None and not i and space > 4:
                line.append("  ").append(self.spell(bar(row.share, min(BAR, space))), "cyan")
            line.rstrip()
            self.lines.append(line)


def bar(share: float, width: int) -> str:
    """Return a bar of this share of ``width`` cells, to an eighth of a cell."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
