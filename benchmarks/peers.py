"""``auto`` beside what else a user could call, on the models of the zoo, in one process and in turns.

    python -m benchmarks.peers [--only NAME ...] [--again] [--folder DIR] [--merge]

The arms: the original, a second copy of it (what this machine makes of nothing), what ``auto`` kept (the steps of the
zoo's row, redone as a recipe does), plain ``torch.compile``, ``torch.jit.freeze`` of a trace, ``fuse`` of
``torch.fx.experimental.optimization``, and ``fuse_modules`` of ``torch.ao`` on what its documentation tells to list:
convolution, batch norm and ReLU where they are registered one after the other. Each arm's outputs are compared with the
original in float64 on inputs nobody saw: fresh ones, another batch size, and a mask with padding where there is one.
An arm that is wrong, fails, or returns something else than the model is no peer to beat; why is told. Needs rows of
``python -m benchmarks.zoo --search``.
"""

import argparse
import copy
import json
import os
import random
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.zoo import check, forked, models
from benchmarks.zoo.one import Plain, commit, named
from fusionadvisor.evaluate.bench import SHORTEST_SAMPLE_S, ratio
from fusionadvisor.evaluate.trial import with_steps
from fusionadvisor.recipe import Step
from fusionadvisor.report.codec import from_dict
from fusionadvisor.workload.program import Program
from fusionadvisor.workload.program import build as build_program
from fusionadvisor.workload.resolve import resolve

RESULTS = Path(__file__).parent / "results"
PEERS = ("compile", "jit.freeze", "fx fuse", "fuse_modules")
ROUNDS = 40
_TRACEABLE = (torch.Tensor, tuple, list, dict)
"""What a trace can return as the model does."""
BEHIND = {
    "mobilevit": "compiling it afresh takes more than the half minute that a search of 120 s has left for each of "
    "its two attempts, on the blocks and on the whole; it ends both, names them as not reached, and says that a "
    "longer budget gives them more",
    "gptj": "compile is refused, as at a batch of one torch 2.13's compiler itself fails on it (its pattern for "
    "attention hands a tensor to a parameter that takes a number); the peer is not called with a batch of one here",
}
"""Why the search ends behind a peer, where that was looked into."""
MODEL_S = 600.0
Inputs = dict[str, torch.Tensor]
Run = Callable[[], object]


# -- the arms ----------------------------------------------------------------------------------------------------------


def compiled(model: nn.Module, _: Inputs) -> nn.Module:
    """``torch.compile`` as it comes."""
    wrapped: nn.Module = torch.compile(model)  # type: ignore[assignment]
    return wrapped


class _Flat(nn.Module):
    """A model that takes its inputs by position and returns a tuple of tensors: what a trace can."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(check.tensors(self.model(**dict(zip(self.names, tensors, strict=True)))))


class _ByName(nn.Module):
    """Calls by name what takes its inputs by position."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **given: torch.Tensor) -> Any:
        return self.inner(*given.values())


def frozen(model: nn.Module, given: Inputs) -> nn.Module:
    """A trace, frozen, of the model made to return a tuple."""
    with torch.no_grad():
        flat = _Flat(model, tuple(given)).eval()
        traced = torch.jit.trace(flat, tuple(given.values()), check_trace=False)  # type: ignore[no-untyped-call]
        return _ByName(torch.jit.freeze(traced))


def fx_fused(model: nn.Module, _: Inputs) -> nn.Module:
    """Convolutions and batch norms fused in a symbolic trace."""
    from torch.fx.experimental.optimization import fuse

    return fuse(model)


def ao_fused(model: nn.Module, _: Inputs) -> nn.Module:
    """``fuse_modules`` on neighbours in order of registration."""
    from torch.ao.quantization import fuse_modules

    lists = list(_neighbours(model))
    if not lists:
        raise ValueError("there is nothing to list: no convolution is registered before a batch norm")
    fused: nn.Module = fuse_modules(model, lists)  # type: ignore[no-untyped-call]
    return fused


def _neighbours(model: nn.Module) -> Iterator[list[str]]:
    for path, parent in model.named_modules():
        children = [(f"{path}.{name}" if path else name, child) for name, child in parent.named_children()]
        for (first, a), (second, b), *rest in zip(children, children[1:], [*children[2:], ("", None)], strict=False):
            if isinstance(a, nn.Conv2d) and isinstance(b, nn.BatchNorm2d):
                third = [name for name, c in rest if isinstance(c, nn.ReLU)]
                yield [first, second, *third]


ARMS: dict[str, Callable[[nn.Module, Inputs], nn.Module]] = {
    "compile": compiled, "jit.freeze": frozen, "fx fuse": fx_fused, "fuse_modules": ao_fused,
}  # fmt: skip


# -- one model ---------------------------------------------------------------------------------------------------------


