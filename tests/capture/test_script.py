"""Unmodified scripts: run as python would, their steps told apart, profiled and linked to their lines."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusionadvisor import trace
from fusionadvisor.capture.script import watch_script
from fusionadvisor.errors import InputError
from fusionadvisor.report import codec

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="these run where CPU ops stand in for kernels")

ROOT = Path(__file__).parents[2]
Write = Callable[[str], Path]

HEAD = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 4)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))

model = Net()
"""
PLAIN = (
    HEAD
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
criterion = nn.CrossEntropyLoss()
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = criterion(model(torch.randn(4, 8)), torch.randint(0, 4, (4,)))
    loss.backward()
    optimizer.step()
"""
)
ACCUMULATING = (
    HEAD
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
with torch.no_grad():
    model.eval()
    model(torch.randn(1, 8))  # a check before training starts
model.train()
for step in range(9 * 3):
    (model(torch.randn(4, 8)).square().mean() / 3).backward()
    if step % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
"""
)
INFERENCE = (
    HEAD
    + """
model.eval()
with torch.inference_mode():
    for _ in range(10):
        model(torch.randn(4, 8)).softmax(-1)
"""
)
LOADER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((8,), float(index)), index % 4

def main():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters())
    seen = 0
    for x, y in DataLoader(Data(), batch_size=4, num_workers=2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        seen += len(y)
    print("seen", seen)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    monkeypatch.chdir(tmp_path)
    call, argv, path = nn.Module.__call__, list(sys.argv), list(sys.path)

    def writing(text: str) -> Path:
        script = tmp_path / "script.py"
        script.write_text(text)
        return Path("script.py")

    yield writing
    assert nn.Module.__call__ is call
    assert (sys.argv, sys.path) == (argv, path)
    assert sys.modules["__main__"].__name__ == "__main__"


def line_of(script: Path, text: str) -> int:
    return next(n for n, line in enumerate(script.read_text().splitlines(), 1) if text in line)


def cli(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "fusionadvisor", *words], capture_output=True, text=True, check=False, env=environment,
        timeout=240, **options,
    )  # fmt: skip


def test_a_plain_loops_steps_are_its_optimizer_steps(write: Write) -> None:
    script = write(PLAIN)
    watched = watch_script(script, ["14"], skip=3, steps=4)
    assert len(watched.timeline.steps) == 4
    assert watched.workload.model == "Net"
    assert watched.workload.mode == "training"
    kernels = watched.timeline.kernels
    for step in range(4):
        rows = kernels[kernels["step"] == step]
        assert (rows["flow_op"] >= 0).all()
        assert list(dict.fromkeys(p for p in rows["phase"])) == ["forward", "backward", "optimizer"]
        gemms = rows[(rows["op"] == "aten::addmm") & (rows["phase"] == "forward")]
        assert list(gemms["module"]) == ["fc1", "fc2"]
        assert {str(s) for s in gemms["source"]} == {f"script.py:{line_of(script, 'return self.fc2')}"}
        loss = rows[rows["op"].astype(str).str.contains("nll_loss") & (rows["phase"] == "forward")]
        assert {str(s) for s in loss["source"]} == {f"script.py:{line_of(script, 'loss = criterion')}"}
    assert watched.latency is not None
    assert len(watched.latency.samples_ms) == 8  # of 14 steps, all but the first, the recorded and the profiled


def test_accumulated_batches_make_one_step(write: Write) -> None:
    watched = watch_script(write(ACCUMULATING), skip=2, steps=3)
    kernels = watched.timeline.kernels
    for step in range(3):
        rows = kernels[kernels["step"] == step]
        assert len(rows[(rows["op"] == "aten::addmm") & (rows["phase"] == "forward")]) == 6
    assert "optimizer" in " ".join(watched.workload.assumed)


def test_without_training_a_step_is_a_call_of_the_model(write: Write) -> None:
    watched = watch_script(write(INFERENCE), skip=2, steps=4)
    assert watched.workload.mode == "inference"
    kernels = watched.timeline.kernels
    for step in range(4):
        assert len(kernels[(kernels["step"] == step) & (kernels["op"] == "aten::addmm")]) == 2
    assert "call of Net" in " ".join(watched.workload.assumed)


def test_the_last_call_is_a_whole_step_and_a_training_step_cut_off_is_none(write: Write) -> None:
    assert len(watch_script(write(INFERENCE), skip=8, steps=5).timeline.steps) == 2
    watched = watch_script(write(PLAIN + "\nmodel(torch.randn(4, 8))\n"), ["6"], skip=3, steps=9)
    assert len(watched.timeline.steps) == 3
    kernels = watched.timeline.kernels
    assert set(kernels["step"]) == {-1, 0, 1, 2}


