"""What a report says of a timeline."""

import pytest

from fusionadvisor.analysis.summary import _shapes_text


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (None, ""),
        ((), ""),
        (((8, 64), (64,), ()), "[8,64] [64]"),
        ((((8, 4), (2, 4)), ()), "[8,4] [2,4]"),
    ],
    ids=["not recorded", "no inputs", "tensors and a scalar", "a list of tensors"],
)
def test_shapes_read_as_the_profiler_shows_them(shapes: tuple[object, ...] | None, text: str) -> None:
    assert _shapes_text(shapes) == text
