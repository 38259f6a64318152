"""Random small models with planted obstacles, to look for a rewrite that changes what a model computes.

Run ``python -m tests.strategies.fuzz 5000`` for a long search; the tests run a short one.
"""

import copy
import gc
import itertools
import linecache
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fusionadvisor.strategies.base import Call, Strategy
from tests.strategies.subjects import leaves, randomise, subject_of

WIDTH, SIZE = 4, 5
LAYERS = (
    "nn.Conv2d(4, 4, 3, padding=1)", "nn.Conv2d(4, 4, 1, bias=False)", "nn.Conv2d(4, 4, 1, groups=2)",
    "nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)", "nn.Conv2d(4, 4, 3, padding='same', padding_mode='reflect')",
    "nn.ConvTranspose2d(4, 4, 3, padding=1)", "nn.ConvTranspose2d(4, 4, 1, groups=2, bias=False)", "Odd(4, 4, 1)",
)  # fmt: skip
NORMS = (
    "nn.BatchNorm2d(4)", "nn.BatchNorm2d(4, eps=0.1)", "nn.BatchNorm2d(4, affine=False)",
    "nn.BatchNorm2d(4, momentum=None)", "nn.BatchNorm2d(4, track_running_stats=False)",
)  # fmt: skip
HEADER = "import torch\nfrom torch import nn\nfrom tests.strategies.fuzz import Odd\n"
_numbers = itertools.count()


