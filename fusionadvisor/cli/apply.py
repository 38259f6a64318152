"""``fusion-advisor apply``."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusionadvisor.cli import completion
from fusionadvisor.cli.options import Outputs, Workloads, grouped, how_option, out_option

if TYPE_CHECKING:
    from fusionadvisor.report.model import Report


AUTO = "auto"
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Goal(StrEnum):
    """What the search for the best combination improves."""

    latency = "latency"
    throughput = "throughput"
    memory = "memory"


@grouped
def apply(
    workloads: Workloads,
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="As for profile; default: the target profiled last in this folder."),
    ] = None,
    strategy: Annotated[
        str,
        how_option(
            "--strategy",
            "-s",
            metavar="NAME[,NAME…]",
            autocompletion=completion.strategies,
            help="Strategies to apply, in this order; auto searches for the best combination. See: list strategies.",
        ),
    ] = "",
    site: Annotated[
        str | None, how_option("--site", metavar="MODULE", help="Change only this module, if the strategy allows it.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        how_option(
            "--set",
            metavar="STRATEGY.NAME=VALUE",
            autocompletion=completion.parameters,
            help="A parameter of a strategy; repeatable.",
        ),
    ] = None,
    user_pass: Annotated[
        str | None, how_option("--pass", metavar="FILE.py:FN", help="With fx: a graph pass of your own.")
    ] = None,
    timeout: Annotated[
        float, how_option("--timeout", metavar="SECONDS", min=1, help="Time limit of one attempt, without the profile.")
    ] = 300.0,
    budget: Annotated[
        str | None,
        how_option(
            "--budget",
            metavar="TIME",
            help="With auto: time limit of the search, e.g. 120s or 5m; the profile and the final check are extra.",
        ),
    ] = None,
    goal: Annotated[Goal, how_option("--goal", help="With auto: what to improve.")] = Goal.latency,
    save: Annotated[
        Path | None, out_option("--save", metavar="DIR", help="Write a recipe of the strategies that were kept.")
    ] = None,
    *,
    outputs: Outputs,
) -> int:
    """Apply fusion strategies to a copy of the model, verify its outputs, and measure the speed-up."""
    from fusionadvisor.cli import last
    from fusionadvisor.cli.output import Output, working
    from fusionadvisor.errors import InputError

    names = _strategies(strategy, () if target else last.offered(Path.cwd()))
    parameters = _parameters(names, site, [*(settings or ()), *_pass(names, user_pass)])
    budget_s = _budget(names, budget, goal)
    output, batches = Output.checked(outputs), workloads.batches()
    if len(batches) > 1:
        raise InputError("apply runs at one batch size.", f"Give one, for example --batch {batches[-1]}.")
    if save is not None:
        from fusionadvisor import recipe

        recipe.check_folder(save)  # before the model is built
    if target is None:
        from fusionadvisor.render import labels

        workload = replace(last.load(Path.cwd()), trust=workloads.trust)
        sys.stderr.write(f"last profile: {labels.target(workload)}\n")
    else:
        from fusionadvisor.workload.resolve import resolve

        workload = resolve(target, **workloads.keywords(), batch=next(iter(batches), None))
    from fusionadvisor import advisor

    with working() as say:
        report = advisor.optimize(
            workload, names, parameters=parameters, timeout_s=timeout, save=save, budget_s=budget_s, goal=goal.value,
            progress=say,
        )  # fmt: skip
    # strategies that auto dropped were not asked for, and those that Ctrl-C prevented did not fail
    code = _lost(report) if names == [AUTO] or report.interrupted else _exit_code(report)
    return output.finish(report, code)


def _pass(names: Sequence[str], given: str | None) -> list[str]:
    """Spell ``--pass`` as the parameter it is, its file by its whole path: a recipe is loaded from another folder."""
    from fusionadvisor.errors import InputError

    if given is None:
        return []
    if "fx" not in names:
        raise InputError("--pass needs the strategy fx.", "Add --strategy fx.")
    file, colon, name = given.rpartition(":")
    return [f"fx.passes={Path(file).resolve()}:{name}" if colon else f"fx.passes={given}"]


def _strategies(given: str, offered: Sequence[str]) -> list[str]:
    """Return the names given; without any, the error names those that the last profile recommends."""
    from fusionadvisor import strategies
    from fusionadvisor.cli.output import each_once
    from fusionadvisor.errors import InputError, did_you_mean

    known = {name.lower(): name for name in (*strategies.ids(), AUTO)}
    names = each_once("--strategy", [name.strip().lower() for name in given.split(",") if name.strip()])
    if not names and offered:
        raise InputError(
            f"No strategy was named; the last profile recommends {', '.join(offered)}.",
            f"Add --strategy {offered[0]}, or --strategy auto to try them all.",
        )
    if not names:
        raise InputError("No strategy was named.", f"Add --strategy with one or more of: {', '.join(known.values())}.")
    for name in names:
        if name not in known:
            raise InputError(f"No strategy is called '{name}'.", did_you_mean(name, tuple(known.values())))
    if AUTO in names and len(names) > 1:
        raise InputError("auto cannot be combined with other strategies.", "Give --strategy auto alone, or only names.")
    return [known[name] for name in names]


def _budget(names: list[str], given: str | None, goal: Goal) -> float | None:
    """Return the seconds that auto may search, None for its own."""
    from fusionadvisor.errors import InputError

    if names != [AUTO] and (given is not None or goal is not Goal.latency):
        raise InputError("--budget and --goal need --strategy auto.", "Add --strategy auto.")
    if given is None:
        return None
    text = given.strip().lower()
    number, unit = (text[:-1], _SECONDS[text[-1]]) if text[-1:] in _SECONDS else (text, 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"--budget '{given}' is not a time.", "Write --budget 120s, or 5m.")
    return seconds


def _parameters(names: list[str], site: str | None, given: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the strategies' parameters as typed, by strategy; checked here, before any work is done."""
    from fusionadvisor import strategies
    from fusionadvisor.errors import InputError, did_you_mean

    found: dict[str, dict[str, str]] = {}
    for setting in given:
        name, equals, value = setting.partition("=")
        strategy, dot, parameter = name.strip().partition(".")
        if not (equals and dot):
            raise InputError(f"--set '{setting}' is not understood.", "Write --set cudagraph.max_graphs=4.")
        if strategy not in names or strategy == AUTO:
            raise InputError(f"--set '{setting}' names a strategy that is not applied.", did_you_mean(strategy, names))
        found.setdefault(strategy, {})[parameter] = value.strip()
    if site is not None:
        confined = [name for name in names if name != AUTO and hasattr(strategies.get(name), "site")]
        if not confined:
            raise InputError(f"--site: {', '.join(names)} cannot be confined to a module.", "Leave it out.")
        for name in confined:
            found.setdefault(name, {})["site"] = site
    for name, parameters in found.items():
        strategies.get(name, parameters)
    return found


def _exit_code(report: "Report") -> int:
    """Say on standard error which strategies could not be had, and return the code that means it."""
    from fusionadvisor import catalog
    from fusionadvisor.cli.output import fail
    from fusionadvisor.errors import EnvironmentUnfitError, StrategyError
    from fusionadvisor.render import labels

    codes = [0]
    for attempt in report.attempts:
        if not labels.failed(attempt):
            continue
        unfit = (
            attempt.outcome == "not_tried" and not report.environment.gpu and catalog.entry(attempt.strategy).needs_cuda
        )
        kind = EnvironmentUnfitError if unfit else StrategyError
        codes.append(fail(kind(f"{attempt.strategy} {labels.ENDED[attempt.outcome]}. {attempt.reason}".rstrip())))
    return max(codes)


def _lost(report: "Report") -> int:
    """Say on standard error that a requested recipe was lost, and return the code that means it; 0 otherwise."""
    from fusionadvisor.cli.output import fail
    from fusionadvisor.errors import StrategyError
    from fusionadvisor.report.model import LOST

    return max((fail(StrategyError(w.message)) for w in report.warnings if w.code == LOST), default=0)
