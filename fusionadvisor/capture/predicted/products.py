"""Matrix products: what cuBLAS launches for them."""

from dataclasses import replace
from math import ceil

from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.kernels import Call, Entry, Kernel, Product, Work, alike
from fusionadvisor.capture.predicted.memory import copied
from fusionadvisor.flow.graph import Value

HALVES = frozenset({"float16", "bfloat16"})
LT_DTYPES = frozenset({"float64", "float32", *HALVES})

SPLIT_K_MIN, SPLIT_K_MIN_HOPPER = 512, 1000
"""Split-K was seen from these K on in traces: at 512 on V100 and A100, at 3072 and not at 768 on H100."""
SMALL_ROWS = 16
"""Up to so many rows times one column cuBLAS runs as a batch of dot products (V100 trace)."""
COUNTER_BYTES = 4
"""Workspace that Hopper's persistent kernels zero first: one tile counter (H100 traces)."""


def tiles(product: Product, m: int, n: int) -> int:
    """Output tiles of m by n that cover the product."""
    return product.batch * ceil(product.m / m) * ceil(product.n / n)


def uses_tensor_cores(dtype: str, gpu: Silicon) -> bool:
    """Whether products of this type run on tensor cores by default (float32 needs TF32 to be allowed)."""
    if dtype == "float16":
        return gpu.capability >= (7, 0)
    return dtype == "bfloat16" and gpu.capability >= (8, 0)


def product_of(left: Value, right: Value, gpu: Silicon) -> Product:
    """The product of two matrices, or of two batches of them."""
    batch = left.shape[0] if len(left.shape) == 3 else 1
    m, k = left.shape[-2:]
    n = right.shape[-1]
    leading = tuple(max(t.strides[-2:]) for t in (left, right)) if min(m, n, k) > 1 else ()
    return Product(batch, m, n, k, left.itemsize, uses_tensor_cores(left.dtype, gpu), leading)


def multiply(product: Product, dtype: str, gpu: Silicon, *, op: str = "", extra: int = 0) -> list[Work]:
    """The kernels of one product, ``extra`` bytes of operands besides its three matrices."""
    b, m, n, k = product.batch, product.m, product.n, product.k
    size = b * (m * k + k * n + m * n) * product.itemsize + extra
    if b == 1 and n == 1 and (m == 1 or (m <= SMALL_ROWS and dtype == "float32")):  # partial sums, then one block
        partial = Kernel("gemm", f"dot<{dtype}>", "index", size, op)
        return [partial, Kernel("gemm", f"dot_reduce<{dtype}>", "reduction", 4096, op)]
    if m == 1 or n == 1:
        return [Kernel("gemm", f"gemv<{dtype}>", "gemv", size, op, product)]
    few = tiles(product, 64, 64) * 2 <= gpu.multiprocessors
    longest = SPLIT_K_MIN if gpu.capability < (9, 0) else SPLIT_K_MIN_HOPPER
    if b == 1 and few and k >= longest:
        label = f"gemm_splitk<{dtype}>"
        product = replace(product, split_k=True)
        if dtype not in HALVES and gpu.capability >= (8, 0):  # recent cuBLAS adds float32 parts up in the output
            return [Kernel("gemm", label, "gemm", size, op, product, memset=m * n * product.itemsize)]
        reduce = Kernel("gemm", f"splitk_reduce<{dtype}>", "reduction", 5 * m * n * product.itemsize, op)
        return [Kernel("gemm", label, "gemm", size, op, product), reduce]
    persistent = gpu.capability[0] == 9 and dtype in HALVES and tiles(product, 128, 128) >= 2 * gpu.multiprocessors
    counter = COUNTER_BYTES if persistent and b == 1 else 0
    return [Kernel("gemm", f"gemm<{dtype}>", "gemm", size, op, product, memset=counter)]


def _usable(value: Value) -> bool:
    """Whether cuBLAS can read it as it is: one of its two dimensions is contiguous and the other one's stride fits."""
    rows, columns = value.shape[-2:]
    over, along = value.strides[-2:]
    return (along == 1 and over >= max(1, columns)) or (over == 1 and along >= max(1, rows)) or 1 in (rows, columns)


