"""The rows as tables."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.zoo import models
from fusionadvisor import strategies
from fusionadvisor.evaluate import bench
from fusionadvisor.report.model import Speedup

RESULTS = Path(__file__).parents[1] / "results"
OUTCOMES = (
    "faster",
    "equivalent",
    "slower",
    "inconclusive",
    "diverged",
    "no_effect",
    "refused",
    "not_tried",
    "timed_out",
    "crashed",
)
Plain = dict[str, Any]


def write(folder: Path) -> None:
    """Merge the rows of a folder into ``results/zoo.json`` and ``results/zoo.md``; without any, judge those anew."""
    found = [folder / f"{name}.{mode}.json" for name, mode in models.rows()]
    rows = [json.loads(path.read_text()) for path in found if path.exists()]
    rows = [judged(row) for row in rows or json.loads((RESULTS / "zoo.json").read_text())]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "zoo.json").write_text(json.dumps([_short(row) for row in rows], indent=1) + "\n")
    (RESULTS / "zoo.md").write_text("\n".join(_page(rows)) + "\n")


def judged(row: Plain) -> Plain:
    """A row with the verdicts that its recorded intervals have by the tool's rule of today."""
    made = {name: _judged(attempt) for name, attempt in row["strategies"].items()}
    return {**row, "strategies": made}


def _judged(attempt: Plain) -> Plain:
    if not attempt.get("speedup"):
        return attempt
    middle, low, high, least, most = attempt["speedup"]
    verdict = bench.verdict(Speedup(middle, (low, high), (least, most)))
    before, after = attempt["ops"]
    less = after < before and not strategies.get(attempt["strategy"]).terminal
    reason = attempt["reason"] if attempt["outcome"] == verdict else "Judged again from the recorded interval."
    return {**attempt, "outcome": verdict, "kept": bench.keeps(verdict, less), "reason": reason}


def _short(row: Plain) -> Plain:
    """A row without what can be measured again from it."""
    auto = {key: value for key, value in row.get("auto", {}).items() if key not in ("steps", "attempts")}
    return {**row, **({"auto": auto} if auto else {})}


def brief(row: Plain) -> str:
    """A row in a line, for whoever waits."""
    outcomes = [
        f"{name}:{made['outcome']}{' WRONG' if made.get('check', {}).get('wrong') else ''}"
        for name, made in row.get("strategies", {}).items()
        if made["outcome"] not in ("no_effect", "not_tried")
    ]
    auto = row.get("auto", {})
    crashes = f" CRASHED {row['crashes'][0][:300]}" if row["crashes"] else ""
    return f"{row['name']} {row['mode']}: {' '.join(outcomes)}; auto {auto.get('kept')} {auto.get('speedup')}{crashes}"


def _page(rows: list[Plain]) -> Iterator[str]:
    checks = list(_checks(rows))
    wrong = [text for text, found in checks if found.get("wrong")]
    crashes = [f"{row['name']}, {row['mode']}: {crash.splitlines()[0]}" for row in rows for crash in row["crashes"]]
    names = {row["name"] for row in rows}
    searched = [row for row in rows if "auto" in row]
    commits = sorted({row["commit"] for row in rows} | {row["searched"]["commit"] for row in searched})
    forward = (found for text, found in checks if text.split(", ")[1] == "inference")
    outcomes = [m["outcome"] for row in rows for m in row["strategies"].values() if m.get("speedup")]
    worst = max((found["candidate"] for found in forward if "candidate" in found), default=0.0)
    yield from (
        "# The tool on architectures nobody here wrote",
        "",
        f"{len(names & set(models.CONFIGS))} architectures of transformers 4.49, small and with random weights, and "
        f"{len(names - set(models.CONFIGS))} samples: {len(rows)} rows, of which {len(searched)} went through `auto` "
        f"and `compile` as well. Measured on two shared CPU cores with other work on them, one thread, torch 2.13, in "
        f"CPU time; no GPU was at hand, so nothing here says what a GPU gains. Commits: {', '.join(commits)}.",
        "",
        f"**Wrong outputs: {len(wrong)}. Crashes of the tool: {len(crashes)}.** {len(checks)} rewritten models were "
        "compared with their originals once more, by code that shares nothing with the tool's verification, in "
        f"float64 and on inputs it had not seen (largest relative error in inference {worst:.1e}).",
        "",
        *(f"- wrong: {text}" for text in wrong),
        *(f"- crashed: {text}" for text in crashes),
        ""
        if wrong or crashes
        else "The models are small and the machine was busy: a call is overhead for the most part, and the band of "
        f"two equal copies is wide: {outcomes.count('inconclusive')} of {len(outcomes)} measurements are inconclusive, "
        "and none of those is kept. Verdicts are derived from the recorded intervals by the tool's rule; rows measured "
        "before that rule was made are judged by it again, not measured again.",
        "",
        "Where the tool found other outputs and refused:",
        "",
        *_diverged(rows),
        "",
        "`channels_last` rounds batch norms otherwise in training on the CPU, as its page says. levit with a batch of "
        "two is chaotic: its own float32 run is five digits off float64 in the third step.",
        "",
        f"Not measured: `auto` and `compile` on the other {len(rows) - len(searched)} rows, as each takes a minute or "
        "two here.",
        "",
        "## Strategies by outcome",
        "",
        "| strategy | mode | " + " | ".join(OUTCOMES) + " |",
        "|---|---|" + "---:|" * len(OUTCOMES),
        *_outcomes(rows),
        "",
        "## Rows",
        "",
        "`ops` on the CPU and `kernels` predicted for an H100, of one step; findings with their number of places; "
        "strategies that found something to rewrite, with places, outcome, and the speed-up where measured; `auto` "
        "with what it kept and the speed-up (95 % interval; band of two equal copies).",
        "",
        "| model | mode | ops | kernels | findings | strategies | auto |",
        "|---|---|---:|---:|---|---|---|",
        *map(_line, rows),
        "",
        "## Why strategies refuse",
        "",
        *_reasons(rows),
        "",
        "## Left out",
        "",
        *(f"- {name}: {reason}" for name, reason in models.LEFT_OUT.items()),
        "",
        "In inference only: " + "; ".join(f"{name} ({reason})" for name, reason in models.INFERENCE_ONLY.items()) + ".",
    )


