"""Ops that torch takes apart on a backend that lacks CUDA's kernel for them are one kernel in a prediction too."""

from fusionadvisor.capture.predict import Predicted, predict_model
from tests.capture import tiny


def ops(found: Predicted) -> list[str]:
    return [str(op).removeprefix("aten::") for op in found.timeline.kernels["op"]]


def test_rms_norm_is_one_kernel_without_gradients() -> None:
    assert ops(predict_model(tiny.RmsNorm, tiny.rows, "h100")) == ["addmm", "_fused_rms_norm", "mish"]


def test_rms_norm_is_one_kernel_in_training_and_its_backward_is_not_taken_apart() -> None:
    found = ops(predict_model(tiny.RmsNorm, tiny.rows_and_labels, "h100", mode="training", step=tiny.step,
                              optimizer=tiny.sgd))  # fmt: skip
    assert found[:3] == ["addmm", "_fused_rms_norm", "mish"]
    assert {"mish_backward", "_fused_rms_norm_backward"} <= {*found}
    assert "rsqrt" not in found
