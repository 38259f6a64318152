"""What doctor finds out."""

import platform
from pathlib import Path

import pytest
import torch

from fusionadvisor.capture import environment
from fusionadvisor.capture.environment import diagnose, probe


def test_the_probe_tells_this_machine() -> None:
    found = probe()
    assert found.torch == torch.__version__
    assert found.python == platform.python_version()
    assert found.threads == torch.get_num_threads()
    assert (found.gpu is None) == (not torch.cuda.is_available())


def test_every_no_comes_with_a_remedy() -> None:
    checks = diagnose()
    assert len({check.name for check in checks}) == len(checks)
    for check in checks:
        assert check.detail
        assert check.remedy or check.ok is not False, check.name


def test_the_profiler_records_cpu_ops_here() -> None:
    assert next(check for check in diagnose() if check.name == "profiler, CPU ops").ok is True


def test_a_profiler_that_records_nothing_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_recorded", lambda *_: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert environment._records_cpu().ok is False
    kernels = environment._records_gpu()
    assert kernels.ok is False
    assert "CUPTI" in kernels.detail
    assert kernels.remedy


def test_the_gpu_is_recorded_before_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first recording of the CPU alone keeps Kineto from recording a GPU as long as the process lives."""
    recorded: list[str] = []

    def note(device: str, _: object) -> int:
        recorded.append(device)
        return 1

    monkeypatch.setattr(environment, "_recorded", note)
    monkeypatch.setattr(environment, "measure_copy_gbs", lambda: 1000.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    names = [check.name for check in diagnose()]
    assert recorded == ["cuda", "cpu"]
    assert names.index("profiler, CPU ops") < names.index("profiler, GPU kernels")


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_a_cpu_build_is_named_as_such() -> None:
    build = next(check for check in diagnose() if check.name == "CUDA build")
    assert build.ok is False
    assert "without CUDA" in build.detail


class Properties:
    """What torch says of a device."""

    name = "NVIDIA Test GPU"
    major, minor = 9, 0
    total_memory = 80_000_000_000


ANSWERS = {"driver_version": "580.1", "clocks.sm": "345", "clocks.max.sm": "1980"}


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU, as far as torch and the driver's own tool say."""
    cases = " ".join(f"*{field},*|*={field}\\ *) echo {value};;" for field, value in ANSWERS.items())
    nvidia_smi(tmp_path, monkeypatch, f'case "$* " in {cases} esac')
    for name, value in {
        "is_available": True, "current_device": 0, "device_count": 1, "get_device_name": "NVIDIA Test GPU",
        "get_device_properties": Properties,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(environment, "measure_copy_gbs", lambda: 2850.0)
    monkeypatch.setattr(environment, "_recorded", lambda *_: 3)
    monkeypatch.setattr(torch.version, "cuda", "13.0")


@pytest.mark.usefixtures("gpu")
def test_the_probe_tells_a_gpu() -> None:
    found = probe()
    assert (found.gpu, found.gpu_count, found.compute_capability) == ("NVIDIA Test GPU", 1, "9.0")
    assert (found.memory_gb, found.driver, found.copy_gbs) == (80.0, "580.1", 2850.0)
    assert found.clocks == "SM 345 of 1980 MHz"


@pytest.mark.usefixtures("gpu")
def test_all_is_well_on_a_machine_with_a_gpu() -> None:
    assert {check.name: (check.ok, check.detail) for check in diagnose()} == {
        "torch": (True, f"{torch.__version__} on Python {platform.python_version()}"),
        "CUDA build": (True, "built for CUDA 13.0"),
        "driver": (True, "NVIDIA driver 580.1"),
        "GPU": (True, "NVIDIA Test GPU"),
        "profiler, CPU ops": (True, "recorded"),
        "profiler, GPU kernels": (True, "recorded (CUPTI works)"),
        "copy bandwidth": (True, "2850 GB/s"),
    }


@pytest.mark.usefixtures("gpu")
def test_what_stands_between_torch_and_its_gpu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\nand more")

    monkeypatch.setattr(environment, "_recorded", refuse)
    kernels = environment._records_gpu()
    assert (kernels.ok, kernels.detail) == (False, "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert environment._device().detail == "CUDA_VISIBLE_DEVICES is ''"
    nvidia_smi(tmp_path, monkeypatch, "echo 'no devices were found'; exit 9")
    driver = environment._driver()
    assert (driver.ok, driver.remedy) == (False, "Run where a GPU and its driver are.")
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert environment._cuda_build().detail == "built for ROCm 6.2"
