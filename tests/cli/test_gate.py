"""``--fail-on``: when the command fails, and what it says."""

from dataclasses import replace

from fusionadvisor.report.model import Fusion, Passed
from tests.cli.conftest import Advisor, Cli
from tests.render.samples import CPU_PROFILE


def test_the_report_is_written_before_the_gate_falls(cli: Cli, advisor: Advisor) -> None:
    ran = cli("profile", "x.py", "--fail-on", "FA101", "--fail-on", "syncs>0", "--json", "r.json")
    assert ran.code == 1
    assert "Saved     r.json" in ran.out
    assert ran.err.endswith("error: --fail-on: findings.FA101: 3, must be at most 0: bn1, bn2, bn3 block.py:31.\n")
    advisor.report = replace(CPU_PROFILE, findings=(), fusion=Fusion(), passed=(Passed("FA101", "no batch norm"),))
    assert cli("profile", "x.py", "--fail-on", "FA101,syncs>0").code == 0


def test_a_bad_condition_is_found_before_any_work(cli: Cli, advisor: Advisor) -> None:
    assert cli("analyze", "x.json", "--fail-on", "kernel>3").code == 2
    assert advisor.asked == []
