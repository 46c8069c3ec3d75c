"""Weights of other libraries' vision transformers by the names of our student's.

A name that no rule knows is unchanged, and a name with `#I` is the I-th part of a weight. `backbone.…`, `project.…`,
`text.…` and `logit_scale` are weights of `network.student.Student`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

Rules = Mapping[str, str]
"""Pattern of a whole name -> our name."""

_TIMM_BLOCK = {
    r"norm1\.(.+)": r"attention_norm.\1",
    r"norm2\.(.+)": r"mlp_norm.\1",
    r"attn\.(qkv|q_norm|k_norm)\.(.+)": r"attention.\1.\2",
    r"attn\.proj\.(.+)": r"attention.out.\1",
    r"mlp\.fc1\.(.+)": r"mlp.up.\1",
    r"mlp\.fc2\.(.+)": r"mlp.down.\1",
    r"ls1\.gamma|gamma_1|layer_scale1\.lambda1": "attention_scale",
    r"ls2\.gamma|gamma_2|layer_scale2\.lambda1": "mlp_scale",
}
_OPEN_CLIP_BLOCK = {
    r"ln_1\.(.+)": r"attention_norm.\1",
    r"ln_2\.(.+)": r"mlp_norm.\1",
    r"attn\.in_proj_(.+)": r"attention.qkv.\1",
    r"attn\.out_proj\.(.+)": r"attention.out.\1",
    r"mlp\.c_fc\.(.+)": r"mlp.up.\1",
    r"mlp\.c_proj\.(.+)": r"mlp.down.\1",
    r"ls_1\.gamma": "attention_scale",
    r"ls_2\.gamma": "mlp_scale",
}
_HF_BLOCK = _TIMM_BLOCK | {
    r"layer_norm1\.(.+)": r"attention_norm.\1",
    r"layer_norm2\.(.+)": r"mlp_norm.\1",
    r"(?:self_attn|attention)\.q_proj\.(.+)": r"attention.qkv.\1#0",
    r"(?:self_attn|attention)\.k_proj\.(.+)": r"attention.qkv.\1#1",
    r"(?:self_attn|attention)\.v_proj\.(.+)": r"attention.qkv.\1#2",
    r"(?:self_attn\.out_proj|attention\.o_proj)\.(.+)": r"attention.out.\1",
}
_TIMM = {
    r"patch_embed\.proj\.(.+)": r"backbone.embed.\1",
    r"cls_token": "backbone.prefix#0",
    r"reg_token": "backbone.prefix#1",
    r"pos_embed": "backbone.positions",
    r"norm_pre\.(.+)": r"backbone.pre_norm.\1",
    r"norm\.(.+)": r"backbone.norm.\1",
    r"attn_pool\.(.+)": r"backbone.pool.module.\1",
    r"head\.weight": "project.weight",
}
_OPEN_CLIP = {
    r"visual\.conv1\.(.+)": r"backbone.embed.\1",
    r"visual\.class_embedding": "backbone.prefix#0",
    r"visual\.positional_embedding": "backbone.positions",
    r"visual\.ln_pre\.(.+)": r"backbone.pre_norm.\1",
    r"visual\.ln_post\.(.+)": r"backbone.norm.\1",
    r"visual\.proj": "project.weight^T",
    r"visual\.head\.proj\.weight": "project.weight",
    r"(?:text\.)?token_embedding\.weight": "text.tokens.weight",
    r"(?:text\.)?positional_embedding": "text.positions",
    r"(?:text\.)?ln_final\.(.+)": r"text.norm.\1",
    r"(?:text\.)?text_projection": "text.project.weight^T",
    r"(?:text\.)?text_projection\.weight": "text.project.weight",
}
_HF = {
    r"(?:vision_model\.)?embeddings\.(?:patch_embedding|patch_embeddings\.projection)\.(.+)": r"backbone.embed.\1",
    r"(?:vision_model\.)?embeddings\.(?:class_embedding|cls_token)": "backbone.prefix#0",
    r"embeddings\.register_tokens": "backbone.prefix#1",
    r"(?:vision_model\.)?embeddings\.(?:position_embedding\.weight|position_embeddings)": "backbone.positions",
    r"vision_model\.pre_layrnorm\.(.+)": r"backbone.pre_norm.\1",
    r"(?:vision_model\.post_layernorm|layernorm)\.(.+)": r"backbone.norm.\1",
    r"visual_projection\.weight": "project.weight",
    r"text_model\.embeddings\.token_embedding\.weight": "text.tokens.weight",
    r"text_model\.embeddings\.position_embedding\.weight": "text.positions",
    r"text_model\.final_layer_norm\.(.+)": r"text.norm.\1",
    r"text_projection\.weight": "text.project.weight",
}
_BLOCKS: dict[str, tuple[tuple[str, str], ...]] = {
    "timm": ((r"blocks", "backbone"),),
    "open_clip": ((r"visual\.transformer\.resblocks", "backbone"), (r"(?:text\.)?transformer\.resblocks", "text")),
    "hf": ((r"(?:vision_model\.)?encoder\.layers?", "backbone"), (r"text_model\.encoder\.layers", "text")),
}
_RULES = {"timm": (_TIMM, _TIMM_BLOCK), "open_clip": (_OPEN_CLIP, _OPEN_CLIP_BLOCK), "hf": (_HF, _HF_BLOCK)}
_TRUNK = "visual.trunk."
"""Of a model of timm in open_clip."""


def translated(library: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by our names and of our shapes. library: timm, open_clip or hf."""
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        inner = name.removeprefix(_TRUNK)
        found[_name("timm" if inner != name else library, inner)] = value
    return _shaped(found)


def _name(library: str, name: str) -> str:
    rules, of_block = _RULES[library]
    for start, part in _BLOCKS[library]:
        if match := re.fullmatch(rf"{start}\.(\d+)\.(.+)", name):
            return f"{part}.blocks.{match[1]}.{_renamed(of_block, match[2])}"
    return _renamed(rules, name)


def _renamed(rules: Rules, name: str) -> str:
    for pattern, own in rules.items():
        if match := re.fullmatch(pattern, name):
            return match.expand(own)
    return name


def _shaped(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parts joined, projections transposed, patches' colours last."""
    made: dict[str, Tensor] = {}
    parts: dict[str, dict[int, Tensor]] = {}
    for name, value in found.items():
        whole, mark, number = name.partition("#")
        if mark:
            parts.setdefault(whole, {})[int(number)] = value
        elif name == "backbone.embed.weight" and value.ndim == 4:
            made[name] = value.permute(0, 2, 3, 1).flatten(1)
        elif name == "backbone.positions":
            made[name] = value.flatten(0, -2)
        else:
            made[name.removesuffix("^T")] = value.T if name.endswith("^T") else value
    for name, own in parts.items():
        ordered = [own[number] for number in sorted(own)]
        rows = [part.reshape(-1, part.shape[-1]) for part in ordered]
        made[name] = torch.cat(rows if name == "backbone.prefix" else ordered)
    positions = made.get("backbone.positions")
    if (
        positions is not None
        and 0 in parts.get("backbone.prefix", {})
        and math.isqrt(len(positions)) ** 2 == len(positions)
    ):
        made["backbone.positions"] = torch.cat([torch.zeros_like(positions[:1]), positions])  # none of the class token
    return made
