"""From what was typed to a workload, with everything that had to be assumed said."""

from collections.abc import Sequence

import torch

from fusionadvisor.flow.frames import construction_watched
from fusionadvisor.report.model import Mode, Workload
from fusionadvisor.workload import program
from fusionadvisor.workload.inputs import parse_specs
from fusionadvisor.workload.target import find_entry, find_inputs, load


def resolve(
    target: str,
    *,
    entry: str | None = None,
    inputs: Sequence[str] = (),
    train: bool = False,
    device: str | None = None,
    seed: int = 0,
    trust: bool = False,
) -> Workload:
    """Find the model and its inputs, and check that they fit by running once.

    Args:
        target: ``file.py``, ``file.py:name``, ``package.module`` or ``package.module:name``.
        entry: The name in it, as after the colon.
        inputs: Specifications such as ``x=float32[8,3,224,224]``, the name optional.
        train: Run training steps: forward, backward and optimizer.
        device: ``cuda`` or ``cpu``; None takes CUDA where there is one.
        seed: For weights and inputs.
        trust: Load checkpoints that run code.

    Raises:
        InputError: In one sentence what is wrong with the target, the model or the inputs.
        EnvironmentUnfitError: The device asked for is not there.
    """
    assumed: list[str] = []
    mode: Mode = "training" if train else "inference"
    where = program.check_device(device) if device else _default_device(assumed)
    with torch.random.fork_rng(devices=[]), construction_watched():
        torch.manual_seed(seed)
        loaded = load(target, entry)
        found = find_entry(loaded)
        asked = Workload(
            target=loaded.text,
            entry=found.name,
            entry_kind=found.kind,
            inputs=parse_specs(inputs),
            inputs_from="--input" if inputs else find_inputs(loaded.module, train) or "",
            mode=mode,
            device=where,
            seed=seed,
            trust=trust,
            assumed=(*loaded.assumed, *assumed),
        )
        return program.settle(asked, loaded, found)


def _default_device(assumed: list[str]) -> str:
    if torch.cuda.is_available():
        return "cuda"
    assumed.append("no CUDA device here: runs on the CPU")
    return "cpu"
