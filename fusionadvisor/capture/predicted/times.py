"""How long a kernel takes: t = hypot(t0, bytes / (f * bandwidth)), and tiles in waves for matrix products.

The constants were fitted to bf16 kernels of three eager traces of an H100 SXM (3350 GB/s); ``benchmarks/prediction.py``
fits them again without one trace and tests them on it. What could not be tested so, because one trace alone has such
kernels, counts as uncalibrated, as do convolutions, float32 products and every other GPU, whose times are scaled by
bandwidth and peak: there only the structure is to be relied on.
"""

from dataclasses import dataclass
from math import ceil, hypot

from fusionadvisor.analysis.cost import GEMM_START_US
from fusionadvisor.capture.predicted.gpus import Silicon
from fusionadvisor.capture.predicted.kernels import Product, Transfer, Work


@dataclass(frozen=True, slots=True)
class Pace:
    """Start-up time in µs and reached fraction of the peak bandwidth of one class of kernels."""

    start_us: float
    fraction: float


PACES: dict[str, Pace] = {
    "pointwise": Pace(1.6, 0.88),
    "transcendental": Pace(1.8, 0.77),
    "cast": Pace(1.8, 0.56),
    "strided": Pace(2.6, 0.46),
    "layer_norm": Pace(4.0, 0.46),
    "softmax": Pace(1.8, 0.39),
    "softmax_long": Pace(2.2, 0.23),
    "reduction": Pace(3.0, 0.74),
    "cat": Pace(3.4, 0.26),
    "index": Pace(4.3, 0.16),
    "gemv": Pace(3.6, 0.55),
}
UNCALIBRATED = Pace(4.0, 0.4)

GEMM_FRACTION = 0.57
TILES: tuple[tuple[int, int, float], ...] = ((64, 64, 0.45), (128, 64, 0.71), (128, 128, 0.73), (128, 256, 0.76))
"""Output tiles of cuBLAS kernels and the share of a multiprocessor's peak they reach."""
SPLITS = (1, 2, 3, 4, 6, 8)
PERSISTENT_WAVES = 2
MISALIGNED = {8: 1.0, 4: 0.26, 2: 0.26, 1: 0.10}
"""Share of the rate left where K, N or a leading dimension is a multiple of so many 16-bit elements and no more."""
ATTENTION_START_US, ATTENTION_EFFICIENCY, ATTENTION_TILE = 6.0, 0.25, 128
"""Flash attention of 64-wide heads: queries and keys in blocks of 128 at a quarter of the tensor cores' peak."""
PLAIN_SHARE = 1 / 15
"""float32 peak outside tensor cores, as a share of the bf16 tensor-core peak (H100: 67 of 989 TFLOP/s)."""
MEMCPY_GBS = 20.0
"""Between host and device over PCIe, pageable memory."""

LOW, HIGH = 0.68, 1.28
"""Eight of ten held-out memory-bound kernels took between these multiples of the predicted time; products less."""
UNTESTED = frozenset({"softmax", "softmax_long", "gemv", "attention"})
"""Fitted to one trace, or to two shapes: not tested on another."""


@dataclass(frozen=True, slots=True)
class Time:
    """Duration of a kernel in µs: bounds and likely value; whether the constants were calibrated for it."""

    low_us: float
    likely_us: float
    high_us: float
    calibrated: bool


def time_of(work: Work, gpu: Silicon) -> Time:
    """Return how long one kernel or copy takes on a GPU."""
    likely, known = _likely(work, gpu)
    known = known and gpu.gpu.calibrated
    wide = 1.0 if known else 2.0
    return Time(likely * LOW / wide, likely, likely * HIGH * wide, known)


def _likely(work: Work, gpu: Silicon) -> tuple[float, bool]:
    if isinstance(work, Transfer):
        on_device = work.direction == "DtoD"
        rate = gpu.gpu.peak_gbs * 0.4 if on_device else MEMCPY_GBS
        return hypot(1.5, work.bytes / (rate * 1e3)), on_device
    product = work.product
    tested = work.pace not in UNTESTED
    if work.pace == "attention" and product is not None:
        return attention_us(product, gpu), tested
    if work.pace == "gemm" and product is not None:
        return product_us(product, work.bytes, gpu), product.tensor_cores and alignment(product) == 1
    pace = PACES.get(work.pace)
    return stream_us(work.bytes, pace or UNCALIBRATED, gpu), tested and pace is not None


def stream_us(size: int, pace: Pace, gpu: Silicon) -> float:
    """A kernel that streams bytes."""
    return hypot(pace.start_us, size / (pace.fraction * gpu.gpu.peak_gbs * 1e3))


def attention_us(product: Product, gpu: Silicon) -> float:
    """Fused attention, by its padded blocks."""
    rows, columns = (ceil(n / ATTENTION_TILE) * ATTENTION_TILE for n in (product.m, product.n))
    flops = 2.0 * product.batch * rows * columns * product.k
    return ATTENTION_START_US + flops / (ATTENTION_EFFICIENCY * gpu.gpu.tensor_tflops * 1e6)


def product_us(product: Product, size: int, gpu: Silicon) -> float:
    """A matrix product: its bytes, or the best tiling's waves, whichever takes longer, after a start."""
    moved = size / (GEMM_FRACTION * gpu.gpu.peak_gbs * 1e3)
    rate = gpu.gpu.tensor_tflops * 1e6 / gpu.multiprocessors  # FLOP a µs and multiprocessor
    rate *= alignment(product) if product.tensor_cores else PLAIN_SHARE
    best = min(
        _waves(product.batch * ceil(product.m / m) * ceil(product.n / n) * split, gpu)
        * 2.0 * m * n * ceil(product.k / split) / (efficiency * rate)
        for m, n, efficiency in TILES for split in (SPLITS if product.split_k else (1,))
    )  # fmt: skip
    return GEMM_START_US + max(moved, best)


def _waves(tiles: int, gpu: Silicon) -> float:
    """Rounds in which the multiprocessors work through the tiles; from two on, persistent kernels level the last."""
    rounds = tiles / gpu.multiprocessors
    return rounds if rounds >= PERSISTENT_WAVES else float(ceil(rounds))


def alignment(product: Product) -> float:
    """Share of the rate that is left when rows do not start at multiples of 16 bytes."""
    if product.itemsize != 2:
        return 1.0
    sizes = (product.k, product.n, *product.leading)
    return min(MISALIGNED[next(a for a in MISALIGNED if s % a == 0)] for s in sizes)
