"""Compile twelve equal blocks one by one or the whole model at once: seconds to prepare, and latency after.

python benchmarks/regional_compile.py        writes benchmarks/results/regional_compile.json

The compiler's caches are off. Each arm is timed in turns with the uncompiled model and a copy of it.
"""

import copy
import json
import os
import platform
import resource
import time
from pathlib import Path

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor, nn

from fusionadvisor.evaluate.bench import CpuClock, compare
from fusionadvisor.strategies.compile import repeated

RESULT = Path(__file__).parent / "results" / "regional_compile.json"
BLOCKS, WIDTH, HEADS, BATCH, LENGTH = 12, 128, 4, 2, 64


class Block(nn.Module):
    """A decoder block: attention and a gated MLP, a norm before each."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp_norm = nn.RMSNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes in and out: [batch, length, width]."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        y = self.mlp_norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Blocks(nn.Module):
    """The blocks in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        """Shapes in and out: [batch, length, width]."""
        for layer in self.layers:
            x = layer(x)
        return x


def cpu_seconds() -> float:
    """CPU time so far, that of the C++ compiler included: other work on the machine does not count."""
    used = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    torch._inductor.config.force_disable_caches = True
    torch.manual_seed(0)
    eager, x = Blocks().eval(), torch.randn(BATCH, LENGTH, WIDTH)
    arms = {}
    with torch.no_grad():
        own, control = eager(x), copy.deepcopy(eager)
        torch.compile(lambda t: t + 1)(x)  # what only the first compilation of a process has to do
        for name, paths in {"regional": repeated(eager), "whole": [""]}.items():
            model = copy.deepcopy(eager)
            for path in paths:
                model.get_submodule(path).compile()
            start, start_cpu = time.perf_counter(), cpu_seconds()
            torch.testing.assert_close(model(x), own, rtol=1e-4, atol=1e-4)
            first_call_s, cpu_s = time.perf_counter() - start, cpu_seconds() - start_cpu
            found = compare(lambda: eager(x), lambda: control(x), lambda m=model: m(x), CpuClock())
            arms[name] = {
                "first_call_s": round(first_call_s, 1),
                "first_call_cpu_s": round(cpu_s, 1),
                "eager_ms": round(found.before.median_ms, 3),
                "compiled_ms": round(found.after.median_ms, 3),
                "speedup": round(found.speedup.median, 3),
                "ci95": [round(end, 3) for end in found.speedup.ci95],
                "aa_band": [round(end, 3) for end in found.speedup.aa_band],
                "verdict": found.verdict,
            }
            print(name, arms[name], flush=True)
    about = {"torch": torch.__version__, "python": platform.python_version(), "threads": torch.get_num_threads(),
             "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "device": "cpu"}  # fmt: skip
    model_size = {"blocks": BLOCKS, "width": WIDTH, "batch": BATCH, "length": LENGTH}
    RESULT.write_text(json.dumps({"environment": about, "model": model_size, "arms": arms}, indent=2) + "\n")


if __name__ == "__main__":
    main()
