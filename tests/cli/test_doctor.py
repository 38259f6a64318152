"""``doctor``: each check on a line, and below a no what to do."""

import pytest

from fusionadvisor.capture import environment
from fusionadvisor.capture.environment import Check
from tests.cli.conftest import Cli


def test_checks_and_remedies(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        Check("torch", True, "2.13.0"),
        Check("driver", False, "no NVIDIA driver answers", "Run where a GPU and its driver are."),
        Check("GPU kernels", None, "no GPU to record"),
    ]
    monkeypatch.setattr(environment, "diagnose", lambda: checks)
    ran = cli("doctor")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "yes  torch        2.13.0",
        "no   driver       no NVIDIA driver answers",
        "                  Run where a GPU and its driver are.",
        "-    GPU kernels  no GPU to record",
    ]
