"""The architectures: models of ``transformers`` built small from their configurations, with random weights.

Nothing is downloaded. Each becomes a file as a user would write it (:func:`write`), which the tool is pointed at.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.capture import architectures
from tests.capture.architectures import _BERT, _IMAGE, BATCH, TOKENS

SAMPLES = Path(__file__).parents[2] / "sample_models"

_SEQ2SEQ = {
    "vocab_size": 128, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 64,
}  # fmt: skip
_SPEECH = architectures.CONFIGS["wav2vec2"][1]
_RESNET = {
    "model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 32, 32], "depths": [1, 1, 1, 1],
    "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    **architectures.CONFIGS,
    "deberta_v1": ("DebertaForMaskedLM", {
        **_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "pooler_hidden_size": 64}),
    "pegasus": ("PegasusForConditionalGeneration", _SEQ2SEQ),
    "led": ("LEDForConditionalGeneration", {
        **{k: v for k, v in _SEQ2SEQ.items() if k != "max_position_embeddings"},
        "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": 8}),
    "hubert": ("HubertForCTC", _SPEECH),
    "wavlm": ("WavLMForCTC", {**_SPEECH, "num_buckets": 32, "max_bucket_distance": 64}),
    "speech2text": ("Speech2TextForConditionalGeneration", {
        **_SEQ2SEQ, "input_feat_per_channel": 16, "conv_channels": 32, "max_source_positions": 64,
        "max_target_positions": 64}),
    "efficientnet": ("EfficientNetForImageClassification", {
        "image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320,
        "in_channels": [32, 16], "out_channels": [16, 256], "kernel_sizes": [3, 5], "strides": [1, 2],
        "num_block_repeats": [1, 2], "expand_ratios": [1, 6], "depthwise_padding": []}),
    "mobilevit": ("MobileViTForImageClassification", {
        "image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64]}),
    "levit": ("LevitForImageClassification", {
        "image_size": 64, "hidden_sizes": [16, 32, 48], "num_attention_heads": [2, 2, 3], "depths": [2, 2, 2],
        "key_dim": [8, 8, 8]}),
    "poolformer": ("PoolFormerForImageClassification", {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}),
    "yolos": ("YolosForObjectDetection", {**_IMAGE, "image_size": [32, 32], "num_detection_tokens": 8}),
    "detr": ("DetrForObjectDetection", {
        **{k: v for k, v in _SEQ2SEQ.items() if k not in ("vocab_size", "max_position_embeddings")},
        "num_queries": 8, "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
        "backbone_config": _RESNET}),
    "blip": ("BlipForConditionalGeneration", {
        "text_config": {**_BERT, "encoder_hidden_size": 64, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2,
                        "pad_token_id": 0},
        "vision_config": _IMAGE}),
    "sam": ("SamModel", {
        "vision_config": {
            **{k: v for k, v in _IMAGE.items() if k != "intermediate_size"}, "mlp_dim": 128, "output_channels": 32,
            "global_attn_indexes": [1], "window_size": 2, "num_pos_feats": 16},
        "prompt_encoder_config": {"hidden_size": 32, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
        "mask_decoder_config": {
            "hidden_size": 32, "mlp_dim": 64, "num_attention_heads": 4, "iou_head_hidden_dim": 32}}),
    "timesformer": ("TimesformerForVideoClassification", {**_IMAGE, "num_frames": 2}),
    "videomae": ("VideoMAEForVideoClassification", {**_IMAGE, "num_frames": 2}),
    "perceiver": ("PerceiverForSequenceClassification", {
        "vocab_size": 128, "num_latents": 16, "d_latents": 64, "d_model": 64, "num_blocks": 1,
        "num_self_attends_per_block": 2, "num_self_attention_heads": 4, "num_cross_attention_heads": 4,
        "max_position_embeddings": TOKENS}),
    "xlnet": ("XLNetLMHeadModel", {"vocab_size": 128, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128}),
    "fnet": ("FNetForMaskedLM", {**_BERT, "tpu_short_seq_length": TOKENS}),
    "funnel": ("FunnelForMaskedLM", {
        "vocab_size": 128, "block_sizes": [1, 1], "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128}),
    "squeezebert": ("SqueezeBertForMaskedLM", {**_BERT, "embedding_size": 64}),
    "longformer": ("LongformerForMaskedLM", {**_BERT, "attention_window": 8}),
    "gptj": ("GPTJForCausalLM", {
        "vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 8}),
    "mamba2": ("Mamba2ForCausalLM", {
        "vocab_size": 128, "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2, "conv_kernel": 4, "num_heads": 8,
        "head_dim": 16, "n_groups": 1, "chunk_size": 8}),
    "rwkv": ("RwkvForCausalLM", {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "context_length": 64}),
    "decision_transformer": ("DecisionTransformerModel", {
        "state_dim": 8, "act_dim": 4, "hidden_size": 64, "n_layer": 2, "n_head": 4, "max_ep_len": 64}),
    "patchtst": ("PatchTSTForPrediction", {
        "num_input_channels": 3, "context_length": 32, "prediction_length": 8, "patch_length": 8, "patch_stride": 8,
        "d_model": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_dim": 128}),
}  # fmt: skip
"""Name: class, configuration."""

FIRST = frozenset({
    "train_step", "bert", "llama", "gpt2", "t5", "vit", "resnet", "mixtral", "mamba", "wav2vec2", "swin", "clip", "opt",
})  # fmt: skip
"""Whose training comes before that of the others."""
LAST = frozenset({
    "led", "wavlm", "speech2text", "mobilevit", "poolformer", "yolos", "videomae", "xlnet", "fnet", "funnel",
    "squeezebert", "longformer", "gptj", "mamba2", "rwkv", "decision_transformer", "patchtst",
})  # fmt: skip
"""Measured after all others."""

LEFT_OUT = {
    "encodec, vits, speecht5": "generate noise or a number of frames that depends on values: no two runs compare",
    "mask2former, oneformer, maskformer": "the loss needs scipy's assignment, and their backbones are in the table",
    "reformer": "hashes with random rotations drawn on every call",
    "blip-2, llava, idefics": "a vision tower and a language model that are each in the table, behind one call",
    "qwen2-vl, paligemma": "inputs come from a processor's token layout, which a configuration alone does not give",
    "jamba, zamba, bamba": "their fast paths need the package mamba-ssm; the layers are those of mamba and llama",
    "rag, realm": "need an index to be downloaded",
    "bert-japanese and other tokenizer variants": "the same graph as bert",
}
"""What is not in the table, and why."""

INFERENCE_ONLY = {
    "detr": "its loss needs scipy's assignment",
    "yolos": "its loss needs scipy's assignment",
    "sam": "defines no loss",
    "dpt": "its training loss is not implemented in transformers",
    "decision_transformer": "defines no loss",
    "clap": "the audio tower alone defines no loss",
}

_PICTURES = architectures._PICTURES | {
    "efficientnet", "mobilenet_v1", "mobilevit", "levit", "cvt", "poolformer", "swinv2", "convnextv2", "yolos", "detr",
    "dpt", "glpn",
}  # fmt: skip
_SIDE = {"mobilevit": 64, "levit": 64, "cvt": 64, "poolformer": 64, "detr": 64, "glpn": 64}
_NO_CLASSES = {"segformer", "yolos", "detr", "dpt", "glpn"}
_SPEECH_MODELS = {"wav2vec2", "hubert", "wavlm"}
_SEQ2SEQ_MODELS = {"t5", "bart", "pegasus", "marian", "mbart", "led"}


def build(name: str) -> nn.Module:
    """The model of that name."""
    import transformers

    class_name, config = CONFIGS[name]
    kind = getattr(transformers, class_name)
    model: nn.Module = kind(kind.config_class(**config))
    return model


def inputs(name: str) -> dict[str, torch.Tensor]:
    """Fresh random inputs of the model of that name."""
    ids = torch.randint(3, 100, (BATCH, TOKENS))
    return _FORMS.get(name, _text)(name, ids)


def labelled(name: str) -> dict[str, torch.Tensor]:
    """Inputs with what the model's own loss needs."""
    given = inputs(name)
    ids = given.get("decoder_input_ids", given.get("input_ids", torch.empty(0)))
    if name in ("clip", "siglip"):
        return {**given, "return_loss": torch.tensor(True)}
    if name in _SPEECH_MODELS:
        return {**given, "labels": torch.randint(1, 30, (BATCH, 8))}
    if name == "patchtst":
        return {**given, "future_values": torch.randn(BATCH, 8, 3)}
    if name == "segformer":
        return {**given, "labels": torch.randint(0, 2, (BATCH, 32, 32))}
    if name == "glpn":
        return {**given, "labels": torch.rand(BATCH, 64, 64) + 0.5}
    if name in _PICTURES | {"bert", "perceiver", "timesformer", "videomae"}:
        return {**given, "labels": torch.randint(0, 2, (BATCH,))}
    return {**given, "labels": ids.clone()}


