"""Text towers: from tokens, or vectors of texts, to the space that images share.

TextTower      a small bidirectional transformer; the vector of a text is the mean of its tokens
ClipTower      CLIP's causal transformer; the vector of a text is that of its last token
VectorAdapter  for vectors that a frozen model has made of the texts

Only attention computes on padding; everything else runs on the packed tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from curate.encoders.student.config import TextConfig
from curate.encoders.student.network.layers import Mlp

PAD = 0
MAX_SCALE = 100.0
"""Maximum scale of similarities, as in CLIP: beyond it, single pairs dominate the loss."""


class TextAttention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        """causal: as in CLIP, with biases and without norms of queries and keys. Padding must come last."""
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width, bias=causal)
        if not causal:
            self.q_norm, self.k_norm = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)
        self.out = nn.Linear(width, width, bias=causal)

    def forward(self, x_NC: Tensor, present_BL: Tensor) -> Tensor:
        """x: the packed tokens of all texts; present: their places in the padded batch."""
        qkv = self.qkv(x_NC)
        padded = qkv.new_zeros(*present_BL.shape, qkv.shape[-1])
        padded[present_BL] = qkv
        q, k, v = padded.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.causal:
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
            mixed = scaled_dot_product_attention(q, k, v, attn_mask=present_BL[:, None, None, :])
        return self.out(mixed.transpose(1, 2)[present_BL].flatten(1))


class TextBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        hidden = max(8, round(width * 8 / 3 / 8) * 8)
        self.attention_norm, self.attention = nn.RMSNorm(width), TextAttention(width, heads)
        self.mlp_norm = nn.RMSNorm(width)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x_NC: Tensor, present_BL: Tensor) -> Tensor:
        x_NC = x_NC + self.attention(self.attention_norm(x_NC), present_BL)
        gate, up = self.gate_up(self.mlp_norm(x_NC)).chunk(2, dim=-1)
        return x_NC + self.down(silu(gate) * up)


class TextTower(nn.Module):
    """forward(tokens (B, L) with L <= context) -> (B, embed), not normalised."""

    def __init__(self, config: TextConfig, embed: int) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width, padding_idx=PAD)
        self.positions = nn.Parameter(torch.empty(config.context, config.width))
        self.blocks = nn.ModuleList(TextBlock(config.width, config.heads) for _ in range(config.depth))
        self.norm = nn.RMSNorm(config.width)
        self.project = nn.Linear(config.width, embed, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
        nn.init.normal_(self.tokens.weight, std=0.5)
        nn.init.normal_(self.positions, std=0.1)
        with torch.no_grad():
            self.tokens.weight[PAD] = 0.0

    def forward(self, tokens_BL: Tensor) -> Tensor:
        present = tokens_BL != PAD
        text, place = present.nonzero(as_tuple=True)
        x = self.tokens(tokens_BL[present]) + self.positions[place]
        for block in self.blocks:
            x = block(x, present)
        x = self.norm(x)
        total = x.new_zeros(len(tokens_BL), x.shape[-1]).index_add(0, text, x)
        vectors: Tensor = self.project(total / present.sum(1, keepdim=True).clamp(min=1).to(x.dtype))
        return vectors


class ClipBlock(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        width = config.width
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = TextAttention(width, config.heads, causal=True)
        self.mlp = Mlp(width, 4 * width, quick=config.mlp == "quick_gelu")

    def forward(self, x_NC: Tensor, present_BL: Tensor) -> Tensor:
        x_NC = x_NC + self.attention(self.attention_norm(x_NC), present_BL)
        return x_NC + self.mlp(self.mlp_norm(x_NC))


class ClipTower(nn.Module):
    """forward(tokens (B, L) with L <= context) -> (B, embed), not normalised. Radford et al. 2021, Sec. 2.4.

    A text's last token is the one with the largest number (CLIP's <end_of_text>); the tokens after it are padding.
    """

    def __init__(self, config: TextConfig, embed: int) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.tokens = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Parameter(torch.empty(config.context, width))
        self.blocks = nn.ModuleList(ClipBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, embed, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions, std=0.01)
        added = (2 * width * config.depth) ** -0.5
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                plain = (2 * width) ** -0.5 if name.endswith("up") else width**-0.5
                nn.init.normal_(module.weight, std=added if name.endswith(("out", "down")) else plain)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        last_B = tokens_BL.argmax(1)
        place_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
        present = place_L <= last_B[:, None]
        x = self.tokens(tokens_BL[present]) + self.positions[place_L.expand_as(present)[present]]
        for block in self.blocks:
            x = block(x, present)
        vectors: Tensor = self.project(self.norm(x[(last_B + 1).cumsum(0) - 1]))
        return vectors


class VectorAdapter(nn.Module):
    """forward(vectors of texts (B, width)) -> (B, embed), not normalised: MLPs with residual connections, as the
    adapter of LLM2CLIP (Huang et al. 2024)."""

    def __init__(self, config: TextConfig, embed: int) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(config.depth))
        self.mlps = nn.ModuleList(Mlp(width, 4 * width) for _ in range(config.depth))
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, embed, bias=False)
        nn.init.trunc_normal_(self.project.weight, std=width**-0.5)

    def forward(self, vectors_BC: Tensor) -> Tensor:
        x = vectors_BC.to(self.project.weight.dtype)
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            x = x + mlp(norm(x))
        vectors: Tensor = self.project(self.norm(x))
        return vectors


Tower = TextTower | ClipTower | VectorAdapter
_TOWERS: dict[str, type[Tower]] = {"mean": TextTower, "clip": ClipTower, "columns": VectorAdapter}


def text_tower(config: TextConfig, embed: int) -> Tower:
    """embed: width of the space that images share."""
    return _TOWERS[config.tower](config, embed)


def scale_at(temperature: float) -> Tensor:
    """Logarithm of the factor of similarities: the initial value of `logit_scale`."""
    return torch.tensor(min(-math.log(temperature), math.log(MAX_SCALE)))


def set_temperature(logit_scale: Tensor, temperature: float) -> None:
    """Set its initial value, in place."""
    with torch.no_grad():
        logit_scale.copy_(scale_at(temperature))


def limit_scale(logit_scale: Tensor) -> None:
    """Clamp in place after an update. A sharded parameter is clamped on each rank."""
    with torch.no_grad():
        logit_scale.clamp_(max=math.log(MAX_SCALE))
