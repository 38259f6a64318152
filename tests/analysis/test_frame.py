"""A report's kernels as a table."""

import pandas as pd
import pytest

from fusionadvisor.report.model import KernelTable
from tests.render.samples import ALL, PROFILE
from tests.report.steps import K, made


def test_one_row_a_kernel() -> None:
    frame = made(K("a", "aten::mul", us=3.5, group=0), K("b", "aten::mm", kind="gemm"), steps=2).to_frame()
    assert frame["op"].tolist() == ["aten::mul", "aten::mm"] * 2
    assert frame.groupby("module", observed=True)["dur_us"].sum().to_dict() == {"a": 7.0, "b": 20.0}
    assert frame["group"].isna().tolist() == [False, True] * 2
    assert frame["step"].tolist() == [0, 0, 1, 1]
    assert "bytes" not in frame  # the report does not say
    assert frame.index.name == "kernel"


def test_unknown_bytes_are_missing() -> None:
    assert PROFILE.to_frame()["bytes"].tolist() == [6_150_000_000, 6_150_000_000]
    assert PROFILE.to_frame()["bytes"].dtype == pd.Int64Dtype()


@pytest.mark.parametrize("name", list(ALL))
def test_every_sample(name: str) -> None:
    timeline = ALL[name].timeline
    assert len(ALL[name].to_frame()) == len((timeline.kernels if timeline else KernelTable()).index)
    assert {"name", "op", "module", "dur_us"} <= {*ALL[name].to_frame().columns}
