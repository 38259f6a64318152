"""The strategy: runs in ``apply`` and, from a recipe, in production, where torch is all there is."""

from collections.abc import Iterator

from torch import nn

from fusionadvisor.flow.graph import FlowGraph
from fusionadvisor.report.model import Refusal
from fusionadvisor.strategies.base import Plan, Site, Strategy, Subject
from fusionadvisor.strategies.legality import observe
from fusionadvisor.strategies.modules import Sharing, blocker, replace, unfit

_KNOWN = (nn.ReLU,)


class DropRepeats(Strategy):
    """Drop a ReLU that is given the result of a ReLU.

    ## What it does
    Puts `Identity` in the place of a ReLU module that only ever sees the result of another.

    ## When it helps
    Wherever such a pair is: one kernel less, and one pass over the tensor.

    ## When it refuses
    The code does not show that the second ReLU is always given the first one's result, and that nobody else is. Hooks,
    subclasses and shared modules.

    ## Example
    ```
    fusion-advisor apply model.py --strategy drop_repeats
    ```
    """

    id = "drop_repeats"
    order = 20

    def plan(self, subject: Subject) -> Plan:
        """Look at every ReLU that was given a ReLU's result in a recording."""
        if reason := blocker(subject.model):
            return Plan(blocker=reason)
        code = observe.read(subject.model)
        sites, refused = [], []
        for first, second in dict.fromkeys(pair for graph in subject.graphs for pair in _pairs(graph)):
            # a recording shows one path; the code has to show the others
            reason = _unfit(subject.model, first, second) or _alone(subject.model, code, first, second)
            if reason:
                refused.append(Refusal(second, f"{reason}."))
            else:
                sites.append(Site(f"{first} → {second}", (second,), data={"first": first, "second": second}))
        return Plan(tuple(sites), tuple(refused))

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Replace the second ReLU of every site."""
        for site in plan.sites:
            replace(model, site.data["second"], nn.Identity())
        return model

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """Both must be there, as they were."""
        known = dict(model.named_modules())
        for site in plan.sites:
            first, second = site.data["first"], site.data["second"]
            missing = next((path for path in (first, second) if path not in known), None)
            if reason := f"{missing} is not there" if missing else _unfit(model, first, second):
                return f"{reason}."
        return blocker(model)


def _pairs(graph: FlowGraph) -> Iterator[tuple[str, str]]:
    """The ReLU modules of which one was called on the other's result."""
    calls = [call for call in graph.calls if call.class_name == "ReLU"]
    made = {value: call.module for call in calls for value in call.outputs}
    for call in calls:
        if call.inputs and call.inputs[0] in made:
            yield made[call.inputs[0]], call.module


def _alone(model: nn.Module, code: observe.Code, first: str, second: str) -> str:
    """Say why the code does not show that ``second`` alone is given the result of ``first``; empty where it does."""
    verdict = code.feeds(model.get_submodule(first), model.get_submodule(second), (first, second))
    if verdict.flags:  # a strategy that keeps the original beside its rewrite could check them at each call
        flag = min(f"{flag.path}.{flag.name}".lstrip(".") for flag in verdict.flags)
        return verdict.reason or f"{flag} decides whether {second} is given the result of {first} alone"
    return verdict.reason


def _unfit(model: nn.Module, first: str, second: str) -> str:
    if first == second:
        return f"{first} is called on its own result: both calls are one module"
    sharing = Sharing(model)
    for path in (first, second):
        module = model.get_submodule(path)
        if reason := unfit(module, path, _KNOWN) or sharing.of(module, path):
            return reason
    return ""
