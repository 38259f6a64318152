"""Every rule and strategy by id: title, home, remedies. Nothing is imported to read a page: docstrings are parsed.

A new rule or strategy is one class, one entry here, and one entry in the tuple of its package.
"""

import ast
import inspect
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fusionadvisor.errors import InputError, did_you_mean

DOCS_URL = "https://github.com/fusion-advisor/fusion-advisor/blob/main/docs"


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule or strategy.

    Args:
        id: ``FA101`` or ``fuse_modules``.
        title: Imperative for a rule, a phrase for a strategy.
        home: ``module:Class`` whose docstring is the page.
        remedies: Strategies a rule names; empty for a strategy.
        passed: What to say when the rule found nothing, in two or three words.
        timed: True for a rule that judges by measured times, so that two runs of the same code may differ.
    """

    id: str
    title: str
    home: str
    remedies: tuple[str, ...] = ()
    passed: str = ""
    timed: bool = False

    @property
    def url(self) -> str:
        """Where the page is on the web."""
        return f"{DOCS_URL}/{'rules' if self.passed else 'strategies'}/{self.id}.md"


RULES: tuple[Entry, ...] = (
    Entry("FA101", "Fold batch norm into its convolution", "fusionadvisor.rules.vertical:FoldableNorm",
          ("fuse_modules", "compile"), "batch norms folded"),
    Entry("FA102", "Move the activation into the epilogue", "fusionadvisor.rules.vertical:ActivationEpilogue",
          ("compile", "fuse_modules"), "activations in epilogues"),
    Entry("FA103", "Fuse the pointwise chain", "fusionadvisor.rules.vertical:PointwiseChain",
          ("compile", "torchscript"), "no pointwise chains"),
    Entry("FA201", "Merge the layers that read one input", "fusionadvisor.rules.horizontal:Siblings",
          ("horizontal",), "no siblings on one input"),
    Entry("FA301", "Replay the step as a graph", "fusionadvisor.rules.launch:LaunchBound",
          ("cudagraph", "compile"), "not launch-bound", timed=True),
)  # fmt: skip

STRATEGIES: tuple[Entry, ...] = (
    Entry("fuse_modules", "Fold batch norm, join activations", "fusionadvisor.strategies.fuse_modules:FuseModules"),
    Entry("torchscript", "Script or trace, then freeze", "fusionadvisor.strategies.torchscript:TorchScript"),
    Entry("cudagraph", "Capture the step once, replay it", "fusionadvisor.strategies.cudagraph:CudaGraph"),
)  # fmt: skip

_BY_ID = {entry.id: entry for entry in (*RULES, *STRATEGIES)}


def entry(identifier: str) -> Entry:
    """Return the entry of a rule or strategy id, in any case.

    Raises:
        InputError: If there is none; the message names the closest.
    """
    for known, found in _BY_ID.items():
        if known.lower() == identifier.lower():
            return found
    raise InputError(f"No rule or strategy is called '{identifier}'.", did_you_mean(identifier, tuple(_BY_ID)))


def page(identifier: str) -> str:
    """Return the docstring of a rule or strategy, read from its source without importing it."""
    found = entry(identifier)
    module, name = found.home.split(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"{found.id} names a home that does not exist: {found.home}")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return inspect.cleandoc(ast.get_docstring(node) or "")
    raise LookupError(f"{found.home} does not exist")
