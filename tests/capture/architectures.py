"""Models of many architectures, small, built from their configurations: what predictions are tested on."""

from functools import partial
from typing import Any

import torch
from torch import nn

from fusionadvisor.capture.predicted.stream import Factory

TOKENS, BATCH = 16, 2

_LLAMA = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_BERT = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
_IMAGE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    # name: (class of transformers' models, its configuration)
    "llama": ("LlamaForCausalLM", _LLAMA),
    "mistral": ("MistralForCausalLM", _LLAMA),
    "qwen2": ("Qwen2ForCausalLM", _LLAMA),
    "gemma": ("GemmaForCausalLM", {**_LLAMA, "head_dim": 16}),
    "gemma2": ("Gemma2ForCausalLM", {**_LLAMA, "head_dim": 16}),
    "phi": ("PhiForCausalLM", _LLAMA),
    "phi3": ("Phi3ForCausalLM", _LLAMA),
    "olmo": ("OlmoForCausalLM", _LLAMA),
    "stablelm": ("StableLmForCausalLM", _LLAMA),
    "mixtral": ("MixtralForCausalLM", {**_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        {**_LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "shared_expert_intermediate_size": 64},
    ),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gpt_neox": ("GPTNeoXForCausalLM", _BERT),
    "opt": ("OPTForCausalLM", {
        "vocab_size": 128, "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 64, "word_embed_proj_dim": 64}),
    "bloom": ("BloomForCausalLM", {"vocab_size": 128, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "falcon": ("FalconForCausalLM", {
        "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}),
    "bert": ("BertForSequenceClassification", _BERT),
    "roberta": ("RobertaForMaskedLM", _BERT),
    "electra": ("ElectraForMaskedLM", {**_BERT, "embedding_size": 64}),
    "albert": ("AlbertForMaskedLM", {**_BERT, "embedding_size": 32}),
    "distilbert": ("DistilBertForMaskedLM", {
        "vocab_size": 128, "dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64}),
    "deberta": ("DebertaV2ForMaskedLM", {**_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "t5": ("T5ForConditionalGeneration", {
        "vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", {
        "vocab_size": 128, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 64}),
    "whisper": ("WhisperForConditionalGeneration", {
        "vocab_size": 128, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "num_mel_bins": 16,
        "max_source_positions": 32, "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 1}),
    "mamba": ("MambaForCausalLM", {
        "vocab_size": 128, "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2, "conv_kernel": 4}),
    "vit": ("ViTForImageClassification", _IMAGE),
    "deit": ("DeiTForImageClassification", _IMAGE),
    "beit": ("BeitForImageClassification", _IMAGE),
    "dinov2": ("Dinov2ForImageClassification", {**_IMAGE, "mlp_ratio": 2}),
    "swin": ("SwinForImageClassification", {
        "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}),
    "convnext": ("ConvNextForImageClassification", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}),
    "resnet": ("ResNetForImageClassification", {
        "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}),
    "regnet": ("RegNetForImageClassification", {
        "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8}),
    "mobilenet_v2": ("MobileNetV2ForImageClassification", {"depth_multiplier": 0.35, "image_size": 32}),
    "segformer": ("SegformerForSemanticSegmentation", {
        "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32],
        "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
        "decoder_hidden_size": 32}),
    "wav2vec2": ("Wav2Vec2ForCTC", {
        "vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4, "apply_spec_augment": False}),
    "clip": ("CLIPModel", {
        "text_config": {**_BERT, "max_position_embeddings": 32, "eos_token_id": 2}, "vision_config": _IMAGE,
        "projection_dim": 32}),
}  # fmt: skip

_PICTURES = frozenset(
    {"vit", "deit", "beit", "dinov2", "swin", "convnext", "resnet", "regnet", "mobilenet_v2", "segformer"}
)
_CLASSIFIERS = _PICTURES - {"segformer"} | {"bert"}


def build(name: str) -> nn.Module:
    """The model of a name in :data:`CONFIGS`."""
    import transformers

    class_name, config = CONFIGS[name]
    kind = getattr(transformers, class_name)
    model: nn.Module = kind(kind.config_class(**config))
    return model


def inputs(name: str, training: bool) -> dict[str, torch.Tensor]:
    """What the model of that name is called with; with labels for training."""
    ids = torch.arange(BATCH * TOKENS).reshape(BATCH, TOKENS) % 100 + 3
    given: dict[str, torch.Tensor]
    if name in _PICTURES:
        given = {"pixel_values": torch.zeros(BATCH, 3, 32, 32)}
    elif name == "wav2vec2":
        given = {"input_values": torch.zeros(BATCH, 1600)}
    elif name == "whisper":
        given = {"input_features": torch.zeros(BATCH, 16, 64), "decoder_input_ids": ids}
    elif name == "clip":
        given = {"input_ids": ids, "pixel_values": torch.zeros(BATCH, 3, 32, 32)}
    elif name in ("t5", "bart"):
        given = {"input_ids": ids, "decoder_input_ids": ids}
    else:
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if training and name in _CLASSIFIERS:
        given["labels"] = torch.zeros(BATCH, dtype=torch.int64)
    elif training and name == "segformer":
        given["labels"] = torch.zeros(BATCH, 32, 32, dtype=torch.int64)
    elif training and name == "clip":
        given["return_loss"] = True  # type: ignore[assignment]
    elif training:
        given["labels"] = ids % 30 if name == "wav2vec2" else ids
    return given


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> torch.Tensor:
    """One training step on the model's own loss."""
    optimizer.zero_grad()
    loss: torch.Tensor = model(**batch).loss
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of the training steps."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def source(name: str, *, training: bool) -> Factory:
    """What another process needs to build the model and run it."""
    if training:
        return Factory(partial(build, name), partial(inputs, name, True), "training", step, adamw)
    return Factory(partial(build, name), partial(inputs, name, False))
