"""Point the tool at architectures nobody here wrote, and check what it says.

    python -m benchmarks.zoo [--only NAME ...] [--mode MODE] [--again] [--jobs N] [--folder DIR] [--merge]

Each is profiled, predicted for an H100, and given to every strategy and to ``auto``, for inference and, where it has a
loss, for training. What a strategy was verified to keep is compared once more by :mod:`benchmarks.zoo.check`, which
shares nothing with the tool's verification. Rows go to one file each in ``--folder``, so that an interrupted run goes
on where it stopped, and from there into ``benchmarks/results/zoo.json`` and ``zoo.md``. Needs the extra ``hf``.
"""

import argparse
import os
import time
from functools import partial
from pathlib import Path

from benchmarks.zoo import forked, models, one, table

ROW_S = 900.0
"""An architecture that takes longer is ended, and its row says so."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="architectures, or samples")
    parser.add_argument("--mode", choices=("inference", "training"))
    parser.add_argument("--again", action="store_true", help="also what has a row already")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("out/zoo"))
    parser.add_argument("--merge", action="store_true", help="only write the tables from the rows there are")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.merge:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(given.folder.resolve() / "cache"))
        rows = models.rows()
        if unknown := set(given.only or ()) - {name for name, _ in rows}:
            parser.error(f"not in the zoo: {', '.join(sorted(unknown))}")
        rows = [(n, m) for n, m in rows if (not given.only or n in given.only) and given.mode in (None, m)]
        _run(given.folder, [r for r in rows if given.again or not _file(given.folder, *r).exists()], given.jobs)
    table.write(given.folder)


def _run(folder: Path, left: list[tuple[str, str]], jobs: int) -> None:
    forked.prepare()
    children = []
    for share in (left[i::jobs] for i in range(1, jobs)):
        pid = os.fork()
        if pid == 0:
            _rows(folder, share)
            os._exit(0)
        children.append(pid)
    _rows(folder, left[::jobs])
    for pid in children:
        os.waitpid(pid, 0)


def _rows(folder: Path, rows: list[tuple[str, str]]) -> None:
    for name, mode in rows:
        start = time.monotonic()
        row = forked.call(partial(one.measure, name, mode, folder), ROW_S)
        if isinstance(row, forked.Failed):
            row = {**one.head(name, mode), "crashes": [f"{row.what}\n{row.trace}".strip()]}
        one.save(row, _file(folder, name, mode))
        print(f"{time.strftime('%H:%M')} {time.monotonic() - start:4.0f} s  {table.brief(row)}", flush=True)


def _file(folder: Path, name: str, mode: str) -> Path:
    return folder / f"{name}.{mode}.json"


if __name__ == "__main__":
    main()
