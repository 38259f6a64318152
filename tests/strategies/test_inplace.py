from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusionadvisor.strategies.base import Subject
from fusionadvisor.strategies.folding import FoldedNorm
from fusionadvisor.strategies.inplace import InPlace
from fusionadvisor.workload.inputs import Call
from tests.strategies.subjects import applied, randomise, reasons, subject

inplace = InPlace()
IMAGE = (4, 6, 6)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Any:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.conv2(out)
        out = self.bn2(out)
        out += x
        out = self.relu(out)
        return {"out": out}


class Sum(Net):
    def forward(self, x: Tensor) -> Any:
        return self.relu(self.conv1(x) + x)


class Functional(Net):
    def forward(self, x: Tensor) -> Any:
        y = F.conv2d(x, self.conv1.weight)
        y = self.relu(y)
        return y if y.sum() > 0 else y * 2


class OfAList(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)])

    def forward(self, x: Tensor) -> Any:
        return self.relu(self.layers[0](x))


class Folded(Net):
    def __init__(self) -> None:
        super().__init__()
        self.bn1 = FoldedNorm()  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Net, Sum, Functional, OfAList, Folded])
def test_overwrites_temporaries(kind: type[nn.Module]) -> None:
    candidate, plan = applied(inplace, subject(randomise(kind()).eval(), IMAGE))
    assert [site.name for site in plan.sites] == ["relu"], reasons(plan)
    assert getattr(candidate.get_submodule("relu"), "inplace")  # noqa: B009
    assert inplace.recheck(kind().eval(), plan) == ""


def test_overwrites_in_a_sequential() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.GELU())
    _, plan = applied(inplace, subject(randomise(model).eval(), IMAGE))
    assert [site.name for site in plan.sites] == ["2", "4"]
    assert "no SiLU here" in inplace.recheck(nn.Sequential().eval(), plan)


class OfInput(Net):
    def forward(self, x: Tensor) -> Any:
        return self.relu(x)


class OfView(Net):
    def forward(self, x: Tensor) -> Any:
        return self.relu(x[:, :2]) + x.sum()


