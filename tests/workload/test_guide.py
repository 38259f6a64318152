"""The guide names every convention the code knows."""

from pathlib import Path

import pytest

from fusionadvisor.workload import target, training

GUIDE = (Path(__file__).parents[2] / "docs" / "targets.md").read_text()


@pytest.mark.parametrize(
    "name",
    [
        *target.FACTORIES, *target.INSTANCES, *target.INPUTS, *target.BATCHES, *training.STEPS, *training.LOSSES,
        *training.OPTIMIZERS,
    ],
)  # fmt: skip
def test_a_convention_is_in_the_guide(name: str) -> None:
    assert f"`{name}`" in GUIDE
