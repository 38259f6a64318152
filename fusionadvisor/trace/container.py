"""What a trace comes in: a file, standard input, gzip or zip, told apart by content, never by name."""

import io
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from fusionadvisor.errors import InputError

BLOCK = 4 << 20
_PEEK = 4096
_GZIP, _ZIP, _ZSTD = b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
_SUFFIXES = (".json", ".json.gz", ".gz", ".zip", ".trace")
_EXPORT = "Export one with torch.profiler: profile.export_chrome_trace('trace.json')."
_COPY_AGAIN = "Copy it again."


_OTHER_TOOLS: tuple[tuple[tuple[str, ...], bytes, str, str], ...] = (
    ((".nsys-rep", ".qdrep"), b"", "a report of Nsight Systems",
     "It names no PyTorch ops: record the step with torch.profiler. nsys2json makes Chrome's JSON of its kernels."),
    ((".ncu-rep",), b"", "a report of Nsight Compute",
     "It holds counters of single kernels, no step: record the step with torch.profiler."),
    ((".sqlite", ".db", ".rocpd"), b"SQLite format 3", "a database as Nsight Systems or rocprofv3 write it",
     "Record the step with torch.profiler, or write Chrome's JSON: nsys2json for Nsight, rocpd2pftrace and Perfetto's "
     "traceconv for ROCm."),
    ((".xplane.pb",), b"", "a profile of XLA",
     "Export trace.json.gz from TensorBoard's trace viewer, or record the step with torch.profiler."),
    ((".pftrace", ".perfetto-trace"), b"", "a Perfetto trace",
     "Convert it with Perfetto's `traceconv json trace.pftrace trace.json`."),
    ((".pickle", ".pkl"), b"\x80", "a pickle, as torch.cuda.memory's snapshots are",
     "A snapshot shows allocations, not kernels (pytorch.org/memory_viz): record the step with torch.profiler."),
)  # fmt: skip
"""What other tools write: names, first bytes, what it is called, what to do."""


@dataclass(slots=True)
class Container:
    """An opened trace: its name and its plain JSON text in blocks, to be read once. ``lost`` grows while reading."""

    name: str
    blocks: Iterator[bytes]
    lost: list[str] = field(default_factory=list)
    _closing: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.close()


def open_trace(source: str | Path | BinaryIO) -> Container:
    """Open a trace given as a path, ``"-"`` or a binary stream.

    Raises:
        InputError: If there is no such file, it holds several traces, or its first bytes are those of something else.
    """
    if isinstance(source, str | Path):
        if str(source) == "-":
            return unpacked("standard input", sys.stdin.buffer)
        path = Path(source)
        if path.is_dir():
            listed = _listed([child.name for child in traces_in(path)])
            raise InputError(
                f"{path} is a directory, not a trace.", listed or "It holds no .json, .json.gz or .zip file."
            )
        file = open_file(path)
        return unpacked(path.name, file, close=file.close)
    return unpacked(str(getattr(source, "name", "the stream")), source)


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading, with a sentence where that is impossible."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.", "Check the path.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.", "Check it.") from None


def traces_in(folder: Path) -> list[Path]:
    """Return the files of a directory that may be traces by their name, sorted."""
    return sorted(child for child in folder.iterdir() if child.name.endswith(_SUFFIXES) and child.is_file())


def members(archive: zipfile.ZipFile) -> list[str]:
    """Return the names in a zip that may be traces, sorted."""
    return sorted(name for name in archive.namelist() if name.endswith(_SUFFIXES) and not name.startswith("__MACOSX/"))


def _listed(names: list[str]) -> str:
    return f"Name one of the files in it: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}." if names else ""


