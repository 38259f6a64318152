"""Memory: passes over tensors that compute nothing, and shapes the hardware does not like."""

from collections.abc import Sequence

from fusionadvisor import units
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.analysis.nodes import ACTIVATIONS, Node, dense
from fusionadvisor.report.model import Range
from fusionadvisor.rules.base import Candidate, Looked, Notes, Rule, hook, line_of, name
from fusionadvisor.rules.match import is_forward, is_path, left, weight

_SAVES_OUTPUT = frozenset({"sigmoid", "tanh", "exp", "_softmax", "softmax", "sqrt", "rsqrt"})
SMALL = 16
"""A dimension up to this is no more than two loads wide: padding it brings nothing."""
LINK_GBS = 64.0
"""PCIe 5.0 with 16 lanes, in GB/s each way: no link between a host and a GPU on a card is faster."""
GROWN = 3
"""So many concatenations in a row are a loop; two may be two things."""
MANY_BYTES = 16e6
"""An activation that is worth its own line in a report about memory."""


class OutOfPlace(Rule):
    """Do the activation in place.

    ## What it does
    Finds an activation that writes a new tensor although nothing reads its input again.

    ## Why it costs
    No time to speak of: the same bytes move. The step holds one more activation in memory than it needs, and the
    allocator has more to do.

    ## Example
    ```python
    y = F.relu(self.conv(x))
    ```

    ## Use instead
    ```python
    y = F.relu(self.conv(x), inplace=True)
    ```

    ## When not to
    Where the producer keeps its result for the backward pass (`sigmoid`, `tanh`, `exp`), where the input is the
    caller's, a view or an expanded tensor, or where a hook reads it.
    """

    id = "FA401"

    def look(self, facts: Facts) -> Looked:
        """Match activations whose input nobody reads again; needs proven flow."""
        if not facts.proven or facts.flow is None:
            return Looked(skipped="whether a tensor is still held cannot be known from a trace")
        acts = [n for n in facts.of_kind("pointwise") if n.op in ACTIVATIONS and is_forward(n) and n.reads]
        if not acts:
            return Looked(skipped="no activation ran")
        notes = Notes()
        for act in acts:
            if act.inplace:
                continue
            source = facts.dataflow.producer(act, 0)
            if source is None:
                continue
            if reason := self._obstacle(facts, act, source):
                notes.miss(self, act, f"{name(act)} is not done in place: {reason}")
                continue
            size = act.writes[0].bytes if act.writes else 0
            nothing = Range(0.0, None, 0.0)
            notes.candidates.append(
                Candidate((), nothing, act.op, act, (act.index,), step_us=nothing,
                          evidence=(f"Saves {units.size_bytes(size)} of memory and no time.",), note=size < MANY_BYTES)
            )  # fmt: skip
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Set ``inplace``."""
        paths = list(dict.fromkeys(c.anchor.module for c in found if c.anchor and is_path(c.anchor.module)))
        if not paths:
            return ""
        return (
            f"for path in {paths!r}:\n    module = model.get_submodule(path)\n"
            "    if hasattr(module, 'inplace'):\n        module.inplace = True"
        )

    def _obstacle(self, facts: Facts, act: Node, source: Node) -> str:
        if said := hook(facts, source, act):
            return said
        users = [u for u in facts.dataflow.consumers(source) if u.index != act.index]
        if users:
            reader = "the backward pass" if users[0].phase == "backward" else name(users[0])
            return f"its input is also read by {reader}"
        if source.escapes:
            return "its input is returned or kept"
        if facts.training and source.op in _SAVES_OUTPUT:
            return f"{source.op} keeps its result for the backward pass"
        return ""


class LayoutConversion(Rule):
    """Keep the model in channels-last.

    ## What it does
    Finds kernels that convert between NCHW and NHWC: those a convolution runs for itself, and copies that change the
    order of an image tensor's dimensions.

    ## Why it costs
    Tensor cores want NHWC. Given NCHW, a convolution converts its input, and often its result back: two passes over the
    activation that compute nothing.

    ## Example
    ```python
    model = resnet50().cuda().half()  # NCHW: nchwToNhwcKernel around every convolution
    ```

    ## Use instead
    ```python
    model = model.to(memory_format=torch.channels_last)
    x = x.to(memory_format=torch.channels_last)
    ```

    ## When not to
    Where the model takes `.view` of a convolution's result, which needs NCHW, or is mostly depthwise in float32.
    """

    id = "FA402"

    def look(self, facts: Facts) -> Looked:
        """Match a convolution's own conversions, and image copies that change the order."""
        if not facts.of_kind("conv"):
            return Looked(skipped="no convolution ran")
        notes = Notes()
        for node in facts.nodes:
            if node.graphed:
                continue
            if node.kind == "helper":
                pattern, said = "conversions inside convolutions", "A convolution converts the layout of its operands."
            elif node.kind == "layout" and self._image(node):
                pattern, said = "copies that change the layout", f"{name(node)} copies {self._orders(node)}."
            else:
                continue
            # kernels that convert and compute nothing else go altogether, though others may have to take their place
            notes.candidates.append(
                Candidate((node.index,), Range(0.0, None, node.us), pattern, node, evidence=(said,), specific=False)
            )
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Convert once."""
        return (
            "model = model.to(memory_format=torch.channels_last)\ninputs = inputs.to(memory_format=torch.channels_last)"
        )

    def _image(self, node: Node) -> bool:
        return bool(node.writes) and len(node.writes[0].shape) in (4, 5) and self._channels_last(node) is not None

    def _channels_last(self, node: Node) -> bool | None:
        """True where the copy's result has its channels last, False where its source had, None for neither."""
        if node.reads and node.writes:
            for tensor, answer in ((node.writes[0], True), (node.reads[-1], False)):
                order = dense(tensor)
                if order and order[-1] == 1 and len(order) >= 3 and order[0] == 0:
                    return answer
        return None

    def _orders(self, node: Node) -> str:
        return "NCHW to NHWC" if self._channels_last(node) else "NHWC to NCHW"


