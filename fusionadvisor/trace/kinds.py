"""What a kernel's name means: an ordered table of patterns, and the same for the ops that stand in for kernels.

A name says what a kernel is, not always what it is for: ``direct_copy_kernel`` casts, re-lays or copies, and only the
launching op's dtypes and strides tell (:func:`copy_kind`). A name no pattern knows is ``custom``, never guessed.
"""

import re
from functools import lru_cache
from typing import Final

KINDS: Final = (
    "gemm", "conv", "attention", "norm", "softmax", "reduction", "elementwise", "copy", "cast", "layout", "cat",
    "index", "embedding", "sort", "rng", "pool", "optimizer", "fused", "memcpy", "memset", "collective", "custom",
)  # fmt: skip
"""Every kind, in the order reports list them."""

# The first pattern that is found anywhere in the name decides: special before general.
_KERNELS: Final = (
    ("collective", r"\bnccl|^rccl|msccl|all_?reduce_(?:one|two)_?shot|cross_device_reduce|quickreduce|"
                   r"all_to_all|multimem_"),
    # code generators: the kernel is the product of a fusion
    ("fused", r"^triton_(?:poi|red|per|tem|mm|bmm|for|spl)_?|^triton__|^fused_[a-z_]+_\d|^fused__|^nvfuser|CudaCodeGen|"
              r"^kernel\d+\(CUDAGenerator"),
    ("copy", r"multi_tensor_apply_kernel<.*(?:\bCopy<|CopyFunctor)"),
    ("optimizer", r"multi_tensor_apply|FusedAdam|fused_adam|adam_kernel|adagrad_update|sgd_kernel|multi_tensor_l2norm"),
    # fused kernels of serving libraries say so in their names
    ("fused", r"fused_add_rms|FusedAddRMS|add_rmsnorm|add_rms_norm|act_and_mul|fused_rope|fused_qk|fused_qkv|"
              r"rmsnorm_quant|silu_and_mul|gelu_and_mul|swiglu_quant"),
    # what libraries named after something else do
    ("index", r"reshape_and_cache|kv_?cache|kv_indices|bounds_check_indices"),
    ("elementwise", r"rotary|[_:]rope|masked_fill|masked_scale|with_index<|arange"),
    ("reduction", r"\breduce_kernel<.*WelfordOps"),  # var, std
    ("embedding", r"split_embedding|dense_embedding|permute_pooled_embs"),
    ("norm", r"flashinfer.*norm|groupnorm"),
    # attention before GEMM: its names carry tile shapes and cutlass too
    ("attention", r"[Ff]lash(?!infer)|fmha|Fmha|attn_(?:fwd|bwd)|attention|Attention|mha_(?:fwd|bwd)|\bmla_|_mla_|"
                  r"paged_attn|softmax_lse_merge|merge_attn_states|kn_(?:mla|get_mla)"),
    ("conv", r"cudnn_convolution|[a-z]conv\d?d?_|conv2d|_convolve_|scudnn|winograd|wgrad|dgrad|fprop|implicit_gemm|"
             r"ImplicitGemm|igemm_|conv_depthwise|conv_bwd|convolution|Convolution|_conv_|\bconv::|im2col|col2im|vol2col|"
             r"\bcask_\w*::|Im\dd2Col|miopen.*[Cc]onv|MIOpenConv|naive_conv|flip_filter|fft[12]d_|"
             r"pointwise_mult_and_sum_complex|bwd_weight|bwd_data|gridwise_convolution|cudnn::cnn"),
    ("gemm", r"(?<!fb)gemm|GEMM|Gemm|^Cijk_|nvjet|matmul|MatMul|cutlass_\d+_|gemv|Gemv|split_?[Kk](?:_|[A-Zr])|SplitK|"
             r"dot_kernel|xmma_|cublas.*(?:epilogue|reduce)|epilogue::impl|_mm_kernel|wvSplitK|skinny|ck_tile.*Flatmm"),
    ("softmax", r"[Ss]oft_?[Mm]ax"),
    ("norm", r"layer_?norm|LayerNorm|batch_?norm|BatchNorm|group_?norm|GroupNorm|instance_?norm|"
             r"rms_?norm|RMSNorm|Rmsnorm|RowwiseMoments|GammaBeta|ComputeInternalGradients|Compute\w*FusedParams|cudnn::bn_|\bbn_(?:fw|bw)|"
             r"MIOpenBatchNorm|[Ww]elford|cuCompute.*Grad|weight_norm|_norm_(?:fwd|bwd)"),
    ("embedding", r"embedding|Embedding"),
    ("rng", r"distribution_|[Dd]ropout|philox|[Bb]ernoulli|randperm|curand|multinomial|random_from_to"),
    ("sort", r"[Ss]ort|Device(?:Scan|Select|Unique|RunLength|Histogram|Compact)|[Hh]istogram|topk|TopK|bitonic|"
             r"scan_kernel|\bscan|_kernel_scan|cumsum|cumprod|rocprim.*(?:scan|partition|lookback)"),
    ("cat", r"CatArray|cat_array|[_:]concat_kernel|stack_kernel"),
    ("pool", r"[Pp]ool(?:ing)?[_A-Z0-9]|_pool\b|_pool<|[Uu]psample"),
    ("reduction", r"NLLCriterion|nll_loss"),
    ("index", r"index|Index|indices|[Gg]ather|[Ss]catter|masked_|take_|[Nn]onzero|flag_kernel|compute_cuda_kernel"),
    ("cast", r"float\d+_copy_kernel|float8\w*_copy_kernel|half_copy_kernel|tofloat32_copy|"
             r"copy_kernel.*(?:Load|Store)WithCast|convertTensor|[hH]?[fF][pP]8_?(?:quantize|rowwise|to_float)|float_to_hfp8|"
             r"dynamic_(?:per_token_)?(?:scaled_)?quant|scaled_fp8_quant|per_token_(?:group_)?quant|quant_kernel|to_mxfp8"),
    ("layout", r"nocast<.*direct_copy_kernel"),
    ("copy", r"copy_kernel|CopyKernel|direct_copy|copy_device_to_device|copy_into|chunk_cat|memcpy|batch_copy"),
    ("layout", r"[Tt]ranspose|nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|permute|roll_cuda|flip_kernel|pad_kernel|"
               r"reflection_pad|swizzle|[Rr]epeat_interleave|tril|triu|nchwAddPadding|nhwcAddPadding"),
    ("reduction", r"reduce|Reduce|reduction|sum_functor|cross_entropy|NormOps|MeanOps|ArgMax|argmax|"
                  r"segmented_|lpnorm|l2norm"),
    ("elementwise", r"[Ee]lementwise|pointwise|eltwise|Functor|_activation|activation_kernel|act_kernel|fill_kernel|"
                    r"FillBuffer|scalePackedTensor|addBias|bias_|threshold_kernel|clamp|gelu|Gelu|silu|relu|op_tensor|"
                    r"OpTensor|SubTensorOp|compare|where_kernel|cudnn::ops::.*[Oo]p|op_generic_tensor"),
)  # fmt: skip

