"""Indexing, sorting and scans."""

from math import ceil

from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.kernels import Call, Entry, Kernel, Rule, Transfer, Work
from fusionadvisor.capture.predicted.memory import copied, fill, scalar, steps

SMALL_SORT = 4096
"""Elements of a slice that one block sorts (Sort.cpp, should_use_small_sort)."""
RADIX_BITS = 8
"""Bits one pass of cub's onesweep radix sort takes (cub agent_radix_sort_onesweep)."""
SINGLE_TILE = 4096
"""Items one block sorts at once, about (cub DispatchRadixSort, InvokeSingleTile: 256 threads of 16 to 19 items)."""
SMALL_EMBEDDING = 3072
"""Up to this many indices the gradient is added up without sorting (Embedding.cu, embedding_dense_backward_cuda)."""


def masked_fill(call: Call, gpu: Silicon) -> list[Work]:
    """Clones its input, then fills the clone in place."""
    return [*copied(call.first, call.first), *steps("elementwise:pointwise")(call, gpu)]


def after_copy(*kinds: str) -> Rule:
    """The out-of-place form of an op that writes: its first argument is copied, then written."""
    write = steps(*kinds)
    return lambda call, gpu: [*copied(call.first, call.first), *write(call, gpu)]


def gather_rows(call: Call, gpu: Silicon) -> list[Work]:
    """Reads as many rows as there are indices, not the whole table."""
    out = call.out
    size = (2 * out.touched_bytes if out else 0) + call.reads[-1].touched_bytes
    op = "aten::index_select" if call.name == "embedding" else ""
    return [Kernel("index", f"index_select<{call.first.dtype}>", "index", size, op)]


def nonzero(call: Call, gpu: Silicon) -> list[Work]:
    """Counts, reads the count back, then selects; more than one dimension needs its indices written out."""
    mask = call.reads[-1]
    work: list[Work] = [Kernel("reduction", "DeviceReduce", "reduction", mask.touched_bytes)]
    work += [Transfer("DtoH", 4, sync=True)]
    work += [Kernel("sort", label, "index", mask.touched_bytes * 2) for label in ("DeviceCompactInit", "DeviceSelect")]
    if len(mask.shape) > 1:
        work.append(Kernel("index", "write_indices", "index", mask.touched_bytes))
    return work


def index(call: Call, gpu: Silicon) -> list[Work]:
    """One kernel; a mask among the indices is turned into indices first."""
    masks = [v for v in call.reads[1:] if v.dtype in ("bool", "uint8")]
    found: list[Work] = []
    for mask in masks:
        found += nonzero(Call("nonzero", (mask,)), gpu)
    out = call.out
    size = 2 * out.touched_bytes + sum(v.touched_bytes for v in call.reads[1:]) if out else 0
    return [*found, Kernel("index", f"index<{call.first.dtype}>", "index", size)]


def index_put(call: Call, gpu: Silicon) -> list[Work]:
    """Written by index; adding up equal indices deterministically sorts them first."""
    before = [] if call.name.endswith("_") else copied(call.first, call.first)
    values = call.reads[-1]
    masks = [v for v in call.reads[1:-1] if v.dtype in ("bool", "uint8")]
    if len(masks) == 1 and len(call.reads) == 3 and values.numel == 1:  # canDispatchToMaskedFill
        return [*before, Kernel("elementwise", f"masked_fill<{call.first.dtype}>", "pointwise", call.moved)]
    for mask in masks:
        before += nonzero(Call("nonzero", (mask,)), gpu)
    size = 2 * values.touched_bytes
    if not call.arguments.get("accumulate"):
        return [*before, Kernel("index", f"index_put<{call.first.dtype}>", "index", size)]
    linear: list[Work] = [Kernel("elementwise", "linear_index", "pointwise", size) for _ in range(2)]
    keys = max(1, (call.first.numel or 1).bit_length())
    return [*before, *linear, Kernel("elementwise", "arange", "pointwise", size), *_radix(keys, size, values.numel),
            Kernel("index", f"indexing_backward<{call.first.dtype}>", "index", size)]  # fmt: skip


def _radix(bits: int, size: int, items: int) -> list[Work]:
    """Sorting by cub: one block for few items, else a histogram, its scan, and a pass for every 8 bits of the key."""
    if items <= SINGLE_TILE:
        return [Kernel("sort", "RadixSortSingleTile", "index", size)]
    passes = ceil(bits / RADIX_BITS)
    return [Kernel("sort", label, "index", size)
            for label in ("RadixSortHistogram", "RadixSortExclusiveSum", *["RadixSortOnesweep"] * passes)]  # fmt: skip


def sort(call: Call, gpu: Silicon) -> list[Work]:
    """Short slices by one block each, after copying keys and numbering them; long ones by cub."""
    dims = call.dims()
    length = call.first.shape[dims[0]] if dims else call.first.numel
    if length <= SMALL_SORT:
        return [*copied(call.first, call.first), Kernel("elementwise", "fill_index", "pointwise", 8 * call.first.numel),
                Kernel("sort", f"sort_in_place<{call.first.dtype}>", "index", call.moved)]  # fmt: skip
    number = Kernel("elementwise", "fill_reverse_indices", "pointwise", 8 * call.first.numel)
    return [number, *_radix(8 * call.first.itemsize, call.moved, call.first.numel)]


def topk(call: Call, gpu: Silicon) -> list[Work]:
    """One gather by radix select; several results are then sorted."""
    gather = Kernel("sort", f"gatherTopK<{call.first.dtype}>", "index", call.first.touched_bytes)
    if call.number("k", 2) <= 1 or call.arguments.get("sorted") is False:
        return [gather]
    out = call.out
    return [gather, Kernel("sort", "sort_in_place", "index", 2 * out.touched_bytes if out else 0)]


