"""For every rule, the smallest timelines on which it fires, each with a fused twin on which it stays silent."""

from dataclasses import dataclass

from fusionadvisor.trace.timeline import Recording, Timeline
from tests.builders import Call, T, call, timeline

X = T((32, 64, 56, 56))
TOK = T((16, 512, 1024))
ROWS = T((8192, 1024))
C = T((64,))


@dataclass(frozen=True)
class Pair:
    """``modules`` are those the finding must name, in order; ``pattern`` is in its kernels' description."""

    rule: str
    name: str
    fires: Timeline
    twin: Timeline
    instances: int = 1
    modules: tuple[str, ...] = ()


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
)  # fmt: skip
