"""What is read, in which sizes, with which texts, and how it is packed."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from curate.core.contracts import Runtime
from distill.recipe.section import Section, Width

Positive = Annotated[float, Field(gt=0, le=1e12)]


class SourceRecipe(Section):
    """One dataset of the blend."""

    dataset: Annotated[str, Runtime()]
    """A dataset folder of `curate`, or any WebDataset: a folder of tars or `tars-{000..099}.tar`; local or s3://. Its
    content enters the fingerprint, its place does not."""
    weight: Annotated[float | None, Field(gt=0, le=1e12)] = None
    """Share of the images drawn, relative to the other sources'; None: the number of its samples."""
    max_tokens: Width | dict[Width, Positive] = 256
    """Patches of a picture at most; larger pictures are scaled down, aspect kept. Several with weights
    ({256: 0.5, 1024: 0.5}) are drawn by picture and epoch."""
    texts: dict[str, Positive] = {}
    """Which text goes with a picture: members of the tar (`txt`), or fields of its JSON (`json.title`), with weights,
    drawn by picture and epoch among those that it has. Empty: none is read."""
    modality: Annotated[str, Field(pattern=r"^[\w-]+$")] = "image"
    """A step holds samples of one modality."""

    @field_validator("max_tokens")
    @classmethod
    def _some(cls, value: Any) -> Any:
        if value == {}:
            raise ValueError("no size in it; give patches, or several with weights: {256: 0.5, 1024: 0.5}")
        return value

    @field_validator("texts")
    @classmethod
    def _names(cls, value: dict[str, float]) -> dict[str, float]:
        for name in value:
            if not name or name == "json" or name.endswith(".") or name.startswith("."):
                raise ValueError(f"{name!r} names no text; name a member of the tar (txt) or a field (json.title)")
        return value

    @property
    def sizes(self) -> dict[int, float]:
        """Weights by patches."""
        return {self.max_tokens: 1.0} if isinstance(self.max_tokens, int) else dict(self.max_tokens)


class AugmentRecipe(Section):
    """Drawn by hash(seed, key, copy, epoch). Teachers see the changed picture too."""

    crop: tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(gt=0, le=1)]] = (1.0, 1.0)
    """Least and greatest share of the area that a random crop keeps."""
    aspect: Annotated[float, Field(ge=1, le=100)] = 1.0
    """A crop's aspect changes by at most this factor."""
    flip: bool = False
    colour: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Brightness, contrast and saturation change by at most this share."""

    @field_validator("crop")
    @classmethod
    def _rises(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] > value[1]:
            raise ValueError(f"{list(value)}: the least share comes first, as in [{value[1]:g}, {value[0]:g}]")
        return value


class DataRecipe(Section):
    sources: Annotated[list[SourceRecipe], Field(min_length=1)]
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of the duplicate sets that are never trained on."""
    sequence_tokens: Annotated[int, Field(ge=1, le=1 << 24)] = 2048
    """Length of a packed sequence."""
    sequence_images: Width = 16
    lookahead: Annotated[int, Field(ge=1, le=10**7)] = 512
    """Images packed together."""
    lanes: Width = 8
    window_shards: Width = 4
    """lanes x window_shards tars are shuffled into one another."""
    augment: AugmentRecipe | None = None
    max_bad_fraction: Annotated[float, Runtime(), Field(ge=0, le=1)] = 0.05
    """The run fails when more of the samples than this had to be skipped."""

    @property
    def max_tokens(self) -> int:
        """Patches of the largest picture."""
        return max(size for source in self.sources for size in source.sizes)

    @property
    def varies(self) -> bool:
        """Whether a picture may look otherwise in another epoch, so that what a teacher said of it holds no more."""
        return self.augment is not None or any(len(source.sizes) > 1 for source in self.sources)

    @model_validator(mode="after")
    def _weighted(self) -> DataRecipe:
        given = [source.weight is not None for source in self.sources]
        if any(given) and not all(given):
            raise ValueError("sources: some have a weight and some have none; give all of them one, or none")
        return self