def _readable(operands: tuple[Value, ...]) -> list[Work]:
    """Copies of the operands cuBLAS cannot read (prepare_matrix_for_cublas, prepare_batch_matrix_for_cublas)."""
    return [Kernel("layout", f"copy<{v.dtype}>", "strided", 2 * v.touched_bytes, "aten::copy_")
            for v in operands if not _usable(v)]  # fmt: skip


def mm(call: Call, gpu: Silicon) -> list[Work]:
    """Two matrices, or two batches."""
    left, right = call.reads[-2:]
    return [*_readable((left, right)), *multiply(product_of(left, right, gpu), left.dtype, gpu)]


def addmm(call: Call, gpu: Silicon) -> list[Work]:
    """A bias vector goes into cuBLASLt's epilogue where it may; else it is copied into the result first."""
    bias, left, right = call.reads[:3]
    product = product_of(left, right, gpu)
    epilogue = (
        len(bias.shape) == 1 and bias.shape[0] == product.n and product.k > 1 and product.n > 1
        and left.dtype in LT_DTYPES and call.number("beta", 1) == 1
    )  # fmt: skip
    before = _readable((left, right))
    if epilogue:
        return [*before, *multiply(product, left.dtype, gpu, extra=bias.touched_bytes)]
    return [*before, *_into_result(bias, call), *multiply(product, left.dtype, gpu)]


def baddbmm(call: Call, gpu: Silicon) -> list[Work]:
    """Copies its first argument into the result, unless it is scaled by 0, then multiplies into it."""
    first, left, right = call.reads[:3]
    before = [] if call.number("beta", 1) == 0 else _into_result(first, call)
    return [*_readable((left, right)), *before, *multiply(product_of(left, right, gpu), left.dtype, gpu)]


def _into_result(value: Value, call: Call) -> list[Work]:
    result = call.out
    if result is None or result.storage == value.storage:
        return []
    if alike(value, result):
        return copied(value, result)
    size = value.touched_bytes + result.touched_bytes
    return [Kernel("layout", f"copy<{result.dtype}>", "strided", size, "aten::copy_")]


def vector(call: Call, gpu: Silicon) -> list[Work]:
    """Matrix by vector, by gemv; addmv copies its first argument first."""
    matrix, other = call.reads[-2:]
    m, k = matrix.shape if len(matrix.shape) == 2 else (1, matrix.shape[0])
    product = Product(1, m, 1, k, matrix.itemsize, tensor_cores=False)
    before = _into_result(call.reads[0], call) if len(call.reads) == 3 else []
    return [*before, *multiply(product, other.dtype, gpu)]


def grouped(call: Call, gpu: Silicon) -> list[Work]:
    """Prepares the groups' pointers in one small kernel, then one product over all of them."""
    size = call.moved
    return [
        Kernel("gemm", "prepare_grouped_gemm", "index", 4096),
        Kernel("gemm", f"grouped_gemm<{call.first.dtype}>", "", size),
    ]


TABLE = (
    Entry(
        "mm bmm _scaled_mm _int_mm",
        mm,
        "cublasGemmEx, or gemv for one row or column, or dot for 1x1; split-K adds a reduction when few tiles meet a "
        "long K (Blas.cpp, bmm_out_cuda_impl; split-K and memsets from traces)",
    ),
    Entry(
        "addmm addmm_ _addmm_activation",
        addmm,
        "cublasLt with the bias in its epilogue for a 1-D bias and no dimension of 1, else copy_ and gemm "
        "(Blas.cpp, addmm_out_cuda_impl)",
    ),
    Entry("baddbmm baddbmm_ addbmm addbmm_", baddbmm, "copy_ into the result, then gemm (Blas.cpp, baddbmm_out_cuda)"),
    Entry(
        "mv addmv addmv_ dot vdot", vector, "gemv, or dot with its reduction (Blas.cpp, addmv_out_cuda; CUDABlas.cpp)"
    ),
    Entry("_grouped_mm _scaled_grouped_mm", grouped, "one kernel writes pointers and sizes (GroupMM.cu)"),
)
