"""One clock for all events of a trace: ns since the first; times that cannot be are settled, and said."""

from collections.abc import Iterable

import numpy as np

from fusionadvisor.trace.events import Columns
from fusionadvisor.trace.numbers import MISSING
from fusionadvisor.trace.reader import RawTrace


def settle_times(raw: RawTrace) -> list[str]:
    """Count all times from the first event, drop what has none, and return what that cost, one sentence each."""
    spans = (raw.gpu, raw.runtime, raw.ops, raw.annotations, raw.python)
    unset = _zero_is_unset(spans)
    untimed = {table is raw.gpu: 0 for table in spans}
    negative = 0
    for table in spans:
        known = (table["start"] != MISSING) & ~(unset & (table["start"] == 0))
        if table is raw.gpu:
            known &= table["dur"] != MISSING
        if not known.all():
            untimed[table is raw.gpu] += int((~known).sum())
            table.keep(known)
        below = table["dur"] < 0
        negative += int((below & (table["dur"] != MISSING)).sum())
        table["dur"][below] = 0
    origin = min((int(table["start"].min()) for table in spans if len(table)), default=0)
    for table in (*spans, raw.flows):
        table["start"][:] -= origin
    costs = (
        (untimed[True], "GPU events have no start or duration and are left out."),
        (untimed[False], "CPU events have no start and are left out."),
        (negative, "events had a negative duration, taken as 0."),
    )
    return [f"{count} {words}" for count, words in costs if count]


def _zero_is_unset(spans: Iterable[Columns]) -> bool:
    """Whether a start of exactly 0 was never written: all other events lie together, far from 0."""
    starts = np.concatenate([table["start"] for table in spans])
    starts = starts[(starts != 0) & (starts != MISSING)]
    return bool(len(starts)) and int(starts.min()) > int(starts.max()) - int(starts.min())
