"""Every rule and strategy by id: title, home, remedies. Nothing is imported to read a page: docstrings are parsed.

A new rule or strategy of this package is one class and one entry here. Another package names its class in an entry
point, under its id; what stands here of the built-in ones is then read from the source of the class.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fusionadvisor.errors import InputError, did_you_mean

DOCS_URL = "https://github.com/fusion-advisor/fusion-advisor/blob/main/docs"
RULES_GROUP = "fusionadvisor.rules"
STRATEGIES_GROUP = "fusionadvisor.strategies"
"""Entry-point groups in which other packages name their classes, each under the id that users type."""


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
        package: The distribution that brings it, ``theirs 1.0``; empty for this one.
    """

    id: str
    title: str
    home: str
    remedies: tuple[str, ...] = ()
    passed: str = ""
    timed: bool = False
    package: str = ""
    concerns: str = ""
    """What a rule is about, where that decides what a report says: ``launches``, ``syncs``, or ``transfers``."""
    needs_cuda: bool = False
    """True for a strategy that can do nothing without a CUDA device."""

    @property
    def url(self) -> str:
        """Where the page is on the web; empty for that of another package."""
        if self.package:
            return ""
        return f"{DOCS_URL}/{'rules' if self.passed else 'strategies'}/{self.id}.md"


STRATEGIES: tuple[Entry, ...] = (
    Entry("fuse_modules", "Fold batch norm, join activations", "fusionadvisor.strategies.fuse_modules:FuseModules"),
    Entry("horizontal", "Merge sibling layers, batch small products", "fusionadvisor.strategies.horizontal:Horizontal"),
    Entry("sdpa", "Use scaled dot-product attention", "fusionadvisor.strategies.sdpa:Sdpa"),
    Entry("fx", "Rewrite a captured graph", "fusionadvisor.strategies.fx:FxPasses"),
    Entry("inplace", "Do activations in place", "fusionadvisor.strategies.inplace:InPlace"),
    Entry("channels_last", "Keep the model in channels-last", "fusionadvisor.strategies.channels_last:ChannelsLast"),
    Entry("torchscript", "Script or trace, then freeze", "fusionadvisor.strategies.torchscript:TorchScript"),
    Entry("optimizer", "Update all parameters in one kernel", "fusionadvisor.strategies.optimizer:FusedOptimizer"),
    Entry("compile", "Compile the model or its blocks", "fusionadvisor.strategies.compile:Compile"),
    Entry("cudagraph", "Capture the step once, replay it", "fusionadvisor.strategies.cudagraph:CudaGraph",
          needs_cuda=True),
)  # fmt: skip

SEARCH = Entry("auto", "Search for the best combination", "fusionadvisor.evaluate.auto:Search")
"""Not a strategy itself: it tries those above."""

