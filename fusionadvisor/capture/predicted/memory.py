"""Copies, fills, concatenations, indexing and sorting."""

from math import ceil

from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.kernels import Call, Entry, Kernel, Rule, Transfer, Work, alike, same_loop, splits
from fusionadvisor.flow.graph import Value

CAT_BATCH = 128
"""Tensors one launch of CatArrayBatchedCopy takes (Shape.cu, CAT_ARRAY_BATCH_SIZE)."""
CAT_DIMS = 4
"""Dimensions it is compiled for (Shape.cu, CAT_ARRAY_MAX_INPUT_DIMS)."""


def on_gpu(value: Value) -> bool:
    """Whether a tensor lives on the predicted device."""
    return not value.device.startswith(("cpu", "meta"))


_VECTOR_CASTS = {("float32", "bfloat16"), ("float32", "float16")}


def copied(source: Value, target: Value) -> list[Work]:
    """One copy: the copy engine between devices and for equal layouts, else a kernel that casts or re-lays."""
    size = source.touched_bytes + target.touched_bytes
    if on_gpu(source) != on_gpu(target):
        return [Transfer("HtoD" if on_gpu(target) else "DtoH", target.touched_bytes, sync=True)]
    if source.dtype != target.dtype:
        # to half precision runs a kernel of its own, which loads several elements at once (Copy.cu, *_copy_kernel_cuda)
        flat = "pointwise" if (source.dtype, target.dtype) in _VECTOR_CASTS else "cast"
        pace = flat if alike(source, target) else "strided"
        return [Kernel("cast", f"copy<{source.dtype}, {target.dtype}>", pace, size, "aten::copy_")]
    if alike(source, target):
        return [Transfer("DtoD", target.touched_bytes)]
    return [Kernel("layout", f"copy<{target.dtype}>", "strided", size, "aten::copy_")]


def copy(call: Call, gpu: Silicon) -> list[Work]:
    """``copy_(target, source)``, or ``_to_copy(source)`` and its like, which make the target."""
    if call.name == "copy_" and len(call.reads) >= 2:
        return copied(call.reads[1], call.reads[0])
    target = call.out
    return copied(call.first, target) if call.reads and target is not None else []


def fill(call: Call, gpu: Silicon) -> list[Work]:
    """One elementwise kernel that only writes."""
    out = call.out
    return [Kernel("elementwise", f"fill<{out.dtype}>", "pointwise", out.touched_bytes, "aten::fill_")] if out else []


def cat(call: Call, gpu: Silicon) -> list[Work]:
    """Up to 128 tensors a launch; other types or more dimensions are copied one by one."""
    parts = [v for v in call.reads if v.numel]
    out = call.out
    if out is None or not parts:
        return []
    if len(parts) > 1 and len(out.shape) <= CAT_DIMS and {v.dtype for v in parts} == {out.dtype}:
        launches = ceil(len(parts) / CAT_BATCH)
        size = call.moved // launches
        return [Kernel("cat", f"CatArrayBatchedCopy<{out.dtype}>", "cat", size, "aten::cat") for _ in range(launches)]
    return [
        Kernel("copy" if v.dtype == out.dtype else "cast", f"copy<{v.dtype}>", "strided", v.touched_bytes + v.numel
               * out.itemsize, "aten::copy_")
        for v in parts
    ]  # fmt: skip


def repeat(call: Call, gpu: Silicon) -> list[Work]:
    """Copied into a view of the result."""
    return [Kernel("layout", f"copy<{call.first.dtype}>", "strided", call.moved, "aten::copy_")]


def pad(call: Call, gpu: Silicon) -> list[Work]:
    """The result is filled, then the input copied into its middle."""
    return [*fill(call, gpu), Kernel("layout", f"copy<{call.first.dtype}>", "strided", 2 * call.first.touched_bytes,
                                     "aten::copy_")]  # fmt: skip


def steps(*kinds: str) -> Rule:
    """A fixed sequence of kernels, ``kind`` or ``kind:pace``, each over all that the op reads and writes."""

    def rule(call: Call, gpu: Silicon) -> list[Work]:
        dtype = call.reads[0].dtype if call.reads else call.writes[0].dtype if call.writes else ""
        made: list[Work] = []
        for step in kinds:
            kind, _, pace = step.partition(":")
            made.append(Kernel(kind, f"{call.name.strip('_')}<{dtype}>", pace or "index", call.moved))
        return made

    return rule


