"""GPUs whose memory bandwidth is known, each figure with its source. Any other GPU gets bounds without a roofline."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU model.

    Args:
        name: As this program calls it.
        peak_gbs: Peak memory bandwidth in GB/s (1e9 bytes).
        tensor_tflops: Dense bf16 (V100, T4: fp16) tensor-core peak in TFLOP/s.
        fp32_tflops: Peak of float32 without tensor cores, in TFLOP/s.
        source: Where the figures are from.
        calibrated: The kernel-time constants of :mod:`fusionadvisor.analysis.cost` were measured on this model.
    """

    name: str
    peak_gbs: float
    tensor_tflops: float
    fp32_tflops: float
    source: str
    calibrated: bool = False


GPUS: tuple[Gpu, ...] = (
    Gpu("V100", 900, 125, 15.7, "NVIDIA V100 datasheet (SXM2), Jan 2020"),
    Gpu("T4", 320, 65, 8.1, "NVIDIA T4 datasheet, Mar 2019"),
    Gpu("A100 40GB", 1555, 312, 19.5, "NVIDIA A100 datasheet (40 GB), Jun 2021"),
    Gpu("A100 80GB PCIe", 1935, 312, 19.5, "NVIDIA A100 datasheet (80 GB PCIe), Jun 2021"),
    Gpu("A100 80GB SXM", 2039, 312, 19.5, "NVIDIA A100 datasheet (80 GB SXM), Jun 2021"),
    Gpu("H100 SXM", 3350, 989, 67, "NVIDIA H100 datasheet (SXM5)", calibrated=True),
    Gpu("H100 PCIe", 2000, 756, 51, "NVIDIA H100 datasheet (PCIe), Mar 2022"),
    Gpu("H200", 4800, 989, 67, "NVIDIA H200 datasheet (SXM)"),
    Gpu("B200", 8000, 2250, 75, "NVIDIA DGX B200 datasheet (per GPU, dense)"),
    Gpu("MI300X", 5300, 1307, 163.4, "AMD Instinct MI300X data sheet"),
)
_BY_NAME = {gpu.name: gpu for gpu in GPUS}

_PATTERNS: tuple[tuple[str, str], ...] = (
    # the name as drivers print it -> the table's; the first match decides
    (r"\bV100\b", "V100"),
    (r"\bT4\b", "T4"),
    (r"\bA100\b.*\b40GB", "A100 40GB"),
    (r"\bA100\b.*\b80GB PCIe", "A100 80GB PCIe"),
    (r"\bA100\b.*\b80GB", "A100 80GB SXM"),
    (r"\bH100\b.*\bHBM3|\bH100 SXM", "H100 SXM"),
    (r"\bH100 PCIe", "H100 PCIe"),
    (r"\bH200\b", "H200"),
    (r"\bB200\b", "B200"),
    (r"\bMI300X\b", "MI300X"),
)


def find(name: str | None) -> Gpu | None:
    """Return the table's entry for a device name as a driver or a trace prints it, None for any other GPU.

    A MIG slice has a share of the bandwidth that its name does not state: None.
    """
    if not name or re.search(r"\bMIG\b", name):
        return None
    for pattern, known in _PATTERNS:
        if re.search(pattern, name, re.IGNORECASE):
            return _BY_NAME[known]
    return None
