"""The models of three public H100 traces, from their configurations."""

import torch
from torch import nn

OWLV2_CALLS = 5
"""The detector's trace holds five calls, one a label."""


def vit() -> nn.Module:
    """The encoder of a ViT-base with its pooler, as an image classifier's pipeline loads it."""
    from transformers import ViTConfig, ViTModel

    model: nn.Module = ViTModel(ViTConfig()).to(torch.bfloat16)
    return model


def vit_inputs() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.zeros(4, 3, 224, 224, dtype=torch.bfloat16)}


def qwen() -> nn.Module:
    """Qwen1.5 0.5B without its head."""
    from transformers import AutoModel, Qwen2Config

    config = Qwen2Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=2816, num_hidden_layers=24, num_attention_heads=16,
        num_key_value_heads=16,
    )  # fmt: skip
    model: nn.Module = AutoModel.from_config(config, torch_dtype=torch.bfloat16)
    return model


def qwen_inputs() -> dict[str, torch.Tensor]:
    ids = torch.ones(16, 559, dtype=torch.int64)
    return {"input_ids": ids, "attention_mask": ids}


def owlv2() -> nn.Module:
    """OWLv2 large, patch 14, with its text encoder."""
    from transformers import Owlv2Config, Owlv2ForObjectDetection

    text = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    vision = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "image_size": 1008, "patch_size": 14,
    }  # fmt: skip
    config = Owlv2Config.from_text_vision_configs(text, vision, projection_dim=768)
    model: nn.Module = Owlv2ForObjectDetection(config).to(torch.bfloat16)
    return model


def owlv2_inputs() -> dict[str, torch.Tensor]:
    ids = torch.ones(1, 5, dtype=torch.int64)
    return {
        "input_ids": ids,
        "attention_mask": ids,
        "pixel_values": torch.zeros(1, 3, 1008, 1008, dtype=torch.bfloat16),
    }


REBUILT = {
    "tl_h100_vit_nsfw": (vit, vit_inputs),
    "tl_h100_qwen15_05b": (qwen, qwen_inputs),
    "tl_h100_owlv2": (owlv2, owlv2_inputs),
}
