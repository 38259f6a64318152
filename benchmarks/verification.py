"""How often verification cries wolf, and what it misses.

Each architecture of the zoo is computed in two ways that differ in rounding alone: without oneDNN, attention written
out, weights in another layout, two threads, twice the batch. A pair that verification calls different is a false alarm.
Then the same outputs with a gross error put in: one element off by the tensor's own size, or a row replaced by another.
An error that verification lets pass is a miss.

    python -m benchmarks.verification [--seeds 3] [--names llama,vit] [--json FILE]
"""

import argparse
import copy
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.zoo import check, models
from fusionadvisor.evaluate.verify import verify
from fusionadvisor.report.model import Verification
from fusionadvisor.strategies.base import Call

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Outputs = list[Tensor]


class Ways(nn.Module):
    """A model whose outputs are its tensors, computed in some way and changed by some error."""

    def __init__(self, model: nn.Module, way: Callable[[nn.Module, dict[str, Any]], Outputs] | None = None) -> None:
        super().__init__()
        self.model, self.way = model, way or plain

    def forward(self, **given: Any) -> Outputs:
        """All tensors of the output."""
        return self.way(self.model, given)


def plain(model: nn.Module, given: dict[str, Any]) -> Outputs:
    """The tensors of a model's output."""
    return list(check.tensors(model(**given)))


def without_onednn(model: nn.Module, given: dict[str, Any]) -> Outputs:
    """By ATen's own products and convolutions."""
    with torch.backends.mkldnn.flags(enabled=False):
        return plain(model, given)


def written_out(model: nn.Module, given: dict[str, Any]) -> Outputs:
    """Attention as a product, a softmax and a product."""
    with sdpa_kernel(SDPBackend.MATH):
        return plain(model, given)


def two_threads(model: nn.Module, given: dict[str, Any]) -> Outputs:
    """Sums are split otherwise."""
    torch.set_num_threads(2)
    try:
        return plain(model, given)
    finally:
        torch.set_num_threads(1)


def other_layout(model: nn.Module, given: dict[str, Any]) -> Outputs:
    """Weights stored by columns, those of convolutions channels-last."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            if weight.dim() == 2 and not isinstance(module, nn.Embedding):
                weight.data = weight.data.t().contiguous().t()
            elif weight.dim() == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    return plain(model, given)


def twice_the_batch(model: nn.Module, given: dict[str, Any]) -> Outputs:
    """The inputs twice, the second half of the outputs left out."""
    size = models.BATCH
    doubled = plain(model, {n: torch.cat([v, v]) if v.dim() and len(v) == size else v for n, v in given.items()})
    if any(2 * size in t.shape[1:] for t in doubled):
        raise RuntimeError("its rows are not independent, or the batch is not their first dimension")
    return [t[:size] if t.dim() and len(t) == 2 * size else t for t in doubled]


WAYS = (without_onednn, written_out, two_threads, other_layout, twice_the_batch)


def one_element(tensor: Tensor, place: int) -> Tensor:
    """One element off by the tensor's own size."""
    wrong = tensor.clone()
    size = tensor[tensor.isfinite()].double().square().mean().sqrt()
    wrong.view(-1)[place % wrong.numel()] += size.to(wrong.dtype)
    return wrong


def one_row(tensor: Tensor, place: int) -> Tensor:
    """One row replaced by the one after it."""
    wrong = tensor.clone()
    rows = wrong.view(-1, wrong.shape[-1])
    at = place % len(rows)
    rows[at] = tensor.reshape(rows.shape)[(at + 1) % len(rows)]
    return wrong


ERRORS = (one_element, one_row)
GROSS = 0.5
"""An error counts as gross where what it changed is off by this much of the tensor's own size or more."""