class Odd(nn.Conv2d):
    """A subclass that computes something else."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).abs()


class Writer:
    """Writes one model's source."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.blocks = BLOCKS if seed % 2 else (*BLOCKS, *[Writer.activation] * 12)
        self.modules: list[str] = []
        self.lines: list[str] = []
        self.pairs: list[tuple[str, str]] = []
        self.kept: list[str] = []
        self.activations: list[str] = []
        self.names = itertools.count()

    def chance(self, probability: float) -> bool:
        return self.draw.random() < probability

    def pair(self) -> tuple[str, str]:
        """A layer and a norm: new ones, or now and then ones that are used already."""
        if self.pairs and self.chance(0.08):
            return self.draw.choice(self.pairs)
        n = next(self.names)
        self.modules += [f"self.c{n} = {self.draw.choice(LAYERS)}", f"self.n{n} = {self.draw.choice(NORMS)}"]
        self.pairs.append((f"self.c{n}", f"self.n{n}"))
        return self.pairs[-1]

    def say(self, indent: str, *lines: str) -> None:
        self.lines += [indent + line for line in lines]

    def block(self, indent: str, depth: int) -> None:
        self.say(indent, "pass")
        for _ in range(self.draw.randint(1, 3)):
            self.draw.choice(self.blocks)(self, indent, depth)

    # statements ------------------------------------------------------------------------------------------------------

    def nested(self, indent: str, depth: int) -> None:
        c, n = self.pair()
        self.say(indent, f"x = {n}({c}(x))")

    def straight(self, indent: str, depth: int) -> None:
        c, n = self.pair()
        self.say(indent, f"x = {c}(x)", f"x = {n}(x)")

    def named(self, indent: str, depth: int) -> None:
        c, n = self.pair()
        y = f"y{next(self.names)}"
        self.say(indent, f"{y} = {c}(x)")
        if self.chance(0.25):
            self.say(
                indent, self.draw.choice((f"{y}.mul_(0.5)", f"self.last = {y}", f"x = x + {y}", "x = torch.tanh(x)"))
            )
        self.say(indent, f"z = {n}({y})")
        if self.chance(0.3):
            self.say(indent, self.draw.choice((f"z = z + {y}", f"{y}.add_(1)", "z.relu_()", f"z = z * {y}[:, :1]")))
        elif self.chance(0.2):
            self.say(indent, f"if x.mean() > {self.draw.uniform(0, 2):.2f}:", f"    z = z - {y}")
        self.say(indent, "x = z")
        if self.chance(0.1) and depth == 0:
            self.kept.append(y)

    def before(self, indent: str, depth: int) -> None:
        c, n = self.pair()
        self.say(indent, f"x = {c}({n}(x))")

    def branch(self, indent: str, depth: int) -> None:
        if depth > 1:
            return self.pointwise(indent, depth)
        self.say(indent, f"if x.mean() > {self.draw.uniform(-0.3, 1.5):.2f}:")
        self.block(indent + "    ", depth + 1)
        if self.chance(0.6):
            self.say(indent, "else:")
            if self.pairs and self.chance(0.4):
                c, n = self.draw.choice(self.pairs)
                self.say(indent + "    ", self.draw.choice((f"x = {c}(x)", f"x = {n}(x)", f"x = {n}({c}(x))")))
            else:
                self.block(indent + "    ", depth + 1)
        return None

    def conditional_norm(self, indent: str, depth: int) -> None:
        c, n = self.pair()
        flag = self.draw.choice(("torch.isfinite(x).all()", "x.shape[0] < 100", "self.n_calls < 50", "x.sum() > 0"))
        self.say(indent, f"y = {c}(x)", f"x = {n}(y) if {flag} else y")

    def sequential(self, indent: str, depth: int) -> None:
        n = next(self.names)
        items = [self.draw.choice(LAYERS), self.draw.choice(NORMS)]
        if self.chance(0.3):
            items.insert(1, "nn.Identity()")
        if self.chance(0.3):
            items = [f"nn.Sequential({', '.join(items)})", "nn.ReLU()"]
        self.modules.append(f"self.s{n} = nn.Sequential({', '.join(items)})")
        use = self.draw.choice(("x = {s}(x)", "x = {s}(x)", "x = {s}[0](x)", "for m in {s}:\n{i}    x = m(x)",
                                "x = {s}(x) if x.mean() > 0.1 else {s}[0](x)"))  # fmt: skip
        self.say(indent, *use.format(s=f"self.s{n}", i=indent).split("\n", 1)[:1])
        if "\n" in use:
            self.lines.append(use.format(s=f"self.s{n}", i=indent).split("\n", 1)[1])

    def listed(self, indent: str, depth: int) -> None:
        n, count = next(self.names), self.draw.randint(1, 3)
        layer, norm = self.draw.choice(LAYERS), self.draw.choice(NORMS)
        self.modules += [
            f"self.l{n} = nn.ModuleList({layer} for _ in range({count}))",
            f"self.m{n} = nn.ModuleList({norm} for _ in range({count}))",
        ]
        use = self.draw.choice(
            (
                (f"for c, b in zip(self.l{n}, self.m{n}):", "    x = b(c(x))"),
                (f"for i in range({count}):", f"    x = self.l{n}[i](x)", f"    x = self.m{n}[i](x)"),
                (f"for i in range({count}):", f"    x = self.m{n}[i](self.l{n}[{count} - 1 - i](x))"),
                (f"for i, c in enumerate(self.l{n}):", "    y = c(x)", f"    x = self.m{n}[i](y)", "x = x + y"),
                (f"for i in range({count}):", f"    x = self.l{n}[i](x)", "    if x.sum() > 0:",
                 f"        x = self.m{n}[i](x)"),
            )
        )  # fmt: skip
        self.say(indent, *use)

    def by_name(self, indent: str, depth: int) -> None:
        c, n = self.pair()
        self.say(indent, f"x = getattr(self, '{n[5:]}')(getattr(self, '{c[5:]}')(x))")
        if self.chance(0.4):
            other = self.draw.choice(self.pairs)[0]
            self.say(indent, f"x = x + getattr(self, 'c' + '{other[6:]}' if x.mean() > 0.4 else '{other[5:]}')(x)")

    def activation(self, indent: str, depth: int) -> None:
        """An activation module on something fresh, or on something that others hold."""
        if not self.activations or self.chance(0.7):
            number = next(self.names)
            self.modules.append(f"self.r{number} = {self.draw.choice(('nn.ReLU()', 'nn.SiLU()', 'nn.LeakyReLU(0.1)'))}")
            self.activations.append(f"self.r{number}")
        r = self.draw.choice(self.activations)
        c, n = self.pair()
        uses = (f"x = {r}({n}({c}(x)))", f"x = {r}(x)", f"x = {r}(x + 1) * x", f"x = {r}({c}(x)) + x",
                f"y = {c}(x)\n{indent}z = {r}(y)\n{indent}x = z - y", f"y = {n}(x)\n{indent}y += x\n{indent}x = {r}(y)",
                f"y = {c}(x)\n{indent}x = {r}(y)\n{indent}if x.mean() > 0.3:\n{indent}    x = x + y",
                f"x = x + {r}(x[:, :2]).mean()", f"y = x if x.mean() > 0.2 else {c}(x)\n{indent}x = {r}(y) + x",
                f"self.last = {c}(x)\n{indent}x = {r}(self.last) + self.last")  # fmt: skip
        self.lines += (indent + self.draw.choice(uses)).split("\n")

    def pointwise(self, indent: str, depth: int) -> None:
        self.say(indent, self.draw.choice(("x = torch.relu(x)", "x = x * 0.5 + 1", "x = x.clone().tanh_()")))

    def again(self, indent: str, depth: int) -> None:
        if self.pairs:
            c, n = self.draw.choice(self.pairs)
            uses = (f"x = {c}(x)", f"x = {n}(x)", f"x = x + {c}.weight.mean()", f"x = x * {c}.stride[0]",
                    f"x = apply_it({c}, x)", f"m = {c}\n{indent}x = m(x)", f"x = {n}(x + 1)",
                    f"x = x if {n}.running_mean is None else x + {n}.running_mean.mean()")  # fmt: skip
            self.lines += (indent + self.draw.choice(uses)).split("\n")

    # the whole -------------------------------------------------------------------------------------------------------

    def source(self) -> str:
        self.block("        ", 0)
        ends = ["x", "{'x': x, 'y': (x.mean(), x > 0)}"]
        if self.kept:
            ends.append(f"(x, {self.draw.choice(self.kept)})")
        returned = self.draw.choice(ends)
        body = "\n".join(["        self.n_calls += 1", *self.lines, f"        return {returned}"])
        modules = "\n".join(f"        {line}" for line in self.modules) or "        pass"
        return (
            f"{HEADER}\ndef apply_it(module, x):\n    return module(x)\n\n\nclass Model(nn.Module):\n"
            f"    def __init__(self):\n        super().__init__()\n        self.n_calls = 0\n"
            f"{modules}\n\n    def forward(self, x):\n{body}\n"
        )