def unpacked(name: str, file: BinaryIO, close: Callable[[], None] | None = None) -> Container:
    """Peel gzip and zip off a stream.

    Args:
        name: What to call it in messages.
        file: The stream.
        close: What to call when the trace has been read.

    Raises:
        InputError: If it is empty, damaged at its very beginning, or something else than a trace.
    """
    with ExitStack() as closing:
        if close is not None:
            closing.callback(close)
        lost: list[str] = []
        blocks = _read(file, lost)
        for _ in range(3):  # gzip inside a zip, gzip twice: seen; deeper: not
            head, blocks = _peek(blocks)
            if head.startswith(_GZIP):
                blocks = _inflate(blocks, lost)
            elif head.startswith(_ZIP):
                blocks = _read(closing.enter_context(_only_member(name, b"".join(blocks))), lost)
            else:
                break
        head, blocks = _peek(blocks)
        if not head and lost:
            raise InputError(f"{name} is not a trace: {lost[0][:1].lower()}{lost[0][1:]}", _COPY_AGAIN)
        _refuse_others(name, head)
        return Container(name, blocks, lost, closing.pop_all())
    raise AssertionError("unreachable: the stack swallows no exception")


def _read(file: BinaryIO, lost: list[str]) -> Iterator[bytes]:
    while True:
        try:
            block = file.read(BLOCK)
        except (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile) as error:
            lost.append(f"Reading stopped before the end: {error}.")
            return
        if not block:
            return
        yield block


def _inflate(blocks: Iterator[bytes], lost: list[str]) -> Iterator[bytes]:
    """Decompress gzip, one member after another; what comes before damage is kept."""
    member = zlib.decompressobj(wbits=31)
    for block in blocks:
        data = block
        while data:
            before = member.copy()
            try:
                plain = member.decompress(data, BLOCK)
            except zlib.error:
                yield b"".join(_until_damage(before, data))
                lost.append("The compressed data is damaged: what comes after the damage is lost.")
                return
            if plain:
                yield plain
            data = member.unconsumed_tail
            if member.eof:
                data = member.unused_data
                if not data.startswith(_GZIP[:1]):  # padding after the last member
                    break
                member = zlib.decompressobj(wbits=31)
    if not member.eof:
        lost.append("The compressed data is cut off: what came after is lost.")


def _until_damage(member: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
    """Yield what decompresses before the error that the whole of ``data`` runs into."""
    try:
        for start in range(0, len(data), 64):
            yield member.decompress(data[start : start + 64])
    except zlib.error:
        return


def _peek(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    taken: list[bytes] = []
    size = 0
    for block in blocks:
        taken.append(block)
        size += len(block)
        if size >= _PEEK:
            break
    return b"".join(taken)[:_PEEK], chain(taken, blocks)


def _only_member(name: str, data: bytes) -> BinaryIO:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        found = members(archive)
        if len(found) != 1:
            listed = _listed(found) if found else "It holds no .json or .json.gz file."
            raise InputError(f"{name} is a zip of {len(found)} traces.", listed)
        return archive.open(found[0])  # type: ignore[return-value]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
        raise InputError(f"{name} is not a trace: it is a damaged or protected zip ({error}).", _COPY_AGAIN) from None


def _refuse_others(name: str, head: bytes) -> None:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start:
        raise InputError(f"{name} is empty.", _EXPORT)
    if start.startswith(b"version https://git-lfs"):
        raise InputError(f"{name} is a Git LFS pointer, not a trace.", "Run `git lfs pull` and try again.")
    if start[:256].lower().startswith((b"<!doctype html", b"<html")):
        raise InputError(f"{name} is a web page, not a trace.", "Download the file itself (on GitHub: the raw file).")
    if start.startswith(_ZSTD):
        raise InputError(f"{name} is compressed with zstd.", "Unpack it with `zstd -d` and try again.")
    if head[257:262] == b"ustar":
        raise InputError(f"{name} is a tar archive.", "Unpack it and name the trace in it.")
    if start[:1] not in (b"{", b"["):
        for suffixes, magic, what, advice in _OTHER_TOOLS:
            if name.endswith(suffixes) or (magic and head.startswith(magic)):
                raise InputError(f"{name} is {what}, not a trace of torch.profiler.", advice)
        raise InputError(f"{name} is not a trace: it does not start with a JSON object or list.", _EXPORT)
