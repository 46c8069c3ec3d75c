"""Datasets, image sizes, texts and packing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from curate.core.contracts import Added, Runtime
from curate.core.recipe.section import Section, Width

Positive = Annotated[float, Field(gt=0, le=1e12)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Side = Annotated[int, Field(ge=1, le=1 << 20)]


class TagRecipe(Section):
    """The tag that a run found its dataset by. Runs write it into their recipe; resuming reads it, so that a run stays
    with its dataset when the tag moves."""

    url: str
    """curate://SERVER/NAME@TAG."""
    dataset: str
    """What it was then."""
    fingerprint: str
    resolved: str
    """When, in UTC."""


class SourceRecipe(Section):
    """One dataset of the mixture."""

    dataset: Annotated[str, Runtime()]
    """A dataset folder of `curate`, or any WebDataset: a folder of tars or `tars-{000..099}.tar`; local or s3://; or
    by a tag of the service, `curate://SERVER/NAME@TAG`. Its content enters the fingerprint, its path does not."""
    tag: Annotated[TagRecipe | None, Runtime()] = None
    weight: Annotated[float | None, Field(gt=0, le=1e12)] = None
    """Share of the images drawn, relative to the other sources' weights; None: its number of samples."""
    max_tokens: Width | dict[Width, Positive] = 256
    """Most patches of an image; larger images are scaled down with their aspect kept. With several
    ({256: 0.5, 1024: 0.5}), one is drawn by weight per image and epoch."""
    natural_side: Annotated[tuple[Side | None, Side | None] | None, Added()] = None
    """Train only on images whose natural size is in this range, ends included; null: no limit on that side. The size is
    that of a square of the same area in pixels, √(width x height): [256, 384] takes 256 x 256 to 384 x 384."""
    texts: dict[str, Positive] = {}
    """Texts of an image, with weights: members of the tar (`txt`), fields of its JSON (`json.title`), or kinds of
    `caption.mix` (`short`, which is `json.texts.short`). One of those that an image has is drawn per epoch. Empty: no
    text is read."""
    single_sentence: Annotated[float, Added(), Field(ge=0, le=1)] = 0.0
    """Probability that one sentence of the drawn text is used instead of all of it, if it has several."""
    text_pair: Annotated[tuple[str, str] | None, Added()] = None
    """Two of `texts`: the contrastive loss is computed for both texts of each image, and its two values count 1:1
    (Xray's siamese loss). In place of a text that an image lacks, one is drawn from `texts`."""
    modality: Annotated[str, Field(pattern=r"^[\w-]+$")] = "image"
    """Each step has samples of one modality. `image` has no clips: a source with clips is of another (`video`), or has
    `frames: 1` or `only: images`."""
    frames: Annotated[Annotated[int, Field(ge=1, le=10_000)] | None, Added()] = None
    """Frames read of each clip, spread evenly over those that it has, or all of a clip with fewer; 1: its middle frame,
    as an image. None: all."""
    only: Annotated[Literal["images", "clips"] | None, Added()] = None
    """Train only on the images of the dataset, or only on its clips."""

    @field_validator("max_tokens")
    @classmethod
    def _some(cls, value: Any) -> Any:
        if value == {}:
            raise ValueError("empty; give a number of patches, or several with weights: {256: 0.5, 1024: 0.5}")
        return value

    @field_validator("natural_side")
    @classmethod
    def _range(cls, value: tuple[int | None, int | None] | None) -> tuple[int | None, int | None] | None:
        if value is not None and None not in value and value[0] > value[1]:  # type: ignore[operator]
            raise ValueError(f"{list(value)}: expected the smaller side first, as in [{value[1]}, {value[0]}]")
        return value

    @field_validator("texts")
    @classmethod
    def _names(cls, value: dict[str, float]) -> dict[str, float]:
        for name in value:
            if not name or name == "json" or name.endswith(".") or name.startswith("."):
                raise ValueError(f"{name!r} is not a text; give a member of the tar (txt) or a field (json.title)")
        return value

    @model_validator(mode="after")
    def _known_pair(self) -> SourceRecipe:
        for name in self.text_pair or ():
            if name not in self.texts:
                known = ", ".join(self.texts) or "none"
                raise ValueError(f"text_pair: {name!r} is not one of `texts` ({known}); add it there, with a weight")
        if self.text_pair is not None and self.text_pair[0] == self.text_pair[1]:
            raise ValueError(f"text_pair: {self.text_pair[0]!r} twice; expected two different texts")
        return self

    @property
    def sizes(self) -> dict[int, float]:
        """Weights by patches."""
        return {self.max_tokens: 1.0} if isinstance(self.max_tokens, int) else dict(self.max_tokens)


class AugmentRecipe(Section):
    """Random changes, drawn by hash(seed, key, copy, epoch). Teachers see the changed image too."""

    crop: tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(gt=0, le=1)]] = (1.0, 1.0)
    """Smallest and largest share of the area that a random crop keeps."""
    aspect: Annotated[float, Field(ge=1, le=100)] = 1.0
    """A crop's aspect changes by at most this factor."""
    flip: bool = False
    colour: Fraction | tuple[Fraction, Fraction, Fraction, Annotated[float, Field(ge=0, le=0.5)]] = 0.0
    """Brightness, contrast and saturation change by at most this share; or each by its own, and the hue by the fourth
    number, a share of the circle of hues: (0.32, 0, 0.32, 0) in Perception Encoder."""
    blur: Annotated[Fraction, Added()] = 0.0
    """Probability of a Gaussian blur, of a standard deviation of 0.1 to 2 pixels at 224 x 224 pixels."""
    letterbox: Annotated[Fraction, Added()] = 0.0
    """Probability that black borders make the image, in their middle, a square (Xray, section 4.10)."""

    @field_validator("crop")
    @classmethod
    def _rises(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] > value[1]:
            raise ValueError(f"{list(value)}: expected the smaller share first, as in [{value[1]:g}, {value[0]:g}]")
        return value


class DataRecipe(Section):
    sources: Annotated[list[SourceRecipe], Field(min_length=1)]
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of the duplicate sets that are never trained on."""
    sequence_tokens: Annotated[int, Field(ge=1, le=1 << 24)] = 2048
    """Length of a packed sequence."""
    sequence_images: Width = 16
    lookahead: Annotated[int, Field(ge=1, le=10**7)] = 512
    """Images from which sequences are packed."""
    lanes: Width = 8
    window_shards: Width = 4
    """lanes x window_shards tars are shuffled together."""
    augment: AugmentRecipe | None = None
    max_bad_fraction: Annotated[float, Runtime(), Field(ge=0, le=1)] = 0.05
    """The run fails if a larger share of the samples has to be skipped."""

    @property
    def max_tokens(self) -> int:
        """Patches of the largest image."""
        return max(size for source in self.sources for size in source.sizes)

    @property
    def paired(self) -> bool:
        """Whether a step has two texts per image. For an image of a source without `text_pair` they are equal."""
        return any(source.text_pair is not None for source in self.sources)

    @model_validator(mode="after")
    def _weighted(self) -> DataRecipe:
        given = [source.weight is not None for source in self.sources]
        if any(given) and not all(given):
            raise ValueError("sources: only some have a weight; set it for all or for none")
        return self