def compare(name: str, steps: tuple[Step, ...], folder: Path) -> Plain:
    """Build, verify and time every arm. Runs in a process of its own."""
    program = build_program(resolve(str(models.write(name, folder)), device="cpu"))
    draws = list(_draws(name, program))
    given = draws[0]()
    arms: dict[str, nn.Module] = {"original": program.model, "copy": copy.deepcopy(program.model)}
    told: dict[str, str] = {}
    if steps:
        arms["auto"] = with_steps(program, steps)
    for peer, make in ARMS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                arms[peer] = make(copy.deepcopy(program.model), given)
                _call(arms[peer], given)  # some fail only then
                if reason := _wrong(program.model, arms[peer], draws):
                    told[peer] = f"wrong: {reason}"
                elif peer == "jit.freeze" and (kind := type(_call(program.model, given))) not in _TRACEABLE:
                    told[peer] = f"other interface: it returns a tuple where the model returns a {kind.__name__}"
        except Exception as error:  # noqa: BLE001 - how a peer fails is what is asked
            lines = str(error).strip().splitlines() or [""]
            told[peer] = f"fails: {type(error).__name__}: {lines[0][:160]}"
            arms.pop(peer, None)
    if "auto" in arms and (reason := _wrong(program.model, arms["auto"], draws)):
        told["auto"] = f"wrong: {reason}"
    samples = _samples({arm: partial(_call, model, given) for arm, model in arms.items()})
    return {
        "name": name,
        "commit": commit(),
        "auto": [s.strategy for s in steps],
        "told": told,
        **_judged(samples, told),
    }


def _draws(name: str, program: Program) -> Iterator[Callable[[], Inputs]]:
    """Inputs the arms were not made with: others of the same shape, another batch size, padding."""
    if name not in models.CONFIGS:
        yield lambda: named(program, torch.initial_seed())
        if program.batchable:
            yield lambda: named(program, torch.initial_seed(), 3)
        return
    yield partial(models.inputs, name)
    yield lambda: {key: torch.cat([value, value[:1]]) for key, value in models.inputs(name).items()}
    if "attention_mask" in models.inputs(name):
        yield lambda: _padded(models.inputs(name))


def _padded(given: Inputs) -> Inputs:
    mask = given["attention_mask"].clone()
    mask[1, mask.shape[1] // 2 :] = 0
    return {**given, "attention_mask": mask}


def _wrong(original: nn.Module, candidate: nn.Module, draws: list[Callable[[], Inputs]]) -> str:
    kinds = ("fresh inputs", "another batch size", "padding")
    for kind, draw in zip(kinds, draws, strict=False):
        try:
            found = check.outputs_agree(original, candidate, draw, (303,))
        except Exception as error:  # noqa: BLE001 - how a peer fails is what is asked
            lines = str(error).strip().splitlines() or [""]
            return f"{kind}: {type(error).__name__}: {lines[0][:120]}"
        if found.wrong:
            return f"{kind}: {found.wrong}"
    return ""


def _call(model: nn.Module, given: Inputs) -> object:
    with torch.no_grad():
        return model(**given)


def _samples(runs: dict[str, Run]) -> dict[str, list[float]]:
    """Seconds a call of each arm, taken in turns in a new order each round."""
    for run in runs.values():
        for _ in range(10):
            run()
    quickest = min(_seconds(run, 3) for run in runs.values())
    calls = max(1, round(SHORTEST_SAMPLE_S / quickest))
    found: dict[str, list[float]] = {arm: [] for arm in runs}
    draw = random.Random(0)
    for _ in range(ROUNDS):
        for arm in draw.sample(list(runs), len(runs)):
            found[arm].append(_seconds(runs[arm], calls))
    return found


def _seconds(run: Run, calls: int) -> float:
    start = time.process_time()  # one thread computes; of the time that passes, others take their share
    for _ in range(calls):
        run()
    return (time.process_time() - start) / calls


def _judged(samples: dict[str, list[float]], told: dict[str, str]) -> Plain:
    """Each arm against the original, and ``auto`` (the original where it kept nothing) against the best right peer."""
    base, control = samples["original"], samples["copy"]
    ratios = {}
    for arm in ("auto", *PEERS):
        if arm in samples:
            speedup, verdict = ratio(base, control, samples[arm])
            ratios[arm] = [round(x, 3) for x in (speedup.median, *speedup.ci95, *speedup.aa_band)] + [verdict]
    right = {arm: ratios[arm][0] for arm in PEERS if arm in ratios and arm not in told}
    best = max(right, key=right.__getitem__, default=None)
    row: Plain = {"ratios": ratios, "best": best}
    if best is not None:
        # how much faster auto is than that peer, in the same rounds
        peer = samples[best]
        same = [s * b / a for s, a, b in zip(peer, base, control, strict=True)]
        speedup, verdict = ratio(peer, same, samples.get("auto", base))
        row["against"] = [round(x, 3) for x in (speedup.median, *speedup.ci95, *speedup.aa_band)]
        row["verdict"] = {"faster": "ahead", "same": "level", "slower": "behind"}[verdict]
    return row


# -- all of them -------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--again", action="store_true", help="also what was compared already")
    parser.add_argument("--folder", type=Path, default=Path("out/zoo"), help="of the zoo's rows")
    parser.add_argument("--merge", action="store_true", help="only write the table from what there is")
    given = parser.parse_args()
    if not given.merge:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(given.folder.resolve() / "cache"))
        forked.prepare()
        for name, mode in models.rows():
            path = given.folder / f"{name}.peers.json"
            if mode == "inference" and (not given.only or name in given.only) and (given.again or not path.exists()):
                _one(name, given.folder, path)
    write(given.folder)