def wronged(error: Callable[[Tensor, int], Tensor], outputs: Outputs, seed: int) -> Outputs | None:
    """The outputs with an error in the largest tensor; None where it is not gross, as of two rows that are alike."""
    found = [t.contiguous() for t in outputs]
    at = max(range(len(found)), key=lambda i: found[i].numel() if found[i].is_floating_point() else 0)
    own = found[at]
    if own.dim() < 2 or not bool(own.isfinite().all()):
        return None
    found[at] = error(own, 7919 * (seed + 1))
    changed = (found[at] != own).any(-1) if error is one_row else found[at] != own
    off = (found[at] - own)[changed].double()
    gross = off.numel() and float(off.square().mean().sqrt()) >= GROSS * float(own.double().square().mean().sqrt())
    return found if gross else None


def measure(names: list[str], seeds: int) -> Iterator[dict[str, Any]]:
    """One entry for each pair: how it was computed, the verdict, and the largest shares of what is allowed."""
    for name in names:
        base = models.build(name).eval()
        for dtype_name, dtype in DTYPES.items():
            model = copy.deepcopy(base).to(dtype)
            for seed in range(seeds):
                torch.manual_seed(seed)
                given = models.inputs(name)
                call = Call(kwargs={n: v.to(dtype) if v.is_floating_point() else v for n, v in given.items()})
                for kind, way in ways(model, call, seed):
                    found = judged(model, way, call)
                    if found is not None:
                        yield {"model": name, "dtype": dtype_name, "seed": seed, "kind": kind, **told(found)}


def ways(model: nn.Module, call: Call, seed: int) -> Iterator[tuple[str, Any]]:
    """The ways that keep the outputs, then those that put an error in."""
    for way in WAYS:
        yield way.__name__, way
    try:
        with torch.no_grad():
            outputs = plain(model, {n: v.clone() for n, v in call.kwargs.items()})
    except RuntimeError:  # an op that has no such kernel on the CPU
        return
    for error in ERRORS:
        if (wrong := wronged(error, outputs, seed)) is not None:
            yield error.__name__, lambda _, __, wrong=wrong: wrong


def judged(model: nn.Module, way: Any, call: Call) -> Verification | None:
    """The verdict on a pair; None where the model does not run that way."""
    with torch.no_grad():
        try:
            return verify(Ways(model), Ways(model, way), [call], lambda m, c: m(**c.kwargs))
        except (RuntimeError, IndexError):
            return None


def told(found: Verification) -> dict[str, Any]:
    """What is kept of a verdict."""
    shares = {"ratio": found.rmse_ratio, "row": found.row, "element": found.element}
    kept = {key: float(f"{value:.3g}") for key, value in shares.items() if value is not None}
    return {"verdict": found.verdict, "identical": found.max_error == 0, **kept, "reason": found.reason}


def summary(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """False alarms among the pairs, and misses among the errors, by dtype."""
    wrong = {error.__name__ for error in ERRORS}
    found: dict[str, Any] = {}
    for dtype in DTYPES:
        of_dtype = [entry for entry in entries if entry["dtype"] == dtype]
        pairs = [entry for entry in of_dtype if entry["kind"] not in wrong]
        apart = [entry for entry in pairs if not entry["identical"]]
        alarms = [entry for entry in pairs if entry["verdict"] != "agrees"]
        row: dict[str, Any] = {"pairs": len(pairs), "not identical": len(apart), "false alarms": len(alarms)}
        for key in ("ratio", "row", "element"):
            values = sorted(entry[key] for entry in apart if key in entry)
            row[key] = {q: values[min(int(float(q) * len(values)), len(values) - 1)] for q in ("0.5", "0.99", "1")}
        for kind in sorted(wrong):
            errors = [entry for entry in of_dtype if entry["kind"] == kind]
            missed = sum(entry["verdict"] == "agrees" for entry in errors)
            row[kind] = {"errors": len(errors), "missed": missed}
        row["alarms"] = [{k: e[k] for k in ("model", "kind", "seed", "reason")} for e in alarms]
        row["missed"] = sorted({e["model"] for e in of_dtype if e["kind"] in wrong and e["verdict"] == "agrees"})
        found[dtype] = row
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--names", default=",".join(models.CONFIGS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = summary(list(measure(given.names.split(","), given.seeds)))
    text = json.dumps(found, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
