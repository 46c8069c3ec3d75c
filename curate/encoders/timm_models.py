"""timm's image models: `timm:NAME`, with timm's evaluation transform and resizing of position embeddings.

Options after `?`: `img_size`, `crop_pct`, `crop_mode` (center, squash, border) and `interpolation` change the
preprocessing; all others go to `timm.create_model` (`depth=2`, `global_pool=token`, `dynamic_img_size=true` …).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from timm.data.config import resolve_data_config
from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset
from timm.data.transforms_factory import create_transform
from timm.models import load_state_dict

from curate.core.errors import InputError
from curate.encoders.base import Classes, within_aspect
from curate.encoders.spec import Spec
from curate.encoders.torch_encoder import DeviceFeatures, TorchEncoder, array, grid_of, one_line, seeded

if TYPE_CHECKING:
    from PIL.Image import Image

_PREPROCESSING_OPTIONS = ("crop_pct", "crop_mode", "interpolation")


def load(spec: Spec, identity: dict[str, Any], device: str) -> TimmEncoder:
    with one_line(spec, "load"), seeded(spec.seed):
        return TimmEncoder(spec, identity, create(spec), device)


def create(spec: Spec, classes: int | None = 0) -> torch.nn.Module:
    """The network, without a classifier, or with its own (`classes` None). A local checkpoint must match
    exactly, except for a classifier that is left out."""
    arguments = {key: value for key, value in spec.options.items() if key not in (*_PREPROCESSING_OPTIONS, "random")}
    if classes is not None:
        arguments.setdefault("num_classes", classes)
    if spec.name.startswith("vit_") and "dinov3" in spec.name:
        arguments.setdefault("global_pool", "token")  # timm averages tokens; DINOv3's summary is the class token
    if spec.path is None or not spec.name:
        name = spec.name or f"local-dir:{spec.path}"
        return timm.create_model(name, pretrained=spec.seed is None, **arguments)
    classifiers = (timm.get_pretrained_cfg_value(spec.name, "classifier") or ()) if classes == 0 else ()
    dropped = tuple(f"{name}." for name in ([classifiers] if isinstance(classifiers, str) else classifiers))
    state = {key: value for key, value in load_state_dict(spec.path).items() if not key.startswith(dropped or ("\0",))}
    # With the model's num_classes in the overlay, timm's check is strict; otherwise it ignores missing keys.
    overlay = {"state_dict": state, "label_offset": 0}
    overlay |= {key: arguments[key] for key in ("num_classes",) if key in arguments}
    return timm.create_model(spec.name, pretrained=True, pretrained_cfg_overlay=overlay, **arguments)


class TimmEncoder(TorchEncoder):
    model: Any  # timm's models share no base class
    preset: ClassVar[dict[str, Any]] = {}
    """Options of the preprocessing that differ from the model's own."""

    def __init__(self, spec: Spec, identity: dict[str, Any], model: torch.nn.Module, device: str) -> None:
        options = {**self.preset, **{key: spec.options[key] for key in _PREPROCESSING_OPTIONS if key in spec.options}}
        if "img_size" in spec.options:
            height, width = np.broadcast_to(spec.options["img_size"], 2).tolist()
            options["input_size"] = (3, height, width)
        config = resolve_data_config(options, model=model)
        self._transform = create_transform(**config, is_training=False, normalize=False)
        self._prefix_tokens = getattr(model, "num_prefix_tokens", 0)
        self._named = spec
        preprocessing = {**config, "size": list(config["input_size"][1:])}
        del preprocessing["input_size"]
        super().__init__(spec, identity, model, preprocessing, device)

    def prepare(self, image: Image) -> NDArray[np.uint8]:
        pixels: NDArray[np.uint8] = self._transform(within_aspect(image)).numpy()
        return pixels

    def forward(self, pixels_BCHW: torch.Tensor, patches: bool) -> DeviceFeatures:
        height, width = pixels_BCHW.shape[2:]
        features = self.model.forward_features(pixels_BCHW)
        summary = self.model.forward_head(features, pre_logits=True)
        if not patches:
            return DeviceFeatures(summary)
        if features.ndim == 3:
            grid = grid_of(features[:, self._prefix_tokens :], height, width)
            return DeviceFeatures(summary, grid, self._registers_of(summary, features))
        channels_last = getattr(self.model, "output_fmt", "NCHW") == "NHWC"
        return DeviceFeatures(summary, features if channels_last else features.permute(0, 2, 3, 1))

    def classes(self) -> Classes:
        with one_line(self._named, "load the classifier of"):
            return linear(self.with_classifier(), self.spec)

    def with_classifier(self) -> Any:
        return create(self._named, classes=None)

    def _registers_of(self, summary: torch.Tensor, features_BNC: torch.Tensor) -> torch.Tensor | None:
        """Register tokens, which come before the patches and after the class token, if any."""
        count = register_count(self.model)
        if not count or summary.shape[1] != features_BNC.shape[2]:
            return None
        return features_BNC[:, self._prefix_tokens - count : self._prefix_tokens]


def linear(model: Any, spec: str) -> Classes:
    """The classifier of a network of ImageNet's classes. Raises InputError if it is of other classes, or not linear."""
    head, subset = model.get_classifier(), infer_imagenet_subset(model.pretrained_cfg)
    if subset is None or not isinstance(head, torch.nn.Linear):
        raise InputError(f"encoder: {spec!r} has no linear classifier of ImageNet's classes; use 'lite1'")
    weight, bias = array(head.weight.detach()), array(head.bias.detach())
    return Classes(ImageNetInfo(subset).label_names(), weight, bias, unit=False)


def register_count(model: torch.nn.Module) -> int:
    token: torch.Tensor | None = getattr(getattr(model, "embeds", model), "reg_token", None)
    return 0 if token is None else token.shape[1]
