"""How an encoder is named: `KIND:NAME[?option=value&…][@PATH]`, or a bare word, `tiny` or `descriptor`.

    tiny                                                   small image-text model, weights inside the package
    descriptor                                             colour histogram + HOG, no weights
    timm:vit_small_patch16_224.augreg_in1k                 weights of the Hugging Face hub, by timm's name
    timm:vit_small_patch16_224@/weights/vits.safetensors   timm's architecture, a local checkpoint
    timm:/models/vits                                      a folder in the hub's layout, with config.json
    timm:vit_base_patch16_224?depth=2&random=7             no checkpoint: random weights of seed 7
    open_clip:ViT-B-32/laion2b_s34b_b79k                   open_clip's architecture and weights tag
    open_clip:ViT-B-32@/weights/b32.safetensors            … or a local checkpoint
    open_clip:/models/tiny                                 a folder with open_clip_config.json and its weights
    hf:google/siglip-base-patch16-224                      transformers, by hub name (`?revision=` to pin it)
    hf:/models/siglip                                      a folder written by `save_pretrained`
    distill:/models/student                                a folder written by `distill export`
    distill:/models/student?head=NAME&max_tokens=144       … in a teacher's space, of pictures of fewer patches

A path decides nothing about the output, the bytes there do: `Spec.public` leaves it out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curate.core.errors import RecipeError

WORDS = ("descriptor", "tiny")
KINDS = (*WORDS, "timm", "open_clip", "hf", "distill")
SHIPPED = Path(__file__).parent / "tiny"
"""Folder of the model that comes with the package."""
_OPTIONS = {
    "open_clip": ("random", "image_size", "resize_mode", "interpolation"),
    "hf": ("random", "revision"),
    "distill": ("head", "max_tokens"),
}
_EXAMPLE = "try 'timm:vit_base_patch16_dinov3', 'open_clip:ViT-B-32/laion2b_s34b_b79k', 'hf:DIR', 'distill:DIR', 'tiny'"


@dataclass(frozen=True)
class Spec:
    kind: str
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    path: str | None = None

    @property
    def seed(self) -> int | None:
        """Seed of a random initialisation (`random=SEED`), None when there are real weights."""
        return self.options.get("random")

    @property
    def public(self) -> str:
        """The spec without its local path: what goes into fingerprints, metadata and reports."""
        query = "&".join(f"{key}={_text(value)}" for key, value in sorted(self.options.items()))
        name = self.kind if self.kind in WORDS else f"{self.kind}:{self.name or 'local'}"
        return f"{name}?{query}" if query else name


def parse_spec(text: str) -> Spec:
    """Raises RecipeError, one line, for anything that is no encoder's name."""
    if text in WORDS:
        return Spec(text, path=str(SHIPPED) if text == "tiny" else None)
    kind, colon, rest = text.partition(":")
    if not colon or kind not in KINDS or kind in WORDS:
        raise RecipeError(f"encoder: {text!r} is not 'library:model' with a library of {', '.join(KINDS)}; {_EXAMPLE}")
    if kind == "distill":
        path, _, query = rest.partition("?")
        if not path:
            raise RecipeError(f"encoder: {text!r} names no folder; {_EXAMPLE}")
        return Spec(kind, "", _options(text, kind, query), str(Path(path).expanduser()))
    head, at, path = rest.partition("@")
    name, _, query = head.partition("?")
    if name.startswith(("/", "./", "../", "~")):
        name, path = "", f"{name}{at}{path}"
    if not path and (at or not name):
        raise RecipeError(f"encoder: {text!r} names no {'path behind @' if name else 'model'}; {_EXAMPLE}")
    return Spec(kind, name, _options(text, kind, query), str(Path(path).expanduser()) if path else None)


def _options(text: str, kind: str, query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for item in filter(None, query.split("&")):
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            raise RecipeError(f"encoder: option {item!r} of {text!r} is not 'name=value'; several are joined by &")
        if key not in _OPTIONS.get(kind, (key,)):
            raise RecipeError(f"encoder: {text!r} has no option {key!r}; {kind} takes {', '.join(_OPTIONS[kind])}")
        options[key] = _value(value)
    if not isinstance(options.get("random", 0), int) or isinstance(options.get("random"), bool):
        raise RecipeError(f"encoder: random={options['random']!r} of {text!r} is no whole number; it seeds the weights")
    return options


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
