"""Measure horizontal merging, batched products and fused attention against the models they were made from.

python benchmarks/merging.py [--json benchmarks/results/merging.json] [--only "experts"]

Each row is one model at one batch size: baseline, a copy of it and the candidate in turns, so that what two equal
copies differ by on this machine (the A/A band) stands beside every gain.
"""

import argparse
import copy
import json
import math
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from fusionadvisor import strategies
from fusionadvisor.evaluate import bench
from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.flow.record import record
from fusionadvisor.strategies.base import Call, Subject
from fusionadvisor.workload.program import build
from fusionadvisor.workload.resolve import resolve

BATCHES = (1, 8, 256)
ROOT = Path(__file__).resolve().parent.parent


class Qkv(nn.Module):
    """Query, key and value of one input, one product each."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        q, k, v = self.q(x), self.k(x), self.v(x)
        return q * k + v


class Attention(Qkv):
    """Causal attention of four heads, written out."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        b, n, width = x.shape
        q, k, v = (layer(x).view(b, n, 4, width // 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-2, -1) / math.sqrt(width // 4)).masked_fill(hidden, -math.inf)
        return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(b, n, width)


class Experts(nn.Module):
    """Eight layers in a loop, each on a slice of its own."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return torch.relu(torch.stack([expert(x[:, i]) for i, expert in enumerate(self.experts)], dim=1))


def sample(size: int) -> Callable[[], tuple[nn.Module, tuple[int, ...]]]:
    """The sample model of three convolutions, on images of this size."""
    return lambda: (build(resolve(str(ROOT / "sample_models" / "multi_conv.py"))).model, (3, size, size))


CASES: dict[str, tuple[tuple[str, ...], Callable[[], tuple[nn.Module, tuple[int, ...]]]]] = {
    "qkv, 1 token": (("horizontal",), lambda: (Qkv(), (1, 128))),
    "qkv, 16 tokens": (("horizontal",), lambda: (Qkv(), (16, 128))),
    "multi_conv, 16x16": (("horizontal",), sample(16)),
    "experts, 8 of 64 wide": (("horizontal",), lambda: (Experts(), (8, 64))),
    "attention, 32 tokens": (("sdpa",), lambda: (Attention(), (32, 128))),
    "attention, 32 tokens, both": (("horizontal", "sdpa"), lambda: (Attention(), (32, 128))),
}


def rewritten(model: nn.Module, names: tuple[str, ...], calls: tuple[Call, ...]) -> nn.Module:
    """A copy of the model with every strategy done in turn, each of which has to find a site."""
    for name in names:
        strategy = strategies.get(name)
        given = Subject(model, tuple(recorded(model, call) for call in calls), calls)
        plan = strategy.plan(given)
        assert plan.sites, plan
        model = strategy.rewrite(copy.deepcopy(model), plan, given)
    return model


def recorded(model: nn.Module, call: Call) -> FlowGraph:
    """What one call does."""
    return record(lambda: model(*call.args), model, call)


def ops(model: nn.Module, call: Call) -> int:
    """How many ops of one call move or compute data."""
    return sum(1 for _ in recorded(model, call).work())


def measured(
    names: tuple[str, ...], model: nn.Module, shape: tuple[int, ...], batch: int, budget_s: float
) -> dict[str, object]:
    """One row."""
    calls = tuple(Call((torch.randn(n, *shape),)) for n in (2, 2, 3))
    candidate, control = rewritten(model, names, calls), copy.deepcopy(model)
    call = Call((torch.randn(batch, *shape),))
    exact = copy.deepcopy(model).double()(call.args[0].double())
    errors = [float((m(*call.args).double() - exact).abs().max()) for m in (model, candidate)]
    result = bench.compare(
        lambda: model(*call.args), lambda: control(*call.args), lambda: candidate(*call.args), bench.CpuClock(),
        budget_s=budget_s,
    )  # fmt: skip
    return {
        "before_ms": round(result.before.median_ms, 4), "after_ms": round(result.after.median_ms, 4),
        "speedup": round(result.speedup.median, 3), "ci95": [round(x, 3) for x in result.speedup.ci95],
        "aa_band": [round(x, 3) for x in result.speedup.aa_band], "verdict": result.verdict,
        "ops_before": ops(model, call), "ops_after": ops(candidate, call),
        "threads": torch.get_num_threads(),
        "error_before": float(f"{errors[0]:.2g}"), "error_after": float(f"{errors[1]:.2g}"),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--budget", type=float, default=4.0, help="seconds a row")
    parser.add_argument("--only", default="", help="cases whose name starts so; the others' rows stay as they are")
    given = parser.parse_args()
    torch.manual_seed(0)
    rows: dict[str, dict[str, dict[str, object]]] = {}
    before = json.loads(given.json.read_text()) if given.only and given.json else {}
    rows |= before.get("rows", {})
    with torch.no_grad():
        for name, (steps, make) in CASES.items():
            if not name.startswith(given.only):
                continue
            for batch in BATCHES:
                model, shape = make()
                row = measured(steps, model.eval(), shape, batch, given.budget)
                rows.setdefault(name, {})[f"batch {batch}"] = row
                print(f"{name:28} batch {batch:<4} {row}")
    result = {
        "torch": torch.__version__, "python": platform.python_version(), "threads": torch.get_num_threads(),
        "machine": f"{os.cpu_count()} shared {platform.machine()} cores, no GPU, other work running", "rows": rows,
    } | {key: value for key, value in before.items() if key != "rows"}  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