BLOCKS = (
    Writer.nested, Writer.nested, Writer.straight, Writer.straight, Writer.named, Writer.named, Writer.before,
    Writer.branch, Writer.conditional_norm, Writer.sequential, Writer.sequential, Writer.listed, Writer.by_name,
    Writer.pointwise, Writer.again, Writer.activation, Writer.activation,
)  # fmt: skip


def build(seed: int) -> tuple[nn.Module, str]:
    """A model in float64 evaluation with random statistics, and its source."""
    writer = Writer(seed)
    text = writer.source()
    model: nn.Module = randomise(made(text, seed), seed).double().eval()
    plant(model, writer.draw)
    return model, text


def made(text: str, seed: int) -> nn.Module:
    """The class ``Model`` of a source text, built; its source can be read as that of a file."""
    name = f"/fuzz/{next(_numbers)}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(text, name, "exec"), scope)
    torch.manual_seed(seed)
    model: nn.Module = scope["Model"]()
    return model


def plant(model: nn.Module, draw: random.Random) -> None:
    """Now and then: a hook, tied or aliased weights, a module in training, a parametrization, an instance forward."""
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    if convs and draw.random() < 0.1:
        draw.choice(convs).register_forward_hook(doubles)
    if norms and draw.random() < 0.05:
        draw.choice(norms).register_forward_pre_hook(shifts)
    if len(convs) > 1 and draw.random() < 0.15:
        a, b = draw.sample(convs, 2)
        if a.weight.shape == b.weight.shape:
            a.weight = b.weight
    if norms and draw.random() < 0.05:
        draw.choice(norms).train()
    if convs and draw.random() < 0.05:
        nn.utils.parametrizations.weight_norm(draw.choice(convs))
    if convs and draw.random() < 0.05:
        other = draw.choice(convs)
        other.forward = other.weight.mean().mul  # type: ignore[method-assign, assignment]
    if convs and draw.random() < 0.05:
        model.register_module("alias", draw.choice(convs))


def doubles(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
    return output * 2


def shifts(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (args[0] + 1,)


Build = Callable[[int], tuple[nn.Module, str]]


@torch.no_grad()
def check(
    strategy: Strategy, seed: int, build: Build = build, shape: tuple[int, ...] = (WIDTH, SIZE, SIZE)
) -> tuple[int, int, str]:
    """Sites changed, sites refused, and what is wrong with the result; empty where nothing is."""
    model, text = build(seed)
    generator = torch.Generator().manual_seed(seed)

    def call(batch: int, shift: float) -> Call:
        x = torch.randn(batch, *shape, generator=generator, dtype=torch.float64) + shift
        return Call((x,))

    try:
        given = subject_of(model, tuple(call(b, 0.0) for b in (2, 2, 2, 3)))
    except (RuntimeError, ValueError):
        return 0, 0, ""  # not a model
    plan = strategy.plan(given)
    if not plan.sites:
        return 0, len(plan.refused), ""
    candidate = strategy.rewrite(copy.deepcopy(model), plan, given)
    original = copy.deepcopy(model)
    for _ in range(12):
        one = call(2, generator_shift(generator))
        torch.manual_seed(seed)  # what draws random numbers draws the same
        try:
            want = leaves(original(one.args[0].clone()))
        except (RuntimeError, ValueError):
            continue
        torch.manual_seed(seed)
        got = leaves(candidate(one.args[0].clone()))
        for a, b in zip(want, got, strict=True):
            if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True):
                return len(plan.sites), len(plan.refused), f"seed {seed}: {[s.name for s in plan.sites]}\n{text}"
    return len(plan.sites), len(plan.refused), ""


def generator_shift(generator: torch.Generator) -> float:
    return float(torch.randn((), generator=generator)) * 2


def tell(checks: Iterable[tuple[int, int, str]]) -> None:
    """Print what was wrong, as it is found, and in the end how many models and places there were."""
    tally: Counter[str] = Counter()
    for changed, refused, wrong in checks:
        tally.update(models=1, changed=changed, refused=refused, models_changed=changed > 0, wrong=bool(wrong))
        if wrong:
            sys.stdout.write(wrong + "\n")
    sys.stdout.write(f"{dict(tally)}\n")


def main() -> None:
    from fusionadvisor import strategies

    count, name = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "fuse_modules"
    gc.collect()
    gc.freeze()  # each recording collects garbage; what is here already is none
    tell(check(strategies.get(name), seed) for seed in range(count))


if __name__ == "__main__":
    main()
