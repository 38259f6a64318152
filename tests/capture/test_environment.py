"""What doctor finds out."""

import platform

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


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_a_cpu_build_is_named_as_such() -> None:
    build = next(check for check in diagnose() if check.name == "CUDA build")
    assert build.ok is False
    assert "without CUDA" in build.detail
