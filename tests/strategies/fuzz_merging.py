"""Random small models with layers side by side and attention written out, and planted obstacles to both.

Run ``python -m tests.strategies.fuzz_merging 2000 horizontal`` (or ``batched``, ``sdpa``) for a long search.
"""

import random
import sys

import torch
from torch import nn

from fusionadvisor import strategies
from tests.strategies.fuzz import check, doubles, made, shifts, tell

SHAPE = (6, 8)
HEADER = """import math
import torch
import torch.nn.functional as F
from torch import nn


class Odd(nn.Linear):
    def forward(self, input):
        return super().forward(input).abs()


def halve(x):
    return x / 2


"""
LAYERS = (
    "nn.Linear(8, 8)", "nn.Linear(8, 8)", "nn.Linear(8, 8)", "nn.Linear(8, 8, bias=False)", "nn.Linear(8, 4)",
    "Odd(8, 8)", "nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))",
)  # fmt: skip
CONVS = ("nn.Conv1d(6, 6, 3, padding=1)", "nn.Conv1d(6, 6, 3, padding=1, bias=False)", "nn.Conv1d(6, 6, 1)",
         "nn.Conv1d(6, 6, 3, padding=1, groups=2)")  # fmt: skip
BETWEEN = (
    "", "", "", "", "", "", "x.mul_(1.5)", "x = x * 1", "x = x.clone()", "x = x.view(x.shape)", "x.data.mul_(2)",
    "if x.mean() > 1.0:\n    x.add_(1)", "if x.mean() > 1.0:\n    x = x + 1", "x[0].zero_()", "a.mul_(2)",
    "z = x.detach()\nz.mul_(2)",
    "if x.mean() > 1.5:\n    return a", "if x.mean() > 1.2:\n    a = a.view(-1).view(a.shape)", "self.kept = a",
    "a = a.reshape(x.shape[0], -1).view(a.shape)", "a = a.view(x.shape[0] * x.shape[1], -1).view(a.shape)",
    "a = a + self.{0}.weight.sum()", "a = a + {first}(x)", "a = halve(a)",
    "with torch.no_grad():\n    self.{0}.weight.mul_(1.01)",
)  # fmt: skip
SECOND = ("{second}(x)", "{second}(x)", "{second}(x)", "{second}(x) if x.mean() < 0.5 else a", "{second}(x + 1)",
          "{second}(x.view(x.shape))", "{second}(a) if a.shape == x.shape else {second}(x)")  # fmt: skip
JOINS = (
    "x = torch.tanh(x + a.mean(-1, keepdim=True) * b.mean(-1, keepdim=True))", "x = a + b if a.shape == b.shape else x",
    "x = x + a.sum() * 0.01 + b.sum() * 0.01", "x = torch.cat((a, b), -1)[..., -8:]",
    "a.relu_()\nx = x + a.mean() - b.mean()", "x = x - (a.mean() + b.mean())\nout.append(b)",
)  # fmt: skip
TAKES = (
    "x[:, {i}]", "x[:, {i}]", "x[:, 5 - {i}]", "x[{i} % 2]", "(x * {i})", "x[:, {i}].cos()", "x", "x[:, :{i} + 1]",
    "x[:, {i} // 2]", "(x.mean(1) * ({i} + 1))", "x[:, {i}:{i} + 2]", "x[:, {i}].mT",
)  # fmt: skip
"""Inputs of equal products; ``i`` counts them."""
CALLS = (
    "self.l[{i}]({t})", "self.l[{i}]({t})", "self.l[{i}]({t})", "self.one({t})", "{t} @ self.w[{i}]",
    "torch.matmul({t}, self.ws[{i}])", "F.linear({t}, self.w[{i}])", "F.linear({t}, self.ws[{i}], self.one.bias)",
    "torch.mm({t}.reshape(-1, 8), self.w[{i}])", "self.w[{i}] @ self.ws[{i}]",
    "torch.einsum('...k,kn', {t}, self.w[{i}])",
)  # fmt: skip
WITHIN = (
    "x = x + z.mean()", "z = self.act(z)", "z.mul_(2)", "x = torch.cos(x)", "self.kept = z", "x.add_(1)",
    "z = z + self.l[0].weight.sum() if hasattr(self.l[0], 'weight') else z", "z = halve(z)", "out.append(z)",
    "if x.mean() > 2:\n    x = x + 1", "z = F.dropout(z, 0.3, True)", "x = x + self.one(x).mean()",
    "z = z + self.one.weight.mean()", "z = z.view(-1)", "z = z.detach()",
)  # fmt: skip
GATHERS = (
    "x = x + sum(v.sum() for v in y) * 0.01", "x = x + torch.stack([v.sum() for v in y]).mean()",
    "x = torch.tanh(x * y[0].sum() + y[-1].mean())", "x = x - y[1].mean()", "for v in y:\n    x = x + v.mean()",
)  # fmt: skip
SCALES = ("{s} / math.sqrt(4)", "{s} * 0.5", "{s}", "{s} / math.sqrt(q.shape[-1])", "{s} * self.scale", "{s} / self.t",
          "0.5 * {s}", "{s} * q.size(-1) ** -0.5")  # fmt: skip
