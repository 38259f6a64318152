"""Steps over the data flow that several rules take, and the words they share."""

from collections.abc import Iterable

from fusionadvisor.analysis import infer
from fusionadvisor.analysis.dataflow import Dataflow
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.nodes import ACTIVATIONS, Node, Tensor

_CONV_WRAPPERS = frozenset({"convolution", "_convolution", "conv1d", "conv2d", "conv3d", "conv_transpose2d"})

LABELS = {
    "addmm": "linear", "mm": "linear", "native_batch_norm": "batch_norm", "cudnn_batch_norm": "batch_norm",
    "miopen_batch_norm": "batch_norm", "_native_batch_norm_legit_no_training": "batch_norm",
    "_native_batch_norm_legit": "batch_norm", "native_layer_norm": "layer_norm", "native_group_norm": "group_norm",
    "_softmax": "softmax", "_log_softmax": "log_softmax", "native_dropout": "dropout", "clamp_min": "relu",
    "_to_copy": "cast", "clone": "copy",
}  # fmt: skip
"""What an op is called in a finding, where its aten name would not be recognised."""


def label(node: Node) -> str:
    """What a node is called in a finding."""
    if node.kind == "conv":
        return "conv"
    return node.kind if node.kind in ("cast", "layout") else LABELS.get(node.op, node.op or node.kind)


def at_most(facts: Facts) -> str:
    """How a saving that rests on measured times begins: a bound on a GPU, on the CPU an estimate."""
    return "Estimated as" if facts.timeline.stand_ins else "Saves at most"


def chain(nodes: Iterable[Node], most: int = 12) -> str:
    """``add → relu``; repeats counted, long chains cut."""
    words: list[list[object]] = []
    for node in nodes:
        word = label(node)
        if words and words[-1][0] == word:
            words[-1][1] = int(str(words[-1][1])) + 1
        else:
            words.append([word, 1])
    said = [str(w) if n == 1 else f"{w} ×{n}" for w, n in words]
    return " → ".join(said if len(said) <= most else [*said[:most], "…"])


def is_batch_norm(node: Node) -> bool:
    """A forward batch norm."""
    return node.kind == "norm" and "batch_norm" in node.op and "backward" not in node.op


def batch_statistics(node: Node, facts: Facts) -> bool:
    """True where a batch norm normalises with the batch's own statistics, as in training mode."""
    if node.op.endswith("no_training"):
        return False
    said = node.arguments.get("training", node.arguments.get("train", node.arguments.get("5")))
    return facts.training if said is None or str(said) not in ("True", "False") else str(said) == "True"


def is_bias_of_conv(node: Node) -> bool:
    """The separate kernel in which eager cuDNN adds a convolution's bias."""
    return node.op == "add" and node.inplace and node.outer in _CONV_WRAPPERS


def producer(flow: Dataflow, node: Node, argument: int = 0) -> Node | None:
    """The maker of an argument, looking through a convolution's own bias kernel."""
    found = flow.producer(node, argument)
    if found is not None and is_bias_of_conv(found):
        return flow.producer(found, 0) or found
    return found


def end_of(flow: Dataflow, node: Node) -> Node:
    """The last node of a layer: a convolution's own bias kernel where it has one."""
    user = flow.sole_user(node)
    return user if node.kind == "conv" and user is not None and is_bias_of_conv(user) else node


def activation_of(node: Node) -> bool:
    """An activation function of one tensor."""
    return node.kind == "pointwise" and node.op in ACTIVATIONS


def left(node: Node) -> int:
    """The position of a GEMM's or convolution's activation operand among its reads."""
    return infer.left(node.op)


def weight(node: Node) -> int:
    """The position of a GEMM's or convolution's second operand among its reads."""
    return left(node) + 1


def is_path(module: str) -> bool:
    """True for a path that ``model.get_submodule`` takes; a trace names classes instead."""
    return bool(module) and "#" not in module and "/" not in module and ":" not in module


def common(nodes: Iterable[Node]) -> str:
    """The innermost module that holds all of these, empty for the model itself."""
    paths = [n.module.split(".") for n in nodes]
    shared: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def compile_snippet(regions: Iterable[str]) -> str:
    """Code that compiles these regions of a model in place."""
    paths = [p for p in dict.fromkeys(regions) if is_path(p)]
    if not paths:
        return "model.compile()  # fuses what is between the GEMMs; in place, keeps parameters and state_dict"
    if len(paths) == 1:
        return f'model.get_submodule("{paths[0]}").compile()'
    return f"for path in {paths!r}:\n    model.get_submodule(path).compile()"


def is_forward(node: Node) -> bool:
    """A node of the forward pass."""
    return node.phase in ("", "forward") and "backward" not in node.op and "backward" not in node.outer


def tensor_reads(node: Node, like: Tensor | None) -> list[Tensor]:
    """The arguments of a node that have as many elements as ``like``."""
    return [t for t in node.reads if like is not None and t.numel == like.numel]


def walk_back(flow: Dataflow, node: Node, argument: int) -> Node | None:
    """The maker of an argument, looking through casts and copies."""
    found = flow.producer(node, argument)
    while found is not None and found.kind in ("cast", "copy", "layout"):
        found = flow.producer(found, 0)
    return found


def is_dropout(flow: Dataflow, node: Node) -> bool:
    """The kernel that applies a dropout mask: one op on CUDA, the last of three on the CPU."""
    return node.op in ("native_dropout", "_fused_dropout") or (
        node.op == "mul" and dropout_noise(flow, node) is not None
    )


def dropout_noise(flow: Dataflow, node: Node) -> Node | None:
    """On the CPU, the step before in drawing a mask: ``bernoulli_`` → ``div_`` → ``mul``."""
    before = {"mul": ("div",), "div": ("bernoulli",)}.get(node.op, ())
    sources = [flow.producer(node, i) for i in range(len(node.reads))]
    noise = next((s for s in sources if s is not None and s.op in before), None)
    if noise is not None and node.op == "mul" and dropout_noise(flow, noise) is None:
        return None
    return noise


def gated_by(flow: Dataflow, node: Node, *, anything: bool = False) -> Node | None:
    """The multiplication that gates another tensor with this activation, None where there is none.

    ``anything`` accepts a node that is no single activation op (the end of one written out).
    """
    if not (anything or activation_of(node)) or node.out is None:
        return None
    user = flow.forward_user(node)
    if user is None or user.op != "mul" or not is_forward(user) or user.lane != node.lane or user.graphed:
        return None
    other = [s for s in user.sources if s != node.index]
    same = len(tensor_reads(user, node.out)) == 2
    return user if same and other and other[0] not in node.sources else None
