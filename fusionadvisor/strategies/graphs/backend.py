"""What a graph backend does: capture a run once, replay it into the same memory. CUDA is one; tests bring another."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fusionadvisor.report.model import Source

TensorFunction = Callable[..., tuple[Tensor, ...]]
"""Takes tensors, returns tensors: what training graphs are made of."""

Pool = Any
"""A private memory pool: ``torch.cuda._POOL_HANDLE`` on CUDA."""

WARM_UPS = 3
"""Eager runs before a capture: cuBLAS workspaces, cuDNN algorithm searches and plan caches are made in the first ones.
Three is what torch's own ``make_graphed_callables`` takes."""


class CaptureError(RuntimeError):
    """A run could not be captured; the model itself is unharmed.

    Args:
        why: What it did, as a clause: ``waits for the device``.
        owner: The module whose forward did it.
        source: The line that did it.
    """

    def __init__(self, why: str, owner: nn.Module | None = None, source: Source | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.owner = owner
        self.source = source


class Graph(Protocol):
    """A captured run. Its outputs live at fixed addresses and are overwritten by every replay."""

    outputs: object
    """What the run returned, tensors included. Holds no meaningful data before the first replay."""

    def replay(self) -> None:
        """Queue the captured work on the current stream."""

    def release(self) -> None:
        """Free the graph; its outputs must not be read afterwards."""


class GraphBackend(Protocol):
    """Where graphs are captured and replayed. All calls are made by one thread at a time."""

    def accepts(self, device: torch.device) -> bool:
        """Whether graphs of tensors on this device can be captured here."""

    def capturing(self) -> bool:
        """Whether somebody else's capture is under way on the current stream."""

    def new_pool(self, device: torch.device) -> Pool:
        """Return a private memory pool; graphs that never need their intermediates at the same time may share one."""

    def follow(self, device: torch.device, last: object) -> object:
        """Make the current stream wait for the stream of the ``last`` call (None at first); return the current one."""

    def capture(
        self,
        run: Callable[[], object],
        device: torch.device,
        pool: Pool,
        generators: Sequence[torch.Generator] = (),
    ) -> Graph:
        """Warm ``run`` up on a side stream, then capture it.

        Args:
            run: Takes nothing, reads static inputs; called :data:`WARM_UPS` times or more, then once under capture.
            device: Where its work happens.
            pool: From :meth:`new_pool`.
            generators: Random generators other than the default one whose state the graph must advance.

        Raises:
            CaptureError: It waits for the device or does something else that cannot be captured.
        """

    def capture_training(
        self, run: TensorFunction, samples: tuple[Tensor, ...], device: torch.device
    ) -> TensorFunction:
        """Capture forward and backward of ``run``, which takes ``samples`` and returns differentiable tensors.

        The function returned is one autograd node. Its outputs and the gradients it hands back are static: both are
        overwritten by the next call. It takes tensors like ``samples``; those at the same address are not copied.

        Raises:
            CaptureError: As for :meth:`capture`.
        """
