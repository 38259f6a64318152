"""Programs of kinds that the inference of data flow was not written with: what its precision is measured on.

Vision, detection, mixture of experts, recommendation, diffusion, audio, graphs, recurrence and state spaces; models of
the transformers library with small configurations, and short ones of shapes that library has not.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusionadvisor.workload.program import live


class Named(nn.Module):
    """A model of the transformers library that is called with its tensors by name."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Tensor) -> Any:  # noqa: D102
        return self.model(**dict(zip(self.names, tensors, strict=True)))[0]


class Dlrm(nn.Module):
    """Recommendation: embedding bags, a bottom and a top MLP, pairwise products of features."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(200, 16, mode="sum") for _ in range(4))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(26, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:  # noqa: D102
        x = self.bottom(dense)
        features = torch.stack([x, *(table(sparse[i]) for i, table in enumerate(self.tables))], dim=1)
        pairs = features @ features.transpose(1, 2)
        rows, columns = torch.tril_indices(5, 5, offset=-1)
        return torch.sigmoid(self.top(torch.cat([x, pairs[:, rows, columns]], dim=1)))


class CrossNetwork(nn.Module):
    """Recommendation: deep and cross, a factorisation machine beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cross = nn.Embedding(300, 12), nn.ModuleList(nn.Linear(96, 96) for _ in range(3))
        self.deep = nn.Sequential(
            nn.Linear(96, 48), nn.BatchNorm1d(48), nn.PReLU(), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.PReLU()
        )
        self.head = nn.Linear(144, 1)

    def forward(self, fields: Tensor) -> Tensor:  # noqa: D102
        vectors = self.embed(fields)
        x0 = x = vectors.flatten(1)
        for layer in self.cross:
            x = x0 * layer(x) + x
        machine = 0.5 * (vectors.sum(1).pow(2) - vectors.pow(2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.head(torch.cat([x, self.deep(x0)], dim=1)) + machine)


class TwoTower(nn.Module):
    """Retrieval: two towers with normalised outputs, all pairs scored."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Linear(40, 64), nn.ELU(), nn.LayerNorm(64), nn.Linear(64, 24))
        self.item = nn.Sequential(nn.Linear(56, 64), nn.ELU(), nn.LayerNorm(64), nn.Linear(64, 24))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:  # noqa: D102
        scores = F.normalize(self.user(user), dim=1) @ F.normalize(self.item(item), dim=1).t() / 0.07
        return F.log_softmax(scores, dim=1).diagonal().mean()


class ResBlock(nn.Module):
    """Norm, activation, convolution, the time's embedding, and once more; the input added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(64, width)
        self.norm2, self.conv2 = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:  # noqa: D102
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


class Diffusion(nn.Module):
    """A denoiser: sinusoidal time, residual blocks at two scales, attention to a text in the middle, a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
        self.enter, self.leave = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(32, 4, 3, padding=1)
        self.high, self.low = ResBlock(16), ResBlock(16)
        self.shrink, self.grow = nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm, self.q, self.kv, self.out = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(24, 32), nn.Linear(16, 16)

    def forward(self, x: Tensor, moment: Tensor, text: Tensor) -> Tensor:  # noqa: D102
        angles = moment[:, None] * torch.exp(torch.arange(16) * -0.5)
        time = self.time(torch.cat([torch.sin(angles), torch.cos(angles)], dim=1))
        high = self.high(self.enter(x), time)
        low = self.low(self.shrink(high), time)
        tokens = low.flatten(2).transpose(1, 2)
        q = self.q(self.norm(tokens)).view(len(x), -1, 2, 8).transpose(1, 2)
        k, v = (t.view(len(x), -1, 2, 8).transpose(1, 2) for t in self.kv(text).chunk(2, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(tokens.shape)
        low = (tokens + self.out(y)).transpose(1, 2).reshape(low.shape)
        return self.leave(torch.cat([high, self.grow(F.interpolate(low, scale_factor=2.0))], dim=1))


class Dit(nn.Module):
    """Diffusion transformer: norms without weights, shifted, scaled and gated by a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.condition = nn.ModuleList(nn.Linear(48, 288) for _ in range(3))
        self.qkv = nn.ModuleList(nn.Linear(48, 144) for _ in range(3))
        self.out = nn.ModuleList(nn.Linear(48, 48) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(48, 160) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(160, 48) for _ in range(3))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:  # noqa: D102
        for i in range(3):
            a, b, g, d, e, f = self.condition[i](F.silu(c))[:, None].chunk(6, dim=-1)
            h = F.layer_norm(x, (48,)) * (1 + b) + a
            q, k, v = self.qkv[i](h).view(*x.shape[:2], 3, 4, 12).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = x + g * self.out[i](y)
            h = F.layer_norm(x, (48,)) * (1 + e) + d
            x = x + f * self.down[i](F.gelu(self.up[i](h), approximate="tanh"))
        return x


class VaeDecoder(nn.Module):
    """Upsampling by transposed convolutions, channels-first layer norms written out, leaky activations."""

    def __init__(self) -> None:
        super().__init__()
        self.ups = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in ((24, 16), (16, 8)))
        self.convs = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for c in (16, 8))
        self.weights = nn.ParameterList(torch.ones(c, 1, 1) for c in (16, 8))
        self.last = nn.Conv2d(8, 3, 1)

    def forward(self, z: Tensor) -> Tensor:  # noqa: D102
        for up, conv, weight in zip(self.ups, self.convs, self.weights, strict=True):
            z = up(z)
            centred = z - z.mean(1, keepdim=True)
            z = weight * (centred / torch.sqrt((centred * centred).mean(1, keepdim=True) + 1e-6))
            z = z + F.leaky_relu(conv(z), 0.2)
        return torch.tanh(self.last(z))


