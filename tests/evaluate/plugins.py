"""Strategies as another package might bring them: each goes wrong in its own way."""

import ctypes
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from fusionadvisor.strategies.base import Plan, Site, Strategy, Subject


class Whole(Strategy):
    """Claims the whole model."""

    id = "whole"
    changes_ops = False

    def plan(self, subject: Subject) -> Plan:
        return Plan((Site("the model"),))

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        return model


class Segfaults(Whole):
    id = "segfaults"

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        ctypes.string_at(0)
        return model


class Sleeps(Whole):
    id = "sleeps"

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        time.sleep(3600)
        return model


class Spawns(Whole):
    """Hangs, and so does a process it started."""

    id = "spawns"

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        if os.fork() == 0:
            Path(os.environ["PLUGIN_PID_FILE"]).write_text(str(os.getpid()))
        time.sleep(3600)
        return model


class Eats(Whole):
    id = "eats"

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        held = []
        while True:
            held.append(torch.ones(8 << 20))  # 32 MiB a piece, touched
            time.sleep(0.001)


class EatsApart(Whole):
    """A process it started holds what it may not, in a session of its own."""

    id = "eats_apart"

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        if os.fork() == 0:
            os.setsid()
            held = []
            while True:
                held.append(b"x" * (32 << 20))
                time.sleep(0.001)
        time.sleep(3600)
        return model


class LeavesHelper(Whole):
    """Done at once; a process it started lives on and holds whatever was open."""

    id = "leaves_helper"

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        if os.fork() == 0:
            os.setsid()
            Path(os.environ["PLUGIN_PID_FILE"]).write_text(str(os.getpid()))
            time.sleep(3600)
        return model


class Raises(Whole):
    id = "raises"

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        raise LookupError("no such kernel\nand more")


class Exits(Whole):
    id = "exits"

    def plan(self, subject: Subject) -> Plan:
        sys.stdout.write("about to leave\n")
        sys.stdout.flush()
        os._exit(7)


class NaN(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Tensor) -> Tensor:
        output: Tensor = self.inner(*args)
        return torch.where(output == output.max(), torch.nan, output)


class ReturnsNaN(Whole):
    id = "returns_nan"

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        return NaN(model)


class ChangesOriginal(Whole):
    """Writes into the model it may only read."""

    id = "changes_original"

    def plan(self, subject: Subject) -> Plan:
        with torch.no_grad():
            next(subject.model.parameters()).mul_(2)
        return super().plan(subject)


ALL = (Whole, Segfaults, Sleeps, Spawns, Eats, EatsApart, LeavesHelper, Raises, Exits, ReturnsNaN, ChangesOriginal)