MASKS = (
    "{s}", "{s}", "{s} + self.mask[:n, :n]",
    "{s}.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float('-inf'))",
    "{s}.masked_fill(k.sum(-1)[:, :, None] > 1, -1e9)", "torch.where(self.mask[:n, :n] == 0, {s}, -math.inf)",
    "{s}.masked_fill(self.mask[:n, :n] == 0, -1e9)", "{s}.masked_fill(torch.ones(n, n).tril() == 0, -5.0)",
    "{s} + q.mean(-1, keepdim=True)", "{s} + k.mean(-1)[:, :, None]", "{s} + self.mask[:n, :n] + self.mask[:n, :n]",
    "{s}.masked_fill(q.sum(-1)[..., None] > 4, -1e9)",
    "{s}.masked_fill(q.sum(-1)[..., None] > 4, float('-inf'))",
)  # fmt: skip
SOFTMAXES = ("torch.softmax({s}, -1)", "{s}.softmax(dim=3)", "F.softmax({s}, dim=-2)", "self.soft({s})",
             "F.softmax({s}, -1)", "F.softmax({s}, dim=-1, dtype=torch.float32).to(q.dtype)",
             "F.softmax({s}, dim=-1, dtype=torch.float64)")  # fmt: skip
AFTER = ("", "", "", "w = self.drop(w)", "w = F.dropout(w, 0.1, self.training)", "w = w * 1.1", "w = w.contiguous()",
         "self.last = w", "v = v + w.mean()", "v.mul_(2)", "w = w.mT", "if w.sum() > 1e6:\n    w = w * 0",
         "if self.factor > 1:\n    w = w * 2")  # fmt: skip


def indented(text: str, by: str) -> str:
    return "\n".join(by + line for line in text.split("\n") if line)


def merging(seed: int) -> tuple[nn.Module, str]:
    """A model of pairs of layers on one input."""
    draw = random.Random(seed)
    modules, body = [], ["x = x * 1", "out = []"]
    for number in range(draw.randint(1, 4)):
        layers = [draw.choice(CONVS if draw.random() < 0.3 else LAYERS) for _ in range(2)]
        if draw.random() < 0.6:
            layers[1] = layers[0]
        names = [f"p{number}", f"s{number}"]
        modules += [f"self.{name} = {layer}" for name, layer in zip(names, layers, strict=True)]
        first, second = (f"self.{name}" for name in names)
        shape = draw.random()
        if shape < 0.15:
            modules.append(f"self.l{number} = nn.ModuleList({layers[0]} for _ in range(3))")
            body += [f"a, b, c = [m(x) for m in self.l{number}]", "x = x + c.mean()"]
        elif shape < 0.3:
            body.append(f"y = {first}(x) + {second}(x) + x" if layers[0] == layers[1] else "y = x")
            body.append("x = torch.tanh(y) if y.shape == x.shape else x")
            continue
        else:
            body.append(f"a = {first}(x)")
            body.append(draw.choice(BETWEEN).format(names[0], first=first))
            body.append("b = " + draw.choice(SECOND).format(second=second))
        body.append(draw.choice(JOINS))
        if draw.random() < 0.1:
            body.append(f"x = x + {first}(x).mean()")
    body.append(draw.choice(("return x", "return x", "return [x, *out]", "return {'x': x, 'a': x.sum()}")))
    text = HEADER + _class(modules, body)
    torch.manual_seed(seed)
    model = made(text, seed).double().eval()
    own = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if own and draw.random() < 0.08:
        draw.choice(own).register_forward_hook(doubles)
    if own and draw.random() < 0.08:
        draw.choice(own).register_forward_pre_hook(shifts)
    same = [m for m in own if type(m) is nn.Linear and m.weight.shape == own[0].weight.shape and m.weight.is_leaf]
    if len(same) > 1 and type(own[0]) is nn.Linear and draw.random() < 0.15:
        same[1].weight = same[0].weight
    return model, text


