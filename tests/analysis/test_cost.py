"""The formulas of what a fusion could save, against arithmetic done by hand."""

import pytest

from fusionadvisor.analysis import cost, devices
from fusionadvisor.report.model import Range


def test_fused_time_of_100_mb_on_an_h100() -> None:
    """1e8 bytes at 3350 GB/s.

    low: 1e8 / (0.9 · 3.35e6 bytes/µs) = 33.167 µs, over the 2 µs floor.
    likely: 1e8 / (0.6 · 3.35e6) = 49.751; √(3² + 49.751²) = √(9 + 2475.2) = 49.842 µs.
    high: 1e8 / (0.4 · 3.35e6) = 74.627; √(3.5² + 74.627²) = √(12.25 + 5569.2) = 74.709 µs.
    """
    time = cost.fused(100_000_000, 3350)
    assert (time.low_us, time.likely_us, time.high_us) == pytest.approx((33.167, 49.842, 74.709), abs=1e-3)


def test_fused_time_of_nothing_is_the_launch_floor() -> None:
    """0 bytes: max(2, 0) = 2, √(3² + 0) = 3, √(3.5² + 0) = 3.5."""
    assert cost.fused(0, 3350) == cost.Fused(2.0, 3.0, 3.5)


def test_few_rows_double_the_slow_end() -> None:
    """4999 rows are under 5000: 2 · 3.5 = 7; 5000 rows are not."""
    assert cost.fused(0, 3350, rows=4999) == cost.Fused(2.0, 3.0, 7.0)
    assert cost.fused(0, 3350, rows=5000) == cost.Fused(2.0, 3.0, 3.5)


def test_saving_is_measured_time_less_fused_time() -> None:
    """60 µs less (74.709, 49.842, 33.167): the slow end would be negative, so 0; 10.158; 26.833."""
    saved = cost.save(60.0, cost.fused(100_000_000, 3350))
    assert saved.low == 0.0
    assert saved.likely == pytest.approx(10.158, abs=1e-3)
    assert saved.high == pytest.approx(26.833, abs=1e-3)


def test_an_epilogue_pays_for_the_residual_it_reads() -> None:
    """Kernels of 100 µs whose residual of 1e8 bytes is still read.

    best: 100 − 33.167 = 66.833; likely: 100 − 49.751 = 50.249; worst, a kernel of its own: 100 − 74.709 = 25.291.
    """
    saved = cost.vanish(100.0, 100_000_000, 3350)
    assert (saved.low, saved.likely, saved.high) == pytest.approx((25.291, 50.249, 66.833), abs=1e-3)


def test_unfused_elementwise_kernel() -> None:
    """2e8 bytes: 2e8 / (0.87 · 3.35e6) = 68.623; √(1.6² + 68.623²) = √(2.56 + 4709.1) = 68.642 µs."""
    assert cost.kernel_us(200_000_000, 3350, **cost.ELEMENTWISE) == pytest.approx(68.642, abs=1e-3)


def test_without_bytes_all_but_the_longest_goes() -> None:
    """10 + 4 + 3 = 17 µs, the longest 10: at most 7, at least nothing, no likely value."""
    assert cost.members(17.0, 10.0) == Range(0.0, None, 7.0)


def test_sums_have_a_likely_value_only_where_all_parts_do() -> None:
    assert cost.total([Range(1, 2, 3), Range(1, 2, 4)]) == Range(2, 4, 7)
    assert cost.total([Range(1, 2, 3), Range(1, None, 4)]) == Range(2, None, 7)
    assert cost.scale(Range(1, None, 4), 0.5) == Range(0.5, None, 2.0)


@pytest.mark.parametrize(
    ("name", "gbs"),
    [
        ("Tesla V100-DGXS-32GB", 900), ("Tesla V100-SXM2-16GB", 900), ("Tesla T4", 320),
        ("NVIDIA A100-SXM4-40GB", 1555), ("A100-PCIE-40GB", 1555), ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA A100-SXM4-80GB", 2039), ("NVIDIA H100 80GB HBM3", 3350), ("NVIDIA H100 PCIe", 2000),
        ("NVIDIA H200", 4800), ("NVIDIA B200", 8000), ("AMD Instinct MI300X VF", 5300),
    ],
)  # fmt: skip
def test_devices_by_the_name_a_driver_prints(name: str, gbs: float) -> None:
    gpu = devices.find(name)
    assert gpu is not None
    assert gpu.peak_gbs == gbs
    assert gpu.source


@pytest.mark.parametrize(
    "name",
    [None, "", "NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H100 NVL", "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
     "NVIDIA GeForce RTX 3060", "Quadro GP100", "AMD Instinct MI300A", "NVIDIA H20"],
)  # fmt: skip
def test_other_devices_get_no_roofline(name: str | None) -> None:
    assert devices.find(name) is None
