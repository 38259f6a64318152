"""One call of a function that is being interpreted: its names, and where its paths have gone."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from fusionadvisor.strategies.legality.code import Function
from fusionadvisor.strategies.legality.values import NOTHING, Flag, Value, join

Names = dict[str, Value]


@dataclass(eq=False)
class Frame:
    """One call of a function.

    Args:
        function: What is called.
        names: Local names on the path that is followed now; None where no path leads here.
        context: Which chain of calls led to this one.
        outer: The frame that the function was made in.
        returns: What it returns on the paths followed so far.
        others: What it would return once a flag is set, with the flags and the place.
        yields: What it yields.
        breaks: For each loop around, the names on the paths that left it.
        continues: For each loop around, the names on the paths that went on with the next pass.
        trails: For each ``try`` and ``with`` around, all that its names denoted: an exception may come at any point.
    """

    function: Function
    names: Names | None
    context: int
    outer: "Frame | None" = None
    returns: Value = NOTHING
    others: list[tuple[Value, frozenset[Flag], ast.AST]] = field(default_factory=list)
    yields: Value = NOTHING
    breaks: list[list[Names]] = field(default_factory=list)
    continues: list[list[Names]] = field(default_factory=list)
    trails: list[Names] = field(default_factory=list)
    left: Names | None = None
    """The names on the paths that have left the function: what functions made here see from then on."""

    def leave(self) -> None:
        """End the path that is followed now."""
        self.left, self.names = merge((self.left, self.names)), None

    def finish(self) -> None:
        """Keep the names for the functions that were made here."""
        self.leave()
        self.names = self.left

    @property
    def current(self) -> Names:
        """The local names; none where no path leads here."""
        return {} if self.names is None else self.names

    def captured(self, function: Function) -> list[Value]:
        """What a function made in this frame may read of its names."""
        loads = {node.id for node in ast.walk(function.node) if isinstance(node, ast.Name)}
        found = [value for name, value in self.current.items() if name in loads]
        return found + (self.outer.captured(function) if self.outer is not None else [])

    def holder(self, name: str) -> "Frame | None":
        """The frame outside this one that has a local of that name."""
        frame = self.outer
        while frame is not None and name not in frame.current:
            frame = frame.outer
        return frame


def merge(paths: Iterable[Names | None]) -> Names | None:
    """The names where several paths meet; a name that only some of them have keeps what those say."""
    merged: Names | None = None
    for names in paths:
        if names is None:
            continue
        if merged is None:
            merged = dict(names)
        elif merged is not names:
            for name, value in names.items():
                known = merged.get(name)
                if known is not value:
                    merged[name] = value if known is None else join(known, value)
    return merged
