import copy
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusionadvisor.flow.record import record
from fusionadvisor.recipe import Step, perform
from fusionadvisor.report.codec import from_dict, to_dict
from fusionadvisor.strategies import leaves
from fusionadvisor.strategies.attend import attend, written_out
from fusionadvisor.strategies.base import Subject
from fusionadvisor.strategies.horizontal import Horizontal
from fusionadvisor.strategies.sdpa import Sdpa
from tests.strategies.subjects import applied, reasons, subject

HEADS, WIDTH = 4, 16


class Attention(nn.Module):
    """Subclasses say how weights and values are made of q, k and v."""

    kv_heads = HEADS

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, 4 * self.kv_heads), nn.Linear(WIDTH, 4 * self.kv_heads)
        self.scale = 4**-0.5
        self.drop = nn.Dropout(0.3)
        self.register_buffer("mask", torch.full((32, 32), -math.inf).triu(1))

    def heads(self, x: Tensor, count: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], count, 4).transpose(1, 2)

    def forward(self, x: Tensor) -> Any:
        q = self.heads(self.q(x), HEADS)
        k, v = self.heads(self.k(x), self.kv_heads), self.heads(self.v(x), self.kv_heads)
        return self.o(self.attend(q, k, v).transpose(1, 2).reshape(x.shape))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(4), dim=-1) @ v


