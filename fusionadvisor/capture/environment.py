"""What this machine is, and whether it can do what profiling needs."""

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from fusionadvisor.capture.profiler import Profiler
from fusionadvisor.medians import median_ci
from fusionadvisor.report.model import Environment

COPY_BYTES = 256 << 20
"""Large enough that a copy is no cache effect on any GPU (the largest L2 is 126 MB, on B200)."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question of ``doctor``: the answer, and what to do where it is no. ``ok`` is None where it does not apply."""

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""


def probe() -> Environment:
    """Describe this machine; on CUDA its copy bandwidth is measured (a fraction of a second)."""
    common = Environment(
        torch=torch.__version__, python=platform.python_version(), platform=platform.platform(terse=True),
        cpu=_cpu_name(), threads=torch.get_num_threads(), cuda=torch.version.cuda,
    )  # fmt: skip
    if not torch.cuda.is_available():
        return common
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return replace(
        common,
        gpu=properties.name,
        gpu_count=torch.cuda.device_count(),
        compute_capability=f"{properties.major}.{properties.minor}",
        memory_gb=properties.total_memory / 1e9,
        driver=_nvidia_smi("driver_version"),
        copy_gbs=measure_copy_gbs(),
        clocks=_clocks(),
    )


@cache
def measure_copy_gbs(device: str = "cuda") -> float:  # gpu-only: times a copy on the device
    """Bandwidth of a device-to-device copy in GB/s (1e9 bytes), reads and writes both counted; median of 20."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    taken = []
    for _ in range(20):
        torch.cuda.synchronize(device)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1e-3)
    return 2 * COPY_BYTES / median_ci(taken)[0] / 1e9


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _nvidia_smi(field: str) -> str | None:
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = answer.stdout.strip().splitlines()
    return lines[0].strip() if answer.returncode == 0 and lines else None


def _clocks() -> str | None:
    now, highest = _nvidia_smi("clocks.sm"), _nvidia_smi("clocks.max.sm")
    return f"SM {now} of {highest} MHz" if now and highest else None


def diagnose() -> list[Check]:
    """Answer what profiling needs, one check each, in the order in which they depend on each other."""
    # first of the recordings: one of the CPU alone would keep the profiler from ever recording the GPU in this process
    records_gpu = _records_gpu()
    return [_torch(), _cuda_build(), _driver(), _device(), _records_cpu(), records_gpu, _bandwidth()]


def _torch() -> Check:
    return Check("torch", True, f"{torch.__version__} on Python {platform.python_version()}")


def _cuda_build() -> Check:
    if torch.version.hip is not None:
        return Check("CUDA build", None, f"built for ROCm {torch.version.hip}")
    if torch.version.cuda is None:
        return Check(
            "CUDA build", False, "this torch is built without CUDA; models run on the CPU here",
            "Install a CUDA build: https://pytorch.org/get-started/locally",
        )  # fmt: skip
    return Check("CUDA build", True, f"built for CUDA {torch.version.cuda}")


def _driver() -> Check:
    version = _nvidia_smi("driver_version")
    if version:
        return Check("driver", True, f"NVIDIA driver {version}")
    return Check("driver", False, "no NVIDIA driver answers (nvidia-smi)", "Run where a GPU and its driver are.")


def _device() -> Check:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Check("GPU", True, ", ".join(names))
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and torch.version.cuda is not None:
        return Check("GPU", False, f"CUDA_VISIBLE_DEVICES is '{hidden}'", "Unset it, or name a device that is there.")
    return Check("GPU", False, "torch sees no GPU", "Install a CUDA build and a driver that is new enough for it.")


def _records_cpu() -> Check:
    count = _recorded("cpu", lambda event: event.get("cat") == "cpu_op")
    if count:
        return Check("profiler, CPU ops", True, "recorded")
    return Check("profiler, CPU ops", False, "the profiler recorded no op", "Reinstall torch: its Kineto is missing.")


def _records_gpu() -> Check:
    if not torch.cuda.is_available():
        return Check("profiler, GPU kernels", None, "no GPU to record")
    try:
        count = _recorded("cuda", lambda e: e.get("cat") == "kernel")
    except RuntimeError as error:
        count, why = 0, str(error).splitlines()[0]
    else:
        why = "no kernel was recorded: CUPTI has no access to the GPU's performance counters, or another tool holds it"
    if count:
        return Check("profiler, GPU kernels", True, "recorded (CUPTI works)")
    return Check(
        "profiler, GPU kernels", False, why,
        "Close other profilers; allow counters for all users (NVreg_RestrictProfilingToAdminUsers=0), or run as root; "
        "in a container add CAP_SYS_ADMIN.",
    )  # fmt: skip


def _bandwidth() -> Check:
    if not torch.cuda.is_available():
        return Check("copy bandwidth", None, "no GPU to measure")
    return Check("copy bandwidth", True, f"{measure_copy_gbs():.0f} GB/s")


def _recorded(device: str, wanted: Callable[[dict[str, object]], bool]) -> int:
    """How many wanted events a profile of a small addition holds."""
    tensor = torch.ones(1024, device=device)
    with tempfile.TemporaryDirectory(prefix="fusion-advisor-") as folder:
        path = Path(folder) / "probe.json"
        profiler = Profiler(on_cuda=device == "cuda")
        profiler.start()
        tensor.add(1)
        profiler.stop()
        profiler.export(path)
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return sum(1 for event in events if wanted(event))