class Rows(nn.Module):
    """Of three dimensions, a linear layer returns a view."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.linear, self.relu = nn.Linear(8, 8, bias=bias), nn.ReLU()

    def forward(self, x: Tensor) -> Any:
        return self.relu(self.linear(x)) + x


@pytest.mark.parametrize("bias", [True, False])
def test_the_view_that_a_linear_layer_returns_may_be_overwritten(bias: bool) -> None:
    given = subject(Rows(bias).eval(), (5, 8))
    assert any(op.view for op in given.graphs[0].ops if op.module == "linear")
    candidate, plan = applied(InPlace(), given)
    assert [site.members for site in plan.sites] == [("relu",)]
    assert candidate.relu.inplace  # type: ignore[union-attr]


class OfParameter(Net):
    def forward(self, x: Tensor) -> Any:
        return x + self.relu(self.conv1.weight).sum()


class OfExpanded(Net):
    def forward(self, x: Tensor) -> Any:
        y = self.conv1(x).mean((2, 3), keepdim=True).expand(x.shape)
        return self.relu(y)


class ReadLater(Net):
    def forward(self, x: Tensor) -> Any:
        y = self.conv1(x)
        return self.relu(y) + y


class ReadLaterThroughView(Net):
    def forward(self, x: Tensor) -> Any:
        y = self.conv1(x)
        z = y[:, 0]
        return self.relu(y).sum() + z.sum()


class Returned(Net):
    def forward(self, x: Tensor) -> Any:
        y = self.conv1(x)
        return self.relu(y), y


class Named(Net):
    def forward(self, x: Tensor) -> Any:
        return getattr(self, "re" + "lu")(self.conv1(x))


class ByKeyword(Net):
    def forward(self, x: Tensor) -> Any:
        return self.relu(input=self.conv1(x))


class InTheMiddle(Net):
    def forward(self, x: Tensor) -> Any:
        y = self.conv1(x)
        z = y.sum()
        y += x
        return self.relu(y) + z


class InALoop(Net):
    def forward(self, x: Tensor) -> Any:
        for y in (self.conv1(x),):
            x = x + self.relu(y)
        return x


class Kept(Net):
    def forward(self, x: Tensor) -> Any:
        self.last = self.conv1(x)
        return self.relu(self.last)


class Sometimes(Net):
    def forward(self, x: Tensor) -> Any:
        y = self.conv1(x)
        z = self.relu(y)
        return z + y if x.sum() > 1e9 else z


class PassesThrough(Net):
    def branch(self, x: Tensor) -> Tensor:
        return self.conv1(x) if x.sum() < 1e9 else x

    def forward(self, x: Tensor) -> Any:
        return self.relu(self.branch(x)) + x


class Aliased(Net):
    def forward(self, x: Tensor) -> Any:
        y = self.conv1(x)
        z = y
        y = self.relu(y)
        return y + z if x.sum() > 1e9 else y


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OfInput, "exists outside the model (input x)"),
        (OfView, "is a view"),
        (OfParameter, "(parameter conv1.weight)"),
        (OfExpanded, "view"),
        (ReadLater, "also read by aten::add"),
        (ReadLaterThroughView, "also read by aten::"),
        (Returned, "returned or kept"),
        (Kept, "returned or kept"),
        (Sometimes, "may use the input of relu again"),
        (PassesThrough, "may give relu a tensor that is used again"),
        (Aliased, "may use the input of relu again"),
        (InTheMiddle, "may use the input of relu again"),
    ],
)
def test_refuses_to_overwrite_what_somebody_may_still_want(kind: type[nn.Module], words: str) -> None:
    plan = inplace.plan(subject(randomise(kind()).eval(), IMAGE))
    assert not plan.sites
    assert words in reasons(plan)


@pytest.mark.parametrize("kind", [Named, ByKeyword, InALoop])
def test_overwrites_however_the_module_is_named(kind: type[nn.Module]) -> None:
    _, plan = applied(InPlace(), subject(randomise(kind()).eval(), IMAGE))
    assert [site.members for site in plan.sites] == [("relu",)]


def test_refuses_after_what_may_return_its_own_input_and_hooks() -> None:
    model = nn.Sequential(nn.Dropout(), nn.ReLU()).eval()
    plan = inplace.plan(subject(model, (4,)))
    assert not plan.sites
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    model[1].register_forward_pre_hook(lambda *_: None)
    assert "hook" in reasons(inplace.plan(subject(model, (4,))))


def test_source_that_cannot_be_read_proves_nothing() -> None:
    made: dict[str, Any] = {"Net": Net}
    exec("class Typed(Net):\n    def forward(self, x):\n        return self.relu(self.conv1(x))", made)
    plan = inplace.plan(subject(randomise(made["Typed"]()).eval(), IMAGE))
    assert "the source of Typed.forward cannot be read, so another use of relu cannot be ruled out" in reasons(plan)


def test_first_in_its_sequential_is_given_what_others_hold() -> None:
    class Around(Net):
        def __init__(self) -> None:
            super().__init__()
            self.tail = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1))

        def forward(self, x: Tensor) -> Any:
            return self.tail(self.conv1(x))

    assert "may use the input of tail.0 again" in reasons(inplace.plan(subject(randomise(Around()).eval(), IMAGE)))


def training(model: nn.Module) -> Subject:
    from fusionadvisor.flow.record import record

    calls = tuple(Call((torch.randn(2, 4),)) for _ in range(3))

    def step(call: Call) -> Tensor:
        loss: Tensor = model(*call.args).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    graphs = tuple(record(lambda c=c: step(c), model, c) for c in calls)  # type: ignore[misc]
    return Subject(model, graphs, calls, mode="training")


class SigmoidFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.relu = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Any:
        return self.relu(torch.sigmoid(self.linear(x)))


def test_training_keeps_what_the_backward_needs() -> None:
    ok = inplace.plan(training(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())))
    assert [site.name for site in ok.sites] == ["2"]
    plan = inplace.plan(training(SigmoidFirst()))
    assert not plan.sites
    plan = inplace.plan(training(nn.Sequential(nn.Linear(4, 4), nn.SiLU())))
    assert "backward pass of 1 needs its input" in reasons(plan)
