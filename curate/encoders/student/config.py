"""Sizes of a student. AMoE's has depth 18, width 768, 8 heads x 128, and 28 experts of hidden width 384, 6 active."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from curate.core.contracts import Added
from curate.core.recipe.section import Section, Width
from curate.encoders.student.reduction import Reduction, spread_layers


class MoeConfig(Section):
    """A mixture of SwiGLU experts in place of each block's MLP; no token is dropped."""

    experts: Annotated[int, Field(ge=2, le=1 << 16)] = 28
    active: Width = 6
    """Experts per token."""
    hidden: Annotated[int, Field(ge=8, le=1 << 20)] = 384
    """Hidden width of an expert; a multiple of 8."""
    balance_rate: Annotated[float, Field(ge=0)] = 1e-3
    """Step of the router's bias after each update (loss-free balancing); 0 disables balancing."""

    @model_validator(mode="after")
    def _possible(self) -> MoeConfig:
        if self.active > self.experts:
            raise ValueError(f"active {self.active} is more than the {self.experts} experts; lower active")
        if self.hidden % 8:
            raise ValueError(f"hidden {self.hidden} is not a multiple of 8, as grouped matrix products require")
        return self


class TextConfig(Section):
    """A text tower, for students that learn from pairs of image and text."""

    vocabulary: Annotated[int, Field(ge=300, le=1 << 24)] = 8192
    """Byte-pair tokens, learned from the training texts."""
    context: Annotated[int, Field(ge=4, le=1 << 20)] = 32
    """Maximum number of tokens of a text; longer texts are truncated."""
    width: Annotated[int, Field(ge=8, le=1 << 20)] = 192
    depth: Annotated[int, Field(ge=1, le=10_000)] = 4
    heads: Width = 3

    @model_validator(mode="after")
    def _divisible(self) -> TextConfig:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is not a multiple of 2 x heads ({self.heads}); choose one that is")
        return self


class StudentConfig(Section):
    patch: Annotated[int, Field(ge=1, le=1024)] = 16
    """Pixels."""
    width: Annotated[int, Field(ge=4, le=1 << 20)] = 192
    depth: Annotated[int, Field(ge=1, le=10_000)] = 6
    heads: Width = 3
    head_dim: Annotated[int | None, Field(ge=2)] = None
    """Width of an attention head; None: width / heads."""
    mlp_ratio: Annotated[float, Field(gt=0)] = 8 / 3
    """Hidden width of a dense block's SwiGLU, divided by `width`."""
    moe: MoeConfig | None = None
    """None: dense."""
    registers: Annotated[int, Field(ge=0, le=1 << 16)] = 4
    keep: Annotated[float, Added(), Field(gt=0, le=1)] = 1.0
    """EViT (Liang et al. 2022): share of an image's patches that stay at each of `keep_layers`, those that CLS attends
    to most; the others become one token."""
    keep_layers: Annotated[list[Width] | None, Added()] = None
    """From 1; None: three that divide the depth evenly, 4, 7 and 10 of 12."""
    merge: Annotated[int, Added(), Field(ge=0)] = 0
    """ToMe (Bolya et al. 2023): patches that each layer merges into others of their image, at most half of them."""
    tubelet: Annotated[int, Added(), Field(ge=1, le=64)] = 1
    """1: the frames of a clip are images, and its vector is the mean of theirs. More (2, for tokens of 2 x 16 x 16):
    frames in one token, with attention over the whole clip; an image is repeated (Xray, section 3.1)."""
    head_hidden: Width = 384
    """Hidden width of the heads, one per teacher."""
    text: TextConfig | None = None
    embed: Annotated[int, Field(ge=8, le=1 << 20)] = 192
    """Width of the shared space of images and texts; only with `text`."""

    @property
    def reduction(self) -> Reduction:
        """What its layers do to the number of tokens."""
        layers = spread_layers(self.depth) if self.keep_layers is None else tuple(self.keep_layers)
        return Reduction(self.keep, layers, self.merge)

    @model_validator(mode="after")
    def _has_its_layers(self) -> StudentConfig:
        if beyond := [layer for layer in self.keep_layers or () if layer > self.depth]:
            raise ValueError(f"keep_layers: {beyond[0]} is beyond the last layer, {self.depth}; name layers from 1")
        return self

    @model_validator(mode="after")
    def _divisible(self) -> StudentConfig:
        if self.head_dim is None and self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} is not a multiple of 2 x heads ({self.heads}); choose one that is, "
                f"or give head_dim"
            )
        if self.head_dim is not None and self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; choose an even one: rotary positions rotate pairs")
        if self.moe is not None and self.width % 8:
            raise ValueError(f"width {self.width} is not a multiple of 8, as grouped matrix products require")
        return self


class HeadConfig(Section):
    """Sizes of the head that predicts one teacher."""

    summary: Width
    """Width of the teacher's summary."""
    patches: Width | None
    """Width of its patch features; None if it has none."""
    hidden: Width