def _text(_: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _picture(name: str, _: torch.Tensor) -> dict[str, torch.Tensor]:
    side = _SIDE.get(name, 32)
    return {"pixel_values": torch.randn(BATCH, 3, side, side)}


def _video(_: str, __: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(BATCH, 2, 3, 32, 32)}


def _waves(_: str, __: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(BATCH, 1600)}


def _translation(_: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "decoder_input_ids": torch.randint(3, 100, ids.shape)}


def _picture_and_text(_: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "pixel_values": torch.randn(BATCH, 3, 32, 32)}


def _trajectory(_: str, __: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "states": torch.randn(BATCH, 8, 8), "actions": torch.randn(BATCH, 8, 4), "rewards": torch.randn(BATCH, 8, 1),
        "returns_to_go": torch.randn(BATCH, 8, 1), "timesteps": torch.randint(0, 60, (BATCH, 8)),
        "attention_mask": torch.ones(BATCH, 8),
    }  # fmt: skip


_FORMS: Mapping[str, Callable[[str, torch.Tensor], dict[str, torch.Tensor]]] = {
    **dict.fromkeys(_PICTURES, _picture),
    **dict.fromkeys(("timesformer", "videomae"), _video),
    **dict.fromkeys(_SPEECH_MODELS, _waves),
    **dict.fromkeys(_SEQ2SEQ_MODELS, _translation),
    **dict.fromkeys(("clip", "siglip", "blip"), _picture_and_text),
    "whisper": lambda _, ids: {"input_features": torch.randn(BATCH, 16, 64), "decoder_input_ids": ids},
    "speech2text": lambda _, ids: {"input_features": torch.randn(BATCH, 64, 16), "decoder_input_ids": ids},
    "sam": lambda _, __: {
        "pixel_values": torch.randn(BATCH, 3, 32, 32), "input_points": torch.rand(BATCH, 1, 2, 2) * 32
    },
    "decision_transformer": _trajectory,
    "patchtst": lambda _, __: {"past_values": torch.randn(BATCH, 32, 3)},
    "clap": lambda _, __: {"input_features": torch.randn(BATCH, 1, 32, 8)},
    **dict.fromkeys(("xlnet", "fnet"), lambda _, ids: {"input_ids": ids}),
}  # fmt: skip

_FILE = '''"""{title}, built small from its configuration."""

import torch

from benchmarks.zoo.models import build, inputs, labelled


def build_model():
    return build("{name}")


def example_inputs():
    return inputs("{name}")
'''
_TRAINING = """

def get_batch():
    return labelled("{name}")


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    return loss
"""


def write(name: str, folder: Path) -> Path:
    """The file a user would have written for that architecture; a sample's own file for a sample."""
    if name not in CONFIGS:
        return SAMPLES / f"{name}.py"
    text = _FILE.format(name=name, title=CONFIGS[name][0])
    if trains(name):
        text += _TRAINING.format(name=name)
    path = folder / f"zoo_{name}.py"
    path.write_text(text)
    return path


def rows() -> list[tuple[str, str]]:
    """All architectures, then the samples, each with the modes it has."""
    names = (*CONFIGS, *sorted(p.stem for p in SAMPLES.glob("*.py")))
    inference = [(name, "inference") for name in names if name != "train_step"]
    training = [(name, "training") for name in names if trains(name)]
    return sorted(inference + training, key=lambda row: (row[0] in LAST, row[1] == "training" and row[0] not in FIRST))


def trains(name: str) -> bool:
    """Whether a training step is defined."""
    return name not in INFERENCE_ONLY if name in CONFIGS else name == "train_step"
