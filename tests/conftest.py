"""What every test shares."""

import json
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

# Before torch is imported: threads of several test processes on few cores mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A prediction beside every CPU profile would double what the command-line tests take.
os.environ.setdefault("FUSION_ADVISOR_GPU", "none")


@cache
def _schema() -> Callable[[Any], Any]:
    import fastjsonschema

    from fusionadvisor.report import schema

    compiled: Callable[[Any], Any] = fastjsonschema.compile(json.loads(schema.FILE.read_bytes()))
    return compiled


@pytest.fixture(autouse=True)
def written_reports_satisfy_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever report a test writes in this process has to satisfy the shipped schema."""
    from fusionadvisor.report import codec
    from fusionadvisor.report.model import Report

    plain = codec.to_dict

    def checked(value: Any) -> Any:
        made = plain(value)
        if isinstance(value, Report):
            _schema()(made)
        return made

    monkeypatch.setattr(codec, "to_dict", checked)