_RULES: tuple[Entry, ...] = (
    Entry("FA101", "Fold batch norm into its convolution", "fusionadvisor.rules.vertical:FoldableNorm",
          ("fuse_modules", "compile"), "batch norms folded"),
    Entry("FA102", "Move the activation into the epilogue", "fusionadvisor.rules.vertical:ActivationEpilogue",
          ("compile",), "activations in epilogues"),
    Entry("FA103", "Fuse the pointwise chain", "fusionadvisor.rules.vertical:PointwiseChain",
          ("compile", "torchscript"), "no pointwise chains"),
    Entry("FA104", "Fuse the residual addition with the norm", "fusionadvisor.rules.norms:ResidualNorm",
          ("compile",), "no residual before a norm"),
    Entry("FA105", "Replace the norm written out by hand", "fusionadvisor.rules.norms:WrittenOutNorm",
          ("fx", "compile"), "norms are single ops"),
    Entry("FA106", "Fuse the gate, or the activation written out",
          "fusionadvisor.rules.pointwise:WrittenOutActivation", ("fx", "compile"), "activations are single ops"),
    Entry("FA107", "Use scaled dot-product attention", "fusionadvisor.rules.attention:WrittenOutAttention",
          ("sdpa", "compile"), "attention is fused"),
    Entry("FA108", "Fuse the rotary embedding", "fusionadvisor.rules.attention:RotaryEmbedding",
          ("compile",), "no rotary by hand"),
    Entry("FA109", "Fuse bias, dropout and residual", "fusionadvisor.rules.pointwise:DropoutResidual",
          ("compile",), "no dropout before a residual"),
    Entry("FA110", "Use cross_entropy", "fusionadvisor.rules.pointwise:WrittenOutLoss",
          ("fx", "compile"), "loss is one op"),
    Entry("FA111", "Keep one dtype instead of casting back and forth",
          "fusionadvisor.rules.pointwise:CastPingPong", ("compile",), "no casts undone"),
    Entry("FA201", "Merge the linear layers that read one input", "fusionadvisor.rules.horizontal:Siblings",
          ("horizontal",), "no linear siblings"),
    Entry("FA202", "Merge the convolutions that read one input",
          "fusionadvisor.rules.horizontal:SiblingConvolutions", ("horizontal",), "no sibling convolutions"),
    Entry("FA203", "Batch the small GEMMs", "fusionadvisor.rules.horizontal:SmallGemms",
          ("horizontal",), "no loops of small GEMMs"),
    Entry("FA204", "Update all parameters in one kernel", "fusionadvisor.rules.training:ForLoopOptimizer",
          ("optimizer",), "optimizer is fused"),
    Entry("FA301", "Replay the step as a graph", "fusionadvisor.rules.launch:LaunchBound",
          ("cudagraph", "compile"), "not launch-bound", timed=True, concerns="launches"),
    Entry("FA302", "Keep the CPU from waiting", "fusionadvisor.rules.launch:HotSync", (), "no op waits for a value",
          concerns="syncs"),
    Entry("FA303", "Fuse the storm of tiny kernels", "fusionadvisor.rules.launch:TinyKernelStorm",
          ("cudagraph", "compile"), "no tiny-kernel storms", timed=True),
    Entry("FA304", "Keep the compiled model compiled", "fusionadvisor.rules.launch:FallenBack",
          (), "compiled once, no fallback", timed=True),
    Entry("FA401", "Do the activation in place", "fusionadvisor.rules.memory:OutOfPlace",
          ("inplace",), "activations in place"),
    Entry("FA402", "Keep the model in channels-last", "fusionadvisor.rules.memory:LayoutConversion",
          ("channels_last",), "no layout conversions"),
    Entry("FA403", "Avoid the copy", "fusionadvisor.rules.memory:RedundantCopy", ("compile",), "no copies to avoid"),
    Entry("FA404", "Pad the GEMM to a multiple of 8", "fusionadvisor.rules.memory:MisalignedGemm",
          (), "GEMMs aligned"),
    Entry("FA405", "Pin the host memory", "fusionadvisor.rules.memory:PageableCopy", (), "no pageable copies",
          concerns="transfers"),
    Entry("FA406", "Concatenate once", "fusionadvisor.rules.memory:GrowingCat", (), "nothing grows by concatenation"),
)  # fmt: skip

_STRATEGY_IDS = frozenset(entry.id for entry in STRATEGIES)
RULES: tuple[Entry, ...] = tuple(
    # a remedy is named once there is a strategy of that id
    replace(entry, remedies=tuple(r for r in entry.remedies if r in _STRATEGY_IDS))
    for entry in _RULES
)

_BUILT_IN = {entry.id: entry for entry in (*RULES, *STRATEGIES, SEARCH)}


def rules() -> tuple[Entry, ...]:
    """Every rule: the built-in ones, then those of other packages."""
    return *RULES, *_plugins(RULES_GROUP, tuple(sys.path)).entries


def strategies() -> tuple[Entry, ...]:
    """Every strategy: the built-in ones, then those of other packages."""
    return *STRATEGIES, *_plugins(STRATEGIES_GROUP, tuple(sys.path)).entries


def refused_rules() -> tuple[str, ...]:
    """Say which rules of other packages are left out because their id is a built-in one, a sentence each."""
    return _refused("Rule", RULES_GROUP)


