"""Let activations write into their input, where nobody looks at it again."""

from torch import nn

from fusionadvisor.flow.graph import FlowGraph, ModuleCall
from fusionadvisor.report.model import Refusal, Source
from fusionadvisor.strategies.base import Plan, Site, Strategy, Subject
from fusionadvisor.strategies.legality import observe
from fusionadvisor.strategies.legality.temporary import overwritable
from fusionadvisor.strategies.modules import Sharing, blocker, unfit

_ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.SiLU, nn.Mish, nn.Hardtanh, nn.Hardswish,
    nn.Hardsigmoid,
)  # fmt: skip
_TRAINABLE = (nn.ReLU, nn.ReLU6, nn.LeakyReLU)
"""Activations whose backward needs only their result."""


class InPlace(Strategy):
    """Do activations in place.

    ## What it does
    Sets ``inplace`` on activation modules, so that they overwrite their input instead of writing a new tensor.

    ## When it helps
    Memory: one activation less is alive. Time where allocation or the cache is what limits: seldom on a GPU.

    ## When it refuses
    The input is the model's own input, a parameter or a view, or is expanded; it is read later, returned or kept;
    another path through the source might use it again; in training, what made the input or what else read it needs it
    for the backward pass. Hooks, subclasses and shared modules.

    ## Example
    ```
    fusion-advisor apply model.py --strategy inplace
    ```
    """

    id = "inplace"
    order = 30

    def plan(self, subject: Subject) -> Plan:
        """Look at every activation that is not in place yet."""
        if reason := blocker(subject.model):
            return Plan(blocker=reason)
        sharing, code = Sharing(subject.model), observe.read(subject.model)
        sites: list[Site] = []
        refused: list[Refusal] = []
        for path, module in subject.model.named_modules():
            if not isinstance(module, _ACTIVATIONS) or module.inplace:
                continue
            if not any(graph.calls_of(path) for graph in subject.graphs):
                continue
            reason, where = _refusal(subject, path, module, sharing, code)
            if reason:
                refused.append(Refusal(path, f"{reason}.", where))
            else:
                sites.append(Site(path, (path,), data={"module": path, "class": type(module).__name__}))
        return Plan(tuple(sites), tuple(refused))

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Set the flag on every site."""
        for site in plan.sites:
            model.get_submodule(site.data["module"]).inplace = True  # type: ignore[assignment]
        return model

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """The same activations must be there, without hooks."""
        if reason := blocker(model):
            return reason
        known = dict(model.named_modules())
        for site in plan.sites:
            path = site.data["module"]
            if type(known.get(path)).__name__ != site.data["class"]:
                return f"{path} is no {site.data['class']} here."
            if reason := unfit(known[path], path, _ACTIVATIONS):
                return f"{reason}."
        return ""


def _refusal(
    subject: Subject, path: str, module: nn.Module, sharing: Sharing, code: observe.Code
) -> tuple[str, Source | None]:
    if reason := unfit(module, path, _ACTIVATIONS) or sharing.of(module, path):
        return reason, None
    if subject.mode == "training" and type(module) not in _TRAINABLE:
        return f"the backward pass of {path} needs its input", None
    for graph in subject.graphs:
        for call in graph.calls_of(path):
            if reason := _flow(subject.model, graph, call, subject.mode == "training"):
                return reason, Source(call.source.file, call.source.line) if call.source else None
    return overwritable(code, module, path).reason, None


def _flow(model: nn.Module, graph: FlowGraph, call: ModuleCall, training: bool) -> str:
    value = graph.values[call.inputs[0]]
    producer = graph.producer(value.id)
    if value.role != "activation" or producer is None:
        return f"the input of {call.module} exists outside the model ({value.role} {value.name})".replace(" )", ")")
    # of more than two dimensions a linear layer returns a view of its product, which nobody else holds
    if producer.view and type(model.get_submodule(producer.module)) is not nn.Linear:
        return f"the input of {call.module} is a view ({producer.name})"
    if any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.strides, strict=True)):
        return f"the input of {call.module} is expanded: several elements share one place in memory"
    if graph.escapes(value.id):
        return f"the input of {call.module} is also returned or kept"
    for alias in graph.aliases_of(value.id):
        for op in graph.consumers(alias):
            inside = call.first_op <= op.index < call.end_op
            if op.index >= call.end_op or (training and not inside):
                return f"the input of {call.module} is also read by {op.name}"
    return ""
