"""Several ranks of one job: a summary each, who is late, and communication apart from compute.

Ranks are read one after another and only their summaries stay, so memory does not grow with their number.
"""

import re
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from fusionadvisor.errors import InputError
from fusionadvisor.report.model import RankSummary
from fusionadvisor.trace.build import build
from fusionadvisor.trace.container import Container, members, open_file, open_trace, traces_in, unpacked
from fusionadvisor.trace.link import matching
from fusionadvisor.trace.measures import step_times_ns, step_us, union_ns
from fusionadvisor.trace.reader import RawTrace, read
from fusionadvisor.trace.timeline import Timeline

_RANK = re.compile(r"rank[-_ ]?(\d+)", re.IGNORECASE)
_GLOO = re.compile(r"gloo:")
"""Ranges on gloo's own threads: a collective between CPUs, which is no op."""
_LATE = 0.05
"""Of a step: less waiting than this is noise."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of one job, by rank. ``skipped`` says which files were left out, and why.

    Of a job without GPUs leaf CPU ops stand in for kernels (``stand_ins``).
    """

    ranks: tuple[RankSummary, ...]
    skipped: tuple[str, ...]
    _open: dict[int, Callable[[], RawTrace]]
    stand_ins: bool = False

    def timeline(self, rank: int) -> Timeline:
        """Read one rank's timeline again."""
        return replace(build(self._open[rank](), stand_ins=self.stand_ins), rank=rank)

    def kernels(self) -> pd.DataFrame:
        """Return the kernels of all ranks in one table, with a column ``rank``. Clocks are each rank's own."""
        tables = [self.timeline(summary.rank).kernels.assign(rank=summary.rank) for summary in self.ranks]
        return pd.concat(tables, ignore_index=True)

    @property
    def waiting_us(self) -> dict[int, float]:
        """How much longer each rank was in collectives than the one that was in them least, which came last."""
        least = min((summary.collective_us for summary in self.ranks), default=0.0)
        return {summary.rank: summary.collective_us - least for summary in self.ranks}

    @property
    def stragglers(self) -> tuple[int, ...]:
        """Ranks the others wait for, by time in collectives; nobody where none ran.

        Nobody is named while no rank waits for more than 5 % of a step.
        """
        waiting, step = self.waiting_us, median(summary.step_us * summary.steps for summary in self.ranks)
        longest = max(waiting.values(), default=0.0)
        if longest > _LATE * step:
            return tuple(rank for rank, waited in waiting.items() if waited < _LATE * longest)
        return ()


def load_ranks(source: str | Path | Sequence[str | Path]) -> Ranks:
    """Read the traces of one job: a directory, a zip, or a list of files; one file a rank.

    The rank is what the trace states, else the number in ``rank3`` in its name, else its place in order of name.
    Several that all lack GPU events are of a job on CPUs where each says, or its name does, which rank it is.

    Raises:
        InputError: If none of them is a trace, or a single one holds no GPU events.
    """
    with_gpu = _read(source, stand_ins=False)
    if with_gpu.ranks:
        return with_gpu
    on_cpu = _read(source, stand_ins=True)
    if len(on_cpu.ranks) > 1:
        return on_cpu
    reason = f" {with_gpu.skipped[0]}" if with_gpu.skipped else ""
    raise InputError(
        f"{_called(source)} holds no trace with GPU events.{reason}", "Name a directory with one trace a rank."
    )


def _read(source: str | Path | Sequence[str | Path], *, stand_ins: bool) -> Ranks:
    found: dict[int, RankSummary] = {}
    opened: dict[int, Callable[[], RawTrace]] = {}
    times: dict[int, list[float]] = defaultdict(list)
    numbers: dict[str, int] = {}
    skipped: list[str] = []
    for name, raw, opener in _each_process(source, skipped):
        try:
            timeline = build(raw, stand_ins=stand_ins)
        except InputError as error:
            skipped.append(error.what)
            continue
        stated = _stated_rank(timeline, name)
        if stated is None and stand_ins:  # more likely recorded without ProfilerActivity.CUDA than of a job on CPUs
            continue
        # the next free number, and the same again for further windows of one process
        free = max(found, default=-1) + 1
        rank = numbers.setdefault(_process(name), free) if stated is None else stated
        summary = _summary(timeline, raw, rank, name)
        times[rank] += (step_times_ns(timeline) / 1e3).tolist()
        if rank in found:
            found[rank] = _joined(found[rank], summary, median(times[rank]))
        else:
            found[rank], opened[rank] = summary, opener
    return Ranks(tuple(found[rank] for rank in sorted(found)), tuple(skipped), opened, stand_ins)


