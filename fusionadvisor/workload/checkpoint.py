"""Files that are not Python: what they are, by their content, and what to do with them."""

import json
from pathlib import Path


def describe(path: Path) -> tuple[str, str]:
    """What a file that is no Python file is, and what to do with it, as the two sentences of an error."""
    with path.open("rb") as stream:
        head = stream.read(4096)
    if head.startswith(b"version https://git-lfs"):
        return f"{path} is a Git LFS pointer ({path.stat().st_size} bytes), not a file with content.", (
            "Run `git lfs pull` and try again."
        )
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:15].lower().startswith((b"<!doctype html", b"<html")):
        return f"{path} is an HTML page, not a model.", "Download the file itself, not the page that shows it."
    if head.startswith(b"\x1f\x8b") or text.startswith((b"{", b"[")):
        return f"{path} looks like a recorded trace, not a model.", f"Read it with: fusion-advisor analyze {path}"
    if head.startswith((b"PK\x03\x04", b"\x80")) or _is_safetensors(head):
        return f"{path} holds weights, not a model.", "Give the .py file that builds the model and loads them."
    return f"{path} is not a Python file.", "Give the .py file that builds the model."


def _is_safetensors(head: bytes) -> bool:
    """Eight bytes of header length, then JSON."""
    if len(head) < 10 or head[8:9] != b"{":
        return False
    length = int.from_bytes(head[:8], "little")
    if length > len(head) - 8:
        return True
    try:
        return isinstance(json.loads(head[8 : 8 + length]), dict)
    except ValueError:
        return False
