"""For every rule, the smallest timelines on which it fires, each with a fused twin on which it stays silent."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fusionadvisor.analysis.facts import Facts
from fusionadvisor.trace.timeline import Recording, Timeline
from tests.builders import Call, T, call, timeline
from tests.rules import live, models

X = T((32, 64, 56, 56))
TOK = T((16, 512, 1024))
ROWS = T((8192, 1024))
C = T((64,))


@dataclass(frozen=True)
class Pair:
    """``modules`` are those the finding must name, in order."""

    rule: str
    name: str
    fires: Timeline | Callable[[], Facts]
    twin: Timeline | Callable[[], Facts]
    instances: int = 1
    modules: tuple[str, ...] = ()

    def facts(self, *, twin: bool = False) -> Facts:
        """The facts on which it fires, or those of the twin."""
        made = self.twin if twin else self.fires
        return Facts(made) if isinstance(made, Timeline) else made()


def conv(us: float = 60.0, module: str = "conv1", stride: str = "[1, 1]", x: T = X) -> Call:
    return call("aten::cudnn_convolution", x, T((64, 64, 3, 3)), "[1, 1]", stride, "[1, 1]", "1", "False", "False",
                "True", us=us, kind="conv", outer="aten::conv2d", module=module)  # fmt: skip


def batch_norm(us: float = 37.0, module: str = "bn1", training: bool = False) -> Call:
    return call("aten::cudnn_batch_norm", X, C, C, C, C, str(training), "0.1", "1e-05", us=us, kind="norm",
                outer="aten::batch_norm", module=module)  # fmt: skip


def linear(us: float = 30.0, out: int = 1024, module: str = "fc", x: T = ROWS) -> Call:
    return call("aten::addmm", T((out,)), x, T((x.shape[-1], out), strides=(1, x.shape[-1])), "1", "1", us=us,
                kind="gemm", outer="aten::linear", module=module)  # fmt: skip


def relu(x: T = X, us: float = 37.0, module: str = "relu") -> Call:
    return call("aten::relu", x, us=us, module=module)


def add(x: T = X, us: float = 40.0, module: str = "") -> Call:
    return call("aten::add", x, x, "1", us=us, module=module)


def layer_norm(x: T = TOK, us: float = 20.0, module: str = "norm") -> Call:
    return call("aten::native_layer_norm", x, "[1024]", T((1024,)), T((1024,)), "1e-05", us=us, kind="norm",
                outer="aten::layer_norm", module=module)  # fmt: skip


def idle(count: int, us: float, every: float, recording: Recording) -> Timeline:
    return timeline(
        [call("aten::relu", T((64, 64)), us=us, gap_us=every - us, launch_us=i * every) for i in range(count)],
        recording=recording,
    )


def run(model: nn.Module, *shapes: tuple[int, ...]) -> Callable[[], Facts]:
    """A live model on random inputs of these shapes."""
    return lambda: live.of(model, *(torch.randn(s) for s in shapes))


def loss(mode: str) -> Callable[[], Facts]:
    """A loss over eight rows of five classes."""
    return lambda: live.of(models.Loss(mode), torch.randn(8, 5), torch.arange(8) % 5)


def trained(model: nn.Module, *shapes: tuple[int, ...]) -> Callable[[], Facts]:
    """A live model's forward and backward pass in training mode."""
    return lambda: live.of_step(model, lambda: model(*(torch.randn(s) for s in shapes)).sum().backward())


def optimized(**options: bool) -> Callable[[], Facts]:
    """A training step of twelve small layers under SGD with momentum."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(12)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()

    step()
    return lambda: live.of_step(model, step)


def cleared(*, set_to_none: bool) -> Callable[[], Facts]:
    """Gradients cleared before a forward and backward pass."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(12)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step() -> None:
        optimizer.zero_grad(set_to_none=set_to_none)
        model(torch.randn(2, 4)).sum().backward()

    step()
    return lambda: live.of_step(model, step)


def compiled(regions: tuple[str, ...], outside: int) -> Timeline:
    """Kernels inside compiled regions of these numbers, and some outside all."""
    calls = [call("triton_poi_fused_0", us=50, kind="fused", outer=f"Torch-Compiled Region: {r}") for r in regions]
    return timeline([*calls, *[call("aten::mul", TOK, TOK, us=30)] * outside])


def copied(kind: str) -> Timeline:
    memory = [{"start_ns": 0, "dur_ns": 90_000, "device": 0, "stream": 7, "name": f"Memcpy HtoD ({kind} -> Device)",
               "step": 0}]  # fmt: skip
    return timeline([relu()], memory=memory)


