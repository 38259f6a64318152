"""Point the tool at architectures nobody here wrote, and check what it says.

    python -m benchmarks.zoo [--only NAME ...] [--mode MODE] [--search] [--budget S] [--again] [--jobs N]
                             [--folder DIR] [--merge]

Each is profiled, predicted for an H100, and given to every strategy, for inference and, where it has a loss, for
training; ``--search`` adds ``auto`` and ``compile``, which take minutes. What was verified is compared once more by
:mod:`benchmarks.zoo.check`, which shares nothing with the tool's verification. Rows go to one file each in
``--folder``, so that an interrupted run goes on where it stopped, and from there into ``benchmarks/results/zoo.json``
and ``zoo.md``. Needs the extra ``hf``.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.zoo import forked, models, one, table

ROW_S = 900.0
"""An architecture that takes longer is ended, and its row says so."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="architectures, or samples")
    parser.add_argument("--mode", choices=("inference", "training"))
    parser.add_argument("--search", action="store_true", help="auto and compile, for what has a row")
    parser.add_argument("--budget", type=float, default=one.BUDGET_S, help="CPU seconds that auto may search")
    parser.add_argument("--again", action="store_true", help="also what has a row already")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("out/zoo"))
    parser.add_argument("--merge", action="store_true", help="only judge the rows there are, and write the tables")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.merge:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(given.folder.resolve() / "cache"))
        rows = models.rows()
        if unknown := set(given.only or ()) - {name for name, _ in rows}:
            parser.error(f"not in the zoo: {', '.join(sorted(unknown))}")
        rows = [(n, m) for n, m in rows if (not given.only or n in given.only) and given.mode in (None, m)]
        work = partial(_search, given.folder, given.budget) if given.search else partial(_row, given.folder)
        _run([row for row in rows if given.again or not _done(given.folder, row, given.search)], given.jobs, work)
    table.write(given.folder)


Row = tuple[str, str]


def _run(left: list[Row], jobs: int, work: Callable[[Row], None]) -> None:
    forked.prepare()
    children = []
    for share in (left[i::jobs] for i in range(1, jobs)):
        pid = os.fork()
        if pid == 0:
            for row in share:
                work(row)
            os._exit(0)
        children.append(pid)
    for row in left[::jobs]:
        work(row)
    for pid in children:
        os.waitpid(pid, 0)


def _row(folder: Path, row: Row) -> None:
    found = forked.call(partial(one.measure, *row, folder), ROW_S)
    if isinstance(found, forked.Failed):
        found = {**one.head(*row), "crashes": [f"{found.what}\n{found.trace}".strip()], "strategies": {}}
    _save(folder, row, found)


def _search(folder: Path, budget_s: float, row: Row) -> None:
    if not _file(folder, *row).exists():
        return
    known = json.loads(_file(folder, *row).read_text())
    found = forked.call(partial(one.search, known, folder, budget_s), ROW_S)
    if isinstance(found, forked.Failed):
        found = {**known, "crashes": [*known["crashes"], f"auto: {found.what}\n{found.trace}".strip()]}
    _save(folder, row, found)


def _save(folder: Path, row: Row, found: dict[str, Any]) -> None:
    one.save(found, _file(folder, *row))
    print(f"{time.strftime('%H:%M')} {table.brief(found)}", flush=True)


def _done(folder: Path, row: Row, searched: bool) -> bool:
    path = _file(folder, *row)
    return path.exists() and (not searched or "searched" in json.loads(path.read_text()))


def _file(folder: Path, name: str, mode: str) -> Path:
    return folder / f"{name}.{mode}.json"


if __name__ == "__main__":
    main()
