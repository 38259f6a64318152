"""Steps that launched the same kernels for the same ops: analysed once, their times averaged."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd


def repeats(kernels: "pd.DataFrame", ops: "pd.DataFrame") -> "list[npt.NDArray[np.int64]]":
    """Return the kernels of the recorded steps, equal steps together.

    Each array has a row a step and a column a kernel, and holds row numbers of ``kernels``. In all steps of one array
    the kernels have, in order, the same kind, op, operands, module, phase, stream and recorded op. Kernels outside all
    steps are in none.
    """
    import numpy as np

    step = kernels["step"].to_numpy()
    order = np.argsort(step, kind="stable")
    order = order[step[order] >= 0]
    parts = [p for p in np.split(order, np.flatnonzero(np.diff(step[order])) + 1) if len(p)]
    if len(parts) < 2:
        return [p[None, :] for p in parts]
    codes = _codes(kernels, ops)
    found: dict[bytes, list[npt.NDArray[np.int64]]] = {}
    for part in parts:
        first = np.unique(kernels["op_id"].to_numpy()[part], return_inverse=True)[1]
        found.setdefault(codes[part].tobytes() + first.astype(np.int32).tobytes(), []).append(part)
    return [np.stack(same) for same in found.values()]


def _codes(kernels: "pd.DataFrame", ops: "pd.DataFrame") -> "npt.NDArray[np.int64]":
    """Return, for each kernel, numbers that are equal where two kernels do the same."""
    import numpy as np

    columns = [kernels[c].cat.codes.to_numpy() for c in ("kind", "op", "module", "phase")]
    columns += [kernels[c].to_numpy() for c in ("device", "stream", "flow_op")]
    columns.append((kernels["graph_id"].to_numpy() >= 0).astype(np.int64))
    op_id = kernels["op_id"].to_numpy()
    linked = op_id >= 0
    operands = np.full(len(kernels), -1)
    known: dict[Any, int] = {}
    used = ops.iloc[op_id[linked]]
    rows = zip(*(used[c].tolist() for c in ("shapes", "dtypes", "strides", "concrete")), strict=True)
    operands[linked] = [known.setdefault(row, len(known)) for row in rows]
    return np.stack([*columns, operands], axis=1).astype(np.int64)