class RedundantCopy(Rule):
    """Avoid the copy.

    ## What it does
    Finds copies that only change how a tensor lies in memory (`contiguous`, `clone`, `reshape` of a transposed tensor)
    and concatenations whose parts were computed only to be concatenated.

    ## Why it costs
    A copy reads and writes the tensor and computes nothing. Most ops take strided inputs; where one does not, the op
    before could have written its result in the right order.

    ## Example
    ```python
    q = self.q(x).view(b, n, h, d).transpose(1, 2).contiguous()
    ```

    ## Use instead
    ```python
    q = self.q(x).view(b, n, h, d).transpose(1, 2)  # attention takes strides
    out = x.new_empty(b, n, 2 * d)
    torch.mul(a, b, out=out[..., :d])  # instead of a concatenation; inference only
    ```

    ## When not to
    Where many reads follow that are faster on contiguous memory, or where a clone keeps a value from being overwritten.
    """

    id = "FA403"

    def look(self, facts: Facts) -> Looked:
        """Match copies and concatenations that one reader waits for."""
        copies = [n for n in facts.of_kind("copy", "layout", "cat") if is_forward(n)]
        if not copies:
            return Looked(skipped="nothing was copied or concatenated")
        notes = Notes()
        for node in copies:
            outer = node.outer if node.outer in ("contiguous", "reshape", "clone", "flatten") else node.op
            if node.kind == "cat":
                parts = [facts.dataflow.producer(node, i) for i in range(len(node.reads))]
                if not parts or not all(p is not None and facts.dataflow.sole_user(p) is node for p in parts):
                    continue
                said = f"{name(node)} concatenates {len(parts)} tensors that nothing else reads."
            elif (
                outer in ("contiguous", "reshape", "clone", "flatten") and facts.dataflow.forward_user(node) is not None
            ):
                said = f"{outer} in {name(node)} copies {units.size_bytes(node.writes[0].bytes if node.writes else 0)}."
            else:
                continue
            notes.candidates.append(
                Candidate((node.index,), Range(0.0, None, node.us), outer, node, evidence=(said,), specific=False)
            )
        return notes.looked()


