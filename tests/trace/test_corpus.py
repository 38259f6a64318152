"""Every real trace against facts counted independently with plain json."""

import json
from pathlib import Path
from typing import Any

import pytest

from fusionadvisor import trace
from fusionadvisor.errors import InputError
from fusionadvisor.trace.measures import busy_us, kernel_us, span_us
from tests.shared import SHARED

TRUTH: dict[str, Any] = json.loads((SHARED / "traces/TRUTH.json").read_text()) if SHARED else {}
pytestmark = pytest.mark.skipif(not TRUTH, reason="the corpus of real traces is not here")


@pytest.mark.parametrize("name", TRUTH)
def test_figures_equal_the_independent_count(name: str) -> None:
    assert SHARED
    truth, path = TRUTH[name], SHARED / "traces" / f"{name}.json.gz"
    if not truth["devices"]:
        with pytest.raises(InputError, match="no GPU events"):
            trace.load(path)
        return
    timeline = trace.load(path)
    assert timeline.lost == ()
    assert len(timeline.kernels) == truth["n_kernels"]
    assert len(timeline.memory) == truth["n_gpu_memcpy"] + truth["n_gpu_memset"]
    assert int((~timeline.launches["graph"]).sum()) == truth["n_launch_events"]
    assert int(timeline.launches["graph"].sum()) == truth["n_graph_launch"]
    assert int((timeline.kernels["launch_id"] >= 0).sum()) == truth["kernels_linked_to_runtime_event"]
    assert {info.index for info in timeline.devices} == {int(index) for index in truth["devices"]}
    for index, facts in truth["devices"].items():
        assert busy_us(timeline, int(index)) == pytest.approx(facts["busy_us"], rel=1e-6, abs=0.1)
        assert span_us(timeline, int(index)) == pytest.approx(facts["span_us"], rel=1e-6, abs=0.1)
        assert int((timeline.kernels["device"] == int(index)).sum()) == facts["kernels"]
        assert busy_us(timeline, int(index)) <= span_us(timeline, int(index))
    assert kernel_us(timeline) == pytest.approx(
        sum(d["sum_kernel_dur_us"] for d in truth["devices"].values()), rel=1e-6
    )


def corpus(name: str) -> Path:
    assert SHARED
    return SHARED / "traces" / f"{name}.json.gz"
