"""Where a trace has no GPU, leaf CPU ops stand in for kernels, so that everything downstream works on it.

An op that only rearranges metadata runs no kernel. An op that is one kernel on a GPU counts whole, whatever it calls.
A Python number among the operands of an op is converted on the way; on a GPU it is an argument of the op's kernel.
"""

import re

import numpy as np
import numpy.typing as npt

from fusionadvisor.trace.link import Ops
from fusionadvisor.trace.nesting import inherited

_RANGES = ("autograd::", "torch::", "nn.Module::")
_COMPILED = re.compile(r"^(?:graph_\d+_)?cpp_fused_")
"""C++ kernels that Inductor generates; those of other compilers record nothing."""
_METADATA = re.compile(
    r"^aten::(?:view|_unsafe_view|_reshape_alias|reshape|reshape_as|as_strided_?|t_?|transpose_?|permute|expand|expand_as|"
    r"empty\w*|new_empty\w*|detach_?|alias|resolve_conj|resolve_neg|squeeze_?|unsqueeze_?|select|slice|slice_inverse|narrow|"
    r"[hdv]?split|split_with_sizes|tensor_split|unsafe_split\w*|chunk|unsafe_chunk|unbind|unfold|diagonal|linalg_diagonal|"
    r"view_as\w*|_view_func|lift_fresh|set_|resize_|resize_as_|is_\w+|result_type|size|stride|numel|item|move(?:dim|axis)|"
    r"swap(?:axes|dims)_?|flatten|unflatten|adjoint|mT|mH|T|numpy_T|matrix_H|_nested_(?:tensor_size|view_\w+|get_\w+)|"
    r"requires_grad_|output_nr|_version|data|broadcast_to|broadcast_tensors|atleast_\dd|meshgrid|can_cast|promote_types|real|"
    r"imag|positive|to|type_as|contiguous|conj|_conj|_neg_view|ravel|_fw_primal|_make_dual|_has_compatible_shallow_copy_type|"
    r"_has_same_storage_numel|_debug_has_internal_overlap|_is_zerotensor|_?values|_?indices|(?:c?row|c?col)_indices|"
    r"dim|get_device|storage_offset|record_stream|retain_grad|set_data|_nnpack_available|cudnn_is_acceptable|"
    r"_fused_sdp_choice|_use_(?:cudnn|miopen)_ctc_loss|sym_\w+|(?:feature_|alpha_|feature_alpha_)?dropout_?)$"
)
_PRIMARY = re.compile(
    r"^aten::(?:addmm|_addmm_activation|mm|bmm|baddbmm|addmv|mv|dot|addbmm|_scaled_mm|_int_mm|"
    r"mkldnn_convolution|thnn_conv2d|_slow_conv2d_forward|slow_conv3d_forward|_conv_depthwise2d|convolution_overrideable|"
    r"convolution_backward|mkldnn_linear|mkldnn_rnn_layer|native_batch_norm|native_batch_norm_backward|native_layer_norm|"
    r"native_layer_norm_backward|native_group_norm|native_group_norm_backward|_fused_rms_norm|_fused_rms_norm_backward|"
    r"batch_norm_backward|_softmax|_log_softmax|_softmax_backward_data|"
    r"_log_softmax_backward_data|_scaled_dot_product_(?!attention_math)\w+|_flash_attention_\w+|_efficient_attention_\w+|"
    r"copy_|fill_|zero_|cat|index_select|index|_index_put_impl_|embedding|embedding_dense_backward|sum|mean|var|std|max|min|"
    r"amax|amin|argmax|argmin|any|all|prod|norm|linalg_vector_norm|sort|topk|cumsum|nonzero|_unique2|nll_loss\w*|"
    r"max_pool2d_with_indices\w*|avg_pool2d\w*|_adaptive_avg_pool2d\w*|native_dropout\w*|bernoulli_|normal_|uniform_|random_|"
    r"arange|gather|scatter\w*|masked_fill_|_fused_\w+|_local_scalar_dense|clamp\w*|where|repeat_interleave)$"
)
_CONVERTS = ("aten::copy_", "aten::_to_copy")


def rearranges(name: str) -> bool:
    """True for an op that at most rearranges metadata, or asks for it: whatever it calls, it runs no kernel itself."""
    return bool(_METADATA.match(name))


def stand_in_rows(ops: Ops, names: list[str], shapes: list[bytes]) -> npt.NDArray[np.intp]:
    """Return the rows of the ops that stand in for kernels: primary ops, else leaves; never metadata-only ones.

    Args:
        ops: The ops.
        names: Text of each code of their names.
        shapes: Text of each code of their operands' shapes, as the trace writes them.
    """
    code = ops.columns["name"]
    if not len(code):
        return np.zeros(0, dtype=np.intp)
    parent = ops.nest.parent
    runs = [
        bool(_COMPILED.match(name)) or ("::" in name and not name.startswith(_RANGES) and not rearranges(name))
        for name in names
    ]
    metadata = ~np.array(runs, dtype=bool)[code]
    primary = np.array([bool(_PRIMARY.match(name)) for name in names], dtype=bool)[code]
    # inside a primary op nothing counts by itself
    inside = inherited(parent, np.where(primary, 1, -1)) > 0
    absorbed = np.zeros(len(code), dtype=bool)
    nested = parent >= 0
    absorbed[nested] = inside[parent[nested]]
    absorbed |= _conversions(ops, names, shapes)
    works = ~metadata & ~absorbed
    # an op with a working descendant is not a leaf; metadata descendants do not count
    busy_below = np.zeros(len(code), dtype=bool)
    for row in np.flatnonzero(works & nested)[::-1].tolist():
        above = parent[row]
        while above >= 0 and not busy_below[above]:
            busy_below[above] = True
            above = parent[above]
    return np.flatnonzero(works & (primary | ~busy_below))


def _conversions(ops: Ops, names: list[str], shapes: list[bytes]) -> npt.NDArray[np.bool_]:
    """Where a single number is converted within an op on tensors."""
    code, shape, parent = ops.columns["name"], ops.columns["shapes"], ops.nest.parent
    sized = np.array([*(any(48 <= sign <= 57 for sign in text) for text in shapes), False], dtype=bool)
    of_tensors = sized[shape]  # where no shapes were recorded the code is -1, the last
    converts = np.array([name in _CONVERTS for name in names], dtype=bool)[code] & (shape >= 0) & ~of_tensors
    within = inherited(parent, np.where(of_tensors, 1, -1)) > 0
    found: npt.NDArray[np.bool_] = converts & (parent >= 0) & within
    return found
