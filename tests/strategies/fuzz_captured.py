# mypy: disable-error-code="dict-item,redundant-expr,assignment"
"""Random modules that go another way by size, flag, mode, dtype or what a helper holds, each tried on every path.

Run ``python -m tests.strategies.fuzz_captured 3000 fx`` (or ``sdpa``) for a long search; the tests run a short one.
"""

import copy
import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fusionadvisor import strategies
from fusionadvisor.strategies import leaves as forwards
from fusionadvisor.strategies.base import Call, Strategy
from tests.strategies.fuzz import made, tell
from tests.strategies.fuzz_merging import indented
from tests.strategies.subjects import leaves, subject_of

HEADER = """
import functools, math
from types import SimpleNamespace
import torch
import torch.nn.functional as F
from torch import Tensor, nn

GAIN = 1.5
TABLE = {"gain": 0.5, "way": "up", "steps": [1.0, 2.0]}


def doubled(x, by=2.0):
    return x * by * GAIN


def switched(cell):
    def around(method):
        def inner(self, x):
            return method(self, x) if cell["on"] else x
        return inner
    return around


CELL = {"on": True}


class Helper:
    shared = 1.25

    def __init__(self):
        self.gain, self.on, self.config = 0.75, True, SimpleNamespace(kind="a", eps=0.5)
        self.table = {"a": torch.sin, "b": torch.cos}

    @property
    def eps(self):
        return self.config.eps

    def __call__(self, module, x):
        x = x * self.gain if self.on else x + self.eps
        return self.table[self.config.kind](x) * self.shared


HELPER = Helper()


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.twice = nn.Linear(8, 8), False

    def forward(self, x):
        return self.fc(x) * 2 if self.twice else self.fc(x)
"""
INIT = """
self.fc, self.out, self.inner = nn.Linear(8, 8), nn.Linear(8, 8), Inner()
self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
self.gain, self.flag, self.kind, self.helper, self.extra = 0.5, True, "a", Helper(), None
self.act, self.numbers, self.steps, self.last = torch.tanh, [0.5, 2.0], 2, None
self.drop, self.weight = nn.Dropout(0.0), nn.Parameter(torch.rand(8) + 0.5)
self.register_buffer("bias", torch.randn(8))
self.register_buffer("shift", None)
self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
"""
BLOCKS = (
    "x = x * self.gain", "x = x * 2 if self.flag else x - 1", "if self.kind == 'a':\n    x = torch.sin(x)",
    "x = self.helper(self, x)", "x = HELPER(self, x)", "x = doubled(x)", "x = doubled(x, by=GAIN)",
    "x = x + TABLE['gain'] if TABLE['way'] == 'up' else x", "x = x * sum(TABLE['steps'])", "x = self.method(x)",
    "if x.shape[1] > 3:\n    x = x * 2", "if x.shape[0] == 2:\n    x = x + 1", "x = x + 1 if len(x) > 2 else x",
    "if x.dtype == torch.float32:\n    x = x * 3", "x = x if self.training else x * 2",
    "if torch.is_grad_enabled():\n    x = x * 2", "if torch.is_inference_mode_enabled():\n    x = x + 1",
    "if self.extra is not None:\n    x = x + self.extra", "x = self.act(x)", "x = x * sum(self.numbers)",
    "for _ in range(self.steps):\n    x = x + 0.1", "for layer in self.layers:\n    x = layer(x)", "x = self.inner(x)",
    "x = x + self.bias", "x = x if self.shift is None else x + self.shift", "b, n, d = x.shape\nx = x / n",
    "x = functools.reduce(torch.add, [x, x * 0.5])", "x = x + torch.arange(8, dtype=x.dtype)",
    "x = x * self.wide",
    "x = x if mask is None else x * mask", "x = x + len(more) if more else x", "x = x + torch.finfo(x.dtype).eps",
    "x = sum(part * i for i, part in enumerate(x.unbind(1)))[:, None] + x",
    "x = x + more['a'] if isinstance(more, dict) else x",
    "y = torch.zeros(8, dtype=x.dtype)\ny += x[0, 0]\nx = x + y", "x = x.clone().mul_(2)", "x = self.drop(x)",
    "x = getattr(self, 'q' if self.flag else 'k')(x)",
    "x = x + (0.5 if hasattr(self, 'surprise') else 0.25)",
    "x = x * {'a': 1.5, 'b': 2.5}[self.kind]", "x = x[:, : max(x.size(1) - 1, 1)]", "x = x - min(x.shape[1], 4)",
    "if x.sum() > 0:\n    x = x * 2", "self.last = x.detach()", "self.numbers.append(1.0)",
    "if self.extra:\n    self.last = x.detach()",
    "x = x * float(self.bias.sum() > 0)", "x = x + x.mean((1, 2), keepdim=True) if x.ndim == 3 else x",
)  # fmt: skip
"""The last six but one change state, or go by values: they are refused, or guarded."""
FORMULAS = (
    "x = x * torch.sigmoid(x)", "x = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))",
    "x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight",
    "m = x.mean(-1, keepdim=True)\nx = (x - m) / torch.sqrt((x - m).pow(2).mean(-1, keepdim=True) + 1e-6)",
    "g = torch.sigmoid(x)\nx.add_(0.1)\nx = x * g", "g = x * 1\nx = g * torch.sigmoid(g)",
)  # fmt: skip
SCORES = (
    "s = q @ k.transpose(-2, -1) * self.gain", "s = torch.matmul(q, k.mT) / math.sqrt(q.shape[-1])",
    "s = torch.bmm(q, k.transpose(1, 2)) * self.helper.gain", "s = (q * self.gain) @ k.permute(0, 2, 1)",
    "s = torch.baddbmm(torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype), q, k.transpose(-1, -2), beta=0, "
    "alpha=self.gain)", "s = torch.baddbmm(self.row(q, k), q, k.transpose(-1, -2), beta=1, alpha=0.5)",
)  # fmt: skip
MASKINGS = (
    "", "", "s = s.masked_fill(self.hidden(s), torch.finfo(s.dtype).min)",
    "s = s.masked_fill(self.hidden(s), -math.inf)",
    "s = s.masked_fill(self.hidden(s), -1e9)", "s = torch.where(self.hidden(s), torch.finfo(s.dtype).min, s)",
    "if self.flag:\n    s = s.masked_fill(self.hidden(s), -1e9)", "s = s + self.row(q, k)",
    "if mask is not None:\n    s = s.masked_fill(mask[:, : s.shape[-1], 0][:, None] > 0.5, torch.finfo(s.dtype).min)",
    "l, m = s.size(-2), s.size(-1)\ns = s.masked_fill(~torch.ones(l, m, dtype=torch.bool).tril(m - l), -1e9)",
    "s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool), -1e9)",
)  # fmt: skip
WEIGHTS = (
    "w = s.softmax(-1)\nx = w @ v", "w = torch.softmax(s, dim=-1)\nx = self.drop(w) @ v", "x = F.softmax(s, -1) @ v",
    "w = s.softmax(-1).transpose(1, 2)\nx = (v.transpose(1, 2) @ w).transpose(1, 2)",
    "w = s.softmax(-1)\nif self.extra is not None:\n    self.last = w.detach()\nx = torch.bmm(w, v)",
    "w = F.dropout(s.softmax(-1), 0.5, self.training)\nx = w.type(v.dtype) @ v",
    "w = s.softmax(-1)\nx = w @ v + w.mean()",
    "w = s.softmax(-1)\nx = w @ v if self.flag else w @ v * 2",
)  # fmt: skip
METHODS = """
@switched(CELL)
def method(self, x):
    return torch.cos(x)

@property
def wide(self):
    return self.gain if self.flag else 2.0

def hidden(self, s):
    return torch.ones(s.shape[-2], s.shape[-1], dtype=torch.bool, device=s.device).triu(1 if self.flag else 0)

def row(self, q, k):
    return torch.zeros(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype).index_fill(2, torch.tensor([0]), -1e9)
"""