def scalar(call: Call, gpu: Silicon) -> list[Work]:
    """Read back to the CPU, which waits."""
    return [Transfer("DtoH", call.first.itemsize, sync=True)] if on_gpu(call.first) else []


def nothing(call: Call, gpu: Silicon) -> list[Work]:
    """Memory is reserved or looked at in another way."""
    return []


def elementwise(call: Call, gpu: Silicon) -> list[Work]:
    """One kernel; 2 GiB and more are split for 32-bit indices."""
    count = splits(call)
    pace = "pointwise" if same_loop(call) else "strided"
    if pace == "pointwise" and call.name.rstrip("_") in TRANSCENDENTAL:
        pace = "transcendental"
    dtype = call.first.dtype if call.reads else ""
    kernel = Kernel("elementwise", f"{call.name.strip('_')}<{dtype}>", pace, call.moved // count)
    return [kernel] * count


TRANSCENDENTAL = frozenset(
    """exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sigmoid erf erfc erfinv gelu silu mish elu selu celu
    softplus pow logit lgamma digamma atan atan2 asin acos sinh cosh log_sigmoid_forward tanh_backward gelu_backward
    silu_backward mish_backward sigmoid_backward elu_backward""".split()  # noqa: SIM905
)


def copied_slice(call: Call) -> list[Work]:
    """The gradient of a slice, copied into its part of the result."""
    size = 2 * call.first.touched_bytes
    return [Kernel("layout", f"copy<{call.first.dtype}>", "strided", size, "aten::copy_")]


TABLE = (
    Entry(
        "copy_ _to_copy clone contiguous _copy_from lift_fresh_copy",
        copy,
        "memcpy for equal types and layouts, a copy kernel else (Copy.cu, copy_device_to_device)",
    ),
    Entry(
        "fill_ zero_ zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor",
        fill,
        "a fill kernel (FillKernel.cu); factories run fill_ on fresh memory",
    ),
    Entry(
        "arange range linspace logspace tril_indices triu_indices",
        steps("elementwise:pointwise"),
        "one kernel that writes by index (RangeFactories.cu, TensorFactories.cu)",
    ),
    Entry(
        "eye", steps("elementwise:pointwise", "elementwise:pointwise"), "zeros, then the diagonal (TensorFactories.cu)"
    ),
    Entry("cat stack _cat hstack vstack", cat, "up to 128 tensors a launch (Shape.cu, parallel_cat)"),
    Entry("repeat expand_copy", repeat, "expanded, then copy_ (TensorShape.cpp, repeat)"),
    Entry("constant_pad_nd", pad, "fill_, then copy_ into the middle (PadNd.cpp, constant_pad_nd)"),
    Entry(
        "roll flip tril triu tril_ triu_ reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d "
        "replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im unfold_backward rot90 "
        "diag_embed",
        steps("layout:strided"),
        "one kernel each (TensorTransformations.cu, TriangularOps.cu, ReflectionPad.cu, Im2Col.cu)",
    ),
    Entry(
        "unfold_copy select_backward slice_backward diagonal_backward",
        lambda c, g: [*fill(c, g), *copied_slice(c)],
        "zeros, then the gradient copied into its part (FunctionsManual.cpp, slice_backward)",
    ),
    Entry(
        "native_dropout bernoulli bernoulli_ normal_ uniform_ random_ exponential_ geometric_ cauchy_ log_normal_ "
        "rand randn randint rand_like randn_like randint_like normal randperm",
        steps("rng:pointwise"),
        "one kernel each (Dropout.cu, fused_dropout_kernel_vec; DistributionTemplates.h)",
    ),
    Entry(
        "equal",
        lambda c, g: [*steps("elementwise:pointwise", "reduction:reduction")(c, g), *scalar(c, g)],
        "eq, all, read back (Equal.cpp)",
    ),
    Entry(
        "empty empty_like empty_strided new_empty new_empty_strided empty_permuted resize_ set_ lift_fresh alias "
        "detach detach_ _unsafe_view _reshape_alias view record_stream _local_scalar is_same_size sym_size "
        "_has_same_storage_numel result_type _nested_tensor_size _assert_async _assert_tensor_metadata "
        "_backward _fw_primal as_strided_ squeeze_ unsqueeze_ transpose_ t_ is_pinned requires_grad_ set_data _version",
        nothing,
        "no work on the device",
    ),
)
