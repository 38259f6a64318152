"""Every rule and strategy by id: title, home, remedies. Nothing is imported to read a page: docstrings are parsed.

A new rule or strategy is one class, one entry here, and one entry in the tuple of its package.
"""

import ast
import inspect
from dataclasses import dataclass, replace
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


STRATEGIES: tuple[Entry, ...] = (
    Entry("fuse_modules", "Fold batch norm, join activations", "fusionadvisor.strategies.fuse_modules:FuseModules"),
    Entry("horizontal", "Merge layers that read one input", "fusionadvisor.strategies.horizontal:Horizontal"),
    Entry("sdpa", "Use scaled dot-product attention", "fusionadvisor.strategies.sdpa:Sdpa"),
    Entry("fx", "Rewrite a captured graph", "fusionadvisor.strategies.fx:FxPasses"),
    Entry("inplace", "Do activations in place", "fusionadvisor.strategies.inplace:InPlace"),
    Entry("channels_last", "Keep the model in channels-last", "fusionadvisor.strategies.channels_last:ChannelsLast"),
    Entry("torchscript", "Script or trace, then freeze", "fusionadvisor.strategies.torchscript:TorchScript"),
    Entry("optimizer", "Update all parameters in one kernel", "fusionadvisor.strategies.optimizer:FusedOptimizer"),
    Entry("compile", "Compile the model or its blocks", "fusionadvisor.strategies.compile:Compile"),
    Entry("cudagraph", "Capture the step once, replay it", "fusionadvisor.strategies.cudagraph:CudaGraph"),
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
          (), "no loops of small GEMMs"),
    Entry("FA204", "Update all parameters in one kernel", "fusionadvisor.rules.training:ForLoopOptimizer",
          ("optimizer",), "optimizer is fused"),
    Entry("FA301", "Replay the step as a graph", "fusionadvisor.rules.launch:LaunchBound",
          ("cudagraph", "compile"), "not launch-bound", timed=True),
    Entry("FA302", "Keep the CPU from waiting", "fusionadvisor.rules.launch:HotSync", (), "no op waits for a value"),
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
    Entry("FA405", "Pin the host memory", "fusionadvisor.rules.memory:PageableCopy", (), "no pageable copies"),
)  # fmt: skip

_STRATEGY_IDS = frozenset(entry.id for entry in STRATEGIES)
RULES: tuple[Entry, ...] = tuple(
    # a remedy is named once there is a strategy of that id
    replace(entry, remedies=tuple(r for r in entry.remedies if r in _STRATEGY_IDS))
    for entry in _RULES
)

_BY_ID = {entry.id: entry for entry in (*RULES, *STRATEGIES, SEARCH)}


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
