"""Files of other profilers are named, with what makes a trace of them."""

from pathlib import Path

import pytest

from fusionadvisor import trace
from fusionadvisor.errors import InputError


@pytest.mark.parametrize(
    ("name", "content", "what", "advice"),
    [
        ("run.nsys-rep", b"\x01\x02", "Nsight Systems", "nsys2json"),
        ("run.ncu-rep", b"NVR\x00", "Nsight Compute", "torch.profiler"),
        ("results.db", b"SQLite format 3\x00", "rocprofv3", "rocpd2pftrace"),
        ("host.xplane.pb", b"\n\x10", "XLA", "trace viewer"),
        ("run.pftrace", b"\n\x10", "Perfetto", "traceconv"),
        ("snapshot.pickle", b"\x80\x04", "snapshot", "memory_viz"),
        ("no-suffix", b"\x80\x04\x95", "snapshot", "memory_viz"),
    ],
)
def test_files_of_other_tools_are_named(tmp_path: Path, name: str, content: bytes, what: str, advice: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=what) as refused:
        trace.load(path)
    assert advice in str(refused.value)