def summing(seed: int) -> tuple[nn.Module, str]:
    """A straight model whose layers are mostly summed."""
    draw = random.Random(seed)
    layer = draw.choice((*LAYERS[:4], *CONVS))
    modules = [f"self.p{i} = {layer if draw.random() < 0.85 else draw.choice(LAYERS[:2])}" for i in range(4)]
    modules.append("self.act = nn.ReLU()")
    terms = [
        "self.p0(x)",
        "self.p1(x)",
        *draw.sample(("self.p2(x)", "self.p3(x)", "x", "r", "self.p2(r)", "x.mean()"), 3),
    ]
    draw.shuffle(terms)
    body = ["r = torch.sin(x)", draw.choice(("", "", "x = x + 0", "r.mul_(2)", "r = self.p0(x)"))]
    if draw.random() < 0.5:
        body.append(f"y = {terms[0]} + ({terms[1]} + {terms[2]}) + {' + '.join(terms[3:])}")
    else:
        body += [f"y = {terms[0]} + {terms[1]}", draw.choice(("", "", "r.mul_(2)", "y = y * 2", "z = y", "y += r"))]
        body.append(f"y = y + {' + '.join(terms[2:])}")
    body.append(draw.choice(("return self.act(y)", "return torch.tanh(y)", "return y", "return y, r")))
    text = HEADER + _class(modules, body)
    torch.manual_seed(seed)
    return made(text, seed).double().eval(), text


def batching(seed: int) -> tuple[nn.Module, str]:
    """A straight model of equal products on inputs of their own, with what may forbid to join them now and then."""
    draw = random.Random(seed)
    count = draw.randint(2, 5)
    layer = draw.choice(("nn.Linear(8, 8)", "nn.Linear(8, 8, bias=False)", "nn.Linear(8, 4)", "Odd(8, 8)"))
    inner = draw.choice((layer, layer, f"nn.Sequential({layer}, nn.Tanh())", f"nn.Sequential(nn.Tanh(), {layer})"))
    modules = [
        f"self.l = nn.ModuleList({inner} for _ in range({count}))", "self.one = nn.Linear(8, 8)",
        f"self.w = nn.Parameter(torch.randn({count}, 8, 8) / 3)",
        f"self.ws = nn.ParameterList(torch.randn(8, 8) / 3 for _ in range({count}))", "self.act = nn.ReLU()",
    ]  # fmt: skip
    body = ["x = torch.sin(x)", "out = []"]
    for _ in range(draw.randint(1, 3)):
        take, call = draw.choice(TAKES), draw.choice(CALLS)
        way = draw.random()
        if way < 0.4:
            index = {"i": "i"}
            body.append(f"y = [{call.format(t=take.format(**index), **index)} for i in range({count})]")
        elif way < 0.5:
            body.append(f"y = [layer({take.format(i='i')}) for i, layer in enumerate(self.l)]")
        else:
            body.append("y = []")
            for i in range(count):
                body.append(f"z = {call.format(t=take.format(i=i), i=i)}")
                body.append(draw.choice(("",) * 14 + WITHIN))
                body.append("y.append(z)")
        body.append(draw.choice(GATHERS))
    body.append(draw.choice(("return x", "return x", "return x, y[0]", "return [x, *out]")))
    text = HEADER + _class(modules, body)
    torch.manual_seed(seed)
    model = made(text, seed).double().eval()
    own = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if draw.random() < 0.08:
        draw.choice(own).register_forward_hook(doubles)
    if draw.random() < 0.08:
        draw.choice([m for m in model.modules() if not isinstance(m, nn.ModuleList)]).register_forward_pre_hook(shifts)
    if len(own) > 1 and draw.random() < 0.1 and own[0].weight.shape == own[1].weight.shape:
        own[1].weight = own[0].weight
    return model, text


