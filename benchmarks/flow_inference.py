"""How far a trace's data flow can be guessed from shapes: precision and recall of assumed edges.

    python benchmarks/flow_inference.py [--json benchmarks/flow_inference.json]

Each model runs on the CPU under the profiler and under the recorder of tensor identities. The recorded flow is the
truth; then identity is erased, and edges are assumed from shapes, dtypes, strides and order, as for a trace. An edge is
a pair of kernels (here: CPU ops that do work), the second of which reads what the first made. For a rule, the edges are
those inside the places it matched on assumed flow.

The inference was written with 21 models in view (*tuned*): transformers and residual networks. Those of
``flow_kinds.py`` are of other kinds and were not looked at (*held out*): only their figures say what to expect of a new
trace.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from flow_kinds import Named, kinds
from torch import Tensor, nn

from fusionadvisor.analysis.dataflow import Dataflow
from fusionadvisor.analysis.facts import Facts
from fusionadvisor.capture.live import capture
from fusionadvisor.rules import engine
from fusionadvisor.workload.program import build, live
from fusionadvisor.workload.resolve import resolve

SAMPLES = ("residual_block", "resnet18", "transformer_block", "train_step")
ROOT = Path(__file__).parents[1]
Edges = set[tuple[int, int]]


class Vit(nn.Module):
    """A vision transformer of two layers with its attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norms = nn.Conv2d(3, 64, 8, 8), nn.ModuleList(nn.LayerNorm(64) for _ in range(4))
        self.qkv = nn.ModuleList(nn.Linear(64, 192) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(64, 256) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(256, 64) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.patch(x).flatten(2).transpose(1, 2)
        for i in range(2):
            q, k, v = self.qkv[i](self.norms[2 * i](x)).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
            weights = torch.softmax(q @ k.transpose(-2, -1) * 0.25, dim=-1)
            x = x + self.out[i]((weights @ v).transpose(1, 2).reshape(x.shape))
            x = x + self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](x))))
        return x.mean(1)


class Gpt(nn.Module):
    """Two decoder layers with separate q, k, v of the model's width, tanh-GELU by hand, tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 64)
        self.layers = nn.ModuleList(
            nn.ModuleDict({n: nn.Linear(64, 64) for n in ("q", "k", "v", "o", "up", "down")}) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:  # noqa: D102
        x = self.embed(tokens)
        for i, layer in enumerate(self.layers):
            h = self.norms[2 * i](x)
            q, k, v = (layer[n](h).view(*x.shape[:2], 4, 16).transpose(1, 2) for n in ("q", "k", "v"))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["o"](y.transpose(1, 2).reshape(x.shape))
            h = layer["up"](self.norms[2 * i + 1](x))
            h = 0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * h.pow(3))))
            x = x + layer["down"](h)
        return x @ self.embed.weight.t()


class Llama(nn.Module):
    """Three decoder layers in bf16: RMSNorm by hand in float32, rotary by halves, SwiGLU, every width its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {n: nn.Linear(i, o, bias=False) for n, i, o in (
                    ("q", 64, 64), ("k", 64, 64), ("v", 64, 64), ("o", 64, 64),
                    ("gate", 64, 176), ("up", 64, 176), ("down", 176, 64))}
            )
            for _ in range(3)
        )  # fmt: skip
        self.weights = nn.ParameterList(torch.ones(64) for _ in range(6))

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm in float32."""
        h = x.float()
        return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary embedding by halves."""
        return x * cos + torch.cat((-x[..., 8:], x[..., :8]), dim=-1) * sin

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: D102
        for i, layer in enumerate(self.layers):
            h = self.norm(x, self.weights[2 * i])
            q, k, v = (layer[n](h).view(*x.shape[:2], 4, 16).transpose(1, 2) for n in ("q", "k", "v"))
            y = F.scaled_dot_product_attention(self.rotate(q, cos, sin), self.rotate(k, cos, sin), v, is_causal=True)
            x = x + layer["o"](y.transpose(1, 2).reshape(x.shape))
            h = self.norm(x, self.weights[2 * i + 1])
            x = x + layer["down"](F.silu(layer["gate"](h)) * layer["up"](h))
        return x