class MisalignedGemm(Rule):
    """Pad the GEMM to a multiple of 8.

    ## What it does
    Finds half-precision GEMMs in which the inner dimension, the width or a row length is no multiple of 8.

    ## Why it costs
    Tensor cores load 16 bytes at a time: eight halves. A row that does not start on such a boundary takes slower loads.
    On an H100 a GEMM with a dimension that is even but no multiple of 8 ran at about a quarter of the speed, with an
    odd one at a tenth.

    ## Example
    ```python
    head = nn.Linear(768, 50257)  # GPT-2's vocabulary
    ```

    ## Use instead
    ```python
    head = nn.Linear(768, 50304)  # the next multiple of 64; mask or slice the rest
    ```

    ## When not to
    Where the GEMM is so small that launching it dominates.
    """

    id = "FA404"

    def look(self, facts: Facts) -> Looked:
        """Check K, N and the leading dimensions."""
        halves = [
            n for n in facts.of_kind("gemm")
            if len(n.reads) > weight(n) and n.reads[left(n)].dtype in ("float16", "bfloat16")
        ]  # fmt: skip
        if facts.timeline.stand_ins or not halves:
            return Looked(skipped="no half-precision GEMM with known shapes ran on a GPU")
        notes = Notes()
        for node in halves:
            sizes = self._sizes(node)
            bad = {what: size for what, size in sizes.items() if size % 8 and size > SMALL}
            if not bad:
                continue
            share = 0.1 if any(size % 2 for size in bad.values()) else 0.26
            said = ", ".join(f"{what} = {size}" for what, size in bad.items())
            padded = ", ".join(f"{size} → {-(-size // 8) * 8}" for size in dict.fromkeys(bad.values()))
            notes.candidates.append(
                Candidate((node.index,), Range(0.0, None, max(0.0, node.us - max(2.0, share * node.us))), said, node,
                          evidence=(f"{said}: pad {padded}.",))
            )  # fmt: skip
        return notes.looked()

    def _sizes(self, node: Node) -> dict[str, int]:
        a, b = node.reads[left(node)], node.reads[weight(node)]
        linear = node.op in ("linear", "mkldnn_linear")
        sizes = {"K": a.shape[-1], "N": b.shape[0] if linear else b.shape[-1]}
        for what, tensor in (("row of the input", a), ("row of the weight", b)):
            if tensor.strides and len(tensor.shape) > 1:
                pairs = zip(tensor.strides[-2:], tensor.shape[-2:], strict=True)
                longest = max((step for step, n in pairs if n > 1), default=8)
                if longest > 1 and longest not in sizes.values():
                    sizes[what] = longest
        return sizes


