import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fusionadvisor.errors import InputError
from fusionadvisor.files import write_atomically

SIZE = 4_000_000
WRITER = """
import sys
from pathlib import Path
from fusionadvisor.files import write_atomically
while True:
    write_atomically(Path(sys.argv[1]), "b" * int(sys.argv[2]))
    print("written", flush=True)
"""


def test_a_killed_writer_leaves_no_half_written_file(tmp_path: Path) -> None:
    target = tmp_path / "recipe.json"
    write_atomically(target, "a" * SIZE)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    for delay in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(target), str(SIZE)], env=environment, stdout=subprocess.PIPE
        )
        assert writer.stdout
        writer.stdout.readline()
        time.sleep(delay * 0.001)  # each time elsewhere in the next write
        writer.kill()
        writer.wait()
        writer.stdout.close()
        for path in tmp_path.iterdir():
            assert path.stat().st_size == SIZE, path
    assert set(target.read_text()) == {"b"}


def test_bytes_permissions_and_places_that_cannot_be_written(tmp_path: Path) -> None:
    target = tmp_path / "weights.pt"
    write_atomically(target, b"\x00\xff")
    write_atomically(target, b"\x00\xfe")
    assert target.read_bytes() == b"\x00\xfe"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(InputError, match="cannot be written"):
        write_atomically(tmp_path / "missing" / "x", "text")


@pytest.mark.parametrize("unnamed", [True, False], ids=["drafts without a name", "drafts with a name"])
def test_a_link_stays_and_its_target_is_written_with_its_permissions(
    tmp_path: Path, unnamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    (tmp_path / "else").mkdir()
    target, link = tmp_path / "else" / "report.json", tmp_path / "report.json"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(Path("else") / "report.json")
    write_atomically(link, "new")
    assert link.is_symlink()
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", 0o640)
    assert list((tmp_path / "else").iterdir()) == [target]


def test_a_link_to_nothing_yet_and_a_link_to_itself(tmp_path: Path) -> None:
    link, ring = tmp_path / "link", tmp_path / "ring"
    link.symlink_to(tmp_path / "later")
    write_atomically(link, "text")
    assert link.is_symlink()
    assert (tmp_path / "later").read_text() == "text"
    ring.symlink_to(ring)
    with pytest.raises(InputError, match="cannot be written"):
        write_atomically(ring, "text")