def refused_strategies() -> tuple[str, ...]:
    """The same of strategies."""
    return _refused("Strategy", STRATEGIES_GROUP)


def _refused(what: str, group: str) -> tuple[str, ...]:
    known = _plugins(group, tuple(sys.path)).refused
    return tuple(f"{what} {name} of {package} is left out: {name} is a built-in id." for name, package in known)


def entry(identifier: str) -> Entry:
    """Return the entry of a rule or strategy id, in any case.

    Raises:
        InputError: If there is none; the message names the closest.
    """
    known = {found.id: found for found in (*rules(), *strategies(), SEARCH)}
    for name, found in known.items():
        if name.lower() == identifier.lower():
            return found
    raise InputError(f"No rule or strategy is called '{identifier}'.", did_you_mean(identifier, tuple(known)))


def url(identifier: str) -> str:
    """Return where the page of an id is on the web; empty where there is none, or the id is not known here."""
    try:
        return entry(identifier).url
    except InputError:  # of a later version, or of a package that is not installed here
        return ""


def concerns(rule: str, *topics: str) -> bool:
    """Whether a rule is about one of these topics; False for a rule that is not known here."""
    return any(entry.id == rule and entry.concerns in topics for entry in rules())


def page(identifier: str) -> str:
    """Return the docstring of a rule or strategy, read from its source without importing it.

    Raises:
        InputError: If the source of another package's class is not there.
    """
    found = entry(identifier)
    written = _class(found.home)
    if written is None:
        raise InputError(f"{found.id} has no page: the source of {found.home} is not found.")
    return inspect.cleandoc(ast.get_docstring(written) or "")


def parameters(identifier: str) -> tuple[str, ...]:
    """Return the names of a strategy's parameters, read from its source without importing it."""
    written = _class(entry(identifier).home)
    fields = (node for node in written.body if isinstance(node, ast.AnnAssign)) if written else ()
    return tuple(
        node.target.id
        for node in fields
        if isinstance(node.target, ast.Name) and not ast.unparse(node.annotation).startswith("ClassVar")
    )


class _Plugins(NamedTuple):
    entries: tuple[Entry, ...]
    refused: tuple[tuple[str, str], ...]
    """Ids that are built-in ones, each with the package that wants it."""


@lru_cache
def _plugins(group: str, path: tuple[str, ...]) -> _Plugins:
    """What other packages on ``path`` bring; an id that is taken already is not theirs."""
    found: dict[str, Entry] = {}
    refused: dict[tuple[str, str], None] = {}
    for point in entry_points(group=group):
        of = _package(point)
        if point.name in _BUILT_IN:
            refused[point.name, of] = None
        if point.name in _BUILT_IN or point.name in found:
            continue
        home = f"{point.module}:{point.attr}"
        written = _class(home)
        title = inspect.cleandoc((written and ast.get_docstring(written)) or point.name).splitlines()[0].rstrip(".")
        said = dict(_literals(written)) if written else {}
        if group == STRATEGIES_GROUP:
            found[point.name] = Entry(point.name, title, home, package=of, needs_cuda=said.get("needs_cuda") is True)
        else:
            found[point.name] = Entry(
                point.name, title, home, tuple(said.get("remedies", ())), said.get("passed") or f"{point.name} passed",
                said.get("timed") is True, of, said.get("concerns") or "",
            )  # fmt: skip
    return _Plugins(tuple(found.values()), tuple(refused))


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "another package"


def _class(home: str) -> ast.ClassDef | None:
    """Find the class of a home, ``module:Class``, in its source; None where there is none. Nothing is imported."""
    module, name = home.split(":")
    top, *below = module.split(".")
    try:
        spec = find_spec(top)
    except ValueError:  # a module made by hand, as __main__
        return None
    for part in below:
        top = f"{top}.{part}"
        spec = spec and PathFinder.find_spec(top, spec.submodule_search_locations)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _literals(written: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """The attributes that a class sets to literals."""
    for node in written.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and node.value:
            try:
                yield target.id, ast.literal_eval(node.value)
            except ValueError:
                continue
