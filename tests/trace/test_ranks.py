"""Several ranks of one job: found, told apart, summed without double counting."""

import zipfile
from pathlib import Path

import pytest

from fusionadvisor.errors import InputError
from fusionadvisor.trace.ranks import load_ranks
from tests.trace.samples import Event, kernel, launch, op, text


def rank(collective_from: float) -> list[Event]:
    """Compute 0–100 µs, and an all-reduce that ends at 300 µs for everybody."""
    return [
        op("aten::mm", 0, 20),
        launch(5, 1),
        kernel(10, 100, 1),
        launch(8, 2),
        kernel(collective_from, 310 - collective_from, 2, name="ncclDevKernel_AllReduce_Sum_f16_RING_LL", stream=9),
    ]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for name, start in (("job_rank0.json", 60.0), ("job_rank1.json", 250.0), ("job_rank2.json", 60.0)):
        (tmp_path / name).write_bytes(text(rank(start)))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_compute_and_communication_are_kept_apart(job: Path) -> None:
    ranks = load_ranks(job)
    assert [(r.rank, r.kernels, r.compute_us, r.collective_us, r.exposed_us) for r in ranks.ranks] == [
        (0, 2, 100.0, 250.0, 200.0),
        (1, 2, 100.0, 60.0, 60.0),
        (2, 2, 100.0, 250.0, 200.0),
    ]
    assert ranks.waiting_us == {0: 190.0, 1: 0.0, 2: 190.0}
    assert ranks.stragglers == (1,)
    assert "config.json" in ranks.skipped[0]


def test_all_kernels_in_one_table(job: Path) -> None:
    kernels = load_ranks(job).kernels()
    assert kernels["rank"].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_zip_and_a_list_are_ranks_too(job: Path) -> None:
    archive = job / "all.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for path in sorted(job.glob("job_*.json")):
            target.write(path, f"run/{path.name}")
    assert load_ranks(archive).ranks == load_ranks(sorted(job.glob("job_*.json"))).ranks


def test_a_directory_without_traces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds no trace with GPU events"):
        load_ranks(tmp_path)