def _one(name: str, folder: Path, path: Path) -> None:
    zoo = folder / f"{name}.inference.json"
    row = json.loads(zoo.read_text()) if zoo.exists() else {}
    if "auto" not in row:
        return
    steps = tuple(from_dict(Step, step) for step in row["auto"].get("steps", []))
    found = forked.call(partial(compare, name, steps, folder), MODEL_S)
    if isinstance(found, forked.Failed):
        found = {"name": name, "commit": commit(), "failed": f"{found.what}\n{found.trace}".strip()}
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{time.strftime('%H:%M')} {name}: {json.dumps({k: v for k, v in found.items() if k != 'name'})}", flush=True)


# -- the page ----------------------------------------------------------------------------------------------------------


def write(folder: Path) -> None:
    """Write ``results/peers.json`` and ``results/peers.md`` from what there is."""
    found = [folder / f"{name}.peers.json" for name, mode in models.rows() if mode == "inference"]
    rows = [json.loads(path.read_text()) for path in found if path.exists()]
    if rows:
        (RESULTS / "peers.json").write_text(json.dumps(rows, indent=1) + "\n")
        (RESULTS / "peers.md").write_text("\n".join(_page(rows)) + "\n")


def _page(rows: list[Plain]) -> Iterator[str]:
    done = [row for row in rows if "ratios" in row]
    verdicts = Counter(row.get("verdict", "no right peer") for row in done)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    told = [(row["name"], arm, text) for row in done for arm, text in row["told"].items()]
    yield from (
        "# `auto` beside its peers",
        "",
        f"{len(done)} models of the zoo, forward on two shared CPU cores with other work on them, one thread, torch "
        f"2.13; all arms in one process, in turns, {ROUNDS} rounds, CPU time. Ratios are the original's time over the "
        "arm's, from pairs, with the 95 % interval; the band is what two copies of the original differed by. Where "
        "`auto` kept nothing its arm is the original itself.",
        "",
        "The best peer is the fastest whose outputs are right and come as the model returns them. Of the outputs of "
        "transformers, whose attributes callers ask for, a trace makes a tuple: its column shows what changing the "
        "interface as well would bring, and that is no peer.",
        "",
        f"**`auto` against the best right peer: {summary}.**",
        "",
        "| model | auto kept | auto | " + " | ".join(PEERS) + " | band | best right peer | auto over it |",
        "|---|---|---:|" + "---:|" * len(PEERS) + "---|---|---|",
        *map(_line, done),
        "",
        *(
            f"Behind: {row['name']}: {BEHIND.get(row['name'], 'not understood yet')}."
            for row in done
            if row.get("verdict") == "behind"
        ),
        "",
        "## Who is wrong or fails, and why",
        "",
        *_failures(told),
        "",
        *(f"- {row['name']} could not be compared: {row['failed'].splitlines()[0]}" for row in rows if "failed" in row),
    )


def _line(row: Plain) -> str:
    cells = [row["name"], " + ".join(row["auto"]) or "nothing"]
    for arm in ("auto", *PEERS):
        word = row["told"].get(arm, "").partition(":")[0]
        known = row["ratios"].get(arm)
        number = f"{known[0]:.2f} ({known[1]:.2f}–{known[2]:.2f})" if known else ""
        cells.append(f"{number} {word}".strip() or ("1" if arm == "auto" else ""))
    band = next(iter(row["ratios"].values()), [0, 0, 0, 0, 0])[3:5]
    against = row.get("against")
    over = f"{against[0]:.2f} ({against[1]:.2f}–{against[2]:.2f}): {row['verdict']}" if against else ""
    cells += [f"{band[0]:.2f}–{band[1]:.2f}", row["best"] or "none", over]
    return "| " + " | ".join(cells) + " |"


def _failures(told: list[tuple[str, str, str]]) -> Iterator[str]:
    """Each way to be wrong once, with the models it was seen on."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, arm, text in told:
        kind = re.sub(r"[\d.e+-]+|'[^']*'|\(.*", "#", text)
        found.setdefault((arm, kind), []).append((name, text))
    for (arm, _), seen in sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]))):
        names = ", ".join(name for name, _ in seen)
        yield f"- `{arm}` {' '.join(seen[0][1].split())} ({names})"


if __name__ == "__main__":
    # forked processes unpickle what it defines: not as __main__
    import benchmarks.peers

    benchmarks.peers.main()
