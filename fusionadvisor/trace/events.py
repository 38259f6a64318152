"""One event of a trace, typed; and columns of many, which is all that is kept of them."""

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fusionadvisor.trace.numbers import Ints, whole

EMPTY = msgspec.Raw(b"")
Codes = npt.NDArray[np.int32]


class Event(msgspec.Struct, gc=False):
    """A trace event. Times and ``args`` stay text until it is known that they are needed."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: msgspec.Raw = EMPTY
    dur: msgspec.Raw = EMPTY
    id: int | str = -1
    args: msgspec.Raw = EMPTY


class GpuArgs(msgspec.Struct, gc=False):
    """What a kernel, memcpy or memset says of itself."""

    device: int = -1
    stream: int = -1
    correlation: int = -1
    bytes: int = -1
    external_id: int = msgspec.field(default=-1, name="External id")
    external_id_2020: int = msgspec.field(default=-1, name="external id")


class RuntimeArgs(msgspec.Struct, gc=False):
    """What a runtime or driver call says of itself."""

    correlation: int = -1
    external_id: int = msgspec.field(default=-1, name="External id")
    external_id_2020: int = msgspec.field(default=-1, name="external id")


class OpArgs(msgspec.Struct, gc=False):
    """What a CPU op says of itself; shapes and the like stay text, as most repeat."""

    external_id: int = msgspec.field(default=-1, name="External id")
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    forward_thread: int = msgspec.field(default=-1, name="Fwd thread id")
    shapes: msgspec.Raw = msgspec.field(default=EMPTY, name="Input Dims")
    shapes_2020: msgspec.Raw = msgspec.field(default=EMPTY, name="Input dims")
    dtypes: msgspec.Raw = msgspec.field(default=EMPTY, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=EMPTY, name="Input Strides")
    concrete: msgspec.Raw = msgspec.field(default=EMPTY, name="Concrete Inputs")
    stack: msgspec.Raw = msgspec.field(default=EMPTY, name="Call stack")


class Pool(dict[Any, int]):
    """Values numbered in the order they first appear: text that repeats is kept once."""

    def __missing__(self, value: Any) -> int:
        self[value] = code = len(self)
        return code

    def codes(self, values: Iterable[Any]) -> Codes:
        """Number ``values``, one code each."""
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32)


class Columns:
    """Named columns that grow block by block and are joined once."""

    def __init__(self, *names: str) -> None:
        self._blocks: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        self._joined: dict[str, npt.NDArray[Any]] = {}

    def add(self, **blocks: npt.NDArray[Any]) -> None:
        """Append one block, the same length for every column."""
        for name, block in blocks.items():
            self._blocks[name].append(block)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._joined:
            blocks = self._blocks.pop(name)
            self._joined[name] = np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.int64)
        return self._joined[name]

    def __len__(self) -> int:
        return len(self["start"])

    def keep(self, rows: npt.NDArray[Any]) -> None:
        """Keep only these rows (indices or a mask), in that order."""
        for name in [*self._blocks, *self._joined]:
            self._joined[name] = self[name][rows]


ArgsType = type[GpuArgs] | type[RuntimeArgs] | type[OpArgs]
_DECODERS: dict[ArgsType, msgspec.json.Decoder[Any]] = {
    GpuArgs: msgspec.json.Decoder(list[GpuArgs]),
    RuntimeArgs: msgspec.json.Decoder(list[RuntimeArgs]),
    OpArgs: msgspec.json.Decoder(list[OpArgs]),
}
_IDENTIFIERS = frozenset(
    ("device", "stream", "correlation", "bytes", "External id", "external id", "Sequence number", "Fwd thread id")
)


def decode_args(events: list[Event], kind: ArgsType) -> list[Any]:
    """Decode the args of many events at once; one by one, coercing types, where that fails."""
    texts = [event.args for event in events]
    try:
        decoded: list[Any] = _DECODERS[kind].decode(b"[" + b",".join(texts) + b"]")
    except msgspec.MsgspecError:
        decoded = []
    if len(decoded) == len(texts):  # a lone event without args makes an empty list
        return decoded
    return [_decode_leniently(bytes(text), kind) for text in texts]


def _decode_leniently(text: bytes, kind: ArgsType) -> Any:
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw]) if text else {}
    except msgspec.MsgspecError:
        fields = {}
    known: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        raw = fields.get(field.encode_name)
        if raw is None:
            continue
        if field.encode_name in _IDENTIFIERS:
            known[field.name] = whole(msgspec.json.decode(raw))
        else:
            known[field.name] = raw.copy()
    return kind(**known)


def either(first: Ints, second: Ints) -> Ints:
    """Take ``first``, and ``second`` where ``first`` is missing."""
    return np.where(first >= 0, first, second)
