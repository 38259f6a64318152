"""Something a graph cannot do, found before trying: which module, which line, why, and what to do instead."""

from dataclasses import dataclass

from torch import nn

from fusionadvisor.report.model import Source
from fusionadvisor.strategies.graphs.where import place

CANT_WAIT = "during forward; a graph can't wait for it"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason against capturing.

    Args:
        module: Path of the module it is in, empty for the model itself.
        why: What it does, as a clause with the line as its subject: ``reads a value back to the CPU (.item())``.
        remedy: What to do about it, a sentence without its full stop; may be empty.
        source: The line.
    """

    module: str
    why: str
    remedy: str = ""
    source: Source | None = None

    def within(self, site: str) -> bool:
        """Whether it lies in this module or below it."""
        return not site or self.module == site or self.module.startswith(f"{site}.")

    def sentence(self) -> str:
        """The obstacle in words: ``models/decoder.py:88 (head) reads ….``."""
        return f"{place(self.source, self.module)} {self.why}. {self.remedy}".rstrip(" .") + "."


def paths_of(model: nn.Module) -> dict[int, str]:
    """Module path by ``id`` of the module, the first where it has several."""
    return {id(module): path for path, module in model.named_modules()}
