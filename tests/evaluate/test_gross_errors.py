"""Verification on outputs that are wrong in few places, in every precision, and on values that cannot be compared."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusionadvisor.evaluate.leaves import Trained, leaves
from fusionadvisor.evaluate.verify import verify
from fusionadvisor.report.model import Verification
from fusionadvisor.strategies.base import Call

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Wronged(nn.Module):
    """A model whose output something is done to."""

    def __init__(self, model: nn.Module, harm: Callable[[Any], Any]) -> None:
        super().__init__()
        self.model, self.harm = model, harm

    def forward(self, *args: Tensor) -> Any:
        return self.harm(self.model(*args))


def judged(model: nn.Module, other: nn.Module, *calls: Tensor) -> Verification:
    with torch.no_grad():
        return verify(model, other, [Call.of(x) for x in calls], lambda m, c: m(*c.args))


def harmed(model: nn.Module, harm: Callable[[Any], Any], *calls: Tensor) -> Verification:
    return judged(model, Wronged(model, harm), *calls)


def inputs(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.fixture(scope="module")
def logits() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 4096).eval()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0.5, 5.0])
def test_a_few_wrong_elements_of_a_million_are_found(logits: nn.Module, dtype: torch.dtype, size: float) -> None:
    def harm(y: Tensor) -> Tensor:
        y = y.clone()
        y[0, 0, :3] = size
        return y

    found = harmed(logits.to(dtype), harm, inputs(4, 64, 64, dtype=dtype))
    assert found.verdict == "diverges"
    assert "[0, 0" in found.reason or "float64" in found.reason
    assert judged(logits, logits, inputs(4, 64, 64, dtype=dtype)).verdict == "agrees"


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.o, self.wrong = nn.Linear(64, 64), nn.Linear(64, 64), False

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, 4, 16).transpose(1, 2)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        y = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        if self.wrong:
            y = y.clone()
            y[0, 0, -1] = y[0, 1, -1]
        return self.o(y.transpose(1, 2).reshape(batch, length, 64))  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_row_of_one_head_is_found(dtype: torch.dtype) -> None:
    right, wrong = Attention().eval().to(dtype), Attention().eval().to(dtype)
    wrong.wrong = True
    x = inputs(4, 512, 64, dtype=dtype)
    assert judged(right, wrong, x).verdict == "diverges"
    assert judged(right, Attention().eval().to(dtype), x).verdict == "agrees"


def test_a_wrong_row_of_half_precision_is_named_with_its_place() -> None:
    model = Attention().eval().bfloat16()

    def harm(y: Tensor) -> Tensor:
        y = y.clone()
        y[1, 200] = y[1, 201]
        return y

    found = harmed(model, harm, inputs(32, 512, 64, dtype=torch.bfloat16))
    assert "in row [1, 200]" in found.reason
    assert found.row is not None
    assert found.row > 1


def test_what_rounding_alone_may_turn_over_is_no_difference() -> None:
    """A router whose two best experts are a rounding apart: either choice is the original's."""

    class Router(nn.Module):
        def __init__(self, nudge: float) -> None:
            super().__init__()
            self.nudge = nudge
            self.scores = nn.Parameter(torch.tensor([1.0, 1.0 + 2**-8]), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            first, second = (self.scores * x.mean(-1, keepdim=True)).unbind(-1)
            return torch.where((first * (1 + self.nudge) > second)[..., None], x, -x)

    x = torch.ones(64, 16, dtype=torch.bfloat16)
    found = judged(Router(0.0).bfloat16(), Router(2**-7).bfloat16(), x)
    assert (found.verdict, len(found.notes)) == ("agrees", 1)
    assert harmed(Router(0.0).bfloat16(), lambda y: y * 30, x).verdict == "diverges"


def test_float32_is_the_truth_of_half_precision_where_float64_does_not_run() -> None:
    class Picky(nn.Module):
        def __init__(self, error: float = 0.0) -> None:
            super().__init__()
            self.weight, self.error = nn.Parameter(torch.ones(256)), error

        def forward(self, x: Tensor) -> Tensor:
            if x.dtype is torch.float64:
                raise RuntimeError("value cannot be converted to type float without overflow")
            return (x * self.weight * (1 + self.error)).cumsum(-1)

    x = inputs(8, 256, dtype=torch.bfloat16)
    assert judged(Picky().bfloat16(), Picky().bfloat16(), x).rmse_ratio == 1
    assert "its error against" in judged(Picky().bfloat16(), Picky(0.1).bfloat16(), x).reason


@pytest.mark.parametrize(("error", "verdict"), [(0.0, "agrees"), (5.0, "diverges")])
def test_one_wrong_element_of_a_gradient_is_found(error: float, verdict: str) -> None:
    class Steps(nn.Module):
        def __init__(self, error: float) -> None:
            super().__init__()
            self.error = error

        def forward(self, x: Tensor) -> Trained:
            gradient = x.clone()
            gradient[0, 0] += self.error
            return Trained(output=x.sum(), gradients={"w": gradient}, parameters={}, buffers={})

    assert judged(Steps(0.0), Steps(error), inputs(300, 400, dtype=torch.bfloat16)).verdict == verdict


class Slots:
    __slots__ = ("__private", "logits")

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.__private = logits, logits + 1


class Handle:
    """Holds nothing that can be read."""


class Numbered(int):
    note: str


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Held:
    inner: Any


def returns(make: Callable[[Tensor, float], Any], factor: float) -> nn.Module:
    class Returns(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return make(x, factor)

    return Returns()


def numbered(value: int, note: str) -> Numbered:
    found = Numbered(value)
    found.note = note
    return found


@pytest.mark.parametrize(
    ("make", "alike", "other"),
    [
        (lambda x, k: Slots(x * k), "agrees", "diverges"),
        (lambda x, k: Held(Slots(x * k)), "agrees", "diverges"),
        (lambda x, k: deque([x * k]), "agrees", "diverges"),
        (lambda x, k: (x, iter([x * k])), "unchecked", "unchecked"),
        (lambda x, k: (x, (t * k for t in [x])), "unchecked", "unchecked"),
        (lambda x, k: (x, zip([x * k], [x], strict=True)), "unchecked", "unchecked"),
        (lambda x, k: (x, Handle()), "unchecked", "unchecked"),
        (lambda x, k: (x, {x * k}), "unchecked", "unchecked"),
        (lambda x, k: (x, {1, k}), "agrees", "diverges"),
        (lambda x, k: (x, lambda: x * k), "unchecked", "unchecked"),
        (lambda x, k: (x, lambda: k), "agrees", "unchecked"),
        (lambda x, k: (x, np.ones(3) * k), "agrees", "diverges"),
        (lambda x, k: (x, numbered(int(k), "a")), "agrees", "diverges"),
        (lambda x, k: (x, Color(int(k))), "agrees", "diverges"),
        (lambda x, k: (x, None if k == 1 else Handle), "agrees", "diverges"),
        (lambda x, k: (x, torch.empty(3, device="meta") * k), "unchecked", "unchecked"),
        (lambda x, k: torch.nested.nested_tensor([x[0] * k, x[1] * k]), "agrees", "diverges"),
        (lambda x, k: torch.quantize_per_tensor(x * k, 0.1, 0, torch.qint8), "agrees", "diverges"),
        (lambda x, k: (x * k).relu().to_sparse(), "agrees", "diverges"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_never_called_agreeing(
    make: Callable[[Tensor, float], Any], alike: str, other: str
) -> None:
    x = inputs(4, 3, dtype=torch.float32)
    same, wrong = (judged(returns(make, 1.0), returns(make, k), x) for k in (1.0, 2.0))
    assert (same.verdict, wrong.verdict) == (alike, other)
    assert alike == "agrees" or "cannot be compared" in same.reason


def test_an_object_of_another_class_is_not_the_same_output() -> None:
    class Other:
        __slots__ = ("logits",)

        def __init__(self, logits: Tensor) -> None:
            self.logits = logits

    found = judged(returns(lambda x, _: Slots(x), 1.0), returns(lambda x, _: Other(x), 1.0), torch.ones(2, 3))
    assert "output is a Other instead of a Slots" in found.reason


def test_slots_are_walked_by_their_names() -> None:
    assert [path for path, _ in leaves(Slots(torch.ones(1)))] == ["output._Slots__private", "output.logits"]