class Causal(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        n = q.shape[2]
        scores = torch.matmul(q, k.transpose(2, 3)) * self.scale
        allowed = torch.ones(n, n, dtype=torch.bool).tril()
        return F.softmax(scores.masked_fill(~allowed, float("-inf")), dim=-1).matmul(v)


class Boolean(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        hidden = k.sum((1, 3)) > 6
        hidden = (hidden & ~hidden.all(-1, keepdim=True))[:, None, None]
        return (q @ k.mT / 2).masked_fill(hidden, -1e9).softmax(-1) @ v


class Kept(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        scores = (q * self.scale) @ k.permute(0, 1, 3, 2)
        n = q.size(-2)
        return torch.softmax(torch.where(self.mask[:n, :n] == 0, scores, -math.inf), -1) @ v  # type: ignore[index]


class Additive(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores + self.mask[: q.shape[2], : q.shape[2]]  # type: ignore[index]
        return torch.softmax(scores, dim=-1) @ v


class Unscaled(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v


class Dropping(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        weights = F.dropout(torch.softmax(0.5 * (q @ k.transpose(-2, -1)), dim=-1), 0.2, self.training)
        return self.drop(weights) @ v


class Grouped(Attention):
    kv_heads = 2

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        return F.softmax(q @ k.transpose(2, 3) / 2, dim=-1, dtype=torch.float32).to(q.dtype) @ v


class Expanded(Attention):
    kv_heads = 2

    def repeat(self, x: Tensor) -> Tensor:
        b, h, n, d = x.shape
        return x[:, :, None, :, :].expand(b, h, 2, n, d).reshape(b, h * 2, n, d)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return F.softmax(q @ self.repeat(k).transpose(2, 3) / 2, dim=-1) @ self.repeat(v)


class Unpacked(Attention):
    def heads(self, x: Tensor, count: int) -> Tensor:
        rows = x.size()[:-1]
        return x.view(*rows, count, 4).transpose(1, 2)

    def forward(self, x: Tensor) -> Any:
        q, k, v = (self.heads(layer(x), HEADS) for layer in (self.q, self.k, self.v))
        return self.o(self.attend(q, k, v).transpose(1, 2).reshape(*x.shape[:2], -1))


class Halves(Attention):
    """Attends in pieces of two: how many there are follows from the length of the input."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return torch.cat([super(Halves, self).attend(part, k, v) for part in torch.split(q, 2, dim=2)], dim=2)


class Wrapped(nn.Module):
    """Around it, what torch.fx cannot trace."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.mean() < 50 else x


def given(kind: Callable[[], nn.Module], **more: Any) -> Subject:
    torch.manual_seed(0)
    return subject(Wrapped(kind()).eval(), (6, WIDTH), **more)


def ops(model: nn.Module, x: Tensor) -> list[str]:
    with torch.no_grad():
        return [op.name for op in record(lambda: model(x), model).ops]


class DeadRows(Attention):
    """The first row sees nothing: with a finite fill a softmax gives every key the same weight."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        n = q.shape[2]
        hidden = torch.ones(n, n, dtype=torch.bool).triu(0)
        return torch.softmax((q @ k.transpose(-2, -1) / 2).masked_fill(hidden, -1e9), dim=-1) @ v


VARIANTS = (DeadRows, Attention, Causal, Boolean, Kept, Additive, Unscaled, Dropping, Grouped, Expanded, Unpacked)


def test_a_softmax_without_attention_around_it_is_named() -> None:
    class Einsum(Attention):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
            return torch.einsum("bhqk,bhkd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v)

    plan = Sdpa().plan(given(Einsum))
    assert (plan.sites, plan.refused) == ((), ())
    assert plan.notes == (
        "No products of a query, a key and a value (@, matmul, bmm) are around the softmax in inner.",
    )


def test_what_is_unpacked_in_another_number_for_other_sizes_runs_the_modules_own_code() -> None:
    found = given(Halves)
    candidate, plan = applied(Sdpa(), found)
    assert plan.sites, reasons(plan)
    for length, own in ((6, 0), (7, 1), (8, 2)):
        x = torch.randn(2, length, WIDTH)
        with torch.no_grad():
            torch.testing.assert_close(candidate(x), found.model(x))
        assert leaves.counts(candidate)["inner"].own.total() == own


def test_tensors_of_another_rank_run_the_modules_own_code() -> None:
    class Shaped(Unpacked):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x.flatten(1, -2)).view(*x.shape[:-1], -1)

    found = given(Shaped)
    candidate, plan = applied(Sdpa(), found)
    assert plan.sites
    x = torch.randn(2, 3, 6, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(candidate(x), found.model(x))
    assert not any("scaled_dot_product" in name for name in ops(candidate, x))


@pytest.mark.parametrize("kind", VARIANTS)
def test_written_out_attention_is_fused(kind: type[Attention]) -> None:
    found = given(kind)
    candidate, plan = applied(Sdpa(), found)
    assert [site.name for site in plan.sites] == ["inner"], reasons(plan)
    x = torch.randn(3, 9, WIDTH)
    names = ops(candidate, x)
    assert any("scaled_dot_product" in name for name in names)
    assert "aten::_softmax" in ops(found.model, x)
    with torch.no_grad():
        torch.testing.assert_close(candidate(x), found.model(x), rtol=1e-5, atol=1e-5)
    if kind.kv_heads != HEADS:
        assert plan.sites[0].data["attentions"][0][1] is True
    assert candidate.state_dict().keys() == found.model.state_dict().keys()


@pytest.mark.parametrize("kind", VARIANTS)
def test_it_is_right_in_float64(kind: type[Attention]) -> None:
    torch.manual_seed(1)
    model = kind().double().eval()
    plan = Sdpa().plan(subject(model, (5, WIDTH)))
    if kind is Grouped:
        assert "computed in torch.float32 where the query is torch.float64" in reasons(plan)
        return
    candidate = Sdpa().rewrite(copy.deepcopy(model), plan, subject(model, (5, WIDTH)))
    x = torch.randn(4, 7, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(candidate(x), model(x), rtol=1e-12, atol=1e-12)


class Returned(Attention):
    def forward(self, x: Tensor) -> Any:
        q, k, v = (self.heads(layer(x), HEADS) for layer in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(-2, -1) / 2, dim=-1)
        return self.o((weights @ v).transpose(1, 2).reshape(x.shape)), weights


class Averaged(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        weights = torch.softmax(q @ k.transpose(-2, -1) / 2, dim=-1)
        return weights @ v + weights.mean()


class OverQueries(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return torch.softmax(q @ k.transpose(-2, -1) / 2, dim=-2) @ v


class AlwaysDropping(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return F.dropout(torch.softmax(q @ k.transpose(-2, -1) / 2, dim=-1), 0.2) @ v


class SoftMask(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        return torch.softmax((q @ k.transpose(-2, -1) / 2).masked_fill(hidden, -10.0), dim=-1) @ v


class MaskScaled(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        bias = q.mean(-1, keepdim=True)
        return torch.softmax((q @ k.transpose(-2, -1) + bias) / 2, dim=-1) @ v


class PerHead(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.rand(HEADS, 1, 1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return torch.softmax(q @ k.transpose(-2, -1) * self.temperature, dim=-1) @ v


class Upcast(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        weights = F.softmax(q @ k.transpose(-2, -1) / 2, dim=-1, dtype=torch.float64)
        return weights.to(q.dtype) @ v


class Branching(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        weights = torch.softmax(q @ k.transpose(-2, -1) / 2, dim=-1)
        return weights @ v if q.sum() > 0 else weights.mT @ v


class Remembering(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        self.last = torch.softmax(q @ k.transpose(-2, -1) / 2, dim=-1)
        return self.last @ v


class InPlace(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        scores = q @ k.transpose(-2, -1)
        scores.mul_(0.5)
        return torch.softmax(scores, dim=-1) @ v


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Returned, "returned or kept"), (Averaged, "weights are also read elsewhere"),
        (OverQueries, "softmax is over dimension -2"), (AlwaysDropping, "applied in evaluation too"),
        (SoftMask, "fills with -10"), (MaskScaled, "scale"),
        (Branching, "cannot be captured"), (Remembering, "kept"), (InPlace, "writes in place"),
    ],
)  # fmt: skip
def test_twins_that_mean_something_else_are_refused(kind: type[Attention], reason: str) -> None:
    plan = Sdpa().plan(subject(kind().eval(), (6, WIDTH)))
    assert not plan.sites
    assert reason in reasons(plan)


def test_training_with_dropout_is_refused_and_without_is_not() -> None:
    training = subject(Dropping(), (6, WIDTH), mode="training")
    assert "other random numbers" in reasons(Sdpa().plan(training))
    model = Additive()
    plan = Sdpa().plan(subject(model, (6, WIDTH), mode="training"))
    candidate = Sdpa().rewrite(copy.deepcopy(model), plan, training)
    x = torch.randn(2, 6, WIDTH)
    model(x).sum().backward()
    candidate(x).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(candidate.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-5)


def test_back_in_training_the_modules_own_code_runs() -> None:
    model = Dropping().eval()
    candidate, _ = applied(Sdpa(), subject(model, (6, WIDTH)))
    x = torch.randn(2, 6, WIDTH)
    for each in (model, candidate):
        each.train()
    torch.manual_seed(3)
    want = model(x)
    torch.manual_seed(3)
    assert torch.equal(candidate(x), want)
    candidate.eval()
    assert "aten::_softmax" not in ops(candidate, x)
    candidate.drop.train()  # type: ignore[union-attr]
    assert "aten::_softmax" in ops(candidate, x)


def test_another_kind_of_call_runs_the_modules_own_code() -> None:
    class Optional(Attention):
        def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
            q, k, v = (self.heads(layer(x), HEADS) for layer in (self.q, self.k, self.v))
            scores = q @ k.transpose(-2, -1) / 2
            if bias is not None:
                scores = scores + bias
            return self.o((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(x.shape))  # type: ignore[no-any-return]

    model = Optional().eval()
    plain, plan = applied(Sdpa(), subject(model, (6, WIDTH)))
    assert len(plan.sites) == 1
    x, bias = torch.randn(2, 6, WIDTH), torch.randn(6, 6)
    with torch.no_grad():
        torch.testing.assert_close(plain(x, bias), model(x, bias))
        torch.testing.assert_close(plain(x, bias=bias), model(x, bias=bias))
        torch.testing.assert_close(plain(x, None), model(x, None))


@pytest.mark.parametrize("masking", ["add", "fill", "keep"])
@pytest.mark.parametrize("fill", [-math.inf, -1e9])
def test_rows_masked_entirely_give_what_the_formula_gives(masking: str, fill: float) -> None:
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(0)
    mask = {"fill": hidden, "keep": ~hidden, "add": torch.zeros(5, 5, dtype=torch.float64).masked_fill(hidden, fill)}[
        masking
    ]
    got = attend(q, k.mT, v, mask, scale=2.0, divided=True, masking=masking, fill=fill)
    want = written_out(q, k, v, mask, 2.0, True, masking, fill)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-9, atol=1e-9)


def test_shapes_that_broadcast_are_computed_as_written() -> None:
    q, k, v = torch.randn(2, 3, 5, 4), torch.randn(1, 3, 4, 5), torch.randn(3, 5, 4)
    torch.testing.assert_close(attend(q, k, v, scale=0.5), torch.softmax(q @ k * 0.5, -1) @ v)


def test_the_plan_survives_as_json_and_is_done_again() -> None:
    found = given(Additive)
    plan = Sdpa().plan(found)
    step = Step("sdpa", {}, plan.sites)
    import json

    again = from_dict(Step, json.loads(json.dumps(to_dict(step))))
    made = perform(copy.deepcopy(found.model), [again], device="cpu")
    x = torch.randn(2, 6, WIDTH)
    assert any("scaled_dot" in name for name in ops(made, x))
    other = copy.deepcopy(found.model)
    other.inner = Attention()
    assert "is no Additive here" in Sdpa().recheck(other, plan)


def test_both_orders_with_horizontal() -> None:
    found = given(Causal)
    fused, _ = applied(Sdpa(), found)
    merged, plan = applied(Horizontal(), subject(fused, (6, WIDTH)))
    assert len(plan.sites) == 1
    other, _ = applied(Horizontal(), found)
    both, plan = applied(Sdpa(), subject(other, (6, WIDTH)))
    assert len(plan.sites) == 1
    x = torch.randn(2, 6, WIDTH)
    for model in (merged, both):
        names = ops(model, x)
        assert names.count("aten::addmm") == 2
        assert "aten::_softmax" not in names


def test_capturing_leaves_torch_compile_able_to_take_factories() -> None:
    code = (
        "import torch; from torch import nn; from fusionadvisor.strategies import leaves\n"
        "class M(nn.Module):\n"
        "    def forward(self, x): return x + torch.ones(x.shape[0], 1)\n"
        "leaves.trace(M(), {})\n"
        "print(torch.compile(M(), backend='eager', fullgraph=True)(torch.zeros(2, 1)).tolist())\n"
    )
    said = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[[1.0], [1.0]]\n"


class Named(nn.Module):
    """Called by names, one of them for what is not there: a capture holds that argument to None."""

    def forward(self, hidden: Tensor, head_mask: Tensor | None = None) -> Any:
        weights = torch.softmax(hidden @ hidden.transpose(-2, -1) / 8**0.5, -1)
        if head_mask is not None:
            weights = weights * head_mask
        return weights @ hidden


class CallsByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Named()

    def forward(self, x: Tensor) -> Any:
        return self.attention(hidden=x.view(x.shape[0], 2, -1, 8), head_mask=None)


def test_an_argument_given_by_name_and_held_to_none() -> None:
    _, plan = applied(Sdpa(), subject(CallsByName().eval(), (12, 8)))
    assert [site.members for site in plan.sites] == [("attention",)]