def build(seed: int, attention: bool) -> tuple[nn.Module, str]:
    """A model in float64 evaluation, and its source."""
    draw = random.Random(seed)
    body = [draw.choice(BLOCKS) for _ in range(draw.randint(0, 2))]
    if attention:
        body += [
            "q, k, v = (f(x) for f in (self.q, self.k, self.v))",
            *(draw.choice(c) for c in (SCORES, MASKINGS, WEIGHTS)),
        ]
    else:
        body += ["x = self.fc(x)", draw.choice(FORMULAS)]
    body += [draw.choice(BLOCKS) for _ in range(draw.randint(0, 2))]
    lines = "\n".join(indented(line, " " * 8) for line in body if line)
    text = (
        f"{HEADER}\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"{indented(INIT.strip(), ' ' * 8)}\n\n    def forward(self, x, mask=None, *, more=None):\n{lines}\n"
        f"        return x\n\n{indented(METHODS.strip(), ' ' * 4)}\n"
    )
    return made(text, seed).double().eval(), text


def _set(path: str, *values: Any) -> Callable[[Any, random.Random], None]:
    def change(model: Any, draw: random.Random) -> None:
        *outer, name = path.split(".")
        for part in outer:
            model = getattr(model, part)
        setattr(model, name, copy.deepcopy(draw.choice(values)))

    return change


def _global(name: str, *values: Any) -> Callable[[Any, random.Random], None]:
    def change(model: Any, draw: random.Random) -> None:
        space = type(model).forward.__globals__
        *outer, last = name.split(".")
        value = draw.choice(values)
        for part in outer:
            space = space[part] if isinstance(space, dict) else getattr(space, part)
        if isinstance(space, dict):
            space[last] = value
        else:
            setattr(space, last, value)

    return change


