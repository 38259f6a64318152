"""What a trace comes in: a file, standard input, gzip or zip, told apart by content, never by name."""

import gzip
import io
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fusionadvisor.errors import InputError

BLOCK = 8 << 20
_GZIP, _ZIP, _ZSTD = b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
_EXPORT = "Export one with torch.profiler: profile.export_chrome_trace('trace.json')."
SUFFIXES = (".json", ".json.gz", ".gz", ".zip", ".trace")


@dataclass(slots=True)
class Container:
    """An opened trace: its name and its plain JSON bytes, read once."""

    name: str
    stream: BinaryIO
    lost: list[str]
    opened: BinaryIO | None = None
    """The file to close when done; None for a stream that is the caller's."""

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *_: object) -> None:
        if self.opened is not None:
            self.opened.close()

    def blocks(self, size: int = BLOCK) -> Iterator[bytes]:
        """Yield the bytes in blocks of about ``size``; a compressed stream that ends early ends the iteration."""
        while True:
            try:
                block = self.stream.read(size)
            except (EOFError, OSError, zipfile.BadZipFile) as error:
                self.lost.append(f"The compressed file is damaged or cut off ({error}): what came after is lost.")
                return
            if not block:
                return
            yield block


def open_trace(source: str | Path | BinaryIO) -> Container:
    """Open a trace given as a path, ``"-"`` or a binary stream.

    Raises:
        InputError: If there is no such file, or its first bytes are those of something else.
    """
    if isinstance(source, str | Path):
        name = str(source)
        if name == "-":
            return _unpack("standard input", sys.stdin.buffer)
        file = _open_path(Path(name))
        try:
            container = _unpack(Path(name).name, file)
        except BaseException:
            file.close()
            raise
        container.opened = file
        return container
    return _unpack(str(getattr(source, "name", "the stream")), source)


def _open_path(path: Path) -> BinaryIO:
    if path.is_dir():
        raise InputError(f"{path} is a directory, not a trace.", _inside(path))
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.", "Check the path.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.", "Check its permissions.") from None


def _inside(path: Path) -> str:
    found = sorted(child.name for child in path.iterdir() if child.is_file() and child.name.endswith(SUFFIXES))
    if not found:
        return "It holds no .json, .json.gz or .zip file."
    return f"Name one of the files in it: {', '.join(found[:3])}{' …' if len(found) > 3 else ''}."


def _unpack(name: str, raw: BinaryIO) -> Container:
    lost: list[str] = []
    stream: BinaryIO = raw
    for _ in range(3):  # a .json.gz inside a zip, gzip twice: seen; deeper: not
        stream, head = _peek(stream)
        if head.startswith(_GZIP):
            stream = gzip.GzipFile(fileobj=stream)  # type: ignore[assignment]
        elif head.startswith(_ZIP):
            stream = _zip_member(name, stream)
        else:
            break
    try:
        stream, head = _peek(stream)
    except (EOFError, OSError) as error:
        raise InputError(
            f"{name} is not a trace: its compressed data is damaged ({error}).", "Copy it again."
        ) from None
    _refuse_others(name, head)
    return Container(name, stream, lost)


class _Rejoined(io.RawIOBase):
    """A stream with the bytes that were read to look at it put back in front."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._head:
            head, self._head = self._head, b""
            if 0 <= size < len(head):
                self._head = head[size:]
                return head[:size]
            return head + self._rest.read(size - len(head) if size >= 0 else -1)
        return self._rest.read(size)


def _peek(stream: BinaryIO, size: int = 4096) -> tuple[BinaryIO, bytes]:
    head = b""
    try:
        while len(head) < size and (more := stream.read(size - len(head))):
            head += more
    except EOFError:  # a compressed stream that is cut off within its first bytes
        if not head:
            raise
    return _Rejoined(head, stream), head  # type: ignore[return-value]


def _zip_member(name: str, stream: BinaryIO) -> BinaryIO:
    try:
        archive = zipfile.ZipFile(io.BytesIO(stream.read()))
        members = [m for m in archive.namelist() if m.endswith(SUFFIXES) and not m.startswith("__MACOSX/")]
        if len(members) != 1:
            listed = ", ".join(members[:3]) or "no .json or .json.gz file"
            raise InputError(f"{name} is a zip of {len(members)} traces: {listed}.", "Unpack it and name one of them.")
        return archive.open(members[0])  # type: ignore[return-value]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise InputError(
            f"{name} is not a trace: it is a damaged or protected zip ({error}).", "Copy it again."
        ) from None


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
        raise InputError(f"{name} is not a trace: it does not start with a JSON object or list.", _EXPORT)
