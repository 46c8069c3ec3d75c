"""Sizes of a student. AMoE's has depth 18, width 768, 8 heads x 128, and 28 experts of hidden width 384, 6 active."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from curate.core.contracts import Added
from curate.core.recipe.section import Section, Share, Width
from curate.encoders.student.reduction import Reduction, spread_layers

HALF = (0.5, 0.5, 0.5)
CLIP_VOCABULARY = 49408
Mlp = Literal["swiglu", "gelu", "quick_gelu"]
Channels = tuple[float, float, float]


class MoeConfig(Section):
    """A mixture of SwiGLU experts in place of each block's MLP; no token is dropped."""

    experts: Annotated[int, Field(ge=2, le=1 << 16)] = 28
    active: Width = 6
    """Experts per token."""
    shared: Annotated[int, Added(), Field(ge=0, le=1 << 16)] = 0
    """More experts, of which each token visits `shared_active`: AMoE's grounding student shares 8 between images and
    texts, 2 of them active. They are chosen and balanced apart from the others."""
    shared_active: Annotated[int, Added(), Field(ge=0, le=1 << 16)] = 0
    hidden: Annotated[int, Field(ge=8, le=1 << 20)] = 384
    """Hidden width of an expert; a multiple of 8."""
    balance_rate: Annotated[float, Field(ge=0)] = 1e-3
    """Step of the router's bias after each update (loss-free balancing); 0 disables balancing."""

    @model_validator(mode="after")
    def _possible(self) -> MoeConfig:
        if self.active > self.experts:
            raise ValueError(f"active {self.active} is more than the {self.experts} experts; lower active")
        if self.shared_active > self.shared or bool(self.shared) != bool(self.shared_active):
            raise ValueError(
                f"shared_active {self.shared_active} of {self.shared} shared experts; set 1 to shared of them"
            )
        if self.hidden % 8:
            raise ValueError(f"hidden {self.hidden} is not a multiple of 8, as grouped matrix products require")
        return self

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """(experts, experts per token) of each group, among whose experts a token's are chosen."""
        return ((self.experts, self.active), *([(self.shared, self.shared_active)] if self.shared else []))