def half(k: int, n: int) -> Timeline:
    return timeline(
        [call("aten::mm", T((512, k)), T((k, n), strides=(1, k)), us=80, kind="gemm", outer="aten::linear")]
    )


def waits(op: str) -> Timeline:
    sync = {"start_ns": 0, "dur_ns": 50_000, "pid": 1, "tid": 1, "name": "cudaStreamSynchronize", "op_id": 0, "step": 0,
            "source": "train.py:12", "module": ""}  # fmt: skip
    return timeline([call(op, TOK)], syncs=[sync] if op == "aten::_local_scalar_dense" else [])


def converting(kernels: bool) -> Timeline:
    """A convolution whose op also launched the kernels that convert its layout."""
    base = conv()
    if not kernels:
        return timeline([base])
    return timeline([base], helpers={0: ("nchwToNhwcKernel", "nhwcToNchwKernel")})


BLOCK, IMAGE, MASK, WIDE = (2, 8, 16), (2, 8, 6, 6), (8, 8), (2, 8, 8)

PAIRS: tuple[Pair, ...] = (
    Pair("FA101", "conv and batch norm", timeline([conv(), batch_norm()]), timeline([conv()]), modules=("bn1",)),
    Pair(
        "FA101", "twice in a block",
        timeline([conv(), batch_norm(), relu(), conv(module="conv2"), batch_norm(module="bn2")]),
        timeline([conv(), batch_norm(training=True), relu(), conv(module="conv2"), batch_norm(training=True)]),
        instances=2, modules=("bn1", "bn2"),
    ),
    Pair("FA102", "conv and relu", timeline([conv(), relu()]),
         timeline([call("aten::cudnn_convolution_relu", X, T((64, 64, 3, 3)), kind="fused")]), modules=("relu",)),
    Pair("FA102", "linear and gelu", timeline([linear(), call("aten::gelu", TOK, us=15, module="act")]),
         timeline([call("aten::_addmm_activation", T((1024,)), ROWS, T((1024, 1024)), kind="fused")]),
         modules=("act",)),
    Pair("FA102", "residual and relu", timeline([relu(), conv(), add(), relu(module="relu2")]),
         timeline([relu(), call("aten::cudnn_convolution_add_relu", X, T((64, 64, 3, 3)), X, kind="fused")]),
         modules=("relu2",)),
    Pair("FA103", "mul, add, relu",
         timeline([call("aten::mul", TOK, TOK, us=30), add(TOK, 30), relu(TOK, 20)]),
         timeline([call("triton_poi_fused_add_mul_relu_0", TOK, TOK, us=30, kind="fused")])),
    Pair("FA201", "query, key, value",
         timeline([layer_norm(), *(linear(module=m) for m in ("q", "k", "v"))]),
         timeline([layer_norm(), linear(out=3072, module="qkv")]), modules=("q",)),
    Pair("FA301", "short kernels launched slowly", idle(100, 2, 50, Recording()), idle(100, 50, 51, Recording())),
    Pair("FA301", "a heavy recording names the break-even", idle(100, 2, 50, Recording(stacks=True)),
         idle(100, 50, 51, Recording(stacks=True))),
    Pair("FA101", "live", run(models.ConvNorm(), IMAGE), run(models.Folded(), IMAGE), modules=("norm",)),
    Pair("FA102", "live", run(models.Mlp(), (4, 16)), run(models.Mlp(joined=True), (4, 16)), modules=("act",)),
    Pair("FA104", "live RMSNorm by hand", run(models.HandNorm("rms", residual=True), BLOCK, BLOCK),
         run(models.HandNorm("rms"), BLOCK, BLOCK)),
    Pair("FA104", "live LayerNorm", run(models.HandNorm("library", residual=True), BLOCK, BLOCK),
         run(models.HandNorm("library"), BLOCK, BLOCK)),
    Pair("FA104", "as a trace has it",
         timeline([linear(out=1024, module="o"), add(TOK, 18), layer_norm(), linear()]),
         timeline([linear(), call("triton_red_fused_add_native_layer_norm_0", TOK, kind="fused"), linear()])),
    Pair("FA105", "live RMSNorm", run(models.HandNorm("rms"), BLOCK, BLOCK),
         run(models.HandNorm("library"), BLOCK, BLOCK)),
    Pair("FA105", "live LayerNorm", run(models.HandNorm("layer"), BLOCK, BLOCK),
         run(models.HandNorm("rms", residual=True), BLOCK, BLOCK)),
    Pair("FA105", "live LayerNorm by variance", run(models.HandNorm("variance"), BLOCK, BLOCK),
         run(models.HandNorm("library"), BLOCK, BLOCK)),
    Pair("FA105", "live GroupNorm and SiLU", run(models.GroupNormSilu(silu=True), IMAGE),
         run(models.GroupNormSilu(silu=False), IMAGE)),
    *(Pair("FA106", f"live {mode}", run(models.Gelu(mode), (4, 16)), run(models.Gelu("library"), (4, 16)))
      for mode in ("erf", "tanh", "silu", "quick")),
    Pair("FA106", "live SwiGLU", run(models.SwiGlu(), (4, 16)), run(models.SwiGlu(gated=False), (4, 16))),
    Pair("FA107", "live", run(models.Attention(), BLOCK, MASK), run(models.Attention(fused=True), BLOCK, MASK)),
    Pair("FA108", "live, by halves", run(models.Rotary("half"), (8, 16), (8, 8), (8, 8)),
         run(models.Rotary("none"), (8, 16), (8, 8), (8, 8))),
    Pair("FA108", "live, by parts", run(models.Rotary("parts"), (8, 16), (8, 8), (8, 8)),
         run(models.Rotary("none"), (8, 16), (8, 8), (8, 8))),
    Pair("FA109", "live", trained(models.DropoutAdd(drop=True), (4, 16)),
         trained(models.DropoutAdd(drop=False), (4, 16))),
    Pair("FA109", "as a trace has it",
         timeline([linear(), call("aten::native_dropout", TOK, "0.1", "True", kind="rng"), add(TOK)]),
         timeline([linear(), call("triton_poi_fused_native_dropout_add_0", TOK, TOK, kind="fused")])),
    *(Pair("FA110", f"live {mode}", loss(mode), loss("library")) for mode in ("gather", "log")),
    Pair("FA111", "live", lambda: live.of(models.Casts(back=True), torch.randn(4, 16).to(torch.bfloat16)),
         lambda: live.of(models.Casts(back=False), torch.randn(4, 16).to(torch.bfloat16))),
    Pair("FA201", "live", run(models.Qkv(merged=False), BLOCK), run(models.Qkv(merged=True), BLOCK), modules=("q",)),
    Pair("FA202", "live, summed", run(models.Branches(merged=False), (2, 3, 8, 8)),
         run(models.Branches(merged=True), (2, 3, 8, 8)), modules=("convs.0",)),
    Pair("FA203", "live experts", run(models.Experts(batched=False), (6, 4, 16)),
         run(models.Experts(batched=True), (6, 4, 16))),
    Pair("FA204", "live SGD", optimized(foreach=False), optimized(foreach=True)),
    Pair("FA204", "live zero_grad", cleared(set_to_none=False), cleared(set_to_none=True)),
    Pair("FA302", "live branch", run(models.Branching(reads=True), (4, 4)), run(models.Branching(reads=False), (4, 4))),
    Pair("FA302", "as a trace has it", waits("aten::_local_scalar_dense"), waits("aten::relu")),
    Pair("FA303", "thirty tiny kernels", timeline([call("aten::mul", T((64,)), T((64,)), us=2)] * 30),
         timeline([call("aten::mul", T((64,)), T((64,)), us=2)] * 8)),
    Pair("FA304", "compiled again", compiled(("0/0", "0/1", "0/2"), 0), compiled(("0/0", "0/0"), 0)),
    Pair("FA304", "outside the region", compiled(("0/0",), 3), timeline([relu(), relu()])),
    Pair("FA401", "live", run(models.Act(), IMAGE), run(models.Act(inplace=True), IMAGE), modules=("act",)),
    Pair("FA402", "live copies", run(models.Permuted(converts=True), IMAGE),
         run(models.Permuted(converts=False), IMAGE), instances=2),
    Pair("FA402", "inside the convolution", converting(True), converting(False), modules=("conv1",)),
    Pair("FA403", "live contiguous", run(models.Heads(copies=True), BLOCK), run(models.Heads(copies=False), BLOCK)),
    Pair("FA404", "an odd vocabulary", half(768, 50257), half(768, 50304)),
    Pair("FA405", "pageable", copied("Pageable"), copied("Pinned")),
    Pair("FA406", "in a loop", run(models.Growing(once=False), BLOCK), run(models.Growing(once=True), BLOCK)),
)  # fmt: skip
