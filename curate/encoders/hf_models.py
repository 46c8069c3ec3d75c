"""Models of transformers: `hf:NAME` or `hf:FOLDER` (CLIP, SigLIP, DINOv2, DINOv3, ViT …), with their processors.
`language_models` has those that read texts only.

The summary is the projected image embedding of an image-text model, else the class token if there is one, else the
pooled feature map. Options after `?`: `revision` pins a name on the hub, `random=SEED` gives random weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Resampling
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoTokenizer
from transformers.utils import logging

from curate.core.errors import RecipeError
from curate.encoders.base import within_aspect
from curate.encoders.language_models import LanguageModel, is_language_model
from curate.encoders.spec import Spec
from curate.encoders.torch_encoder import (
    DeviceFeatures,
    FrozenEncoder,
    TorchEncoder,
    grid_of,
    one_line,
    seeded,
    text_features,
)

if TYPE_CHECKING:
    from PIL.Image import Image

logging.disable_progress_bar()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of transformers about weights: missing ones are errors here."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def load(spec: Spec, identity: dict[str, Any], device: str) -> FrozenEncoder:
    source, revision = spec.path or spec.name, spec.options.get("revision", "main")
    with one_line(spec, "load"), seeded(spec.seed):
        config = AutoConfig.from_pretrained(source, revision=revision)
        reads_text = is_language_model(config)
        model = create(spec, identity["precision"] if reads_text else "float32")
        if reads_text:
            return LanguageModel(spec, identity, model, device)
        processor = AutoImageProcessor.from_pretrained(source, revision=revision)
        return (NaFlexTexts if config.model_type == "siglip2" else HfEncoder)(spec, identity, model, processor, device)


def create(spec: Spec, dtype: str = "float32") -> Any:
    source, revision = spec.path or spec.name, spec.options.get("revision", "main")
    if spec.seed is not None:
        return AutoModel.from_config(AutoConfig.from_pretrained(source, revision=revision), dtype=dtype)
    options = {"revision": revision, "dtype": dtype, "output_loading_info": True}
    with _quiet():
        return _checked(AutoModel.from_pretrained(source, **options))


def _checked(loaded: tuple[torch.nn.Module, dict[str, Any]]) -> torch.nn.Module:
    """Raises ValueError if the checkpoint lacks weights: transformers only warns and initialises them randomly.

    A missing pooler is ignored, since it is not used.
    """
    model, info = loaded
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key)
    if missing:
        raise ValueError(f"the checkpoint lacks {len(missing)} weights of the model, first {missing[0]!r}")
    return model


class HfEncoder(TorchEncoder):
    model: Any  # its methods differ by kind

    def __init__(self, spec: Spec, identity: dict[str, Any], model: Any, processor: Any, device: str) -> None:
        self._source, self._revision = spec.path or spec.name, spec.options.get("revision", "main")
        self._processor = processor
        self._tokenizer: Any = None
        self._joint = hasattr(model, "get_image_features")
        if hasattr(model, "get_text_features"):
            self.context = model.config.text_config.max_position_embeddings
        self._pooled = self._joint or model.config.model_type == "clip_vision_model"
        super().__init__(spec, identity, model, _preprocessing(processor), device)

    def prepare(self, image: Image) -> NDArray[np.uint8]:
        out = self._processor(within_aspect(image), do_rescale=False, do_normalize=False, return_tensors="pt")
        pixels: NDArray[np.uint8] = out["pixel_values"][0].numpy()
        return pixels

    def forward(self, pixels_BCHW: torch.Tensor, patches: bool) -> DeviceFeatures:
        height, width = pixels_BCHW.shape[2:]
        out = self.model.get_image_features(pixels_BCHW) if self._joint else self.model(pixels_BCHW)
        hidden = out.last_hidden_state
        if hidden.ndim == 4:
            return DeviceFeatures(out.pooler_output.flatten(1), hidden.permute(0, 2, 3, 1))
        prefix = self._prefix_tokens(hidden.shape[1], height, width)
        if prefix is None:
            return DeviceFeatures(out.pooler_output)
        summary = out.pooler_output if self._pooled or prefix == 0 else hidden[:, 0]
        if not patches:
            return DeviceFeatures(summary)
        count = getattr(self.model.config, "num_register_tokens", 0)
        registers = hidden[:, prefix - count : prefix] if count else None
        return DeviceFeatures(summary, grid_of(hidden[:, prefix:], height, width), registers)

    def _prefix_tokens(self, tokens: int, height: int, width: int) -> int | None:
        """Number of class and register tokens: all tokens but the patches."""
        config = getattr(self.model.config, "vision_config", self.model.config)
        side = getattr(config, "patch_size", None)
        if side is None:
            return None
        rows, columns = (side, side) if isinstance(side, int) else side
        return tokens - (height // rows) * (width // columns)

    def encode_text(self, texts: list[str]) -> NDArray[np.float32]:
        if not self.context:
            return super().encode_text(texts)
        if self._tokenizer is None:
            self._tokenizer = AutoTokenizer.from_pretrained(self._source, revision=self._revision)
        return text_features(self, texts, self._text)

    def _text(self, texts: list[str]) -> torch.Tensor:
        # SigLIP was trained on padded texts without a mask; with CLIP's causal mask padding has no effect.
        settings = {"padding": "max_length", "truncation": True, "max_length": self.context, "return_tensors": "pt"}
        tokens = self._tokenizer(texts, **settings)
        vectors: torch.Tensor = self.model.get_text_features(**tokens.to(self.device)).pooler_output
        return vectors


class NaFlexTexts(HfEncoder):
    """The texts of SigLIP 2's NaFlex checkpoints, whose images have no fixed grid."""

    def measure(self, prepared: NDArray[np.uint8]) -> None:
        self.dim, self.patch_dim, self.registers = self.model.config.text_config.projection_size, None, 0

    def prepare(self, image: Image) -> NDArray[np.uint8]:
        raise RecipeError(
            f"encoder: {self.spec!r} is a NaFlex model and embeds texts only; use a checkpoint of fixed resolution"
            " ('hf:google/siglip2-base-patch16-224'), or 'timm:naflexvit_so400m_patch16_siglip'"
        )


def _preprocessing(processor: Any) -> dict[str, Any]:
    size = dict((processor.crop_size if getattr(processor, "do_center_crop", False) else processor.size) or {})
    side = size.get("shortest_edge", size.get("longest_edge"))
    normalised = processor.do_normalize
    return {
        "size": [size.get("height", side), size.get("width", side)] if size else [],
        "mean": list(processor.image_mean) if normalised else [0.0, 0.0, 0.0],
        "std": list(processor.image_std) if normalised else [1.0, 1.0, 1.0],
        "resize": dict(processor.size or {}),
        "interpolation": Resampling(int(processor.resample)).name.lower(),
    }