CHANGES = (
    _set("gain", 0.5, 1.0, 2), _set("flag", True, False), _set("kind", "a", "b"), _set("extra", None, 1.0),
    _set("helper.gain", 0.1, 0.75), _set("helper.on", True, False), _set("helper.config.kind", "a", "b"),
    _set("helper.config.eps", 0.5, 3.0), _set("act", torch.sin, torch.tanh), _set("numbers", [1.0], [0.5, 2.0]),
    _set("steps", 1, 2, 3), _set("inner.twice", True, False), _set("surprise", 1), _set("training", True, False),
    lambda m, d: m.helper.table.update(a=d.choice((torch.cos, torch.sin))),
    _set("shift", torch.ones(8).double(), None),
    lambda m, d: m.train(d.random() < 0.5), lambda m, d: m.numbers.append(d.random()),
    lambda m, d: setattr(m.drop, "training", d.random() < 0.5),
    lambda m, d: m.layers.append(copy.deepcopy(m.layers[0])),
    _global("GAIN", 1.5, 3.0), _global("TABLE.gain", 0.5, 3.0), _global("TABLE.way", "up", "down"),
    lambda m, d: type(m).forward.__globals__["TABLE"]["steps"].append(d.random()), _global("CELL.on", True, False),
    _global("HELPER.gain", 0.75, 3.0), _global("HELPER.config.eps", 0.5, 3.0), _global("Helper.shared", 1.25, 3.0),
    _set("q", nn.Linear(8, 8).double()), lambda m, d: m.bias.mul_(-1),
)  # fmt: skip


@torch.no_grad()
def check(strategy: Strategy, seed: int) -> tuple[int, int, str]:
    """Sites changed, sites refused, and what is wrong with the result; empty where nothing is."""
    model, text = build(seed, attention=strategy.id == "sdpa")
    generator, draw = torch.Generator().manual_seed(seed), random.Random(~seed)

    def tensor(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    with_mask = draw.random() < 0.4
    given = [Call((tensor(b, 4, 8),), {"mask": tensor(b, 4, 8)} if with_mask else {}) for b in (2, 2, 3)]
    try:
        known = subject_of(model, tuple(given))
    except (RuntimeError, ValueError):
        return 0, 0, ""
    plan = strategy.plan(known)
    if not plan.sites:
        return 0, len(plan.refused), ""
    candidate = strategy.rewrite(copy.deepcopy(model), plan, known)
    original = copy.deepcopy(model)
    story = []
    for step in range(24):
        if step and draw.random() < 0.5:
            number = draw.randrange(len(CHANGES))
            story.append(number)
            for each in (original, candidate):
                CHANGES[number](each, random.Random(seed + step))
            if number == len(CHANGES) - 1:
                assert torch.equal(original.bias, candidate.bias)  # type: ignore[arg-type]
        if draw.random() < 0.1:
            candidate = copy.deepcopy(candidate)
        rows, length = draw.choice((1, 2, 2, 3)), draw.choice((1, 3, 4, 4, 7))
        x, more = tensor(rows, length, 8), draw.choice((*[None] * 20, [], [1, 2], {"a": 0.5}, {"a": tensor(8)}))
        mask = tensor(rows, length, 8) if with_mask != (draw.random() < 0.1) else None
        dtype = torch.float32 if draw.random() < 0.1 else torch.float64
        mode = draw.choice((nullcontext, nullcontext, torch.enable_grad, torch.inference_mode))
        results = []
        for each in (original, candidate):
            torch.manual_seed(seed)
            try:
                with mode():
                    runs = each if dtype == torch.float64 else copy.deepcopy(each).to(dtype)
                    kwargs: dict[str, Any] = {"mask": mask.to(dtype)} if mask is not None else {}
                    kwargs |= {"more": more} if more is not None else {}
                    results.append(leaves(runs(x.to(dtype), **kwargs)))
            except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
                results.append([torch.tensor(float(sum(map(ord, type(error).__name__))))])
        close = 1e-9 if dtype == torch.float64 else 1e-3
        for a, b in zip(*results, strict=True):
            if a.shape != b.shape or not torch.allclose(a, b, rtol=close, atol=close, equal_nan=True):
                counts = [str(c) for c in forwards.counts(candidate).values()]
                return len(plan.sites), len(plan.refused), f"seed {seed}, step {step}, {story}, {counts}\n{text}"
    return len(plan.sites), len(plan.refused), ""


def main() -> None:
    count, name = int(sys.argv[1]), sys.argv[2]
    tell(check(strategies.get(name), seed) for seed in range(count))


if __name__ == "__main__":
    main()
