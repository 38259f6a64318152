"""Many small predictions in one process: starting one takes longer than any of them."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

from fusionadvisor.capture.predict import Predicted, assembled
from fusionadvisor.capture.predicted.gpus import named
from fusionadvisor.capture.predicted.stream import Factory, Stream, stream

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from tests.capture.worker import work; work()"


def predict_all(sources: dict[str, tuple[Factory, str]], folder: Path) -> dict[str, Predicted]:
    """Predict each source for its GPU, by name."""
    answer = folder / "streams"
    subprocess.run(
        [sys.executable, "-c", _START, str(answer), json.dumps(sys.path)],
        input=pickle.dumps(sources),
        check=True,
        timeout=900,
    )
    found: dict[str, Stream] = pickle.loads(answer.read_bytes())
    return {name: assembled(source, found[name], named(gpu)) for name, (source, gpu) in sources.items()}


def work() -> None:
    """Read sources from stdin, write their streams to the path on the command line."""
    sources: dict[str, tuple[Factory, str]] = pickle.load(sys.stdin.buffer)
    found = {name: stream(source, named(gpu)) for name, (source, gpu) in sources.items()}
    Path(sys.argv[1]).write_bytes(pickle.dumps(found))