def _diverged(rows: list[Plain]) -> Iterator[str]:
    for row in rows:
        for name, made in row["strategies"].items():
            if made["outcome"] == "diverged":
                yield f"- `{name}` on {row['name']}, {row['mode']}: {made['reason'][:1].lower()}{made['reason'][1:]}"


def _checks(rows: list[Plain]) -> Iterator[tuple[str, Plain]]:
    for row in rows:
        for name, made in (*row["strategies"].items(), ("auto", row.get("auto", {}))):
            if "check" in made:
                wrong = made["check"].get("wrong", made["check"].get("error", ""))
                yield f"{row['name']}, {row['mode']}, {name}: {wrong}", made["check"]


def _outcomes(rows: list[Plain]) -> Iterator[str]:
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        for name, made in row["strategies"].items():
            counts[name, row["mode"]][made["outcome"]] += 1
        if "auto" in row:
            counts["auto", row["mode"]]["faster" if row["auto"].get("kept") else "inconclusive"] += 1
    for (name, mode), found in sorted(counts.items(), key=lambda item: (item[0][0] == "auto", item[0])):
        yield f"| {name} | {mode} | " + " | ".join(str(found[o] or "") for o in OUTCOMES) + " |"


def _line(row: Plain) -> str:
    profile, predicted, auto = row.get("profile", {}), row.get("predict", {}), row.get("auto")
    findings = " ".join(f"{rule}×{n}" if n > 1 else rule for rule, n in sorted(profile.get("findings", {}).items()))
    tried = [
        f"{name} {made['sites'][0]} {made['outcome']}{_times(made.get('speedup'))}"
        for name, made in row["strategies"].items()
        if made["sites"][0]
    ]
    kept = "" if auto is None else auto.get("error") or " + ".join(auto["kept"]) or "nothing"
    if auto and auto.get("speedup"):
        middle, low, high, least, most = auto["speedup"]
        kept += f" {middle:.2f}× ({low:.2f}–{high:.2f}; {least:.2f}–{most:.2f})"
    cells = (row["name"], row["mode"], profile.get("ops", profile.get("error", "")), predicted.get("kernels", ""))
    return "| " + " | ".join(map(str, (*cells, findings, "; ".join(tried), kept))) + " |"


def _times(speedup: list[float] | None) -> str:
    return f" {speedup[0]:.2f}×" if speedup else ""


def _reasons(rows: list[Plain]) -> Iterator[str]:
    """Every distinct reason, names of modules and numbers apart, with one example and how often it was given."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for name, made in row["strategies"].items():
            for text in (made["reason"], *made["refused"]) if made["outcome"] == "refused" else made["refused"]:
                reason = text.partition(": ")[2] if text in made["refused"] else text
                found[name][_kind(reason)].append(reason)
    for name, reasons in sorted(found.items()):
        yield f"- `{name}`"
        for given in sorted(reasons.values(), key=lambda g: -len(g)):
            yield f"  - {' '.join(given[0].split())} ({len(given)})"


def _kind(reason: str) -> str:
    return re.sub(r"\b[\w/]*\.?[\w.]*[\d_.][\w.]*\b|'[^']*'|\([^)]*\)|\bA[nr]? \w+\b", "#", reason)