class Clip(nn.Module):
    """Two encoder layers with QuickGELU, a scaled query, an added mask and the softmax written out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"q": nn.Linear(64, 64), "k": nn.Linear(64, 64), "v": nn.Linear(64, 64),
                           "o": nn.Linear(64, 64), "up": nn.Linear(64, 256), "down": nn.Linear(256, 64)})
            for _ in range(2)
        )  # fmt: skip
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # noqa: D102
        for i, layer in enumerate(self.layers):
            h = self.norms[2 * i](x)
            q, k, v = (layer[n](h).view(*x.shape[:2], 4, 16).transpose(1, 2) for n in ("q", "k", "v"))
            weights = torch.softmax((q * 0.25) @ k.transpose(-2, -1) + mask, dim=-1)
            x = x + layer["o"]((weights @ v).transpose(1, 2).reshape(x.shape))
            h = layer["up"](self.norms[2 * i + 1](x))
            x = x + layer["down"](h * torch.sigmoid(1.702 * h))
        return x


class UNet(nn.Module):
    """Down, up, a skip connection that is concatenated, GroupNorm and SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.c, self.d = nn.Conv2d(32, 16, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, c) for c in (16, 32, 16))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        a = F.silu(self.norms[0](self.a(x)))
        b = F.silu(self.norms[1](self.b(a)))
        c = F.silu(self.norms[2](self.c(F.interpolate(b, scale_factor=2.0))))
        return self.d(torch.cat((a, c), dim=1))


