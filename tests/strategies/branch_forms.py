"""The forms that the generated models of ``branch_models`` are written in."""

from typing import Any

HEADER = """import contextlib
import functools
import operator
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.strategies.branch_helpers import *
"""
LAYERS = ("nn.Conv2d(4, 4, 3, padding=1)", "nn.Conv2d(4, 4, 1, bias=False)", "nn.ConvTranspose2d(4, 4, 3, padding=1)")
ACTIVATIONS = ("nn.ReLU()", "nn.SiLU()", "nn.LeakyReLU(0.1)")
CALLS = (
    "call({m}, {v})",
    "call(v={v}, m={m})",
    "spread({m}, {v})",
    "spread(**{{'m': {m}, 'v': {v}}})",
    "call(*({m}, {v}))",
    "(lambda m, v: m(v))({m}, {v})",
    "functools.partial(call, {m})({v})",
    "decorated({m}, {v})",
    "decorated_well({m}, {v})",
    "maker({m})({v})",
    "getattr(self, '{k}')({v})",
    "getattr(self, '{k}'[:1] + '{k}'[1:])({v})",
    "self.table['{k}']({v})",
    "self.plain[{i}]({v})",
    "self.frozen[{i}]({v})",
    "[m({v}) for m in [{m}]][0]",
    "list(map({m}, [{v}]))[0]",
    "functools.reduce(lambda a, m: m(a), [{m}], {v})",
    "next(m({v}) for m in ({m},))",
    "Runner({m})({v})",
    "Runner({m}).run({v})",
    "self.of_{k}({v})",
    "self.{k}_({v})",
    "Model.still({m}, {v})",
    "self.still({m}, {v})",
    "self.of_class({m}, {v})",
    "{m}.forward({v})",
    "type(self).still({m}, {v})",
    "{m}.__call__({v})",
    "nn.Sequential({m})({v})",
    "operator.call({m}, {v})",
    "self.get_submodule('{k}')({v})",
    "self._modules['{k}']({v})",
    "super().__getattr__('{k}')({v})",
    "list(stepwise([{m}], {v}))[-1]",
    "dict(self.named_children())['{k}']({v})",
    "checkpoint({m}, {v}, use_reentrant=False)",
    "nn.Module.__call__({m}, {v})",
    "(lambda *, m=self.{k}, v: m(v))(v={v})",
    "{{'k': {m}}}.get('k')({v})",
    "[*[{m}]].pop()({v})",
    "sorted([({i}, {m})])[0][1]({v})",
    "vars(self)['_modules']['{k}']({v})",
    "max([{m}], key=id)({v})",
)
HOLDS = (
    ("{b} = {a}",),
    ("{b}, _ = {a}, None",),
    ("(_, {b}), *_ = (0, {a}), 1",),
    ("{b} = [{a}][0]",),
    ("{b} = {{'y': {a}}}['y']",),
    ("s = State({a})", "{b} = s.y"),
    ("s = SimpleNamespace(y={a})", "{b} = s.y"),
    ("self.tmp = {a}", "{b} = self.tmp"),
    ("held = []", "held.append({a})", "{b} = held[-1]"),
    ("{b} = (lambda: {a})()",),
    ("for {b} in ({a},):", "    pass"),
    ("{b} = {a} if {a} is not None else x",),
    ("s = State(x)", "s.y = {a}", "{b} = s.y"),
    ("held = {{}}", "held['y'] = {a}", "{b} = held.pop('y')"),
    ("with contextlib.nullcontext({a}) as {b}:", "    pass"),
)
CONDITIONS = (
    *["x.shape[-1] > 8"] * 4,
    "x.size(0) > 3",
    "min(x.shape[-2:]) > 8",
    "x.dtype == torch.float32",
    "x.mean() > 0.4",
    "bool((x > 2.5).any())",
    "self.raw",
    "not self.full",
    "self.mode == 'raw'",
    "self.level > 1",
    "self.opts['raw']",
    "self.cfg.raw",
    "getattr(self, 'late', False)",
    "self.raw or x.shape[-1] > 8",
    "self.full and x.shape[-1] > 8",
    "hasattr(self, 'late')",
    "getattr(self.cfg, 'late', None) is not None",
    "len(x) > 3",
    "self.switches[0]",
    "(side := x.shape[-1]) > 8",
    "not (self.full and x.shape[-1] <= 8)",
    "x.numel() // x.shape[0] > 200",
    "self.choice is None",
)
SETTINGS: tuple[tuple[str, Any], ...] = (
    ("raw", True),
    ("full", False),
    ("mode", "raw"),
    ("level", 2),
    ("opts.raw", True),
    ("cfg.raw", True),
    ("late", True),
    ("cfg.late", 1),
    ("switches.0", True),
    ("choice", None),
    ("count", 1),
    ("index", 1),
    ("which", "identity"),
)