def scan(call: Call, gpu: Silicon) -> list[Work]:
    """One dimension of several: one kernel. A whole tensor: cub, with a kernel to set it up."""
    dims = call.dims()
    whole = not dims or call.first.shape[dims[0]] == call.first.numel
    kernels = ("DeviceScanInit", "DeviceScan") if whole else ("tensor_kernel_scan",)
    return [Kernel("sort", label, "reduction", call.moved) for label in kernels]


def embedding_backward(call: Call, gpu: Silicon) -> list[Work]:
    """Few indices are added up directly; many are sorted and added up by segment."""
    out, indices = call.out, call.reads[-1]
    zero = fill(call, gpu)
    size = call.first.touched_bytes + (out.touched_bytes if out else 0)
    if indices.numel <= SMALL_EMBEDDING and not call.arguments.get("scale_grad_by_freq"):
        return [*zero, Kernel("embedding", f"embedding_backward<{call.first.dtype}>", "index", size)]
    rows = out.shape[0] if out and out.shape else 2
    labels = ("UniqueByKeyInit", "UniqueByKey", "partials_per_segment", "DeviceScanInit", "DeviceScan",
              "partial_segment_offset", "compute_grad_weight", "sum_and_scatter")  # fmt: skip
    return [
        Kernel("elementwise", "arange", "pointwise", 8 * indices.numel),
        *_radix(rows.bit_length(), 16 * indices.numel, indices.numel),
        *zero,
        *(Kernel("embedding", label, "index", size if "grad" in label else 16 * indices.numel) for label in labels),
    ]  # fmt: skip


TABLE = (
    Entry(
        "_embedding_bag_backward _embedding_bag_dense_backward",
        embedding_backward,
        "as the gradient of an embedding, after offsets to bags (EmbeddingBag.cu)",
    ),
    Entry("masked_fill", masked_fill, "clone, then masked_fill_ (TensorAdvancedIndexing.cpp)"),
    Entry("masked_fill_ masked_scatter_", steps("elementwise:pointwise"), "one elementwise kernel (IndexKernel.cu)"),
    Entry("embedding index_select", gather_rows, "index_select, one kernel (Indexing.cu, indexSelect*Index)"),
    Entry(
        "embedding_dense_backward", embedding_backward, "see SMALL_EMBEDDING (Embedding.cu, EmbeddingBackwardKernel.cu)"
    ),
    Entry(
        "_embedding_bag _embedding_bag_forward_only",
        steps("embedding", "embedding"),
        "offsets to bags, then the sums (EmbeddingBag.cu)",
    ),
    Entry("index", index, "one kernel, after nonzero for masks (IndexKernel.cu; TensorAdvancedIndexing.cpp)"),
    Entry(
        "index_put index_put_ _index_put_impl_ _unsafe_index_put",
        index_put,
        "one kernel, or sorted when accumulating (Indexing.cu, index_put_with_sort_kernel)",
    ),
    Entry(
        "gather take scatter_ scatter_add_ scatter_reduce_ index_add_ index_copy_ index_fill_ put_ take_along_dim "
        "_unsafe_index",
        steps("index"),
        "one kernel each (ScatterGatherKernel.cu, Indexing.cu)",
    ),
    Entry(
        "scatter scatter_add scatter_reduce index_add index_copy index_fill put masked_scatter",
        after_copy("index"),
        "the first argument is copied, then written in place",
    ),
    Entry("nonzero", nonzero, "reduce, count read back, select, write_indices (Nonzero.cu)"),
    Entry(
        "masked_select",
        lambda c, g: [*nonzero(c, g), *steps("index")(c, g)],
        "nonzero of the mask, then index (IndexKernel.cpp, masked_select_out_cuda_impl)",
    ),
    Entry("sort argsort", sort, "see SMALL_SORT (Sort.cu, SortStable.cu)"),
    Entry("topk", topk, "gatherTopK, then a sort of the k (TensorTopK.cu, TensorTopK.cpp)"),
    Entry("kthvalue median nanmedian mode", steps("sort"), "one select kernel (Sorting.cu)"),
    Entry("cumsum cumprod logcumsumexp cummax cummin cumsum_ _cummax_helper", scan, "scan_dim or cub (ScanUtils.cuh)"),
    Entry("searchsorted bucketize histc", steps("sort"), "one kernel (Bucketization.cu, SummaryOps.cu)"),
    Entry(
        "bincount",
        lambda c, g: [
            *steps("reduction:reduction", "reduction:reduction")(c, g),
            Transfer("DtoH", 16, sync=True),
            *steps("sort")(c, g),
        ],
        "minimum and maximum read back, then a histogram (SummaryOps.cu)",
    ),
    Entry(
        "_unique2 unique_dim unique_consecutive",
        lambda c, g: [
            *_radix(8 * c.first.itemsize, c.moved, c.first.numel),
            *steps("sort", "sort", "sort")(c, g),
            Transfer("DtoH", 8, sync=True),
        ],
        "sort, flag the differences, scan, select; the count is read back (UniqueCub.cu)",
    ),
    Entry(
        "repeat_interleave",
        lambda c, g: [*scan(c, g), Transfer("DtoH", 8, sync=True), *steps("index")(c, g)],
        "cumsum, its last element read back, one kernel (Repeat.cu)",
    ),
    Entry(
        "multinomial",
        steps("reduction:reduction", "elementwise:pointwise", "rng", "elementwise:pointwise", "reduction:reduction"),
        "normalised, exponential noise, argmax (MultinomialKernel.cu)",
    ),
    Entry("_local_scalar_dense is_nonzero", scalar, "memcpy to the CPU, which waits (CUDAScalar.cu)"),
)
