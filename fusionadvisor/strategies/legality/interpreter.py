"""Runs a model's code on abstract values, every branch of it, over the live objects of the model.

What calls mean is in ``calls``, then come ``attributes``, ``conditions``, ``expressions`` and ``statements``.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from fusionadvisor.strategies.legality.code import digest
from fusionadvisor.strategies.legality.statements import Statements
from fusionadvisor.strategies.legality.values import OverrunError

_ROUNDS = 5
"""How often all public methods are run until what they store no longer changes."""
_STACK, _RECURSION = 512 << 20, 60_000
"""Of the thread that interprets: bytes, and Python calls."""


class Interpreter(Statements):
    """Interprets all public methods of a model's modules.

    After :meth:`run`, ``log`` holds what happened, ``functions`` the functions that were run, and ``unreadable`` the
    names of those that could not be. ``overrun`` is set where the code did not come to an end.
    """

    def run(self) -> None:
        """Run every public method until what they store no longer changes."""
        limit, size = sys.getrecursionlimit(), threading.stack_size(_STACK)
        sys.setrecursionlimit(_RECURSION)
        try:  # models nest deeper than Python's own limit allows for the interpreter around their code
            with ThreadPoolExecutor(1) as pool:
                pool.submit(self._run_rounds).result()
        finally:
            sys.setrecursionlimit(limit)
            threading.stack_size(size)

    def _run_rounds(self) -> None:
        try:
            for _ in range(_ROUNDS):
                self.begin()
                for entry in self.entries():
                    self.enter(entry)
                if not self.changed:
                    return
            self.overrun = "what its methods store keeps changing"
        except OverrunError as error:
            self.overrun = str(error)
        except RecursionError:
            self.overrun = "its code calls too deep to follow"

    @property
    def fingerprint(self) -> str:
        """What identifies the code that was run; empty where some of it could not be read."""
        return "" if self.unreadable else digest(self.functions.values())
