"""Writes random small models that take another path by size, flag, data or dtype, in every form Python has for it."""

import itertools
import random
from collections.abc import Callable

from tests.strategies.branch_forms import ACTIVATIONS, CALLS, CONDITIONS, HEADER, HOLDS, LAYERS


class Writer:
    """Writes one model's source."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.plainness = self.draw.choice((0.0, 0.6, 0.9))
        self.modules: list[str] = []
        self.names: list[str] = []
        self.pairs: list[tuple[str, str, str]] = []
        self.methods: list[str] = []
        self.public: list[str] = []
        self.numbers = itertools.count()

    def chance(self, probability: float) -> bool:
        return self.draw.random() < probability

    def pair(self) -> tuple[str, str, str]:
        """A layer, a norm and an activation: new ones, or now and then ones that are used already."""
        if self.pairs and self.chance(0.1):
            return self.draw.choice(self.pairs)
        n = next(self.numbers)
        names = f"c{n}", f"n{n}", f"r{n}"
        for name, what in zip(
            names, (self.draw.choice(LAYERS), "nn.BatchNorm2d(4)", self.draw.choice(ACTIVATIONS)), strict=True
        ):
            self.modules.append(f"self.{name} = {what}")
            self.names.append(name)
        self.pairs.append(names)
        return names

    def use(self, name: str, value: str) -> str:
        """An expression that calls a module."""
        form = "{m}({v})" if self.chance(self.plainness) else self.draw.choice(CALLS)
        if form == "self.of_{k}({v})":
            self.methods.append(f"def of_{name}(self, v):\n    return {self.use(name, 'v')}")
        elif form == "self.{k}_({v})":
            self.methods.append(f"@property\ndef {name}_(self):\n    return self.{name}")
        return form.format(m=f"self.{name}", k=name, v=value, i=self.names.index(name))

    def hold(self, a: str, b: str) -> list[str]:
        """Statements that hand a value on to another name."""
        return [line.format(a=a, b=b) for line in self.draw.choice(HOLDS)] if self.chance(0.35) else [f"{b} = {a}"]

    def whole(self, c: str, n: str, r: str) -> list[str]:
        lines = [f"y = {self.use(c, 'x')}", *self.hold("y", "w")]
        return [*lines, f"y = {self.use(n, 'w')}", *([f"y = {self.use(r, 'y')}"] if self.chance(0.3) else [])]

    def other(self, c: str, n: str, r: str) -> list[str]:
        """Another path: most do something that a fold would get wrong, some do not."""
        k = self.draw.randrange(9)
        if k == 0:
            return self.whole(c, n, r)
        if k == 1:
            return ["y = x"]
        if k == 2:
            return [f"y = {self.use(n, 'x')}"]
        if k == 3:
            return [f"y = {self.use(n, self.use(c, 'x'))} + {self.use(c, 'x')}"]
        if k == 4:
            return [f"y = {self.use(c, 'x')}", f"y = {self.use(n, 'y * 2')}"]
        if k == 5:
            return [f"y = x + self.{c}.weight.mean()"]
        if k == 6:
            return [f"y = {self.use(c, 'x')}", *self.hold("y", "w"), f"y = {self.use(r, 'w')}"]
        return [f"y = {self.use(c, 'x')}"]

    def two_ways(self, indent: str, depth: int) -> list[str]:
        c, n, r = self.pair()
        test = self.draw.choice(CONDITIONS)
        a, b = self.other(c, n, r), self.whole(c, n, r)
        number = next(self.numbers)
        into: Callable[[list[str]], list[str]] = lambda lines: ["    " + line for line in lines]  # noqa: E731
        helper = f"h{number}"
        k = self.draw.randrange(22)
        if k == 0:
            lines = [f"if {test}:", *into(a), "else:", *into(b)]
        elif k == 1:
            lines = [*b, f"if {test}:", *into(a)]
        elif k == 2:
            self.methods.append(
                "\n".join(
                    [
                        f"def {helper}(self, x):",
                        f"    if {test}:",
                        *into(into([*a, "return y"])),
                        *into(b),
                        "    return y",
                    ]
                )
            )
            lines = [f"y = self.{helper}(x)"]
        elif k == 3:
            lines = ["try:", f"    if {test}:", "        raise ValueError", *into(b), "except ValueError:", *into(a)]
        elif k == 4:
            lines = ["while True:", f"    if {test}:", *into(into([*a, "break"])), *into([*b, "break"])]
        elif k == 5:
            lines = [
                "again = True",
                "while again:",
                f"    if {test}:",
                *into(into(a)),
                "    else:",
                *into(into(b)),
                "    again = False",
            ]
        elif k == 6:
            lines = ["for _ in range(2):", f"    if {test}:", *into(into([*a, "break"])), "else:", *into(b)]
        elif k == 7:
            lines = [f"match bool({test}):", "    case True:", *into(into(a)), "    case _:", *into(into(b))]
        elif k == 8:
            lines = [f"y = {self.use(c, 'x')}", f"y = y if {test} else {self.use(n, 'y')}"]
        elif k == 9:
            lines = [
                f"steps = [self.{c}, self.{n}][: 1 if {test} else 2]",
                "y = x",
                "for step in steps:",
                "    y = step(y)",
            ]
        elif k == 10:
            lines = [f"y = {self.use(c, 'x')}", f"done = not ({test}) and (y := {self.use(n, 'y')}) is not None"]
        elif k == 11:
            lines = [
                f"def {helper}(x):",
                f"    if {test}:",
                *into(into([*a, "return y"])),
                *into(b),
                "    return y",
                f"y = {helper}(x)",
            ]
        elif k == 12:
            lines = [
                f"y = {self.use(c, 'x')}",
                "with contextlib.suppress(KeyError):",
                f"    if {test}:",
                "        raise KeyError",
                f"    y = {self.use(n, 'y')}",
            ]
        elif k == 13:
            lines = [f"made = list(stepwise([self.{c}, self.{n}], x))", f"y = made[0 if {test} else 1]"]
        elif k == 14:
            lines = [
                "y = x",
                f"def {helper}():",
                "    nonlocal y",
                f"    y = {self.use(c, 'y')}",
                f"    if not ({test}):",
                f"        y = {self.use(n, 'y')}",
                f"{helper}()",
            ]
        elif k == 15:
            lines = [
                f"ways = {{True: lambda v: {self.use(c, 'v')}, False: lambda v: {self.use(n, self.use(c, 'v'))}}}",
                f"y = ways[bool({test})](x)",
            ]
        elif k == 16:
            self.methods.append(
                "\n".join(
                    [
                        f"def {helper}(self, x):",
                        f"    y = {self.use(c, 'x')}",
                        f"    if {test}:",
                        "        yield y",
                        "        return",
                        f"    yield {self.use(n, 'y')}",
                    ]
                )
            )
            lines = [f"for y in self.{helper}(x):", "    pass"]
        elif k == 17:
            lines = [
                "y = None",
                "try:",
                f"    y = {self.use(c, 'x')}",
                f"    if {test}:",
                "        raise ValueError",
                f"    y = {self.use(n, 'y')}",
                "except ValueError:",
                "    pass",
                "finally:",
                "    y = y * 1.0",
            ]
        elif k == 18:
            lines = [f"y = {self.use(c, 'x')}", f"end = getattr(self, 'identity' if {test} else '{n}')", "y = end(y)"]
        elif k == 19:
            lines = [f"with giving(self.{c}, x) as y:", f"    y = y if {test} else {self.use(n, 'y')}"]
        elif k == 20:
            lines = [
                f"steps = [self.{c}, self.{n}, self.identity]",
                f"if {test}:",
                "    "
                + self.draw.choice(
                    (
                        "steps.pop(1)",
                        "del steps[1]",
                        f"steps.remove(self.{n})",
                        "steps[1] = steps[2]",
                        "steps.reverse()",
                        "steps.clear()",
                    )
                ),
                "y = functools.reduce(lambda v, m: m(v), steps, x)",
            ]
        else:
            lines = [
                f"y = {self.use(c, 'x')}",
                "parts = {'y': y}",
                f"if not ({test}):",
                f"    parts['z'] = {self.use(n, 'y')}",
                "y = parts.get('z', y)" if self.chance(0.5) else "y = parts['z'] if 'z' in parts else y",
            ]
        if depth == 0 and self.chance(0.15):
            lines = [
                f"if {self.draw.choice(CONDITIONS)}:",
                *into(lines),
                "    x = y",
                *self.straight(indent, 1)[:-1],
                "y = y",
            ]
        return [*lines, *(self.hold("y", "x"))]

    def straight(self, indent: str, depth: int) -> list[str]:
        return [*self.whole(*self.pair()), "x = y"]

    def by_flag(self, indent: str, depth: int) -> list[str]:
        """A flag that chooses an item, a name or a number."""
        c, n, r = self.pair()
        number = next(self.numbers)
        self.modules += [
            f"self.l{number} = nn.ModuleList([self.{n}, self.identity, self.{r}])",
            f"self.p{number} = [self.{n}, self.identity]",
            f"self.s{number} = nn.ModuleList([self.{c}, self.{n}])",
        ]
        return self.draw.choice(
            (
                [f"x = self.l{number}[self.index]({self.use(c, 'x')})"],
                [f"x = self.p{number}[self.index]({self.use(c, 'x')})"],
                ["for i in range(self.count):", f"    x = self.s{number}[i](x)"],
                [f"for m in self.s{number}[: self.count]:", "    x = m(x)"],
                [f"x = {self.use(c, 'x')}", f"x = getattr(self, '{n}' if self.which == 'norm' else self.which)(x)"],
                [f"for i, m in enumerate(self.s{number}):", "    if i >= self.count:", "        break", "    x = m(x)"],
                [
                    f"for m in [self.{c}, self.{n}]:",
                    f"    if m is self.{n} and ({self.draw.choice(CONDITIONS)}):",
                    "        continue",
                    "    x = m(x)",
                ],
            )
        )

    def temporary(self, indent: str, depth: int) -> list[str]:
        """An activation on something that others may hold, view or overwrite."""
        c, n, r = self.pair()
        y = self.draw.choice(
            (f"y = {self.use(c, 'x')}", f"y = {self.use(n, self.use(c, 'x'))}", "y = x + 1", "y = x", "y = x[:, :4]")
        )
        use, test = self.use(r, "y"), self.draw.choice(CONDITIONS)
        return [
            y,
            *self.draw.choice(
                (
                    [f"x = {use}"],
                    [*self.hold("y", "k"), f"z = {use}", f"x = z + k if {test} else z"],
                    ["self.last = y", f"x = {use}"],
                    ["v = y[:, :2]", f"x = {use}", f"if {test}:", "    x = x + v.mean()"],
                    ["y.add_(1)", f"x = {use}"],
                    ["y += 1", f"x = {use}"],
                    [f"x = {use} + (y if {test} else 0)"],
                    ["later = (y * 2 for _ in range(1))", f"x = {use}", "x = x + next(later)"],
                    ["k = x", f"y = torch.add(y, 1, out=x if {test} else None)", f"x = {use}"],
                    ["f = lambda: y", f"x = {use}", f"x = f() + x if {test} else x"],
                    ["kept = [x, y]", f"x = {use}", f"x = x + kept[0 if {test} else 1]"],
                    ["v = y.detach()", f"x = {use}", f"x = x * v if {test} else x"],
                    ["z = y.view_as(x)", f"x = {use}", f"x = x + z if {test} else x"],
                    [f"y = y if {test} else y.contiguous()", f"x = {use}"],
                    [f"z = x if {test} else y", f"x = self.{r}(z) + x.mean()"],
                    ["s = State(y, z=x)", f"x = self.{r}(s.y)", f"x = x + (s.y if {test} else s.z)"],
                )
            ),
            "x = x * 1.0",
        ]

    def several(self, indent: str, depth: int) -> list[str]:
        """Layers that read one input, for one path."""
        (c, n, _), (d, e, _) = self.pair(), self.pair()
        test = self.draw.choice(CONDITIONS)
        return self.draw.choice(
            (
                [f"a, b = {self.use(c, 'x')}, {self.use(d, 'x')}", f"x = a + b if {test} else a * b"],
                [
                    f"a = {self.use(c, 'x')}",
                    f"if {test}:",
                    "    x.add_(1.0)" if self.chance(0.3) else "    x = x + 1.0",
                    f"x = a + {self.use(d, 'x')}",
                ],
                [
                    f"a = {self.use(c, 'x')}",
                    f"b = {self.use(d, 'x')}",
                    f"if {test}:",
                    "    a = a.mul_(2.0)",
                    "x = a + b",
                ],
                [f"x = {self.use(n, self.use(c, 'x'))} + {self.use(e, self.use(d, 'x'))}"],
                [f"x = sum(m(x) for m in [self.{c}, self.{d}][: 1 if {test} else 2])"],
                [f"a = {self.use(c, 'x')}", f"x = {self.use(d, 'x')} + (a.data if {test} else a).tanh()"],
            )
        )

    def pointwise(self, indent: str, depth: int) -> list[str]:
        return [
            self.draw.choice(
                (
                    "x = torch.relu(x)",
                    "x = x * 0.5 + 1",
                    "x = x.clone().tanh_()",
                    "x = self.block(x)",
                    "x = self.block.stem(x)" if self.chance(0.2) else "x = x - 1",
                )
            )
        ]

    def entry(self) -> None:
        name = f"also{next(self.numbers)}"
        c, n, r = self.draw.choice(self.pairs)
        body = self.draw.choice(
            (
                [f"return {self.use(c, 'x')}"],
                [f"return {self.use(n, 'x')}"],
                [f"return {self.use(r, 'x + 1')}"],
                [f"return x * self.{c}.weight.mean()"],
                [f"w = self.{n}.running_mean", "return x + w.mean()"],
                [f"return self({self.use(r, 'x * 2')})"],
                [f"return {self.use(n, self.use(c, 'x'))}"],
                ["return self(x)"],
                [f"return sum(p.numel() for p in self.{r}.parameters()) + x"],
                ["return self.block.n(self.block.c(x))"],
                ["return [m(x) for m in self.children() if isinstance(m, nn.Conv2d)]"],
                ["return self.block.c(x)"],
            )
        )
        kind = self.draw.choice(("def", "def", "def", "static"))
        if kind == "static":
            self.methods.append(
                f"@classmethod\ndef {name}_of(cls, self, x):\n" + "\n".join(f"    {line}" for line in body)
            )
            body = [f"return self.{name}_of(self, x)"]
        self.methods.append(f"def {name}(self, x):\n" + "\n".join(f"    {line}" for line in body))
        self.public.append(name)

    def source(self) -> str:
        lines: list[str] = []
        for _ in range(self.draw.randint(1, 4)):
            lines += self.draw.choice(STEPS)(self, "", 0)
        while self.pairs and self.chance(0.35):
            self.entry()
        plain = ", ".join(f"self.{name}" for name in self.names)
        table = ", ".join(f"'{name}': self.{name}" for name in self.names)
        start = [
            "super().__init__()",
            "self.raw, self.full, self.mode, self.level = False, True, 'full', 1",
            "self.opts, self.cfg, self.switches = {'raw': False}, SimpleNamespace(raw=False), [False]",
            "self.choice, self.count, self.index, self.which = 0, 2, 0, 'norm'",
            "self.identity, self.block = nn.Identity(), Block()",
            *self.modules,
            f"self.plain, self.table, self.frozen = [{plain}], {{{table}}}, ({plain}{',' if plain else ''})",
        ]
        fixed = [
            "@staticmethod\ndef still(m, v):\n    return m(v)",
            "@classmethod\ndef of_class(cls, m, v):\n    return m(v)",
        ]
        methods = [*dict.fromkeys([*fixed, *self.methods])]
        body = [*("def __init__(self):\n" + "\n".join(f"    {line}" for line in start)).split("\n")]
        for method in methods:
            body += ["", *method.split("\n")]
        body += ["", "def forward(self, x):", *(f"    {line}" for line in lines), "    return x"]
        return (
            f"{HEADER}\n\nclass Model(nn.Module):\n" + "\n".join(f"    {line}" if line else "" for line in body) + "\n"
        )


STEPS = (
    *[Writer.two_ways] * 8,
    Writer.straight,
    Writer.by_flag,
    Writer.by_flag,
    *[Writer.temporary] * 3,
    Writer.several,
    Writer.several,
    Writer.pointwise,
)