class GraphNet(nn.Module):
    """Messages along edges, summed at their targets."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.update = nn.ModuleList(nn.Linear(64, 32) for _ in range(3))

    def forward(self, x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:  # noqa: D102
        for message, update in zip(self.message, self.update, strict=True):
            sent = F.relu(message(x)[source]) * weight[:, None]
            got = torch.zeros_like(x).index_add_(0, target, sent)
            x = F.relu(update(torch.cat([x, got], dim=1))) + x
        return x.mean(0)


class Gated(nn.Module):
    """A recurrent cell written out, over eight steps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.state = nn.Linear(24, 96), nn.Linear(32, 96)

    def forward(self, sequence: Tensor) -> Tensor:  # noqa: D102
        h = sequence.new_zeros(len(sequence), 32)
        kept = []
        for x in sequence.unbind(1):
            (r1, z1, n1), (r2, z2, n2) = self.inner(x).chunk(3, 1), self.state(h).chunk(3, 1)
            r, z = torch.sigmoid(r1 + r2), torch.sigmoid(z1 + z2)
            h = (1 - z) * torch.tanh(n1 + r * n2) + z * h
            kept.append(h)
        return torch.stack(kept, dim=1)


class Experts(nn.Module):
    """Every expert on every token, weighted by a router."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.norm = nn.Linear(48, 4), nn.LayerNorm(48)
        self.up = nn.ModuleList(nn.Linear(48, 112) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(112, 48) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        h = self.norm(x)
        weights = torch.softmax(self.router(h), dim=-1)
        y = torch.zeros_like(x)
        for i, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            y = y + weights[..., i : i + 1] * down(F.gelu(up(h)))
        return x + y


def kinds() -> dict[str, Callable[[], Any]]:
    """The programs by name."""
    import transformers as hf

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 176}
    words, pixels = ("input_ids",), ("pixel_values",)
    conv = {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}

    def tokens() -> Tensor:
        return torch.randint(2, 500, (2, 20))

    def image(size: int) -> Tensor:
        return torch.randn(2, 3, size, size)

    def program(model: nn.Module, names: tuple[str, ...], *tensors: Tensor) -> Any:
        return live(Named(model.eval(), names), tensors)

    return {
        "mixtral (experts)": lambda: program(
            hf.MixtralModel(hf.MixtralConfig(vocab_size=500, num_key_value_heads=2, num_local_experts=4, **small)),
            words, tokens(),
        ),
        "qwen2-moe (experts)": lambda: program(
            hf.Qwen2MoeModel(
                hf.Qwen2MoeConfig(vocab_size=500, num_key_value_heads=4, num_experts=4, num_experts_per_tok=2,
                                  moe_intermediate_size=48, shared_expert_intermediate_size=96, **small)
            ), words, tokens(),
        ),
        "all experts": lambda: live(Experts(), (torch.randn(2, 20, 48),)),
        "yolos (detection)": lambda: program(
            hf.YolosModel(hf.YolosConfig(image_size=[32, 32], patch_size=8, num_detection_tokens=5, **small)), pixels,
            image(32),
        ),
        "detr (detection)": lambda: program(
            hf.DetrForObjectDetection(
                hf.DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
                              backbone_config=hf.ResNetConfig(embedding_size=16, out_features=["stage4"], **conv),
                              num_queries=7, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=80,
                              decoder_ffn_dim=80, encoder_attention_heads=4, decoder_attention_heads=4)
            ), pixels, image(64),
        ),
        "owl-vit (detection)": lambda: program(
            hf.OwlViTVisionModel(hf.OwlViTVisionConfig(image_size=32, patch_size=8, **small)), pixels, image(32)
        ),
        "segformer (segmentation)": lambda: program(
            hf.SegformerModel(
                hf.SegformerConfig(depths=[1, 1, 1, 1], hidden_sizes=[16, 24, 32, 48],
                                   num_attention_heads=[1, 2, 4, 4])
            ), pixels, image(64),
        ),
        "sam (segmentation)": lambda: program(
            hf.SamModel(
                hf.SamConfig(vision_config={"image_size": 64, "patch_size": 8, "hidden_size": 48, "mlp_dim": 96,
                                            "num_hidden_layers": 2, "num_attention_heads": 4, "output_channels": 32,
                                            "window_size": 4, "global_attn_indexes": [1]})
            ).vision_encoder, pixels, image(64),
        ),
        "mobilevit (vision)": lambda: program(
            hf.MobileViTModel(
                hf.MobileViTConfig(image_size=64, hidden_sizes=[24, 32, 40],
                                   neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 64])
            ), pixels, image(64),
        ),
        "efficientnet (vision)": lambda: program(
            hf.EfficientNetModel(
                hf.EfficientNetConfig(image_size=64, width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320)
            ), pixels, image(64),
        ),
        "regnet (vision)": lambda: program(
            hf.RegNetModel(hf.RegNetConfig(embedding_size=8, groups_width=8, **conv)), pixels, image(64)
        ),
        "poolformer (vision)": lambda: program(
            hf.PoolFormerModel(hf.PoolFormerConfig(**conv)), pixels, image(64)
        ),
        "dlrm (recommendation)": lambda: live(Dlrm(), (torch.randn(16, 13), torch.randint(0, 200, (4, 16, 3)))),
        "deep and cross (recommendation)": lambda: live(CrossNetwork(), (torch.randint(0, 300, (16, 8)),)),
        "two towers (retrieval)": lambda: live(TwoTower(), (torch.randn(16, 40), torch.randn(16, 56))),
        "denoiser (diffusion)": lambda: live(
            Diffusion(), (torch.randn(2, 4, 16, 16), torch.tensor([3.0, 70.0]), torch.randn(2, 5, 24))
        ),
        "diffusion transformer": lambda: live(Dit(), (torch.randn(2, 36, 48), torch.randn(2, 48))),
        "decoder (diffusion)": lambda: live(VaeDecoder(), (torch.randn(2, 24, 8, 8),)),
        "wav2vec2 (audio)": lambda: program(
            hf.Wav2Vec2Model(
                hf.Wav2Vec2Config(conv_dim=[16, 16, 16], conv_kernel=[10, 3, 3], conv_stride=[5, 2, 2],
                                  num_feat_extract_layers=3, num_conv_pos_embeddings=16,
                                  num_conv_pos_embedding_groups=4, vocab_size=32, **small)
            ), ("input_values",), torch.randn(2, 2000),
        ),
        "mamba (state space)": lambda: program(
            hf.MambaModel(hf.MambaConfig(vocab_size=500, hidden_size=32, state_size=8, num_hidden_layers=2)), words,
            torch.randint(2, 500, (2, 7)),
        ),
        "graph network": lambda: live(
            GraphNet(), (torch.randn(40, 32), torch.randint(0, 40, (90,)), torch.randint(0, 40, (90,)),
                         torch.rand(90))
        ),
        "gated recurrence": lambda: live(Gated(), (torch.randn(4, 8, 24),)),
        "deberta (text)": lambda: program(
            hf.DebertaV2Model(
                hf.DebertaV2Config(vocab_size=500, relative_attention=True, pos_att_type=["p2c", "c2p"],
                                   max_position_embeddings=40, **small)
            ), words, tokens(),
        ),
        "gpt-neox (text)": lambda: program(
            hf.GPTNeoXModel(hf.GPTNeoXConfig(vocab_size=500, **small)), words, tokens()
        ),
    }  # fmt: skip
