"""What a page is made of, in any form: facts and tables whose words are decided. Renderers only lay them out."""

from dataclasses import dataclass

Piece = str | tuple[str, str]
"""Text, or text with its tone: ``strong``, ``soft``, ``name``, ``how``, ``good``, ``warn`` or ``bad``."""


def plain(piece: Piece) -> str:
    """Return a piece's text."""
    return piece if isinstance(piece, str) else piece[0]


@dataclass(frozen=True, slots=True)
class Fact:
    """Items under a label; facts in a row with one label are one paragraph each under it."""

    label: str
    items: tuple[Piece, ...]
    verbose: bool | None = None
    """True where the short form leaves it out, False where the long form does."""
    gap: str = " · "


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; one that is empty in all rows is not shown."""

    title: str
    number: bool = False
    wraps: bool = False
    limit: int = 0
    """The most cells it takes, 0 for any number."""
    spare: int = 0
    """Where there is no room, columns are left out by this, the highest first; 0 stays."""


@dataclass(frozen=True, slots=True)
class Row:
    """Cells in the order of the columns, and what stands under them."""

    cells: tuple[Piece, ...]
    details: tuple[Fact, ...] = ()
    share: float | None = None
    """Length of the row's bar, of 1."""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under titles, with a caption and notes."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
