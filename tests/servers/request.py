"""A chat request as a test server reads it."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

IMAGE_TOKENS = 85
"""Tokens of an image, and one more for each KB."""


@dataclass
class Asked:
    """One request. Images are taken out of the body before it is parsed, which costs most of the time otherwise."""

    body: dict[str, Any]
    images: list[str]
    """Their digests."""
    image_bytes: list[int]
    size: int

    @classmethod
    def of(cls, raw: bytes) -> Asked:
        parts, images, sizes, done = [], [], [], 0
        while (start := raw.find(b";base64,", done) + 8) > 8:
            end = raw.index(b'"', start)
            image = base64.b64decode(raw[start:end])
            images.append(image_digest(image))
            sizes.append(len(image))
            parts.append(raw[done:start])
            done = end
        return cls(json.loads(b"".join([*parts, raw[done:]])), images, sizes, len(raw))

    @property
    def text(self) -> str:
        """Text of the last message."""
        return _text(self.body["messages"][-1]["content"])

    @property
    def all_text(self) -> str:
        return "\n".join(_text(message["content"]) for message in self.body["messages"])

    @property
    def limit(self) -> float:
        """The most tokens it may be answered with."""
        return float(self.body.get("max_completion_tokens") or self.body.get("max_tokens") or math.inf)

    @property
    def tokens(self) -> int:
        return len(self.all_text.split()) + sum(IMAGE_TOKENS + size // 1000 for size in self.image_bytes)

    @property
    def seed(self) -> tuple[object, ...]:
        """What the answer depends on."""
        return (self.all_text, *self.images, self.body.get("seed"), self.body.get("model"))


def image_digest(image: bytes) -> str:
    return blake2b(image, digest_size=8).hexdigest()


def _text(content: Any) -> str:
    """Text of a message, given as a string or as parts next to images."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")
