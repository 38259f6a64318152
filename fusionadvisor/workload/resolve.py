"""From what was typed to a workload, with everything that had to be assumed said."""

from collections.abc import Sequence
from pathlib import Path

import torch

from fusionadvisor.errors import InputError
from fusionadvisor.report.model import Mode, Workload
from fusionadvisor.workload import program
from fusionadvisor.workload.inputs import AMP_DTYPES, parse_specs
from fusionadvisor.workload.target import absolute, saved_path

_FILES = (".pt", ".pth", ".npz", ".safetensors")


def resolve(
    target: str,
    *,
    entry: str | None = None,
    inputs: Sequence[str] = (),
    train: bool = False,
    device: str | None = None,
    seed: int = 0,
    trust: bool = False,
    model: str | None = None,
    model_args: Sequence[str] = (),
    batch: int | None = None,
    amp: str | None = None,
    accumulate: int = 1,
) -> Workload:
    """Find the model and its inputs, and check that they fit by running once.

    Raises:
        InputError: In one sentence what is wrong with the target, the model or the inputs.
        EnvironmentUnfitError: The device asked for is not there.
    """
    asked = ask(
        target, entry=entry, inputs=inputs, train=train, device=device, seed=seed, trust=trust, model=model,
        model_args=model_args, batch=batch, amp=amp, accumulate=accumulate,
    )  # fmt: skip
    return program.settle(asked)


def ask(
    target: str,
    *,
    entry: str | None = None,
    inputs: Sequence[str] = (),
    train: bool = False,
    device: str | None = None,
    seed: int = 0,
    trust: bool = False,
    model: str | None = None,
    model_args: Sequence[str] = (),
    batch: int | None = None,
    amp: str | None = None,
    accumulate: int = 1,
    here: bool = True,
) -> Workload:
    """Put what was typed into a workload, without building or running anything.

    Args:
        target: ``file.py``, ``file.py:name``, ``package.module`` or ``package.module:name``; a checkpoint file or
            folder.
        entry: The name in it, as after the colon.
        inputs: Specifications such as ``x=float32[8,3,224,224]``, the name optional; or one file of tensors.
        train: Run training steps: forward, backward and optimizer.
        device: ``cuda`` or ``cpu``; None takes CUDA where there is one.
        seed: For weights and inputs.
        trust: Load checkpoints that run code.
        model: For a checkpoint that holds weights alone, the model they belong to, as a target.
        model_args: ``name=value`` texts to build the model with.
        batch: Batch size to run at instead of the inputs' own.
        amp: Run under autocast to ``bf16`` or ``fp16``.
        accumulate: Batches a training step takes its gradients from.
        here: It is to run on this machine, which has to have its devices.

    Raises:
        InputError: An input or option cannot be read.
        EnvironmentUnfitError: A device asked for is not there.
    """
    assumed: list[str] = []
    mode: Mode = "training" if train else "inference"
    file = _input_file(inputs)
    specs = () if file else parse_specs(inputs)
    if here:
        for text, spec in zip(inputs, specs, strict=not file):
            program.check_device(spec.device or "cpu", f"--input '{text}'")
    return Workload(
        target=str(saved_path(target) or target),
        entry=entry,
        inputs=specs,
        inputs_from=f"--input {file}" if file else "--input" if inputs else "",
        mode=mode,
        device=_device(device, here, assumed),
        seed=seed,
        trust=trust,
        model_from=absolute(model) if model else None,
        model_args=tuple(model_args),
        batch=batch,
        amp=_amp(amp),
        accumulate=accumulate,
        assumed=tuple(assumed),
    )


def entries(target: str, entry: str | None) -> tuple[str | None, ...]:
    """The entries that one name stands for: ``generate`` of a Hugging Face folder for its two phases."""
    from fusionadvisor.workload.huggingface import GENERATE, PHASES

    path = saved_path(target)
    return PHASES if entry == GENERATE and path is not None and (path / "config.json").is_file() else (entry,)


def _input_file(inputs: Sequence[str]) -> Path | None:
    """The file of tensors that was given instead of specifications.

    Raises:
        InputError: It does not exist, or there is something beside it.
    """
    files = [text for text in inputs if text.endswith(_FILES)]
    if not files:
        return None
    if len(inputs) > 1:
        raise InputError(f"--input {files[0]} is a file and stands for all inputs.", "Give it alone.")
    path = Path(files[0]).expanduser()
    if not path.is_file():
        raise InputError(f"--input {path} does not exist.", "Check the path.")
    return path.resolve()


def _amp(amp: str | None) -> str | None:
    if amp is None:
        return None
    if amp not in AMP_DTYPES:
        raise InputError(f"--amp {amp} is no dtype for autocast.", "Use bf16 or fp16.")
    return AMP_DTYPES[amp]


def _device(given: str | None, here: bool, assumed: list[str]) -> str:
    if given:
        return program.check_device(given) if here else given
    if torch.cuda.is_available():
        return "cuda"
    if here:
        assumed.append("no CUDA device here: runs on the CPU")
    return "cpu"
