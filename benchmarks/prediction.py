"""How far predictions are from what an H100 did: kernel counts, and kernel times with one trace left out.

    python -m benchmarks.prediction [counts] [rules] [times] [breadth] [size] [--json FILE]

``counts`` rebuilds the models of three traces from their configurations and compares their kernels. ``rules`` looks up
the ops of recordings on several GPUs by their recorded shapes. ``times`` fits the
constants of the time model to all traces but one and tests them on that one, in turn; a class of kernels that occurs in
no other trace cannot be tested so, and its share of the time is stated. ``breadth`` predicts small models
of many architectures, forward and training. ``size`` predicts a model of 7 billion parameters.
The traces are read from ``../shared/traces``; the models need the extra ``hf``.
"""

import argparse
import json
import re
import resource
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import log
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from fusionadvisor import trace
from fusionadvisor.analysis.dataflow import build
from fusionadvisor.analysis.nodes import Node, Tensor
from fusionadvisor.capture.predict import predict_model
from fusionadvisor.capture.predicted import rules, times
from fusionadvisor.capture.predicted.gpus import named
from fusionadvisor.capture.predicted.kernels import Call, Kernel
from fusionadvisor.capture.predicted.times import PACES, Pace, time_of
from fusionadvisor.flow.graph import Value
from tests.capture import architectures, h100
from tests.capture.worker import predict_all

TRACES = Path(__file__).parents[2] / "shared" / "traces"
H100 = named("h100")
EAGER = ("tl_h100_vit_nsfw", "tl_h100_qwen15_05b", "tl_h100_owlv2")
RECORDED = {
    **dict.fromkeys(EAGER, "h100"),
    "part_a100_eager_bs512": "a100 40gb",
    "ao_b200_ref_ep_moe": "b200",
    "param_v100_dlrm_w0": "v100",
    "kineto_r50_v100_2021_nw0": "v100",
}
"""Eager recordings on NVIDIA GPUs of the table that hold shapes."""
MEMORY_BOUND = frozenset(PACES) - {"gemv"}


# -- counts -----------------------------------------------------------------------------------------------------


def counts() -> dict[str, Any]:
    """Kernels by kind of each rebuilt model and of its trace (linked kernels, one call)."""
    found = {}
    for slug, (model, inputs) in h100.REBUILT.items():
        calls = h100.OWLV2_CALLS if slug == "tl_h100_owlv2" else 1
        recorded = trace.load(TRACES / f"{slug}.json.gz").kernels
        recorded = recorded[recorded["launch_id"] >= 0]
        predicted = predict_model(model, inputs, "h100").timeline.kernels
        by_kind = {
            "recorded": {k: n / calls for k, n in Counter(recorded["kind"].astype(str)).items()},
            "predicted": dict(Counter(predicted["kind"].astype(str))),
        }
        total = {"recorded": len(recorded) / calls, "predicted": len(predicted)}
        found[slug] = {"kernels": total, "by_kind": by_kind, "off": total["predicted"] / total["recorded"] - 1}
    return found


def replayed() -> dict[str, Any]:
    """How many recorded ops launched as many kernels as the rules say from their shapes, convolutions apart."""
    found = {}
    for slug, gpu in RECORDED.items():
        timeline = trace.load(TRACES / f"{slug}.json.gz")
        names, kernels = (timeline.kernels[c].astype(str).tolist() for c in ("op", "name"))
        same, differ = 0, Counter[str]()
        for node in build(timeline).nodes:
            row = node.kernels[0]
            if not node.reads or not node.writes or node.kind == "conv":
                continue
            launched = rules.launched(_call(node, names[row], kernels[row]), named(gpu))
            if len([w for w in launched if isinstance(w, Kernel)]) == len(node.kernels):
                same += 1
            else:
                differ[names[row]] += 1
        found[slug] = {"gpu": gpu, "agree": same, "differ": dict(differ)}
    return found


# -- times ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A recorded kernel with what the rules say of it."""

    kernel: Kernel
    us: float


def samples(slug: str) -> list[Sample]:
    """Every kernel of an op that launched as many as the rules say, with its measured time."""
    timeline = trace.load(TRACES / f"{slug}.json.gz")
    durations = (timeline.kernels["dur_ns"].to_numpy() / 1e3).tolist()
    names = timeline.kernels["op"].astype(str).tolist()
    kernel_names = timeline.kernels["name"].astype(str).tolist()
    found = []
    for node in build(timeline).nodes:
        call = _call(node, names[node.kernels[0]], kernel_names[node.kernels[0]])
        launched = [w for w in rules.launched(call, H100) if isinstance(w, Kernel)]
        if len(launched) == len(node.kernels):
            found += [Sample(w, durations[row]) for w, row in zip(launched, node.kernels, strict=True)]
    return found