class PageableCopy(Rule):
    """Pin the host memory.

    ## What it does
    Finds copies between host and device whose host side is pageable.

    ## Why it costs
    The driver first copies pageable memory to a pinned buffer of its own, and the CPU waits for it: the copy cannot
    overlap with kernels, and is slower.

    ## Example
    ```python
    x = batch.to("cuda")
    ```

    ## Use instead
    ```python
    loader = DataLoader(dataset, pin_memory=True)
    x = batch.to("cuda", non_blocking=True)
    ```

    ## When not to
    For a few bytes. Pinned memory cannot be swapped out: pin buffers that are reused, not everything.
    """

    id = "FA405"
    worth_us = 20.0

    def look(self, facts: Facts) -> Looked:
        """Match memcpys with a pageable side."""
        memory = facts.timeline.memory
        if not len(memory):
            return Looked(skipped="nothing was copied between host and device")
        names = memory["name"].astype(str)
        pageable = memory[names.str.contains("Pageable") & (memory["step"] >= 0)]
        candidates = []
        for column in ("HtoD", "DtoH"):
            rows = pageable[pageable["name"].astype(str).str.contains(column)]
            if not len(rows):
                continue
            us = float(rows["dur_ns"].sum()) / 1e3
            size = float(rows["bytes"].clip(lower=0).sum()) if "bytes" in rows else 0.0
            could = max(0.0, us - size / (LINK_GBS * 1e3))  # a pinned copy still has to cross the link
            place = str(rows["source"].iloc[0]) if "source" in rows else ""
            count = units.plural(max(1, round(len(rows) / facts.steps)), f"pageable {column} transfer")
            candidates.append(
                Candidate(
                    (), Range(0.0, None, 0.0), f"pageable {column}", step_us=Range(0.0, None, could),
                    evidence=(f"{count} a step, {units.time_us(us / facts.steps)}.",), where=("", line_of(place)),
                    note=could / facts.steps < self.worth_us,
                )
            )  # fmt: skip
        return Looked(tuple(candidates))

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Pin and copy without waiting, by direction."""
        if found[0].pattern.endswith("DtoH"):
            return (
                "host = torch.empty(y.shape, dtype=y.dtype, pin_memory=True)  # once\n"
                "host.copy_(y, non_blocking=True)  # synchronize before reading it"
            )
        return "x = batch.pin_memory().to('cuda', non_blocking=True)  # or DataLoader(..., pin_memory=True)"


class GrowingCat(Rule):
    """Concatenate once.

    ## What it does
    Finds a tensor that grows by concatenation: three or more, each of which joins the result of the one before with
    something new.

    ## Why it costs
    Each concatenation copies all that was there before: what is built of *n* parts moves about *n*/2 times its size.

    ## Example
    ```python
    out = x[:, :1]
    for i in range(1, n):
        out = torch.cat([out, step(out, x[:, i : i + 1])], dim=1)
    ```

    ## Use instead
    ```python
    parts = [x[:, :1]]
    for i in range(1, n):
        parts.append(step(parts, x[:, i : i + 1]))
    out = torch.cat(parts, dim=1)  # or write into a tensor of the final size
    ```

    ## When not to
    Where each step needs all of what was joined so far in one piece: then write into a tensor of the final size, and
    read the part that is filled.
    """

    id = "FA406"

    def look(self, facts: Facts) -> Looked:
        """Follow concatenations from each to the one it grew from."""
        cats = facts.of_kind("cat")
        if not cats:
            return Looked(skipped="nothing was concatenated")
        grown: dict[int, list[Node]] = {}
        longest: dict[int, list[Node]] = {}
        for node in cats:
            before = next((p for i in range(len(node.reads)) if (p := self._smaller(facts, node, i)) is not None), None)
            chain = [*grown.get(before.index, [before]), node] if before is not None else [node]
            grown[node.index] = chain
            longest[chain[0].index] = chain
        notes = Notes()
        for chain in longest.values():
            if len(chain) >= GROWN:
                us = sum(n.us for n in chain[:-1])
                size = chain[-1].writes[0].bytes if chain[-1].writes else 0
                notes.candidates.append(
                    Candidate(
                        tuple(n.index for n in chain[:-1]), Range(0.0, None, us), f"grown by {len(chain)}", chain[-1],
                        beside=(chain[-1].index,),
                        evidence=(f"{len(chain)} concatenations in a row build {units.size_bytes(size)}.",),
                    )
                )  # fmt: skip
        return notes.looked()

    def snippet(self, found: Sequence[Candidate], facts: Facts) -> str:
        """Collect, then concatenate."""
        return "parts.append(new)  # in the loop\nout = torch.cat(parts, dim=dim)  # once, after it"

    def _smaller(self, facts: Facts, node: Node, argument: int) -> Node | None:
        """The concatenation that made an argument, where this node adds to it."""
        made = facts.dataflow.producer(node, argument)
        if made is None or made.kind != "cat" or node.out is None or made.out is None or made.phase != node.phase:
            return None
        return made if 2 * made.out.numel >= node.out.numel > made.out.numel else None