def test_it_stops_early_when_asked_and_cleans_up(write: Write, tmp_path: Path) -> None:
    text = "try:\n" + "\n".join("    " + line for line in PLAIN.splitlines())
    text += "\nexcept Exception:\n    raise SystemExit(9)\nfinally:\n    open('cleaned', 'w').close()\n"
    watched = watch_script(write(text), ["1000000"], skip=2, steps=2, stop=True)
    assert watched.exit_code == 0
    assert (tmp_path / "cleaned").exists()
    assert len(watched.timeline.steps) == 2


def test_the_script_computes_what_it_would_alone(write: Write) -> None:
    script = write("import torch\ntorch.manual_seed(3)\n" + PLAIN + "\ntorch.save(model.state_dict(), 'weights.pt')\n")
    watch_script(script, ["12"], skip=3, steps=3)
    watched = torch.load("weights.pt")
    subprocess.run([sys.executable, "script.py", "12"], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    for name, value in torch.load("weights.pt").items():
        torch.testing.assert_close(watched[name], value)


def test_the_profilers_trace_can_be_kept(write: Write, tmp_path: Path) -> None:
    watch_script(write(PLAIN), ["12"], trace=tmp_path / "traces" / "rank{rank}.json.gz")
    kept = trace.load(tmp_path / "traces" / "rank0.json.gz", stand_ins=True)
    assert len(kept.steps) == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit(4)\n", "ended with exit code 4 after 0 steps"),
        ("import argparse\np = argparse.ArgumentParser()\np.add_argument('x')\np.parse_args()\n", "exit code 2"),
        ("\nraise ValueError('theirs')\n", "script.py:2: ValueError: theirs"),
        ("import not_there_at_all\n", "script.py:1: ModuleNotFoundError"),
        ("def f(:\n", "script.py:1: SyntaxError"),
        ("print('hello')\n", "never called a model"),
        ("import sys\nsys.exit()\n", "never called a model"),
        (PLAIN.replace("sys.argv[1]", "'2'"), "ended after 2 steps, and the first 3 are not profiled"),
        (PLAIN.replace("sys.argv[1]", "'2'") + "\nraise KeyError('late')\n", "KeyError"),
    ],
)  # fmt: skip
def test_scripts_that_give_nothing_to_profile(write: Write, text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        watch_script(write(text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_scripts_that_are_not_there(write: Write, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        watch_script(Path("none.py"))
    with pytest.raises(InputError, match="is a directory"):
        watch_script(tmp_path)


def test_a_failure_after_the_profile_still_gives_a_report(write: Write) -> None:
    script = write(PLAIN + "\nraise RuntimeError('late')\n")
    done = cli("run", str(script), "--skip", "2", "--steps", "2", "--", "9")
    assert done.returncode == 1
    assert "RuntimeError: late" in done.stderr
    assert "script.py" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_command_runs_it_as_python_would(write: Write) -> None:
    text = PLAIN + "\nprint(__name__, sys.argv, sys.path[0])\nprint(__file__)\nraise SystemExit(7)\n"
    script = write(text)
    done = cli("run", str(script), "--", "9", "--flag", "-x")
    alone = subprocess.run(
        [sys.executable, str(script), "9", "--flag", "-x"], capture_output=True, text=True, check=False
    )
    assert done.returncode == alone.returncode == 7
    assert alone.stdout in done.stderr  # what it prints goes there, so that the report stands alone
    assert "Net · training step" in done.stdout


def test_workers_of_a_data_loader(write: Write) -> None:
    done = cli("run", str(write(LOADER)), "--skip", "2", "--steps", "3", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "seen 40" in done.stderr
    import json

    report = json.loads(done.stdout)
    assert report["timeline"]["steps"] == 3
    assert report["command"] == "run"
    assert all("script.py" in f["source"]["file"] for f in report["findings"] if f.get("source"))


@pytest.mark.slow
def test_two_ranks_give_two_traces_and_one_report(write: Write, tmp_path: Path) -> None:
    text = """
import time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    time.sleep(0.3 * dist.get_rank())  # the second is late in every step
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
    script = write(text)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fusionadvisor",
        "run", str(script), "--trace", str(tmp_path / "traces" / "rank{rank}.json"),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    for rank in range(2):
        timeline = trace.load(tmp_path / "traces" / f"rank{rank}.json", stand_ins=True)
        assert len(timeline.steps) == 5
        assert len(timeline.kernels)
    done = cli("analyze", "traces", "--format", "json")
    assert done.returncode == 0, done.stderr
    report = codec.from_json(done.stdout)
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert [rank.straggler for rank in report.ranks] == [False, True]
    assert report.ranks[0].waiting_us > 4 * 0.2e6  # of the five steps the first may wait for a profiler to start
    assert report.timeline is not None
    assert (report.timeline.rank, report.timeline.stand_ins) == (1, True)
    done = cli("analyze", "traces/rank0.json", "traces/rank1.json")
    assert "what follows is on rank 1: the others wait for it" in " ".join(done.stdout.split())
    (late,) = [line for line in done.stdout.splitlines() if line.endswith("  late")]
    assert late.split()[0] == "1"
    assert "recorded without a GPU" in done.stdout.splitlines()[0]
