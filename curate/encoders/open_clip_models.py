"""open_clip's image and text towers: `open_clip:NAME/TAG`, `open_clip:NAME@PATH`, `open_clip:FOLDER`.

Options after `?`: `image_size` (position embeddings are resized), `resize_mode` (shortest, longest, squash) and
`interpolation` change the preprocessing; `random=SEED` gives random weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import open_clip
import torch
from numpy.typing import NDArray
from open_clip.transform import PreprocessCfg, image_transform_v2
from torchvision.transforms import Compose, Normalize, ToTensor

from curate.encoders.base import within_aspect
from curate.encoders.spec import Spec
from curate.encoders.torch_encoder import DeviceFeatures, TorchEncoder, one_line, seeded, text_features

if TYPE_CHECKING:
    from PIL.Image import Image

_PREPROCESSING_OPTIONS = ("resize_mode", "interpolation")


def load(spec: Spec, identity: dict[str, Any], device: str) -> OpenClipEncoder:
    with one_line(spec, "load"), seeded(spec.seed):
        source, model = create(spec)
        return OpenClipEncoder(spec, identity, model, open_clip.get_tokenizer(source), device)


def create(spec: Spec) -> tuple[str, torch.nn.Module]:
    """(open_clip's name of the model, the model)."""
    name, _, tag = spec.name.partition("/")
    source, weights = name, tag or spec.path
    if spec.path is not None and Path(spec.path).is_dir():
        source, weights = f"local-dir:{spec.path}", None
    elif spec.name.startswith("hf-hub:"):
        source, weights = spec.name, None
    random = spec.seed is not None
    model = open_clip.create_model(
        source,
        pretrained=None if random else weights,
        load_weights=not random,
        require_pretrained=not random,
        pretrained_text=False,
        force_image_size=spec.options.get("image_size"),
        force_preprocess_cfg={key: spec.options[key] for key in _PREPROCESSING_OPTIONS if key in spec.options},
    )
    return source, model


class OpenClipEncoder(TorchEncoder):
    model: Any  # open_clip has no types

    def __init__(
        self, spec: Spec, identity: dict[str, Any], model: torch.nn.Module, tokenizer: Any, device: str
    ) -> None:
        config = PreprocessCfg(**open_clip.get_model_preprocess_cfg(model))
        self._transform = _before_tensor(image_transform_v2(config, is_train=False))
        self._tokenizer = tokenizer
        self.context = tokenizer.context_length
        size = [config.size, config.size] if isinstance(config.size, int) else list(config.size)
        preprocessing = {
            "size": size,
            "mean": list(config.mean),
            "std": list(config.std),
            "interpolation": config.interpolation,
            "resize_mode": config.resize_mode,
            "fill": config.fill_color,
        }
        super().__init__(spec, identity, model, preprocessing, device)

    def prepare(self, image: Image) -> NDArray[np.uint8]:
        return np.ascontiguousarray(np.asarray(self._transform(within_aspect(image))).transpose(2, 0, 1))

    def forward(self, pixels_BCHW: torch.Tensor, patches: bool) -> DeviceFeatures:
        visual = self.model.visual
        if not patches or not hasattr(visual, "forward_intermediates"):
            return DeviceFeatures(self.model.encode_image(pixels_BCHW))
        out = visual.forward_intermediates(pixels_BCHW, indices=1, normalize_intermediates=True, output_fmt="NCHW")
        return DeviceFeatures(out["image_features"], out["image_intermediates"][-1].permute(0, 2, 3, 1))

    def encode_text(self, texts: list[str]) -> NDArray[np.float32]:
        return text_features(self, texts, lambda cut: self.model.encode_text(self._tokenizer(cut).to(self.device)))


def _before_tensor(transform: Compose) -> Compose:
    """open_clip's evaluation transform without the conversion to floats, which happens on the device."""
    *geometry, to_tensor, normalise = transform.transforms
    assert isinstance(to_tensor, ToTensor) and isinstance(normalise, Normalize)
    return Compose(geometry)