def _call(node: Node, op: str, kernel: str) -> Call:
    reads = [_value(t, i) for i, t in enumerate(node.reads)]
    writes = [_value(t, len(reads) + i) for i, t in enumerate(node.writes)]
    if size := re.search(r"CatArray.*OpaqueType<(\d+)u>", kernel):  # a recorded list of tensors has no dtypes
        reads, writes = ([replace(v, itemsize=int(size[1])) for v in group] for group in (reads, writes))
    if op == "aten::copy_":  # as the op is called: what is written comes first
        reads = [*writes, *reads]
    return Call(op.rpartition("::")[2], tuple(reads), tuple(writes), arguments=node.arguments)


def _value(tensor: Tensor, number: int) -> Value:
    strides = tensor.strides
    if strides is None or len(strides) != len(tensor.shape):
        dense = [1]
        for size in reversed(tensor.shape[1:]):
            dense.append(dense[-1] * size)
        strides = tuple(reversed(dense)) if tensor.shape else ()
    return Value(number, number, tensor.shape, tensor.dtype, strides, device="cuda:0", itemsize=tensor.itemsize)


def class_of(kernel: Kernel) -> str:
    """What a kernel's time is predicted with: a pace, and for products whether rows are aligned to 16 bytes."""
    misaligned = kernel.pace == "gemm" and kernel.product is not None and times.alignment(kernel.product) < 1
    return "gemm, misaligned" if misaligned else kernel.pace


def distinct(known: list[Sample]) -> list[tuple[Kernel, float]]:
    """Each kernel once, with the median of its times, so that no model's repeats outweigh another's shapes."""
    taken: dict[Kernel, list[float]] = defaultdict(list)
    for sample in known:
        taken[sample.kernel].append(sample.us)
    return [(kernel, statistics.median(us)) for kernel, us in taken.items()]


def fitted(known: list[Sample]) -> dict[str, Any]:
    """The constants of the time model that fit these kernels best; classes without a sample are left out."""
    kernels = distinct(known)
    classes: dict[str, list[tuple[Kernel, float]]] = defaultdict(list)
    for kernel, us in kernels:
        classes[class_of(kernel)].append((kernel, us))
    pooled = _pace([k for name, group in classes.items() if name in MEMORY_BOUND for k in group], None)
    paces = {name: _pace(group, pooled) for name, group in classes.items() if name in MEMORY_BOUND}
    found: dict[str, Any] = {"PACES": paces}
    if "gemm" in classes:
        grid = ({"GEMM_START_US": t / 4, "GEMM_FRACTION": f / 100} for t in range(8, 33) for f in range(30, 100, 5))
        found |= _best(classes["gemm"], grid)
    if "attention" in classes:
        grid = (
            {"ATTENTION_START_US": t / 2, "ATTENTION_EFFICIENCY": f / 100}
            for t in range(2, 21)
            for f in range(10, 70, 2)
        )
        found |= _best(classes["attention"], grid)
    return found


SHRINK = 0.05
"""How much an error weighs less than leaving the pooled bandwidth: classes seen only in tiny kernels keep it."""


def _pace(known: list[tuple[Kernel, float]], prior: Pace | None) -> Pace:
    def error(pace: Pace) -> float:
        fit = statistics.fmean(abs(times.stream_us(k.bytes, pace, H100) / us - 1) for k, us in known)
        return fit + (SHRINK * abs(log(pace.fraction / prior.fraction)) if prior else 0)

    return min((Pace(t / 10, f / 100) for t in range(10, 60, 2) for f in range(5, 100)), key=error)


def _best(known: list[tuple[Kernel, float]], grid: Iterable[dict[str, Any]]) -> dict[str, Any]:
    def error(constants: dict[str, Any]) -> float:
        with mock.patch.multiple(times, **constants):
            return statistics.fmean(abs(time_of(k, H100).likely_us / us - 1) for k, us in known)

    return min(grid, key=error)


