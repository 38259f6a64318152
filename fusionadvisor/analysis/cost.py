"""What a fused kernel would take, and so what fusing could save: a bound, never a promise.

Times are in µs, bandwidth in GB/s, sizes in bytes. The constants were fitted to bf16 kernels on an H100 (3350 GB/s);
held out they gave a median error of 13.5 % on memory-bound kernels.
"""

from dataclasses import dataclass
from math import hypot

from fusionadvisor.report.model import Range

GEMM_START_US = 4.7
"""What a GEMM takes before its first tile is done, measured on an H100 in bf16."""
LAUNCH_FLOOR_US = 2.0
"""No kernel was seen to take less on an H100, however little it does."""
LIKELY_START_US, LIKELY_FRACTION = 3.0, 0.6
SLOW_START_US, SLOW_FRACTION = 3.5, 0.4
BEST_FRACTION = 0.9
"""The largest share of the peak bandwidth a plain kernel reaches."""
FEW_ROWS = 5000
"""Reductions over fewer rows leave part of the GPU without work: the slow end is doubled."""


@dataclass(frozen=True, slots=True)
class Fused:
    """How long one fused kernel would take."""

    low_us: float
    likely_us: float
    high_us: float


def moved_us(size: float, peak_gbs: float, fraction: float) -> float:
    """Time to move ``size`` bytes at a fraction of the peak bandwidth."""
    return size / (fraction * peak_gbs * 1e3)


def fused(size: int, peak_gbs: float, *, rows: int | None = None) -> Fused:
    """Return the time of one kernel that moves ``size`` bytes; ``rows`` of a reduction, None without one."""
    high = hypot(SLOW_START_US, moved_us(size, peak_gbs, SLOW_FRACTION))
    if rows is not None and rows < FEW_ROWS:
        high *= 2
    return Fused(
        max(LAUNCH_FLOOR_US, moved_us(size, peak_gbs, BEST_FRACTION)),
        hypot(LIKELY_START_US, moved_us(size, peak_gbs, LIKELY_FRACTION)),
        high,
    )


def kernel_us(size: int, peak_gbs: float, *, start_us: float, fraction: float) -> float:
    """Time of one unfused kernel: a start-up time and a stream of bytes, whichever dominates."""
    return hypot(start_us, moved_us(size, peak_gbs, fraction))


ELEMENTWISE = {"start_us": 1.6, "fraction": 0.87}
"""A contiguous elementwise kernel of an H100 in bf16."""


def save(us: float, time: Fused) -> Range:
    """Return what replacing kernels of ``us`` by one fused kernel saves; never less than 0 nor more than ``us``."""
    return Range(*(min(us, max(0.0, us - cost)) for cost in (time.high_us, time.likely_us, time.low_us)))


def members(us: float, longest_us: float) -> Range:
    """The bound without bytes: at best everything but the longest member goes."""
    return Range(0.0, None, max(0.0, us - longest_us))


def vanish(us: float, remaining_bytes: int, peak_gbs: float) -> Range:
    """Return what moving kernels into the epilogue of their producer saves.

    At best the bytes that remain (a residual's read) stream along at full bandwidth. At worst they need a kernel of
    their own after all.
    """
    slow = hypot(SLOW_START_US, moved_us(remaining_bytes, peak_gbs, SLOW_FRACTION))
    likely = moved_us(remaining_bytes, peak_gbs, LIKELY_FRACTION)
    best = moved_us(remaining_bytes, peak_gbs, BEST_FRACTION)
    return save(us, Fused(best, likely, slow))


def total(ranges: list[Range]) -> Range:
    """Add bounds; the sum has a likely value only where every part has."""
    likely = [r.likely for r in ranges if r.likely is not None]
    return Range(
        sum(r.low for r in ranges),
        sum(likely) if len(likely) == len(ranges) else None,
        sum(r.high for r in ranges),
    )


def scale(bound: Range, factor: float) -> Range:
    """Return a bound times a factor."""
    return Range(bound.low * factor, None if bound.likely is None else bound.likely * factor, bound.high * factor)


def at_most(bound: Range) -> Range:
    """Return the upper end alone, where the recording supports no more than that."""
    return Range(0.0, None, bound.high)
