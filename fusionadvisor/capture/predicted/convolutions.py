"""Convolutions, recurrent layers and pooling: what cuDNN and ATen launch for them."""

from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.kernels import Call, Entry, Kernel, Work
from fusionadvisor.capture.predicted.memory import fill, steps
from fusionadvisor.capture.predicted.products import HALVES
from fusionadvisor.flow.graph import Value


def channels_last(value: Value) -> bool:
    """Its channels lie next to each other in memory."""
    return len(value.shape) > 2 and value.shape[1] > 1 and value.strides[1] == 1


def _depthwise(call: Call, gpu: Silicon) -> bool:
    """Whether ATen's own depthwise kernel runs (Convolution.cpp, use_cudnn_depthwise and is_depthwise).

    cuDNN's is taken for half precision from Ampere on, and for channels_last.
    """
    source, weight = call.reads[:2]
    groups = int(call.number("groups", 1))
    if groups <= 1 or groups != source.shape[1] or len(source.shape) != 4:
        return False
    return not (source.dtype in HALVES or channels_last(source) or channels_last(weight))


def _fprop(label: str, source: Value, weight: Value, result: Value, gpu: Silicon) -> list[Work]:
    """A cuDNN convolution: tensor-core kernels want channels last, so other layouts are turned, and back."""
    size = source.touched_bytes + weight.touched_bytes + result.touched_bytes
    main = Kernel("conv", f"{label}<{source.dtype}>", "", size, "aten::cudnn_convolution")
    tensor_cores = source.dtype in HALVES or (source.dtype == "float32" and gpu.capability >= (8, 0))
    if not tensor_cores or channels_last(source) or channels_last(weight) or len(source.shape) == 3:
        return [main]
    turned = [
        Kernel("layout", "nchwToNhwc", "", 2 * v.touched_bytes, "aten::cudnn_convolution")
        for v in (source, weight)
        if v.shape[1] > 1
    ]
    # with float32 the TF32 kernel itself writes channels first
    back = [Kernel("layout", "nhwcToNchw", "", 2 * result.touched_bytes, "aten::cudnn_convolution")]
    return [*turned, main, *(back if source.dtype in HALVES else [])]


def convolution(call: Call, gpu: Silicon) -> list[Work]:
    """The convolution with its layout changes; cuDNN adds no bias, so ATen does."""
    source, weight = call.reads[:2]
    result = call.out
    if result is None:
        return []
    if _depthwise(call, gpu):
        return [Kernel("conv", f"conv_depthwise2d<{source.dtype}>", "", call.moved, "aten::_conv_depthwise2d")]
    work = _fprop("fprop", source, weight, result, gpu)
    if len(call.reads) > 2:
        size = 2 * result.touched_bytes + call.reads[2].touched_bytes
        work.append(Kernel("elementwise", f"add<{result.dtype}>", "strided", size, "aten::add_"))
    return work


def convolution_backward(call: Call, gpu: Silicon) -> list[Work]:
    """The gradients that are asked for: of the input, of the weight, and a sum for the bias."""
    gradient, source, weight = call.reads[:3]
    wanted = call.arguments.get("output_mask")
    mask = tuple(wanted) if isinstance(wanted, tuple) and len(wanted) == 3 else (True, True, len(call.writes) > 2)
    work: list[Work] = []
    if mask[0]:
        work += _fprop("dgrad", gradient, weight, source, gpu)
    if mask[1]:
        work += _fprop("wgrad", source, gradient, weight, gpu)
    if mask[2]:
        work.append(Kernel("reduction", f"sum<{gradient.dtype}>", "reduction", gradient.touched_bytes, "aten::sum"))
    return work


def rnn(call: Call, gpu: Silicon) -> list[Work]:
    """Recurrent layers in cuDNN: a product over all time steps, then a persistent kernel, per layer and direction."""
    layers = int(call.number("num_layers", 1)) * (2 if call.arguments.get("bidirectional") else 1)
    size = call.moved // layers
    one: list[Work] = [Kernel("gemm", "rnn_input_gemm", "", size), Kernel("gemm", "rnn_persist", "", size)]
    return one * layers * (2 if "backward" in call.name else 1)


TABLE = (
    Entry(
        "convolution _convolution cudnn_convolution conv2d convolution_overrideable",
        convolution,
        "layout changes to channels last and back around a tensor-core kernel, then add_ of the bias (H100 and A100 "
        "traces; Conv_v8.cpp). Which algorithm cuDNN takes is its own choice: counts are typical, not exact",
    ),
    Entry(
        "convolution_backward cudnn_convolution_backward convolution_backward_overrideable",
        convolution_backward,
        "dgrad, wgrad and a sum for the bias, with the same layout changes (Convolution.cpp, convolution_backward)",
    ),
    Entry("_cudnn_rnn _cudnn_rnn_backward miopen_rnn", rnn, "cuDNN, persistent kernels (RNN.cpp)"),
    Entry(
        "_thnn_fused_lstm_cell _thnn_fused_gru_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward",
        steps("elementwise:transcendental"),
        "one kernel for all gates (RNN.cu)",
    ),
    Entry(
        "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d max_pool3d_with_indices "
        "avg_pool3d "
        "_adaptive_avg_pool3d upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d "
        "upsample_linear1d upsample_trilinear3d upsample_nearest3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
        "grid_sampler_2d grid_sampler_3d avg_pool2d_backward _upsample_nearest_exact2d "
        "upsample_nearest2d_backward upsample_nearest1d_backward",
        steps("pool:strided"),
        "one kernel (DilatedMaxPool2d.cu, UpSample*.cu, GridSampler.cu)",
    ),
    Entry(
        "max_pool2d_with_indices_backward _adaptive_avg_pool2d_backward upsample_bilinear2d_backward "
        "upsample_bicubic2d_backward grid_sampler_2d_backward upsample_linear1d_backward adaptive_max_pool2d_backward "
        "max_pool3d_with_indices_backward",
        lambda c, g: [*fill(c, g), *steps("pool:strided")(c, g)],
        "the gradient is zeroed, then added to (DilatedMaxPool2d.cu, UpSampleBilinear2d.cu)",
    ),
)
