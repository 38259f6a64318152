"""Folders as Hugging Face saves them: built from their config, loaded strictly, given inputs that fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fusionadvisor.errors import InputError
from fusionadvisor.flow.record import record
from fusionadvisor.workload.program import build
from fusionadvisor.workload.resolve import resolve

transformers = pytest.importorskip("transformers")

TEXT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 60}
VISION = {**{k: v for k, v in TEXT.items() if k != "vocab_size"}, "image_size": 32, "patch_size": 16}


def text(kind: str, model: str, **more: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, model)(getattr(transformers, kind)(**{**TEXT, **more}))


ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "bert": text("BertConfig", "BertModel"),
    "roberta": text("RobertaConfig", "RobertaForMaskedLM", max_position_embeddings=40),
    "distilbert": lambda: transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(dim=16, hidden_dim=32, n_layers=2, n_heads=2, vocab_size=60)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=60, n_positions=64)
    ),
    "llama": text("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": text("Qwen2Config", "Qwen2ForCausalLM", num_key_value_heads=1),
    "opt": lambda: transformers.OPTForCausalLM(
        transformers.OPTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=32, vocab_size=60,
            word_embed_proj_dim=16,
        )
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=60)
    ),
    "vit": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**VISION)),
    "clip": lambda: transformers.CLIPModel(
        transformers.CLIPConfig(text_config={**TEXT, "max_position_embeddings": 20}, vision_config=VISION)
    ),
    "whisper": lambda: transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=60, max_source_positions=50, num_mel_bins=8,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )
    ),
    "resnet": lambda: transformers.ResNetForImageClassification(
        transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    ),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def save(name: str, **options: Any) -> Path:
        torch.manual_seed(1)
        ARCHITECTURES[name]().save_pretrained(tmp_path / name, **options)
        return tmp_path / name

    return save


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_folder_runs_with_inputs_from_its_config(folder: Callable[..., Path], name: str) -> None:
    path = folder(name)
    workload = resolve(str(path), device="cpu")
    assert workload.entry_kind == "pretrained"
    assert workload.inputs
    said = " ".join(workload.assumed)
    assert "from config.json" in said
    assert f"weights from {name}" in said
    own = getattr(transformers, str(workload.model)).from_pretrained(path).eval()
    program = build(workload)
    state = program.model.state_dict()
    for key, value in own.state_dict().items():
        assert torch.equal(state[key], value), key
    call = program.call(seed=1)
    assert f"model {workload.model} from config.json in float32" in workload.assumed
    with torch.no_grad():
        expected = own(**call.kwargs)
    for (_, ours), theirs in zip(tensors(program.step(call)), (t for _, t in tensors(expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


def tensors(tree: Any) -> Any:
    from fusionadvisor.workload.inputs import tensors_in

    return tensors_in(tree)


@pytest.mark.parametrize("save", [{"max_shard_size": "10KB"}, {"safe_serialization": False}])
def test_shards_and_pickled_weights(folder: Callable[..., Path], save: dict[str, Any]) -> None:
    path = folder("llama", **save)
    assert "21 of 21 weights from llama" in resolve(str(path), device="cpu").assumed


@pytest.mark.parametrize("save", [{}, {"max_shard_size": "10KB"}, {"safe_serialization": False}])
def test_weights_of_another_model_or_without_some(
    folder: Callable[..., Path], tmp_path: Path, save: dict[str, Any]
) -> None:
    right, other = folder("llama", **save), folder("gpt2")
    config = json.loads((right / "config.json").read_text())
    (right / "config.json").write_text((other / "config.json").read_text())
    with pytest.raises(InputError, match=r"llama fits GPT2LMHeadModel in 1 of 29 weights; missing: transformer\.wpe"):
        resolve(str(right), device="cpu")
    (right / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(InputError, match=r"in 21 of 30 weights; missing: model.layers.2.self_attn.q_proj.weight"):
        resolve(str(right), device="cpu")


def test_a_missing_shard_is_refused_by_name(folder: Callable[..., Path]) -> None:
    path = folder("llama", max_shard_size="10KB")
    gone = sorted(path.glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(InputError, match=f"lists {gone.name}, which is not there"):
        resolve(str(path), device="cpu")


def test_decode_reads_and_writes_a_static_cache(folder: Callable[..., Path]) -> None:
    path = folder("llama")
    prefill = build(resolve(str(path), entry="prefill", device="cpu"))
    assert [spec.shape for spec in prefill.workload.inputs] == [(1, 128)]
    decode = build(resolve(str(path), entry="decode", device="cpu"))
    assert decode.workload.inputs[0].shape == (1, 1)
    call = decode.call()
    graph = record(lambda: decode.step(call), decode.model, call)
    assert "aten::index_copy_" in {op.name for op in graph.ops if op.mutates}
    assert torch.equal(decode.step(call).logits, decode.step(call).logits)


def test_the_model_has_the_dtype_its_weights_were_saved_in(tmp_path: Path) -> None:
    ARCHITECTURES["llama"]().to(torch.bfloat16).save_pretrained(tmp_path / "half")
    workload = resolve(str(tmp_path / "half"), device="cpu")
    assert "model LlamaForCausalLM from config.json in bfloat16" in workload.assumed
    assert not any("cast" in phrase for phrase in workload.assumed)
    assert {p.dtype for p in build(workload).model.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("entry", ["prefill", "decode"])
def test_a_batch_size_reaches_the_cache(folder: Callable[..., Path], entry: str) -> None:
    program = build(resolve(str(folder("llama")), entry=entry, batch=3, device="cpu"))
    assert program.workload.inputs[0].shape == (3, 128 if entry == "prefill" else 1)
    assert program.step(program.call()).logits.shape[0] == 3
    assert program.step(program.call(batch=5)).logits.shape[0] == 5


def test_a_config_stands_for_its_folder(folder: Callable[..., Path]) -> None:
    path = folder("bert")
    assert resolve(str(path / "config.json"), device="cpu") == resolve(str(path), device="cpu")


def test_a_model_that_does_not_generate_has_no_decode(folder: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="does not generate"):
        resolve(str(folder("vit")), entry="decode", device="cpu")
    with pytest.raises(InputError, match="no entry 'genrate'"):
        resolve(str(folder("llama")), entry="genrate", device="cpu")


def test_a_folder_without_weights_says_so(folder: Callable[..., Path]) -> None:
    path = folder("bert")
    (path / "model.safetensors").unlink()
    assert "random weights: the folder holds none" in resolve(str(path), device="cpu").assumed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"auto_map": {"AutoModel": "modeling_mine.Mine"}}, "needs code of its own"),
        ({"architectures": ["NoSuchModel"]}, "NoSuchModel, which transformers"),
        ({"architectures": []}, "names no architecture"),
        ({"hidden_size": 32}, "in the file and"),
    ],
)
def test_configs_that_do_not_build(folder: Callable[..., Path], change: dict[str, Any], said: str) -> None:
    path = folder("bert")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(InputError) as caught:
        resolve(str(path), device="cpu")
    assert said in str(caught.value)


def test_a_config_that_does_not_read(folder: Callable[..., Path]) -> None:
    path = folder("bert")
    (path / "config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        resolve(str(path), device="cpu")
