"""dino.txt: the text side of a DINO model, trained after it with the images' backbone frozen (Jose et al. 2025).

`curate.encoders.dino_text:DinoText@CHECKPOINT` reads the published file of vision head and text encoder
(`dinov3_vitl16_dinotxt_vision_head_and_text_encoder-….pth`). Blocks of attention, without positions, see the CLS token,
registers and patches of the backbone; CLS and the mean patch, joined, are compared with the text's vector. The blocks
are timm's, the text tower and its tokenizer open_clip's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import open_clip
import torch
from numpy.typing import NDArray
from open_clip.transformer import TextTransformer
from safetensors.torch import load_file
from timm.layers.mlp import SwiGLU
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from curate.core.errors import RecipeError
from curate.encoders.base import Features
from curate.encoders.spec import Spec
from curate.encoders.student.network.attention import runs
from curate.encoders.torch_encoder import FrozenEncoder, one_line, text_features

if TYPE_CHECKING:
    from PIL.Image import Image

_HEAD = 64
"""Width of a head of attention, of images and texts."""
_VISION, _TEXT = "visual_model.head.", "text_model."
_VISION_NAMES = {"mlp.w1.": "mlp.fc1_g.", "mlp.w2.": "mlp.fc1_x.", "mlp.w3.": "mlp.fc2."}
_TEXT_NAMES = {
    "backbone.": "", "blocks.": "transformer.resblocks.", "attention_norm.": "ln_1.", "ffn_norm.": "ln_2.",
    "attention.qkv.": "attn.in_proj_", "attention.proj.": "attn.out_proj.", "feed_forward.fc1.": "mlp.c_fc.",
    "feed_forward.fc2.": "mlp.c_proj.", "head.linear_projection.weight": "text_projection",
}  # fmt: skip
"""Names in the checkpoint -> those of the library."""


class DinoText(FrozenEncoder):
    """Texts, and the vectors of images that are compared with them, from a DINO model's features."""

    context = 77
    model: Any

    def __init__(self, spec: Spec, identity: dict[str, Any], device: str = "cpu") -> None:
        if spec.path is None:
            raise RecipeError(f"encoder: {spec.public!r} has no weights; give the file of dino.txt after '@'")
        with one_line(spec, "load"):
            state = _read(spec.path)
            images, texts = _part(state, _VISION, _VISION_NAMES), _part(state, _TEXT, _TEXT_NAMES)
            towers = nn.ModuleDict({"vision": vision_head(images), "text": text_tower(texts)})
        super().__init__(spec, identity, towers, {}, device)
        self.width = len(images["ln_final.weight"])
        """Dimensions of the DINO model's features."""
        self.dim = 2 * self.width
        self._tokenizer = open_clip.SimpleTokenizer(context_length=self.context)

    def prepare(self, image: Image) -> NDArray[Any]:
        raise RecipeError(
            f"encoder: {self.spec!r} has no image tower; name it in evaluate.text_encoders of a DINO teacher"
        )

    def encode(self, batch: list[NDArray[Any]], *, patches: bool = True) -> Features:
        raise AssertionError("it has no image tower")

    def image_vectors(
        self, summary_BD: Tensor, patches_ND: Tensor, lengths: Sequence[int], registers_BRD: Tensor | None = None
    ) -> Tensor:
        """(B, 2 D), comparable with texts. patches: those of all images end to end, `lengths` of each; without
        registers, as AMoE gives them for its student."""
        prefix = [summary_BD[:, None], *([registers_BRD] if registers_BRD is not None else [])]
        prefix_BPD, found = torch.cat(prefix, 1).to(self.device), []
        patches_ND, start = patches_ND.to(self.device), 0
        with torch.inference_mode(), self.guarded(len(lengths)):
            for images, length in runs(lengths):
                own, patches_ND = patches_ND.split([images * length, len(patches_ND) - images * length])
                tokens = torch.cat([prefix_BPD[start : start + images], own.unflatten(0, (images, length))], 1)
                seen = self.model["vision"](tokens)
                found.append(torch.cat([seen[:, 0], seen[:, prefix_BPD.shape[1] :].mean(1)], -1).float())
                start += images
        return torch.cat(found) if found else summary_BD.new_zeros(0, self.dim)

    def encode_text(self, texts: list[str]) -> NDArray[np.float32]:
        return text_features(self, texts, lambda cut: self.model["text"](self._tokenizer(cut).to(self.device)))


def vision_head(state: Mapping[str, Tensor]) -> nn.Sequential:
    """Blocks and a final norm, of the sizes of the weights."""
    hidden, width = state["blocks.0.mlp.fc1_g.weight"].shape
    blocks = [
        Block(
            width, max(1, width // _HEAD), mlp_ratio=hidden / width, qkv_bias="blocks.0.attn.qkv.bias" in state,
            init_values=1.0, act_layer=nn.SiLU, norm_layer=nn.LayerNorm, mlp_layer=SwiGLU,
        )
        for _ in range(_count(state, "blocks."))
    ]  # fmt: skip
    head = nn.Sequential(*blocks, nn.LayerNorm(width))
    final = {"ln_final.": f"{len(blocks)}.", "blocks.": ""}
    head.load_state_dict({_renamed(name, final): value for name, value in state.items()})
    return head


def text_tower(state: Mapping[str, Tensor]) -> TextTransformer:
    """A causal transformer whose vector is the projected token at the end of the text, of the sizes of the weights."""
    vocabulary, width = state["token_embedding.weight"].shape
    hidden, layers = state["transformer.resblocks.0.mlp.c_fc.bias"].shape[0], _count(state, "transformer.resblocks.")
    tower = TextTransformer(
        context_length=len(state["positional_embedding"]), vocab_size=vocabulary, width=width,
        heads=max(1, width // _HEAD), layers=layers, mlp_ratio=hidden / width, output_dim=len(state["text_projection"]),
    )  # fmt: skip
    without = {
        name: torch.zeros_like(value)
        for name, value in tower.state_dict().items() if name.endswith("in_proj_bias")
    }  # fmt: skip
    tower.load_state_dict({**without, **state, "text_projection": state["text_projection"].T})
    return tower


def _read(path: str) -> Mapping[str, Tensor]:
    state = load_file(path) if path.endswith(".safetensors") else torch.load(path, "cpu", weights_only=True)
    if not isinstance(state, Mapping) or not all(
        any(name.startswith(own) for name in state) for own in (_VISION, _TEXT)
    ):
        raise ValueError(f"no weights named {_VISION}… and {_TEXT}…, so it is not a checkpoint of dino.txt")
    return state


def _part(state: Mapping[str, Tensor], prefix: str, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Weights of that prefix, with the names of the library."""
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    return {_renamed(name, names): value for name, value in own.items()}


def _renamed(name: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        name = name.replace(old, new)
    return name


def _count(state: Mapping[str, Tensor], prefix: str) -> int:
    return len({name.removeprefix(prefix).partition(".")[0] for name in state if name.startswith(prefix)})
