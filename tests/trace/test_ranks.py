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


def cpu_rank(reduced_from: float) -> list[Event]:
    """A layer 0–100 µs, its all-reduce put in the queue, then done by another thread until 300 µs."""
    reduce = op("gloo:all_reduce", reduced_from, 300 - reduced_from)
    return [
        op("aten::addmm", 1, 100),
        op("c10d::allreduce_", 102, 5),
        {**reduce, "cat": "user_annotation", "tid": 77},
    ]


def test_ranks_without_gpus_are_told_by_their_ops_and_gloos_own_threads(tmp_path: Path) -> None:
    for name, start in (("rank0.json", 110.0), ("rank1.json", 280.0)):
        (tmp_path / name).write_bytes(text(cpu_rank(start)))
    ranks = load_ranks(tmp_path)
    assert ranks.stand_ins
    assert [(r.rank, r.kernels, r.compute_us, r.collective_us, r.exposed_us) for r in ranks.ranks] == [
        (0, 2, 100.0, 195.0, 195.0),
        (1, 2, 100.0, 25.0, 25.0),
    ]
    assert ranks.stragglers == (1,)
    assert ranks.timeline(1).stand_ins
    (tmp_path / "rank1.json").unlink()
    with pytest.raises(InputError, match=r"rank0\.json holds no GPU events"):
        load_ranks(tmp_path)  # a single one was more likely recorded without ProfilerActivity.CUDA


def test_traces_without_gpu_events_that_are_no_ranks_are_refused_as_one_alone_is(tmp_path: Path) -> None:
    for name in ("one.json", "copy.json"):
        (tmp_path / name).write_bytes(text(cpu_rank(110.0)))
    with pytest.raises(InputError, match=r"holds no trace with GPU events\. .*holds no GPU events"):
        load_ranks(tmp_path)


def test_a_rank_without_gpu_events_is_left_out_among_others(job: Path) -> None:
    (job / "job_rank3.json").write_bytes(text(cpu_rank(110.0)))
    ranks = load_ranks(job)
    assert [r.rank for r in ranks.ranks] == [0, 1, 2]
    assert any("job_rank3.json holds no GPU events" in reason for reason in ranks.skipped)


def test_a_directory_without_traces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds no trace with GPU events"):
        load_ranks(tmp_path)