def _joined(first: RankSummary, further: RankSummary, step_us: float) -> RankSummary:
    """Add a further window of one rank."""
    added = ("kernels", "steps", "span_us", "compute_us", "collective_us", "exposed_us", "lost", "windows")
    return replace(first, step_us=step_us, **{f: getattr(first, f) + getattr(further, f) for f in added})


_CYCLE = re.compile(r"\.\d{10,}(?=\.)")
"""The time in the name of one of a profiler's cycles: ``host_4242.1700000001000.pt.trace.json``."""


def _process(name: str) -> str:
    """What traces of one process have in common: their name without the time."""
    return _CYCLE.sub("", name)


def _each_process(
    source: str | Path | Sequence[str | Path], skipped: list[str]
) -> Iterator[tuple[str, RawTrace, Callable[[], RawTrace]]]:
    """Each trace and how to read it again, those of several processes in one file apart."""
    for name, opener in _each_trace(source):
        try:
            raw = read(opener())
        except InputError as error:
            skipped.append(error.what)
            continue
        if len(processes := raw.processes()) < 2:
            yield name, raw, partial(_alone, opener, "")
            continue
        for process in processes:
            again = partial(_alone, opener, process)
            yield f"{name} {process}", again(), again


def _alone(opener: Callable[[], Container], process: str) -> RawTrace:
    raw = read(opener())
    if process:
        raw.only(process)
    return raw


def several(source: str | Path) -> bool:
    """True for a directory, or a zip that holds more than one trace."""
    path = Path(source)
    if path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return len(members(archive)) > 1
    return path.is_dir()


def _called(source: str | Path | Sequence[str | Path]) -> str:
    return str(source) if isinstance(source, str | Path) else f"The list of {len(source)} files"


def _each_trace(source: str | Path | Sequence[str | Path]) -> Iterator[tuple[str, Callable[[], Container]]]:
    if not isinstance(source, str | Path):
        for item in source:
            yield Path(item).name, partial(open_trace, item)
        return
    path = Path(source)
    if path.is_dir():
        for child in traces_in(path):
            yield child.name, partial(open_trace, child)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = members(archive)
        for name in names:
            yield Path(name).name, partial(_open_member, path, name)
    else:
        yield path.name, partial(open_trace, path)


def _open_member(path: Path, member: str) -> Container:
    file = open_file(path)
    return unpacked(Path(member).name, zipfile.ZipFile(file).open(member), close=file.close)  # type: ignore[arg-type]


def _stated_rank(timeline: Timeline, name: str) -> int | None:
    named = _RANK.search(name)
    return timeline.rank if timeline.rank is not None else int(named[1]) if named else None


def _summary(timeline: Timeline, raw: RawTrace, rank: int, name: str) -> RankSummary:
    kernels = timeline.kernels
    start = kernels["start_ns"].to_numpy()
    end = start + kernels["dur_ns"].to_numpy()
    collective = (kernels["kind"] == "collective").to_numpy()
    if timeline.stand_ins and len(raw.annotations):
        ranges = matching(raw.names, _GLOO)[raw.annotations["name"]]
        from_, dur = raw.annotations["start"][ranges], raw.annotations["dur"][ranges]
        start, end = np.concatenate([start, from_]), np.concatenate([end, from_ + dur])
        collective = np.concatenate([collective, np.ones(len(from_), dtype=bool)])
    both, compute = union_ns(start, end), union_ns(start[~collective], end[~collective])
    return RankSummary(
        rank=rank,
        name=name,
        kernels=len(kernels),
        steps=len(timeline.steps),
        step_us=step_us(timeline),
        span_us=float(np.max(end, initial=0) - np.min(start, initial=np.max(end, initial=0))) / 1e3,
        compute_us=compute / 1e3,
        collective_us=union_ns(start[collective], end[collective]) / 1e3,
        exposed_us=(both - compute) / 1e3,
        lost=timeline.lost,
    )
