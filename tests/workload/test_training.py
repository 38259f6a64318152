"""A training step found by convention does what the user's own loop does."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusionadvisor.errors import InputError
from fusionadvisor.workload.program import Program, build, live
from fusionadvisor.workload.resolve import resolve

NET = """
import torch
import torch.nn.functional as F
from torch import nn

def build_model():
    return nn.Linear(4, 3)
"""
BATCH = "\ndef get_batch():\n    return torch.randn(8, 4), torch.randint(0, 3, (8,))\n"


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def program_of(text: str) -> Program:
    Path("user_training.py").write_text(NET + text)
    return build(resolve("user_training.py", train=True))


def by_hand(program: Program) -> dict[str, torch.Tensor]:
    """The parameters after one step of cross entropy, made without the code under test."""
    model = nn.Linear(4, 3)
    model.load_state_dict(program.model.state_dict())
    images, labels = program.call(1).args
    F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    torch.optim.Adam(model.parameters(), lr=0.1).step()
    return model.state_dict()


STEPS = {
    "train_step": """
def get_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=0.1)
def train_step(model, optimizer, images, labels):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss
""",
    "whole batch": """
def configure_optimizers(net):
    return torch.optim.Adam(net.parameters(), lr=0.1)
def training_step(batch, model, optim):
    images, labels = batch
    optim.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optim.step()
    return loss
""",
    "loss and optimizer": """
loss_fn = nn.CrossEntropyLoss()
def build_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=0.1)
""",
    "loss function": """
def criterion(output, target):
    return F.cross_entropy(output, target)
def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=0.1)
""",
    "loss class": """
class loss_function(nn.CrossEntropyLoss):
    pass
def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=0.1)
""",
}


@pytest.mark.parametrize("style", STEPS)
def test_one_step_is_forward_loss_backward_optimizer(style: str) -> None:
    program = program_of(STEPS[style] + BATCH)
    assert program.model.training
    assert program.workload.mode == "training"
    expected = by_hand(program)
    loss = program.step(program.call(1))
    assert loss.dim() == 0
    for name, value in program.model.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_a_file_without_training_code_trains_on_an_assumed_loss_and_says_so() -> None:
    program = program_of("\ndef example_inputs():\n    return torch.randn(8, 4)\n")
    said = " ".join(program.workload.assumed)
    assert "mean square" in said
    assert "SGD" in said
    before = program.model.weight.detach().clone()  # type: ignore[operator]
    program.step(program.call())
    assert not torch.equal(before, program.model.weight)  # type: ignore[arg-type]


def test_the_workload_is_built_with_untrained_weights() -> None:
    workload = program_of(STEPS["train_step"] + BATCH).workload
    for a, b in zip(build(workload).model.parameters(), build(workload).model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_another_model_gets_an_optimizer_of_its_own() -> None:
    program = program_of(STEPS["train_step"] + BATCH)
    other = nn.Linear(4, 3)
    own = [p.detach().clone() for p in program.model.parameters()]
    before = other.weight.detach().clone()
    program.step(program.call(), other)
    assert not torch.equal(before, other.weight)
    assert all(torch.equal(a, b) for a, b in zip(own, program.model.parameters(), strict=True))


def test_a_module_level_optimizer_is_used_for_its_model_and_made_again_for_another() -> None:
    text = "model = build_model()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.5)\n"
    text += "loss_fn = nn.CrossEntropyLoss()\n"
    Path("user_training.py").write_text(NET + text + BATCH)
    program = build(resolve("user_training.py:model", train=True))
    other = nn.Linear(4, 3)
    other.load_state_dict(program.model.state_dict())
    program.step(program.call(), other)
    program.step(program.call())
    torch.testing.assert_close(other.weight, program.model.weight)


def test_batch_items_are_named_after_the_step() -> None:
    program = program_of(STEPS["train_step"] + BATCH)
    assert [spec.name for spec in program.workload.inputs] == ["images", "labels"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def train_step(optimizer, x):\n    pass\n", "no parameter for the model"),
        ("def train_step(model, optimizer, a, b, c):\n    pass\n", "the batch has 2 items"),
        ("def train_step(model, x, y):\n    return model(y)\n", "fails with the inputs x=float32[8,4], y=int64[8]"),
    ],
)
def test_a_step_that_cannot_be_called(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        program_of(text + BATCH)
    assert said in caught.value.what


def test_a_live_model_trains_with_a_step_of_the_callers() -> None:
    model = nn.Linear(4, 2)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss

    program = live(model, torch.randn(3, 4), mode="training", step=step)
    before = model.weight.detach().clone()
    program.step(program.call())
    assert not torch.equal(before, model.weight)


def test_accumulating_batches_is_one_step_on_their_mean() -> None:
    text = "loss_fn = nn.CrossEntropyLoss()\n"
    text += "def get_optimizer(model):\n    return torch.optim.SGD(model.parameters(), lr=1)\n"
    Path("user_training.py").write_text(NET + text + BATCH)
    steps = [build(resolve("user_training.py", train=True, accumulate=n)) for n in (1, 3)]
    for program in steps:
        program.step(program.call(1))
    one, three = (program.model.state_dict() for program in steps)
    for name, value in one.items():
        torch.testing.assert_close(value, three[name])


def test_accumulating_around_a_whole_step_is_refused() -> None:
    Path("user_training.py").write_text(NET + STEPS["train_step"] + BATCH)
    with pytest.raises(InputError, match="makes a whole step"):
        resolve("user_training.py", train=True, accumulate=2)


def test_autocast_surrounds_forward_and_loss() -> None:
    Path("user_training.py").write_text(NET + STEPS["loss and optimizer"] + BATCH)
    program = build(resolve("user_training.py", train=True, amp="bf16"))
    seen: list[torch.dtype] = []
    program.model.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    program.step(program.call())
    assert seen == [torch.bfloat16]
    assert program.model.weight.dtype is torch.float32