def leave_one_out() -> dict[str, Any]:
    """Errors on each trace of constants fitted to the others.

    Classes of kernels that occur in no other trace cannot be tested so; their share of the trace's time is stated.
    """
    recorded = {slug: samples(slug) for slug in EAGER}
    errors: dict[str, list[float]] = defaultdict(list)
    found: dict[str, Any] = {}
    for slug in EAGER:
        others = [s for other in EAGER if other != slug for s in recorded[other]]
        seen = {class_of(s.kernel) for s in others}
        tested = [s for s in recorded[slug] if s.kernel.pace and class_of(s.kernel) in seen]
        constants = fitted(others)
        with mock.patch.multiple(times, **constants):
            predicted = [(s, time_of(s.kernel, H100).likely_us) for s in tested]
        here: dict[str, list[float]] = defaultdict(list)
        for sample, us in predicted:
            here[_group(sample.kernel)].append(us / sample.us - 1)
        everything, testable = sum(s.us for s in recorded[slug]), sum(s.us for s in tested)
        found[slug] = {
            "median_abs_error": {n: _median_size(e) for n, e in here.items()},
            "kernels": {n: len(e) for n, e in here.items()},
            "total_off": round(sum(us for _, us in predicted) / testable - 1, 4),
            "tested_share_of_time": round(testable / everything, 4),
            "untested": sorted({class_of(s.kernel) or "convolution" for s in recorded[slug]} - seen - {""}),
            "shipped_constants_total_off": round(
                sum(time_of(s.kernel, H100).likely_us for s in recorded[slug]) / everything - 1, 4
            ),
            "constants": _plain(constants),
        }
        for name, values in here.items():
            errors[name] += values
    found["all"] = {
        "median_abs_error": {n: _median_size(e) for n, e in errors.items()},
        "measured_over_predicted": {n: _spread([1 / (1 + e) for e in v]) for n, v in errors.items()},
        "constants fitted to all": _plain(fitted([s for slug in EAGER for s in recorded[slug]])),
    }
    return found


def _group(kernel: Kernel) -> str:
    return "memory-bound" if kernel.pace in MEMORY_BOUND else "attention" if kernel.pace == "attention" else "gemm"


def _median_size(values: list[float]) -> float:
    return round(statistics.median(map(abs, values)), 4)


def _plain(constants: dict[str, Any]) -> dict[str, Any]:
    paces: dict[str, Pace] = constants.pop("PACES")
    return {**{n: [p.start_us, p.fraction] for n, p in sorted(paces.items())}, **constants}


def _spread(ratios: list[float]) -> list[float]:
    tenths = statistics.quantiles(ratios, n=10)
    return [round(tenths[0], 3), round(tenths[4], 3), round(tenths[8], 3)]


# -- breadth and size -------------------------------------------------------------------------------------------


def breadth() -> dict[str, Any]:
    """Kernels of each small architecture, forward and training, or why it was not predicted on the stand-in."""
    sources = {
        f"{name} {mode}": (architectures.source(name, training=mode == "training"), "h100")
        for name in architectures.CONFIGS for mode in ("inference", "training")
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        predicted = predict_all(sources, Path(folder))
    return {
        name: {
            "kernels": len(found.timeline.kernels),
            "syncs": len(found.timeline.syncs),
            "warnings": [w.message for w in found.warnings if "calibrated" not in w.message],
        }
        for name, found in predicted.items()
    }


def llama_7b() -> nn.Module:
    """The configuration of Llama 2 7B."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32
    )
    model: nn.Module = AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16)
    return model


def tokens(training: bool) -> dict[str, torch.Tensor]:
    """One sequence of 2048 tokens."""
    ids = torch.ones(1, 2048, dtype=torch.int64)
    return {"input_ids": ids, "labels": ids} if training else {"input_ids": ids}


def size() -> dict[str, Any]:
    """Seconds and memory that predicting a 7B model takes."""
    found = {}
    for mode in ("inference", "training"):
        train = mode == "training"
        start = time.perf_counter()
        predicted = predict_model(
            llama_7b, partial(tokens, train), "h100", mode=mode,
            step=architectures.step if train else None, optimizer=architectures.adamw if train else None,
        )  # fmt: skip
        took = time.perf_counter() - start
        peaks = [resource.getrusage(who).ru_maxrss / 1e6 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        found[mode] = {
            "kernels": len(predicted.timeline.kernels),
            "seconds": round(took, 1),
            "peak_gb": round(sum(peaks), 2),
        }
    return found


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "counts": counts,
    "rules": replayed,
    "times": leave_one_out,
    "breadth": breadth,
    "size": size,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all without one")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {"torch": torch.__version__, **{part: PARTS[part]() for part in given.parts or PARTS}}
    text = json.dumps(found, indent=1, sort_keys=True)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    # importable by the processes that predict: not as __main__
    import benchmarks.prediction

    benchmarks.prediction.main()
