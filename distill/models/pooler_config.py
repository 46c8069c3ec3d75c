"""timm's attention pooler in figures, so that an exported student brings it along without its teacher."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from curate.core.errors import InputError
from distill.models.pooler import FrozenPooler


def describe_pooler(pooler: FrozenPooler, name: str) -> dict[str, Any]:
    """What `new_pooler` makes the same of, its weights aside. Raises InputError for any other kind of pooler."""
    module: Any = pooler.module
    try:
        values = _figures(module)
        again = new_pooler(values)
        again.module.load_state_dict(module.state_dict())
        x = torch.randn(5, values["width"], generator=torch.Generator().manual_seed(0))
        same = torch.allclose(again(x, [2, 3]), pooler(x, [2, 3]).float(), rtol=1e-3, atol=1e-3)
    except (AttributeError, RuntimeError):
        same = False
    if not same:
        raise InputError(
            f"teacher {name!r}: its pooler ({type(module).__name__}) cannot be exported, only timm's "
            f"AttentionPoolLatent can; train without `pooler`"
        )
    return values


def _figures(module: Any) -> dict[str, Any]:
    width = module.kv.in_features
    values = {"width": width, "heads": module.num_heads, "bias": module.kv.bias is not None, "pool": module.pool}
    values |= {"latents": module.latent_len, "project_query": isinstance(module.q, nn.Linear)}
    if module.mlp is None:
        return values | {"out": 0}
    eps = module.norm.eps if isinstance(module.norm, nn.LayerNorm) else None
    tanh = getattr(module.mlp.act, "approximate", "none") == "tanh" or "Tanh" in type(module.mlp.act).__name__
    return values | {"out": module.proj.out_features, "hidden": module.mlp.fc1.out_features, "eps": eps, "tanh": tanh}


def new_pooler(values: dict[str, Any]) -> FrozenPooler:
    """With weights that mean nothing yet."""
    from timm.layers import AttentionPoolLatent

    out, eps = values["out"], values.get("eps")
    return FrozenPooler(
        AttentionPoolLatent(
            values["width"],
            out_features=out,
            num_heads=values["heads"],
            mlp_ratio=(values["hidden"] + 0.5) / out if out else 4.0,  # timm rounds the product down
            qkv_bias=values["bias"],
            q_proj=values["project_query"],
            latent_len=values["latents"],
            pool_type=values["pool"],
            norm_layer=None if eps is None else partial(nn.LayerNorm, eps=eps),
            act_layer=partial(nn.GELU, approximate="tanh") if values.get("tanh") else nn.GELU,
        )
    )
