"""Files as they should be written: whole or not at all."""

import ctypes
import hashlib
import os
import stat
from pathlib import Path

from fusionadvisor.errors import InputError


def write_atomically(path: Path, data: str | bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part, whatever ends this process.

    A symbolic link stays one, and the file it leads to is written. A file that is replaced keeps its permissions.

    Raises:
        InputError: If the file cannot be written there.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a pipe or /dev/stdout, which cannot be replaced
            return
        target = Path(os.path.realpath(path))
        mode = _permissions(target)
        draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            _write_draft(draft, content, mode)
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.", "Choose another place.") from None


def _permissions(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


def _write_draft(draft: Path, content: bytes, mode: int | None) -> None:
    """Write the draft without a name and name it when it is whole, where the file system can; so none is left half.

    ``mode`` is its permissions, None for those of a new file.
    """
    unnamed = getattr(os, "O_TMPFILE", 0)
    create = 0o666 if mode is None else 0o600
    try:
        handle = os.open(draft.parent, os.O_WRONLY | unnamed, create) if unnamed else -1
    except OSError:
        handle = -1
    named = handle < 0
    if named:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, create)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        if not named:
            # a directory descriptor, unused for an absolute path, is what makes os.link follow the link in /proc
            os.link(f"/proc/self/fd/{file.fileno()}", draft, src_dir_fd=file.fileno())


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


def put_in_place(new: Path, place: Path) -> None:
    """Have a folder take the place of another, or of none; what was there is in ``new`` then.

    Linux exchanges the two in one step, so that there is a whole one whatever ends this process. Elsewhere it takes
    two, and a process that is killed between them leaves the old folder as ``NAME.before``.

    Raises:
        OSError: If the folder cannot be replaced; it is as it was then.
    """
    if not place.exists():
        os.rename(new, place)
        return
    if _exchanged(new, place):
        return
    before = place.with_name(f"{place.name}.before")
    os.rename(place, before)
    try:
        os.rename(new, place)
    except OSError:
        os.rename(before, place)
        raise
    os.rename(before, new)


def _exchanged(one: Path, other: Path) -> bool:
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    paths = (os.fsencode(path) for path in (one, other))
    return rename is not None and rename(_AT_FDCWD, next(paths), _AT_FDCWD, next(paths), _RENAME_EXCHANGE) == 0


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def append(path: Path, text: str) -> None:
    """Add text at the end of a file.

    Raises:
        InputError: If the file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.", "Choose another place.") from None
