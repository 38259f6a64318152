"""Recipe and artefacts: written by one process, and counted only after another has loaded and verified them."""

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from fusionadvisor import recipe
from fusionadvisor.errors import StrategyError
from fusionadvisor.evaluate import operations
from fusionadvisor.evaluate.verify import verify
from fusionadvisor.files import write_atomically
from fusionadvisor.recipe import Recipe, Step
from fusionadvisor.report.model import Speedup, Verification, Workload
from fusionadvisor.strategies.base import Call
from fusionadvisor.strategies.modules import class_name
from fusionadvisor.workload.copies import duplicate
from fusionadvisor.workload.usercode import what_happened

_EXPORT_FAILURES = (RuntimeError, ValueError, TypeError, AssertionError, AttributeError, NotImplementedError)
"""What torch.export raises on a model it cannot capture; then there is no exported program, and no harm."""

Run = Callable[[nn.Module, Call], object]


def write(
    folder: Path,
    workload: Workload,
    steps: tuple[Step, ...],
    original: nn.Module,
    candidate: nn.Module,
    call: Call,
    speedup: Speedup | None,
    verification: Verification | None,
) -> tuple[tuple[str, ...], str]:
    """Write the artefacts, the loader and, last, the recipe that makes them count.

    Returns:
        Their paths, and in a sentence what is missing among them; empty where nothing is.
    """
    contents, missing = _artefacts(candidate, call, workload.mode == "inference")
    steps, code_files, notes = recipe.with_code(steps)
    files = {name: content for name, (_, content) in contents.items()} | code_files
    for name, content in files.items():
        recipe.make_folder((folder / name).parent)
        write_atomically(folder / name, content)
    artefacts = {name: what for name, (what, _) in contents.items()}
    inference = workload.mode == "inference"
    limits = operations.limits(original, candidate, call, workload.device, inference=inference)
    modules, code = recipe.fingerprint(original)
    made = Recipe(
        steps=steps,
        model=class_name(original),
        inputs=workload.inputs,
        mode=workload.mode,
        device=workload.device,
        versions=dict(recipe.versions()),
        measured=_measured(speedup, verification),
        notes=tuple(dict.fromkeys(f"{step.strategy}: {site.detail}" for step in steps for site in step.sites)) + notes,
        modules=modules,
        code=code,
        artefacts=artefacts,
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        keys=_keys(original, candidate) if "weights.pt" in artefacts else {},
        limits=limits,
    )
    said = " ".join(sentence for sentence in (missing, *notes, operations.told(limits)) if sentence)
    return (*recipe.save(folder, made), *(str(folder / name) for name in files)), said


def load(path: Path, original: nn.Module, calls: tuple[Call, ...], run: Run, device: str) -> Verification:
    """Load the recipe and each of its artefacts, and verify each against the original."""
    made = recipe.read(path)
    found = recipe.apply_recipe(original, path, example_inputs=calls[0])
    verification = verify(original, found, calls, run, device=device)
    if verification.verdict != "agrees":
        return verification
    for name in made.artefacts:
        file = recipe.check_file(made, path.parent, name)
        if name == "weights.pt":
            candidate = recipe.apply_recipe(_scrambled(original), path, example_inputs=calls[0])
            candidate.load_state_dict(torch.load(file, weights_only=True))
        elif name == "model.ts":
            candidate = torch.jit.load(str(file))  # type: ignore[no-untyped-call]
        else:
            candidate = torch.export.load(file).module()
        # an exported program holds for the shapes it was captured with
        fitting = calls if name != "model.pt2" else tuple(call for call in calls if _alike(call, calls[0]))
        made_of_it = verify(original, candidate, fitting, run, device=device)
        if made_of_it.verdict != "agrees":
            raise StrategyError(f"{name} does not hold what was verified: {made_of_it.reason}.")
    return verification


def _artefacts(candidate: nn.Module, call: Call, inference: bool) -> tuple[dict[str, tuple[str, bytes]], str]:
    """By name what each is and holds; and what is missing among them."""
    if isinstance(candidate, torch.jit.ScriptModule):
        buffer = io.BytesIO()
        torch.jit.save(candidate, buffer)
        return {"model.ts": ("frozen TorchScript archive", buffer.getvalue())}, ""
    buffer = io.BytesIO()
    torch.save(candidate.state_dict(), buffer)
    found = {"weights.pt": ("state dict of the optimised model", buffer.getvalue())}
    compiled = any(module._compiled_call_impl is not None for module in candidate.modules())
    # an exported program holds no compiled code: loading it would run the ops one by one
    if inference and not compiled:
        try:
            found["model.pt2"] = ("exported program for the verified shapes", _exported(candidate, call))
        except _EXPORT_FAILURES as error:
            return found, f"There is no model.pt2: torch.export cannot capture the model ({what_happened(error)})."
    return found, ""


def _exported(candidate: nn.Module, call: Call) -> bytes:
    buffer = io.BytesIO()
    with torch.no_grad():
        program = torch.export.export(candidate, call.args, dict(call.kwargs))
    torch.export.save(program, buffer)
    return buffer.getvalue()


def _keys(original: nn.Module, candidate: nn.Module) -> dict[str, str]:
    before, after = original.state_dict(), candidate.state_dict()
    found = {key: "added" for key in after if key not in before}
    found |= {key: "removed" for key in before if key not in after}
    same = (key for key in before if key in after)
    return found | {key: "changed" for key in same if not torch.equal(before[key].cpu(), after[key].cpu())}


def _measured(speedup: Speedup | None, verification: Verification | None) -> dict[str, str]:
    found = {}
    if speedup is not None:
        low, high = speedup.ci95
        found["speedup"] = f"{speedup.median:.3f}x (95 %: {low:.3f}-{high:.3f})"
        found["two equal copies"] = f"{speedup.aa_band[0]:.3f}-{speedup.aa_band[1]:.3f}x"
    if verification is not None:
        found["outputs"] = f"{verification.verdict} on {verification.inputs} inputs"
    return found


def _scrambled(model: nn.Module) -> nn.Module:
    """A copy with other weights, so that loading the saved ones is what makes it agree."""
    other = duplicate(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    return other


def _alike(call: Call, other: Call) -> bool:
    return [t.shape for _, t in call.tensors()] == [t.shape for _, t in other.tensors()]
