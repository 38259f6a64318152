"""The kernel table as CSV: read back by the standard library."""

import csv
import io
from dataclasses import replace

import pytest

from fusionadvisor.render.csv import COLUMNS, MARK, compose
from tests.render.samples import ALL, PROFILE
from tests.render.test_terminal import HOSTILE
from tests.report.steps import K, made


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), strict=True))


def test_one_row_a_kernel() -> None:
    rows = read(compose(made(K("layers.0", "aten::mul", 7, group=0, shapes="[8,64] [64]"), K("", "aten::mm", us=1.5))))
    assert list(rows[0]) == list(COLUMNS)
    assert rows[0] == {
        "index": "0", "step": "0", "device": "0", "stream": "7", "start_us": "0.0", "dur_us": "10.0",
        "name": "aten::mul_kernel", "kind": "elementwise", "op": "aten::mul", "shapes": "[8,64] [64]",
        "module": "layers.0", "source": "block.py:7", "group": "0", "bytes": "",
    }  # fmt: skip
    assert (rows[1]["group"], rows[1]["dur_us"]) == ("", "1.5")


@pytest.mark.parametrize("name", list(ALL))
def test_every_sample(name: str) -> None:
    text = compose(ALL[name])
    assert text.startswith(MARK)
    timeline = ALL[name].timeline
    assert len(read(text)) == (len(timeline.kernels.index) if timeline else 0)


@pytest.mark.parametrize("name", ['=HYPERLINK("http://evil")', "+1", "-1", "@SUM(A1)", "\x00=1+1", "\u202e=1"])
def test_a_name_is_never_a_formula(name: str) -> None:
    (row,) = read(compose(made(K(name, name, name=name))))
    assert all(row[column].startswith("'") for column in ("name", "op", "module"))


def test_hostile_names_stay_in_their_cell() -> None:
    text = compose(made(K(f'a,"b"\n{HOSTILE}', "aten::mul"), K("c", "aten::add")))
    assert text.count("\n") == 3
    rows = read(text)
    assert rows[0]["module"].startswith('a,"b" evil')
    assert not {"\x1b", "\u202e", "\u2028", "\x00", "\r"} & set(text)
    assert rows[1]["module"] == "c"


def test_bytes_where_known() -> None:
    assert [row["bytes"] for row in read(compose(PROFILE))] == ["6150000000", "6150000000"]
    assert PROFILE.timeline is not None
    unknown = replace(PROFILE.timeline.kernels, bytes=(-1, 0))
    report = replace(PROFILE, timeline=replace(PROFILE.timeline, kernels=unknown))
    assert [row["bytes"] for row in read(compose(report))] == ["", "0"]