_OPS: Final = (
    ("fused", r"^(?:graph_\d+_)?cpp_fused_"),
    ("collective", r"^(?:c10d|nccl|gloo|record_param_comms|_c10d_functional)"),
    ("attention", r"attention"),
    ("conv", r"conv(?!ert)"),
    ("gemm", r"::(?:addmm|mm|bmm|baddbmm|addbmm|addmv|mv|dot|linear|matmul|_scaled_mm|_int_mm|mkldnn_linear|"
             r"_addmm_activation|einsum|_weight_int4pack_mm|_grouped_mm|lstm|gru|mkldnn_rnn_layer)"),
    ("softmax", r"softmax"),
    ("norm", r"(?:batch|layer|group|instance|rms)_?norm"),
    ("embedding", r"embedding"),
    ("rng", r"dropout|bernoulli|normal_|uniform_|::rand|multinomial|exponential_|random_|geometric_"),
    ("sort", r"sort|topk|cumsum|cumprod|unique|searchsorted|bincount|histc|cummax|cummin"),
    ("cat", r"::_?(?:cat|stack|hstack|vstack|concat)"),
    ("pool", r"pool|upsample"),
    ("index", r"index|gather|scatter|masked_|::take|::put_|nonzero|one_hot"),
    ("optimizer", r"_fused_(?:adam|adamw|sgd|adagrad)_|_foreach_|Optimizer"),
    ("cast", r"::(?:_to_copy|quantize|dequantize)"),
    ("copy", r"::(?:copy_|clone|contiguous|fill_|zero_)$"),
    ("layout", r"::(?:flip|roll|repeat|tril|triu|constant_pad_nd|reflection_pad|replication_pad|pixel_shuffle|"
               r"im2col|col2im)"),
    ("reduction", r"::(?:sum|mean|amax|amin|max|min|prod|std|var|var_mean|std_mean|norm|linalg_vector_norm|"
                  r"argmax|argmin|logsumexp|nansum|all|any|aminmax|median|_local_scalar_dense|.*loss.*|nll_loss.*|.*cross_entropy.*)$"),
    ("elementwise", r"::_?(?:add|sub|mul|div|rsub|neg|abs|exp|log|log1p|log2|expm1|sqrt|rsqrt|pow|sin|cos|tan|tanh|"
                    r"sigmoid|"
                    r"relu|relu6|gelu|silu|mish|elu|selu|celu|leaky_relu|hardtanh|hardswish|hardsigmoid|softplus|threshold|"
                    r"threshold_backward|.*_backward|clamp|clamp_min|clamp_max|where|eq|ne|lt|le|gt|ge|logical_.*|"
                    r"bitwise_.*|"
                    r"maximum|minimum|addcmul|addcdiv|lerp|erf|erfc|floor|ceil|round|trunc|sign|reciprocal|square|atan.*|"
                    r"fmod|remainder|floor_divide|arange|isnan|isinf|isfinite|prelu.*|glu|complex|polar|real|imag|"
                    r"softshrink|hardshrink|log_sigmoid.*|nan_to_num|heaviside|hypot|sgn|full_like|ones_like|zeros_like)_?$"),
)  # fmt: skip