def attending(seed: int) -> tuple[nn.Module, str]:
    """A model around attention that is nearly always something else than it should be."""
    draw = random.Random(seed)
    grouped = draw.random() < 0.25
    heads = 1 if draw.random() < 0.2 else 2
    width = 4 * (heads if grouped else 2)
    modules = [
        "self.q, self.o = nn.Linear(8, 8), nn.Linear(8, 8)",
        f"self.k, self.v = nn.Linear(8, {width}), nn.Linear(8, {width})",
        "self.drop, self.soft = nn.Dropout(0.2), nn.Softmax(-1)", "self.scale, self.factor = 0.5, 1",
        "self.t = nn.Parameter(torch.tensor(2.0))",
        "self.register_buffer('mask', torch.full((16, 16), float('-inf')).triu("
        + draw.choice(("1", "1", "1", "0")) + "))",
    ]  # fmt: skip
    rows = random.Random(~seed).choice(("x.shape[0], n", "x.shape[0], n", "*x.shape[:2]", "*x.size()[:-1]"))
    body = ["n = x.shape[1]", f"q = self.q(x).view({rows}, 2, 4).transpose(1, 2)"]
    count = heads if grouped else 2
    body += [f"{t} = self.{t}(x).view({rows}, {count}, 4).transpose(1, 2)" for t in "kv"]
    if grouped:
        repeat = draw.choice(("{0} = {0}.repeat_interleave(2 // {1}, dim=1)", "{0} = {0}.repeat(1, 2 // {1}, 1, 1)",
                              "{0} = {0}[:, :, None].expand(-1, -1, 2 // {1}, -1, -1).reshape(x.shape[0], 2, n, 4)",
                              "{0} = {0}[:, None].expand(-1, 2 // {1}, -1, -1, -1).reshape(x.shape[0], 2, n, 4)",
                              ))  # fmt: skip
        body += [repeat.format(t, heads) for t in "kv"]
    scores = draw.choice(("q @ k.transpose(-2, -1)", "torch.matmul(q, k.mT)", "(q @ k.permute(0, 1, 3, 2))", "q @ k"
                          if draw.random() < 0.1 else "q @ k.transpose(2, 3)"))  # fmt: skip
    scores = f"({scores})"
    steps = [draw.choice(SCALES), draw.choice(MASKS)]
    if draw.random() < 0.1:
        steps.reverse()
    for step in steps:
        scores = f"({step.format(s=scores)})"
    body += [
        f"w = {draw.choice(SOFTMAXES).format(s=scores)}",
        draw.choice(AFTER),
        "y = w @ v" if draw.random() < 0.95 else "y = v @ v.mT @ v",
    ]
    ends = ("return self.o(y.transpose(1, 2).reshape(x.shape))",) * 4 + (
        "return y, w", "return y.sum(), x", "return self.o(y.transpose(1, 2).reshape(x.shape)) * w.mean()",
    )  # fmt: skip
    body.append(draw.choice(ends))
    text = HEADER + _class(modules, body)
    torch.manual_seed(seed)
    return made(text, seed).double().eval(), text


def _class(modules: list[str], body: list[str]) -> str:
    return (
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        + "\n".join(indented(m, " " * 8) for m in modules)
        + "\n\n    def forward(self, x):\n"
        + "\n".join(indented(line, " " * 8) for line in body if line)
        + "\n"
    )


BUILDERS = {"horizontal": (merging, summing), "batched": (batching,), "sdpa": (attending,)}


def main() -> None:
    count, name = int(sys.argv[1]), sys.argv[2]
    strategy = strategies.get("horizontal" if name == "batched" else name)
    tell(check(strategy, seed, build, SHAPE) for seed in range(count) for build in BUILDERS[name])


if __name__ == "__main__":
    main()