class TextConfig(Section):
    """A text tower, for students that learn from pairs of image and text."""

    tower: Annotated[Literal["mean", "clip", "columns"], Added()] = "mean"
    """mean: a bidirectional transformer with the mean of its tokens. clip: CLIP's causal transformer with the vector of
    its last token (Radford et al. 2021), and CLIP's own tokenizer. columns: an adapter on vectors that a column of the
    dataset has for each sample, such as those of a frozen language model (LLM2CLIP: Huang et al. 2024)."""
    vocabulary: Annotated[int, Field(ge=300, le=1 << 24)] = 8192
    """Byte-pair tokens, learned from the training texts; of `clip`: 49408. `columns` has none."""
    context: Annotated[int, Field(ge=4, le=1 << 20)] = 32
    """Maximum number of tokens of a text; longer texts are truncated."""
    width: Annotated[int, Field(ge=8, le=1 << 20)] = 192
    """Of `columns`: the length of the vectors."""
    depth: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Blocks; of `columns`: layers of the adapter, of which LLM2CLIP has 4."""
    heads: Width = 3
    mlp: Annotated[Literal["gelu", "quick_gelu"], Added()] = "gelu"
    """Of `clip`; OpenAI's own weights need quick_gelu."""
    column: Annotated[str | None, Added()] = None
    """Name of the column of `columns`: lists of numbers."""

    @property
    def tokenizes(self) -> bool:
        """Whether the tower reads texts, as opposed to vectors."""
        return self.tower != "columns"

    @model_validator(mode="after")
    def _possible(self) -> TextConfig:
        if self.tokenizes and self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is not a multiple of 2 x heads ({self.heads}); choose one that is")
        if self.tower == "clip" and self.vocabulary != CLIP_VOCABULARY:
            raise ValueError(f"vocabulary {self.vocabulary}, but CLIP's tokenizer has {CLIP_VOCABULARY}; set that")
        if (self.column is not None) != (self.tower == "columns"):
            raise ValueError("tower: columns requires `column`, the name of the vectors' column, and the reverse")
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
    """Hidden width of a dense block's MLP, divided by `width`."""
    moe: MoeConfig | None = None
    """None: dense."""
    norm: Annotated[Literal["rms", "layer"], Added()] = "rms"
    mlp: Annotated[Mlp, Added()] = "swiglu"
    """Of dense blocks; experts are SwiGLU."""
    bias: Annotated[bool, Added()] = False
    """Biases in attention and MLP."""
    qk_norm: Annotated[bool, Added()] = True
    """RMSNorm of queries and keys."""
    pre_norm: Annotated[bool, Added()] = False
    """Normalise the tokens before the first block; the patch embedding then has no bias (CLIP, PE)."""
    layer_scale: Annotated[Annotated[float, Field(gt=0)] | None, Added()] = None
    """Initial value of a learned factor of each channel of what a block adds (Touvron et al. 2021)."""
    drop_path: Annotated[Share, Added()] = 0.0
    """Probability that an image skips a branch of the last block in training; it rises linearly from 0 in the first
    block (stochastic depth: Huang et al. 2016)."""
    positions: Annotated[Literal["golden", "axial", "absolute", "absolute + axial"], Added()] = "golden"
    """golden: rotations along a direction of each head and frequency (AMoE). axial: rotations by column in one half of
    a head and by row in the other (PE). absolute: learned vectors, resized bilinearly to an image's grid."""
    position_grid: Annotated[Annotated[int, Field(ge=1, le=4096)] | None, Added()] = None
    """Rows and columns of the learned vectors of `absolute`: side / patch of the square image they are made for."""
    class_token: Annotated[bool, Added()] = True
    pool: Annotated[Literal["cls", "mean", "attention"], Added()] = "cls"
    """The summary: the class token, the mean of the patches, or attention of a learned query to all tokens, with an MLP
    (PE)."""
    pool_heads: Annotated[Width, Added()] = 8
    pixel_mean: Annotated[Channels, Added()] = HALF
    pixel_std: Annotated[Channels, Added()] = HALF
    """A pixel of 0 to 1 is entered as (pixel - mean) / std, by channel."""
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
    embedded: Annotated[Literal["summary", "summary + patches"], Added()] = "summary"
    """What is projected into that space: the summary, or the summary joined with the mean of the patches, as for
    dino.txt (Jose et al. 2025)."""

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
        if self.pool == "attention" and self.width % self.pool_heads:
            raise ValueError(
                f"width {self.width} is not a multiple of pool_heads ({self.pool_heads}); choose one that is"
            )
        return self

    @model_validator(mode="after")
    def _agrees(self) -> StudentConfig:
        if self.axial and self.attention_dim % 4:
            raise ValueError(
                f"positions: {self.positions!r} rotates pairs by row and by column, but a head's width "
                f"{self.attention_dim} is not a multiple of 4; choose another head_dim"
            )
        if self.absolute != (self.position_grid is not None):
            raise ValueError("positions: absolute requires position_grid, the side of its grid, and the reverse")
        if self.pool == "cls" and not self.class_token:
            raise ValueError("pool: 'cls' requires class_token: true; choose pool: attention or mean")
        if self.keep < 1 and not self.class_token:
            raise ValueError(f"keep: {self.keep:g} keeps what the class token attends to; set class_token: true")
        if self.embeds_patches and (self.reduction or self.tubelet > 1):
            raise ValueError("embedded: the output of each patch is needed; remove keep, merge and tubelet")
        if self.moe is not None and self.mlp != "swiglu":
            raise ValueError(f"mlp: {self.mlp!r}, but the experts of moe are SwiGLU; remove one of them")
        if min(self.pixel_std) <= 0:
            raise ValueError(f"pixel_std: {list(self.pixel_std)}: expected values above 0")
        return self

    @property
    def prefix(self) -> int:
        """Tokens before the patches of an image: the class token and the registers."""
        return int(self.class_token) + self.registers

    @property
    def attention_dim(self) -> int:
        """Width of an attention head."""
        return self.head_dim or self.width // self.heads

    @property
    def embeds_patches(self) -> bool:
        return "patches" in self.embedded

    @property
    def axial(self) -> bool:
        return "axial" in self.positions

    @property
    def absolute(self) -> bool:
        return "absolute" in self.positions


class HeadConfig(Section):
    """Sizes of the head that predicts one teacher."""

    summary: Width
    """Width of the teacher's summary."""
    patches: Width | None
    """Width of its patch features; None if it has none."""
    hidden: Width
