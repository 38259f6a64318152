"""A Hugging Face folder as a target: the architecture its config names, its shards, inputs of the sizes it states."""

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from fusionadvisor.errors import EnvironmentUnfitError, InputError, did_you_mean
from fusionadvisor.workload.checkpoint import has_weights, read_shards
from fusionadvisor.workload.inputs import Call, dtype_name
from fusionadvisor.workload.target import Entry, Target
from fusionadvisor.workload.usercode import user_code
from fusionadvisor.workload.weights import fit

LENGTH = 128
"""Tokens of an input where the model takes as many."""
_AUDIO_SAMPLES = 16_000
PHASES = ("prefill", "decode")
GENERATE = "generate"
"""Stands for both phases, each a workload of its own."""
ENTRIES = ("forward", *PHASES)


def open_folder(path: Path, entry: str | None = None, *, trust: bool = False) -> tuple[Target, Entry]:
    """Build the model of a folder and load its weights.

    Args:
        path: Holds ``config.json`` and usually weights.
        entry: ``forward`` (also None), or for a causal language model ``prefill`` or ``decode`` with a static cache.
        trust: Load pickled weights that run code. Code in the folder itself is never run.

    Raises:
        InputError: The config is no model's, needs code of its own, or the weights do not fit.
        EnvironmentUnfitError: transformers is not installed.
    """
    model, config = _build(path)
    said = [f"model {type(model).__name__} from config.json{_typed(config)}"]
    if has_weights(path):
        said += fit(model, read_shards(path, trust=trust), path.name)
    else:
        said.append("random weights: the folder holds none")
    make = _inputs(model, config, entry or "forward")
    said.append("inputs from config.json")
    target = Target(str(path), path.name, ModuleType(path.name), None, said, make_inputs=make)
    return target, Entry(entry or "forward", "pretrained", model)


def _typed(config: Any) -> str:
    return f" in {dtype_name(config.torch_dtype)}" if isinstance(config.torch_dtype, torch.dtype) else ""


def _build(path: Path) -> tuple[nn.Module, Any]:
    try:
        import transformers
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"{path} is a Hugging Face folder, and the package transformers is not installed.",
            "pip install 'fusion-advisor[hf]'",
        ) from error
    try:
        stated = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path / 'config.json'} cannot be read.", "Download it again.") from error
    if "auto_map" in stated:
        raise InputError(
            f"{path.name} needs code of its own ({', '.join(stated['auto_map'].values())}), which is not run.",
            "Import its class in a .py file with a build_model(), and give that file.",
        )
    names = stated.get("architectures") or []
    kind = getattr(transformers, names[0], None) if names else None
    if kind is None or "model_type" not in stated:
        what = (
            f"names the architecture {names[0]}, which transformers {transformers.__version__} lacks"
            if names
            else ("names no architecture")
        )
        raise InputError(f"{path.name}/config.json {what}.", "Give a .py file with a build_model() that loads it.")
    with user_code(f"{path.name} cannot be built"):
        config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
        with _default_dtype(config.torch_dtype):
            return kind(config), config


@contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Build in the dtype that the weights were saved in, as ``from_pretrained(torch_dtype="auto")`` does."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _inputs(model: nn.Module, config: Any, entry: str) -> Callable[[int], Call]:
    """A function that draws the inputs of a call for a batch size."""
    if entry not in ENTRIES:
        raise InputError(f"A Hugging Face model has no entry '{entry}'.", did_you_mean(entry, (*ENTRIES, GENERATE)))
    takes = inspect.signature(model.forward).parameters
    if entry != "forward" and "past_key_values" not in takes:
        raise InputError(f"{type(model).__name__} does not generate text.", "Leave --entry out.")
    if entry == "decode":
        return lambda batch: _decode_call(model, config, batch)
    return lambda batch: Call(kwargs=_forward_inputs(model, config, set(takes), batch))


def _forward_inputs(model: Any, config: Any, takes: set[str], batch: int) -> dict[str, torch.Tensor]:
    text = getattr(config, "text_config", config)
    vision = getattr(config, "vision_config", config)
    main = getattr(model, "main_input_name", "input_ids")
    found: dict[str, torch.Tensor] = {}
    if "pixel_values" in takes:
        side = getattr(vision, "image_size", None) or 224
        height, width = side if isinstance(side, list | tuple) else (side, side)
        found["pixel_values"] = torch.randn(batch, getattr(vision, "num_channels", 3), height, width)
    if "input_features" in takes and main == "input_features":
        frames = 2 * getattr(config, "max_source_positions", 1500)
        found["input_features"] = torch.randn(batch, getattr(config, "num_mel_bins", 80), frames)
    if "input_values" in takes and main == "input_values":
        found["input_values"] = torch.randn(batch, _AUDIO_SAMPLES)
    if "input_ids" in takes:
        found["input_ids"] = _ids(text, batch)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        found["decoder_input_ids"] = _ids(text, batch)
    return found


def _ids(config: Any, batch: int) -> torch.Tensor:
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or LENGTH
    special = getattr(config, "pad_token_id", None) or 0
    # positions of some models start after the padding token's index
    return torch.randint(0, config.vocab_size, (batch, max(1, min(LENGTH, longest - special - 1))))


def _decode_call(model: Any, config: Any, batch: int) -> Call:
    """One token after a context of half the cache."""
    from transformers import StaticCache

    parameter = next(model.parameters())
    context = min(LENGTH, config.max_position_embeddings // 2)
    # beside weights without memory the cache has none either
    with parameter.fake_mode if isinstance(parameter, FakeTensor) else nullcontext():
        cache = StaticCache(
            config=config, max_batch_size=batch, max_cache_len=2 * context, device=parameter.device,
            dtype=parameter.dtype,
        )  # fmt: skip
    position = torch.tensor([context])
    ids = torch.randint(0, config.vocab_size, (batch, 1))
    return Call(kwargs={"input_ids": ids, "past_key_values": cache, "cache_position": position, "use_cache": True})