class Mobile(nn.Module):
    """Inverted residuals: expand, depthwise, project, with batch norm and hard-swish."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64), nn.Hardswish(),
                nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False), nn.BatchNorm2d(64), nn.Hardswish(),
                nn.Conv2d(64, 16, 1, bias=False), nn.BatchNorm2d(16),
            )
            for _ in range(3)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        for block in self.blocks:
            x = x + block(x)
        return x


def transformers_models() -> dict[str, Callable[[], Any]]:
    """Eleven programs of the transformers library, by name."""
    import transformers as hf

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 176}
    token_ids = ("input_ids",)
    pixels = ("pixel_values",)

    def tokens() -> Tensor:
        return torch.randint(0, 500, (2, 24))

    def image(size: int) -> Tensor:
        return torch.randn(2, 3, size, size)

    def program(model: nn.Module, names: tuple[str, ...], *tensors: Tensor) -> Any:
        return live(Named(model.eval(), names), tensors)

    return {
        "bert": lambda: program(hf.BertModel(hf.BertConfig(vocab_size=500, **small)), token_ids, tokens()),
        "gpt2": lambda: program(
            hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=500, n_embd=64, n_layer=2, n_head=4)), token_ids, tokens()
        ),
        "llama (transformers)": lambda: program(
            hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=500, num_key_value_heads=2, **small)), token_ids, tokens()
        ),
        "vit (transformers)": lambda: program(
            hf.ViTModel(hf.ViTConfig(image_size=32, patch_size=8, **small)), pixels, image(32)
        ),
        "t5": lambda: program(
            hf.T5Model(hf.T5Config(vocab_size=500, d_model=64, d_kv=16, d_ff=176, num_layers=2, num_heads=4)),
            ("input_ids", "decoder_input_ids"), tokens(), tokens()[:, :16],
        ),
        "convnext": lambda: program(
            hf.ConvNextModel(hf.ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1])), pixels, image(64)
        ),
        "swin": lambda: program(
            hf.SwinModel(hf.SwinConfig(image_size=64, patch_size=4, embed_dim=24, depths=[2, 2], num_heads=[2, 4],
                                       window_size=4)), pixels, image(64),
        ),
        "whisper": lambda: program(
            hf.WhisperModel(
                hf.WhisperConfig(vocab_size=500, d_model=64, encoder_layers=2, decoder_layers=2,
                                 max_source_positions=40, encoder_attention_heads=4, decoder_attention_heads=4,
                                 encoder_ffn_dim=176,
                                 decoder_ffn_dim=176, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                 decoder_start_token_id=1)
            ), ("input_features", "decoder_input_ids"), torch.randn(2, 80, 80), tokens()[:, :16],
        ),
        "resnet (transformers)": lambda: program(
            hf.ResNetModel(hf.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64], depths=[1, 2, 1])), pixels,
            image(64),
        ),
        "mobilenet v2": lambda: program(
            hf.MobileNetV2Model(hf.MobileNetV2Config(image_size=64, depth_multiplier=0.35)), pixels, image(64)
        ),
        "mistral": lambda: program(
            hf.MistralModel(hf.MistralConfig(vocab_size=500, num_key_value_heads=2,
                                             **(small | {"num_hidden_layers": 4}))), token_ids, tokens()
        ),
    }  # fmt: skip


def programs() -> dict[str, Callable[[], Any]]:
    """The ten programs by name."""
    made: dict[str, Callable[[], Any]] = {
        name: lambda name=name: build(resolve(str(ROOT / "sample_models" / f"{name}.py"))) for name in SAMPLES
    }
    made["vit"] = lambda: live(Vit(), (torch.randn(2, 3, 64, 64),))
    made["gpt"] = lambda: live(Gpt(), (torch.randint(0, 500, (2, 32)),))
    made["llama"] = lambda: live(
        Llama().to(torch.bfloat16), (torch.randn(2, 32, 64).to(torch.bfloat16),
                                     *torch.randn(2, 32, 16).to(torch.bfloat16).unbind())
    )  # fmt: skip
    made["clip"] = lambda: live(Clip(), (torch.randn(2, 32, 64), torch.randn(32, 32)))
    made["unet"] = lambda: live(UNet(), (torch.randn(1, 3, 32, 32),))
    made["mobile"] = lambda: live(Mobile(), (torch.randn(2, 16, 16, 16),))
    return made


def edges(flow: Dataflow, ops: dict[int, int]) -> Edges:
    """Pairs of ops: what made an argument, and what reads it. ``ops`` gives for a kernel the first one of its op."""
    pairs = {
        (ops[flow.nodes[s].kernels[0]], ops[node.kernels[0]]) for node in flow.nodes for s in node.sources if s >= 0
    }
    return {(maker, reader) for maker, reader in pairs if maker != reader}


def of_rules(facts: Facts, ops: dict[int, int]) -> dict[str, Edges]:
    """For each rule, the edges inside the places it matched."""
    found: dict[str, Edges] = defaultdict(set)
    everything = edges(facts.dataflow, ops)
    for rule in engine.rules():
        for candidate in rule.look(facts).candidates:
            rows = {ops[facts.nodes[i].kernels[0]] for i in (*candidate.nodes, *candidate.beside)}
            found[rule.id] |= {e for e in everything if rows.issuperset(e)}
    return found


def share(part: int, whole: int) -> float | None:
    """Return a share rounded to three digits, None of nothing."""
    return round(part / whole, 3) if whole else None


def measured(made: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return precision and recall of a set of programs: together, of each, and of the edges each rule rests on."""
    models: dict[str, dict[str, float | int | None]] = {}
    right: dict[str, int] = defaultdict(int)
    assumed_by: dict[str, int] = defaultdict(int)
    totals = [0, 0, 0]
    for name, make in made.items():
        captured = capture(make(), steps=1)
        proven, assumed = Facts(captured.timeline, captured.flow), Facts(captured.timeline)
        # an op of several kernels is one node where it was recorded, and may be several in a trace
        ops = {kernel: node.kernels[0] for node in proven.nodes for kernel in node.kernels}
        truth, guess = edges(proven.dataflow, ops), edges(assumed.dataflow, ops)
        counts = len(truth & guess), len(guess), len(truth)
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        models[name] = {
            "edges": counts[2], "precision": share(counts[0], counts[1]), "recall": share(counts[0], counts[2])
        }  # fmt: skip
        print(f"{name:20} {models[name]}", flush=True)
        for rule, found in of_rules(assumed, ops).items():
            right[rule] += len(found & truth)
            assumed_by[rule] += len(found)
    rules = {r: {"edges": assumed_by[r], "precision": share(right[r], assumed_by[r])} for r in sorted(assumed_by)}
    for rule, figures in rules.items():
        print(f"{rule:20} {figures}")
    found = {"precision": share(totals[0], totals[1]), "recall": share(totals[0], totals[2])}
    print(f"all: precision {found['precision']}, recall {found['recall']} of {totals[2]} edges", flush=True)
    return {**found, "models": models, "rules": rules}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    result = {"torch": torch.__version__, "held_out": measured(kinds()),
              "tuned": measured({**transformers_models(), **programs()})}  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