_KERNEL_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KERNELS)
_OP_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _OPS)


@lru_cache(maxsize=1 << 14)
def kernel_kind(name: str) -> str:
    """Return the kind of a GPU kernel, by its name as recorded."""
    return next((kind for kind, pattern in _KERNEL_PATTERNS if pattern.search(name)), "custom")


@lru_cache(maxsize=1 << 14)
def op_kind(name: str) -> str:
    """Return the kind of work an op does, by its name: ``aten::mm`` is ``gemm``."""
    return next((kind for kind, pattern in _OP_PATTERNS if pattern.search(name)), "custom")


def linked_kind(kind: str, op: str) -> str:
    """Return what a kernel of this kind is for, knowing the op that launched it.

    A convolution's GEMM is a convolution; a kernel nobody knows does what its op does.
    """
    if not op:
        return kind
    if kind == "gemm":
        return "conv" if op_kind(op) == "conv" else kind
    return op_kind(op) if kind == "custom" else kind


def copy_kind(shapes: object, dtypes: object, strides: object) -> str | None:
    """Return what an ``aten::copy_`` of these arguments (target, source, …) does: cast, layout or copy; None: unknown.

    Args:
        shapes: Tuple of shapes, as in the ops table.
        dtypes: Tuple of type names.
        strides: Tuple of strides; None where not recorded, and then a copy is not told from a layout change.
    """
    if not (isinstance(shapes, tuple) and isinstance(dtypes, tuple) and len(shapes) >= 2 and len(dtypes) >= 2):
        return None
    if dtypes[0] != dtypes[1]:
        return "cast"
    if not (isinstance(strides, tuple) and len(strides) >= 2):
        return None
    return "copy" if shapes[0] == shapes[1] and strides[0] == strides[1] else "layout"
