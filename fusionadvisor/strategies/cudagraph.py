"""CUDA graphs: capture the step once, replay it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from fusionadvisor.errors import EnvironmentUnfitError, InputError, StrategyError, did_you_mean
from fusionadvisor.report.model import Refusal
from fusionadvisor.strategies.base import Call, Plan, Site, Strategy, Subject
from fusionadvisor.strategies.graphs.backend import GraphBackend
from fusionadvisor.strategies.graphs.cuda import CudaGraphBackend
from fusionadvisor.strategies.graphs.replay import MAX_GRAPHS, Counts, GraphedForward, Memory
from fusionadvisor.strategies.graphs.state import contents_kept
from fusionadvisor.strategies.modules import blocker
from fusionadvisor.strategies.preflight import Preflight, arguments_of, parts


@dataclass(frozen=True)
class CudaGraph(Strategy):
    """Capture the model's kernels once as a CUDA graph and replay them with one launch.

    ## What it does

    Replaces the model's forward, or that of the parts named by `site`, with replays. Inputs are copied into static
    tensors, outputs are copied out (`static_outputs=true` hands out the graph's own, which the next call overwrites).
    Every new combination of shapes, dtypes, strides, training flags, autocast and grad mode is captured when it first
    comes, up to `max_graphs`; further ones run eagerly and are counted, as are calls that a graph does not fit. When a
    parameter or buffer was reassigned, the graphs are captured anew. Concurrent callers wait for each other.

    In training, forward and backward are captured by `torch.cuda.make_graphed_callables`, and every backward returns
    gradients of its own, so that they can be accumulated.

    ## When it helps

    When the GPU waits for the CPU to launch kernels: many short kernels, small batches, decoding, old or busy CPUs.
    It removes launches and changes no kernel: where kernels already run back to back, it brings nothing. Each captured
    shape keeps the memory of one whole run.

    ## When it refuses

    - There is no CUDA device. The pre-flight still says whether anything speaks against a graph.
    - Forward waits for the GPU: `.item()`, `.cpu()`, a tensor as a condition, `nonzero`, boolean-mask indexing,
      tensors built from Python data. Each is named with its line.
    - Tensors are made on the CPU in forward, inputs are written in place, shapes or paths depend on data.
    - Forward changes Python state, or a module below has hooks: a graph replays no Python.
    - Training: sparse gradients, buffers that require grad, recomputed activations, a part called twice before its
      backward.

    Double backward through a graphed forward raises. A second forward before the backward of the first runs eagerly.
    Settings of torch (TF32, deterministic algorithms) stay as they were at the capture.

    ## Example

    ```
    $ fusion-advisor apply model.py --strategy cudagraph
    cudagraph   refused: models/decoder.py:88 (decoder.head) reads a value back to the CPU (.item()) during forward;
                a graph can't wait for it. Keep it on the GPU, or graph decoder.layers only: --site decoder.layers.
    $ fusion-advisor apply model.py --strategy cudagraph --site decoder.layers
    ```

    In production, `fusionadvisor.strategies.cudagraph.counts(model)` says how often each graphed part was replayed,
    captured, or run eagerly, and why.
    """

    id: ClassVar[str] = "cudagraph"
    needs_cuda: ClassVar[bool] = True
    order: ClassVar[int] = 90
    changes_ops: ClassVar[bool] = False
    terminal: ClassVar[bool] = True

    site: str = ""
    static_outputs: bool = False
    max_graphs: int = MAX_GRAPHS

    def plan(self, subject: Subject) -> Plan:
        """Look at the recordings, the modules and one watched run; needs no CUDA device.

        Raises:
            InputError: ``site`` is no module of the model.
        """
        sites: list[Site] = []
        refused: list[Refusal] = []
        notes: list[str] = []
        if reason := blocker(subject.model):
            return Plan(blocker=reason)
        preflight = Preflight(subject)
        for path in self._paths(subject.model):
            name = path or type(subject.model).__name__
            verdict = preflight.verdict(path)
            refused += verdict.refusals(name)
            notes += verdict.notes
            if verdict.clear:
                sites.append(Site(name, (path,), data={"path": path, "training": subject.mode == "training"}))
        return Plan(tuple(sites), tuple(refused), notes=tuple(dict.fromkeys(notes)))

    def rewrite(self, model: nn.Module, plan: Plan, subject: Subject) -> nn.Module:
        """Replace the forward of each site; capture at once where there is a call to capture with.

        Raises:
            EnvironmentUnfitError: There is no CUDA device, or the model is not on one.
            StrategyError: A site could not be captured after all.
        """
        if not torch.cuda.is_available():
            raise EnvironmentUnfitError("cudagraph needs a CUDA device, and there is none here.")
        if any(p.device.type != "cuda" for p in model.parameters()):
            raise EnvironmentUnfitError("cudagraph needs the model on a CUDA device.", "Add --device cuda.")
        return self.install(model, plan, subject, CudaGraphBackend())

    def install(self, model: nn.Module, plan: Plan, subject: Subject, backend: GraphBackend) -> nn.Module:
        """What :meth:`rewrite` does, on any backend.

        Raises:
            StrategyError: A site could not be captured after all.
        """
        # static outputs of one part must survive the replays of the next: no shared pool then
        shared = None if self.static_outputs else Memory()
        graphed = []
        for site in plan.sites:
            forward = GraphedForward(
                model.get_submodule(str(site.data["path"])),
                backend,
                training=bool(site.data["training"]),
                static_outputs=self.static_outputs,
                max_graphs=self.max_graphs,
                memory=shared,
            )
            forward.install()
            graphed.append(forward)
        call = arguments_of(subject)
        if call is not None:
            self._prime(model, call, subject.mode == "training", graphed)
        return model

    def _prime(self, model: nn.Module, call: Call, training: bool, graphed: list[GraphedForward]) -> None:
        with contents_kept(model), torch.set_grad_enabled(training):
            model(*call.args, **call.kwargs)
        for forward in graphed:
            if reasons := list(forward.counts.eager):
                for each in graphed:
                    each.remove()
                raise StrategyError(f"The capture failed: {reasons[0]}.")

    def recheck(self, model: nn.Module, plan: Plan) -> str:
        """A recipe names module paths; anything else is checked when the graph is captured."""
        known = {path for path, _ in model.named_modules(remove_duplicate=False)}
        missing = [site.name for site in plan.sites if site.data["path"] not in known]
        return blocker(model) or (f"there is no module {missing[0]}." if missing else "")

    def _paths(self, model: nn.Module) -> list[str]:
        known = {path for path, _ in model.named_modules(remove_duplicate=False)}
        if self.site not in known:
            raise InputError(
                f"The model has no module '{self.site}'.", did_you_mean(self.site, tuple(sorted(known - {""})))
            )
        return parts(model, self.site)


def counts(model: nn.Module) -> dict[str, Counts]:
    """How often each graphed part of a model was replayed, captured, or run eagerly and why, by module path."""
    forwards = {path: vars(module).get("forward") for path, module in model.named_modules()}
    return {path: f.counts for path, f in forwards.items() if isinstance(f, GraphedForward)}
