"""Files as they should be written: whole or not at all."""

import os
from pathlib import Path

from fusionadvisor.errors import InputError


def write_atomically(path: Path, data: str | bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part, whatever ends this process.

    Raises:
        InputError: If the file cannot be written there.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a pipe or /dev/stdout, which cannot be replaced
            return
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            _write_draft(draft, content)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.", "Choose another place.") from None


def _write_draft(draft: Path, content: bytes) -> None:
    """Write the draft without a name and name it when it is whole, where the file system can; so none is left half."""
    unnamed = getattr(os, "O_TMPFILE", 0)
    try:
        handle = os.open(draft.parent, os.O_WRONLY | unnamed, 0o666) if unnamed else -1
    except OSError:
        handle = -1
    if handle < 0:
        draft.write_bytes(content)
        return
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        # a directory descriptor, unused for an absolute path, is what makes os.link follow the link in /proc
        os.link(f"/proc/self/fd/{file.fileno()}", draft, src_dir_fd=file.fileno())


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
